"""The compiled kernels give what plain PyTorch gives: values and gradients, whatever comes in."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vse_demo import AdPool, ops
from vse_demo.ops.dispatch import MAX_ROWS
from vse_demo.pooling import POOLINGS, build_pooling, softmax_sum, sort_rows

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 40), st.sampled_from([1, 7, 63, 64, 65, 130]))


def random_batch(shape: tuple[int, int, int], seed: int, levels: int = 0) -> tuple[Tensor, Tensor]:
    """Features and a mask with at least one real row an item; few `levels` make many ties."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(shape, generator=generator) * 3
    if levels:
        features = (features * levels / 6).round() * 6 / levels
    mask = torch.rand(shape[:2], generator=generator) < 0.7
    mask[torch.arange(shape[0]), torch.randint(shape[1], (shape[0],), generator=generator)] = True
    return features, mask


def value_and_gradients(function, *inputs: Tensor) -> list[Tensor]:  # type: ignore[no-untyped-def]
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    result = function(*leaves)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)]


def assert_same_as_plain(function, *inputs: Tensor) -> None:  # type: ignore[no-untyped-def]
    fast = value_and_gradients(function, *inputs)
    with ops.disable_kernels():
        expected = value_and_gradients(function, *inputs)
    for ours, theirs in zip(fast, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 14, 31, 36, 81, 100])
def test_a_network_sorts_every_column(n: int) -> None:
    rows = np.random.default_rng(n).integers(0, 9, (n, 500))
    expected = -np.sort(-rows, axis=0)
    for i, k in ops.sorting_network(n):
        assert i < k
        rows[i], rows[k] = np.maximum(rows[i], rows[k]), np.minimum(rows[i], rows[k])
    assert np.array_equal(rows, expected)


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 999), st.sampled_from([0, 3]))
def test_sorting_is_exact_and_its_gradient_goes_home(shape: tuple[int, int, int], seed: int, levels: int) -> None:
    features, mask = random_batch(shape, seed, levels)
    assert_same_as_plain(lambda x: sort_rows(x, mask)[0], features)
    with ops.disable_kernels():
        expected = sort_rows(features, mask)[0]
    assert torch.equal(sort_rows(features, mask)[0], expected)


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 999), st.booleans())
def test_softmax_sums_are_the_same(shape: tuple[int, int, int], seed: int, relu: bool) -> None:
    (scores, mask), (values, _) = random_batch(shape, seed), random_batch(shape, seed + 1)
    assert_same_as_plain(lambda s, v: softmax_sum(s, v, mask, relu), scores, values)


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 999), st.sampled_from([0, 3]), st.sampled_from(["paper", "official"]))
def test_adpool_is_the_same(shape: tuple[int, int, int], seed: int, levels: int, variant: str) -> None:
    features, mask = random_batch(shape, seed, levels)
    torch.manual_seed(seed)
    pool = AdPool(shape[2], variant)
    assert_same_as_plain(lambda x: pool(x, mask), features)
    with torch.no_grad():
        inference = pool(features, mask)
    torch.testing.assert_close(inference, pool(features, mask).detach(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_parameters_of_adpool_get_the_same_gradients(variant: str) -> None:
    features, mask = random_batch((6, 20, 70), 0)
    torch.manual_seed(0)
    pool = AdPool(70, variant)
    gradients = []
    for context in (ops.disable_kernels, torch.enable_grad):
        pool.zero_grad()
        with context():
            pool(features, mask).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in pool.parameters() if parameter.grad is not None])
    for plain, fast in zip(*gradients, strict=True):
        assert (fast - plain).abs().max() < 1e-5 * plain.abs().max()


@pytest.mark.parametrize("name", POOLINGS)
def test_every_aggregator_is_the_same(name: str) -> None:
    features, mask = random_batch((4, 12, 32), 3)
    torch.manual_seed(0)
    pool = build_pooling(name, 32).eval()
    assert_same_as_plain(lambda x: pool(x, mask), features)


@pytest.mark.parametrize("shape", [(1, 40, 7), (3, 33, 20), (2, 5, 8), (1, 1, 3)])
def test_a_linear_layer_is_the_same(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    rows, weight, bias = torch.randn(shape), torch.randn(11, shape[2]), torch.randn(11)
    assert_same_as_plain(ops.linear, rows, weight, bias)
    assert_same_as_plain(ops.linear, rows, weight)
    strided = rows.transpose(0, 1).contiguous().transpose(0, 1)
    result = ops.linear(strided, weight.T.contiguous().T, bias)
    torch.testing.assert_close(result, torch.nn.functional.linear(rows, weight, bias))
    assert result.is_contiguous()


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 300), st.integers(1, 70))
def test_products_are_the_same(queries: int, vectors: int, dim: int) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(queries, dim), torch.randn(vectors, dim)
    torch.testing.assert_close(ops.products(one, other), one @ other.T)


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 70), st.integers(0, 999))
def test_counts_are_exact(texts: int, images: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    similarities = torch.randint(-3, 4, (texts, images), generator=generator).float()
    similarities[0, 0] = torch.inf
    of_rows, of_columns = similarities[:, 0].clone(), similarities[-1].clone()
    in_rows, in_columns = ops.count_at_least(similarities, of_rows, of_columns)
    assert torch.equal(in_rows, (similarities >= of_rows.unsqueeze(1)).sum(1))
    assert torch.equal(in_columns, (similarities >= of_columns).sum(0))
    similarities[-1, -1] = torch.nan
    broken = ops.count_at_least(similarities, of_rows, of_columns)[0] < 0
    assert broken.nonzero().flatten().tolist() == [texts - 1]


def test_garbage_in_padding_and_non_contiguous_input_change_nothing() -> None:
    features, mask = random_batch((3, 9, 66), 5)
    pool = AdPool(66)
    expected = pool(features, mask)
    dirty = features.masked_fill(~mask.unsqueeze(-1), torch.nan)
    strided = dirty.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    assert torch.equal(pool(strided, mask.T.contiguous().T), expected)
    gradient = value_and_gradients(lambda x: pool(x, mask), dirty)[1]
    assert gradient.isfinite().all()
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_not_finite_where_plain_torch_has_it(value: float, variant: str) -> None:
    features, mask = random_batch((3, 9, 66), 5)
    mask[1] = True
    features[1, 4, 10] = value
    pool = AdPool(66, variant)
    with ops.disable_kernels():
        expected = pool(features, mask)
    assert torch.equal(pool(features, mask).isfinite(), expected.isfinite())
    assert pool(features, mask)[[0, 2]].isfinite().all()


def test_large_and_tiny_values_do_not_overflow() -> None:
    features = torch.tensor([[[1e30, -1e30, 80.0], [-1e30, 1e-30, -80.0], [0.0, 0.0, 0.0]]])
    assert_same_as_plain(lambda x: softmax_sum(x, x, torch.ones(1, 3, dtype=torch.bool)), features)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_take_the_plain_path(dtype: torch.dtype) -> None:
    features, mask = random_batch((3, 9, 16), 5)
    assert not ops.usable(features.to(dtype))
    pool = AdPool(16)
    expected = pool(features, mask)
    assert torch.allclose(pool.to(dtype)(features.to(dtype), mask).float(), expected.float(), atol=0.05)


def test_too_many_rows_and_other_devices_take_the_plain_path() -> None:
    assert not ops.usable(torch.empty(1, MAX_ROWS + 1, 4))
    assert not ops.usable(torch.empty(1, 3, 4, device="meta"))
    assert ops.usable(torch.empty(1, 3, 4))


@pytest.mark.parametrize(
    ("before", "usable"),
    [
        ("import sys; sys.modules['numba'] = None", False),
        ("from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []", True),
    ],
    ids=["no numba", "nowhere to keep what is compiled"],
)
def test_everything_works_in_poor_conditions(before: str, usable: bool) -> None:
    program = (
        f"{before}\n"
        "import torch; from vse_demo import AdPool, ops\n"
        f"assert ops.usable(torch.zeros(1, 2, 3)) is {usable}\n"
        "print(AdPool(3)(torch.ones(2, 4, 3)).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert np.allclose(eval(run.stdout), 1)


def test_many_threads_at_once_get_their_own_results() -> None:
    pool, results = AdPool(64), {}
    batches = [random_batch((7, 11, 64), seed) for seed in range(8)]
    expected = [pool(*batch).detach() for batch in batches]

    def work(number: int) -> None:
        results[number] = all(torch.equal(pool(*batches[number]).detach(), expected[number]) for _ in range(20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(8), True)
