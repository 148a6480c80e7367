import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.autograd import gradcheck
from torch.func import functional_call

from vse_demo.pooling import AdPool, RankPool
from vse_demo.utils.checks import VARIANTS

DIM = 4
LEVELS = [{}, {"balance": (0.3, 0.7)}, {"token": False}, {"embedding": False}]
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 6), st.just(DIM))
SETS = arrays(np.float32, SHAPES, elements=st.floats(-50, 50, width=32))
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled kernels, plain PyTorch


def ragged(lengths=(3, 1, 5), width=6, garbage=math.nan):
    """Features (B, width, DIM) in double with the real rows at random places among garbage, and the mask."""
    rng = np.random.default_rng(0)
    features = np.full((len(lengths), width, DIM), garbage)
    mask = np.zeros((len(lengths), width), dtype=bool)
    for item, length in enumerate(lengths):
        mask[item, rng.choice(width, length, replace=False)] = True
        features[item, mask[item]] = rng.normal(size=(length, DIM))
    return torch.tensor(features), torch.tensor(mask)


def adpool(variant="paper", **options):
    torch.manual_seed(0)
    return AdPool(DIM, variant, **options).double()


def softmax(scores):
    exps = [math.exp(score) for score in scores]
    return [e / sum(exps) for e in exps]


def mix(weights, values):
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def rank_by_loops(rows, weights):
    """Sort each dimension, largest first; average with the weights of as many ranks as there are rows."""
    weights = [weights[rank] if rank < len(weights) else 0.0 for rank in range(len(rows))]
    return [mix(weights, sorted(column, reverse=True)) / sum(weights) for column in rows.T]


def adpool_by_loops(pool, rows):
    """The equations of the paper's section 3.2 for the rows (n, D) of one item, a value at a time."""
    learned = {name: value.numpy() for name, value in pool.state_dict().items()}
    columns = range(rows.shape[1])
    ranked = np.stack([sorted(rows[:, d], reverse=True) for d in columns], axis=1)
    embedding = np.array([mix(softmax(rows[:, d]), rows[:, d]) for d in columns])
    if not pool.token:
        return embedding
    matrix, bias = learned["token_score.weight"], learned.get("token_score.bias")
    if pool.variant == "paper":
        token = mix(softmax([matrix[0] @ row for row in ranked]), ranked)
    else:
        scores = [[max(0.0, matrix[d] @ row + bias[d]) for row in ranked] for d in columns]
        token = np.array([mix(softmax(scores[d]), ranked[:, d]) for d in columns])
    if not pool.embedding:
        return token
    balance = pool.fixed_balance or softmax(
        [learned["balance_score.weight"][0] @ level for level in (token, embedding)]
    )
    return mix(balance, [token, embedding])


@every_precision
@pytest.mark.parametrize("levels", LEVELS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_adpool_is_its_equations(variant, levels, dtype):
    pool = adpool(variant, **levels)
    features, mask = ragged()
    expected = [adpool_by_loops(pool, item[keep].numpy()) for item, keep in zip(features, mask, strict=True)]
    pooled = pool.to(dtype)(features.to(dtype), mask)
    torch.testing.assert_close(pooled, torch.tensor(np.stack(expected), dtype=dtype))


@pytest.mark.parametrize("levels", LEVELS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_adpool_gradients_are_those_of_its_output(variant, levels):
    pool = adpool(variant, **levels)
    features, mask = ragged()
    names = [name for name, _ in pool.named_parameters()]

    def pooled(features, *learned):
        return functional_call(pool, dict(zip(names, learned, strict=True)), (features, mask))

    assert gradcheck(pooled, (features.requires_grad_(), *pool.parameters()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_adpool_can_start_as_the_mean_and_learn_from_there(variant):
    features, mask = ragged(garbage=1e3)
    means = torch.stack([item[keep].mean(0) for item, keep in zip(features, mask, strict=True)])
    pool = AdPool(DIM, variant, embedding=False, init="mean").double()
    torch.testing.assert_close(pool(features, mask), means)
    pool(features, mask).square().sum().backward()
    assert pool.token_score.weight.grad.abs().sum() > 0  # a ReLU at 0 would pass nothing
    both = AdPool(DIM, variant, init="mean").double()
    torch.testing.assert_close(both.levels(features, mask)[0], means)


def test_only_a_token_level_can_start_at_the_mean():
    with pytest.raises(ValueError, match="token level is what can start at the mean, and it is off"):
        AdPool(DIM, token=False, init="mean")
    with pytest.raises(ValueError, match="unknown AdPool init 'zero'; choose one of random, mean"):
        AdPool(DIM, init="zero")


@every_precision
@pytest.mark.parametrize("levels", LEVELS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_trace_explains_the_output_exactly(variant, levels, dtype):
    pool, (features, mask) = adpool(variant, **levels).to(dtype), ragged(garbage=1e3)
    features = features.to(dtype)
    pooled, trace = pool(features, mask, return_trace=True)
    weights = trace.input_weights()
    torch.testing.assert_close((weights * features).sum(1), pooled)
    torch.testing.assert_close(pool(features, mask), pooled)
    torch.testing.assert_close(weights.sum(1), torch.ones(3, DIM, dtype=dtype))
    assert (weights[mask] > 0).all()
    assert (weights[~mask] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_trace_holds_sorted_values_and_where_they_came_from(variant):
    features, mask = ragged()
    _, trace = adpool(variant)(features, mask, return_trace=True)
    for item, length in enumerate(mask.sum(1)):
        real = trace.sorted_values[item, :length]
        assert (real[:-1] >= real[1:]).all()
        assert torch.equal(real, features[item].gather(0, trace.order[item, :length]))
        assert (trace.sorted_values[item, length:] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_of_each_level_sum_to_one_and_are_zero_on_padding(variant):
    features, mask = ragged()
    _, trace = adpool(variant)(features, mask, return_trace=True)
    assert trace.token_weights.shape == {"paper": (3, 6), "official": (3, 6, DIM)}[variant]
    for weights in (trace.token_weights, trace.embedding_weights, trace.balance):
        torch.testing.assert_close(weights.sum(1), torch.ones_like(weights[:, 0]))
    padded_ranks = torch.arange(6) >= mask.sum(1, keepdim=True)
    assert (trace.token_weights[padded_ranks] == 0).all()
    assert (trace.embedding_weights[~mask] == 0).all()


def test_a_level_switched_off_leaves_no_weights_and_no_parameters():
    features, mask = ragged()
    for off, balance in (("token", [0, 1]), ("embedding", [1, 0])):
        pool = adpool(**{off: False})
        _, trace = pool(features, mask, return_trace=True)
        assert getattr(trace, f"{off}_weights") is None
        assert trace.balance.tolist() == [balance] * 3
        assert len(list(pool.parameters())) == (0 if off == "token" else 1)


@every_precision
@pytest.mark.parametrize("variant", VARIANTS)
@given(SETS)
@settings(max_examples=30)
def test_each_pooled_value_lies_between_the_least_and_the_greatest(variant, dtype, features):
    pooled = adpool(variant).to(dtype)(torch.tensor(features).to(dtype)).detach().numpy()
    assert (pooled >= features.min(1) - 1e-5).all()
    assert (pooled <= features.max(1) + 1e-5).all()


@pytest.mark.parametrize("pool", [*map(adpool, VARIANTS), RankPool(), RankPool([3, 1])])
def test_one_row_pools_to_itself_and_a_batch_of_one_keeps_its_axis(pool):
    features = torch.randn(1, 1, DIM, dtype=torch.float64)
    torch.testing.assert_close(pool(features).detach(), features[0])


def test_pooling_leaves_its_arguments_alone():
    features, mask = ragged()
    before = features.clone(), mask.clone()
    for pool in (adpool(), RankPool([1])):
        pool(features, mask)
        torch.testing.assert_close((features, mask), before, equal_nan=True)


@every_precision
@pytest.mark.parametrize("weights", [None, [1], [1, 1, 1], [1] * 50, [0.5, 0, 2.5, 1]], ids=str)
def test_rank_pool_is_a_weighted_mean_of_sorted_values(weights, dtype):
    features, mask = ragged()
    expected = [
        rank_by_loops(item[keep].numpy(), weights or [1] * 6) for item, keep in zip(features, mask, strict=True)
    ]
    torch.testing.assert_close(RankPool(weights)(features.to(dtype), mask), torch.tensor(expected, dtype=dtype))


@every_precision
@given(SETS, st.integers(1, 8))
@settings(max_examples=30)
def test_mean_max_and_kmax_are_rank_pools(dtype, features, k):
    def pooled(weights):
        return RankPool(weights)(torch.tensor(features).to(dtype)).numpy()

    np.testing.assert_allclose(pooled(None), features.mean(1), atol=1e-4)
    np.testing.assert_array_equal(pooled([1]), features.max(1))
    np.testing.assert_allclose(pooled([1] * k), np.sort(features, axis=1)[:, -k:].mean(1), atol=1e-4)


@pytest.mark.parametrize("weights", [[], [0, 1], [-1], [1, -0.5], [float("inf")], [1e-40, 1e40]], ids=str)
def test_bad_rank_weights_are_refused(weights):
    with pytest.raises(ValueError, match="at least 0, the first above 0 and none infinite; got"):
        RankPool(weights)


def test_bad_adpool_options_are_refused():
    with pytest.raises(ValueError, match="needs its token level, its embedding level, or both"):
        AdPool(DIM, token=False, embedding=False)
    with pytest.raises(ValueError, match="unknown AdPool variant 'mine'; choose one of paper, official"):
        AdPool(DIM, variant="mine")
    with pytest.raises(ValueError, match=f"features have 7 dimensions, this AdPool has {DIM}"):
        adpool()(torch.ones(1, 2, 7))
