"""The compiled kernels give what plain PyTorch gives: values and gradients, whatever comes in."""

import contextlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import torch._dynamo.config
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vse_demo import AdPool, ops
from vse_demo.ops.dispatch import MAX_ROWS
from vse_demo.pooling import POOLINGS, build_pooling, softmax_sum, sort_rows
from vse_demo.retrieval.exact import top_k

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
def test_sorting_is_exact_and_gradients_reach_the_rows_they_belong_to(
    shape: tuple[int, int, int], seed: int, levels: int
) -> None:
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


@pytest.mark.slow
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


@pytest.mark.parametrize("relu", [False, True])
def test_scores_and_values_may_be_one_tensor(relu: bool) -> None:
    features, mask = random_batch((3, 9, 66), 5)
    assert_same_as_plain(lambda x: softmax_sum(x, x, mask, relu), features)
    assert_same_as_plain(lambda x: softmax_sum(x, x.detach(), mask, relu), features)
    assert_same_as_plain(lambda x: softmax_sum(x.detach(), x, mask, relu), features)


def test_blocks_without_kernels_may_overlap_in_two_threads() -> None:
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()
    features, seen = torch.zeros(1, 2, 3), {}

    def first() -> None:
        with ops.disable_kernels():
            first_is_in.set()
            second_is_in.wait(60)
        seen["first, after"] = ops.usable(features)
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(60)
        with ops.disable_kernels():
            second_is_in.set()
            first_is_out.wait(60)
            seen["second, inside"] = ops.usable(features)
        seen["second, after"] = ops.usable(features)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"first, after": True, "second, inside": False, "second, after": True}
    assert ops.usable(features)


def test_blocks_without_kernels_may_be_nested() -> None:
    with ops.disable_kernels():
        with ops.disable_kernels():
            assert ops.kernels_disabled()
        assert ops.kernels_disabled()
    assert not ops.kernels_disabled()


def registered() -> dict[str, tuple]:
    """Arguments for each operation that PyTorch knows and that has no other in front of it."""
    features, mask = random_batch((3, 7, 66), 5)
    x, y = features.requires_grad_(), (features.detach() + 1).requires_grad_()
    gru = torch.nn.GRU(66, 5, bidirectional=True)
    weights = [weight.detach().requires_grad_() for way in gru.all_weights for weight in way]
    return {
        "sort_rows": (x, mask),
        "softmax_sum": (x, y, mask, True),
        "soft_maximum": (x, mask),
        "adpool_levels": (x, mask, y[0, 0].detach().requires_grad_()),
        "products": (x[0].detach().requires_grad_(), y[1].detach().requires_grad_()),
        "count_at_least": (features[0].detach(), torch.zeros(7), torch.zeros(66)),
        "bidirectional_gru": (x, torch.full((3,), 7), *weights, True),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the check itself asks for it
@pytest.mark.parametrize("name", registered())
def test_pytorch_finds_nothing_wrong_with_how_an_operation_is_registered(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.vse_demo, name).default, registered()[name])


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_gives_adpool_the_precision_it_needs(variant: str, dtype: torch.dtype) -> None:
    features, mask = random_batch((3, 9, 66), 5)
    torch.manual_seed(0)
    pool = AdPool(66, variant)
    expected = value_and_gradients(lambda x: pool(x, mask), features)

    def in_half(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return pool(x.to(dtype), mask).float()

    for ours, theirs in zip(value_and_gradients(in_half, features), expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).abs().mean() < 0.02 * theirs.abs().max()


TRANSFORMS = {
    "grad": lambda f, x, m: torch.func.grad(lambda y: f(y, m).square().sum())(x),
    "jvp": lambda f, x, m: torch.func.jvp(lambda y: f(y, m), (x,), (x.cos(),))[1],
    "vmap": lambda f, x, m: torch.func.vmap(lambda y, n: f(y[None], n[None]))(x, m),
    "gradients of each item": lambda f, x, m: torch.func.vmap(torch.func.grad(lambda y, n: f(y[None], n[None]).sum()))(
        x, m
    ),
    "hessian": lambda f, x, m: torch.func.hessian(lambda y: f(y, m).square().sum())(x),
    "double backward": lambda f, x, m: torch.autograd.functional.hessian(lambda y: f(y, m).square().sum(), x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_derivatives_of_all_kinds_are_those_of_plain_pytorch(variant: str, name: str) -> None:
    features, mask = random_batch((2, 4, 3), 5)
    torch.manual_seed(0)
    pool = AdPool(3, variant)
    ours = TRANSFORMS[name](pool, features, mask)
    with ops.disable_kernels():
        expected = TRANSFORMS[name](pool, features, mask)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_a_search_with_few_queries_has_gradients() -> None:
    one, other = torch.randn(2, 5), torch.randn(9, 5)
    assert_same_as_plain(ops.products, one, other)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", POOLINGS)
def test_every_aggregator_compiles_as_a_whole(name: str, backend: str) -> None:
    features, mask = random_batch((4, 12, 32), 3)
    torch.manual_seed(0)
    pool = build_pooling(name, 32).eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(pool, backend=backend, fullgraph=True)
        ours = value_and_gradients(lambda x: compiled(x, mask), features)
    torch._dynamo.reset()
    for mine, expected in zip(ours, value_and_gradients(lambda x: pool(x, mask), features), strict=True):
        torch.testing.assert_close(mine, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_an_exported_adpool_takes_sets_of_any_size(variant: str) -> None:
    pool = AdPool(8, variant).eval()
    sizes = {0: torch.export.Dim("items", min=1, max=64), 1: torch.export.Dim("rows", min=1, max=5000)}
    for context, ours in ((contextlib.nullcontext, True), (ops.disable_kernels, False)):
        with context():
            program = torch.export.export(pool, random_batch((3, 7, 8), 0), dynamic_shapes=(sizes, sizes))
        assert any("vse_demo" in str(node.target) for node in program.graph.nodes) is ours
        for shape in ((1, 40, 8), (5, 3, 8)):
            batch = random_batch(shape, 1)
            torch.testing.assert_close(program.module()(*batch), pool(*batch))


DEVICES = ["meta", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", POOLINGS)
def test_every_aggregator_moves_to_other_devices(name: str, device: str) -> None:
    features, mask = random_batch((4, 12, 32), 3)
    result = build_pooling(name, 32).to(device)(features.to(device), mask.to(device))
    assert (result.device.type, result.shape) == (device, (4, 32))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("queries", [1, 9])
def test_a_search_runs_where_the_vectors_are(queries: int, device: str) -> None:
    scores, numbers = top_k(torch.randn(queries, 5, device=device), torch.randn(20, 5, device=device), 3, chunk=8)
    assert scores.device.type == numbers.device.type == device
    assert scores.shape == numbers.shape == (queries, 3)


@pytest.mark.parametrize("queries", [0, 1, 3, 4, 5, 40])
@pytest.mark.parametrize("kernels", [True, False])
def test_products_with_halves_are_those_of_their_values(queries: int, kernels: bool) -> None:
    random = np.random.default_rng(0)
    vectors = (random.normal(size=(300, 37)) * 10.0 ** random.integers(-8, 2, (300, 37))).astype(np.float16)
    vectors.flags.writeable = False  # as a mapped file
    few = random.normal(size=(queries, 37)).astype(np.float32)
    with contextlib.nullcontext() if kernels else ops.disable_kernels():
        found = ops.half_products(torch.from_numpy(few), vectors)
    assert np.allclose(found.numpy(), few.astype(float) @ vectors.astype(float).T, rtol=1e-4, atol=1e-3)
    assert (np.abs(vectors) < 6e-5).any()  # also numbers that float16 holds with fewer digits
