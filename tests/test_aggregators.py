import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from vse_demo.layers import RowNorm
from vse_demo.pooling import DSRN, GCN, GPO, LIP, POOLINGS, AdaPool, Seq2Seq, SoftPool, build_pooling

DIM = 8
few_examples = settings(max_examples=20)
every_pooling = pytest.mark.parametrize("name", POOLINGS)
# Eighths are exact in binary, and a small range makes ties and zeros likely.
ITEM = st.integers(1, 5).flatmap(lambda n: arrays(np.int8, (n, DIM), elements=st.integers(-16, 16)))
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled kernels, plain PyTorch
ITEMS = st.lists(ITEM.map(lambda item: torch.tensor(item / 8)), min_size=1, max_size=3)


def seeded(make, *arguments, **options):
    """A module in double and eval mode; biases, scales and statistics are away from their neutral start."""
    torch.manual_seed(0)
    module = make(*arguments, **options).double().eval()
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point() and tensor.dim() < 2:
                tensor += 0.2 * torch.rand_like(tensor)
    return module


def batch_of(items, places, width, garbage=math.nan):
    """Put each item's rows at its places among `width` rows of garbage: features and mask."""
    features = torch.full((len(items), width, DIM), garbage, dtype=torch.float64)
    mask = torch.zeros(len(items), width, dtype=torch.bool)
    for row, (item, place) in enumerate(zip(items, places, strict=True)):
        features[row, place], mask[row, place] = item, True
    return features, mask


def example():
    """Three random items of 4, 1 and 2 rows, and the same as a batch of five rows with gaps."""
    items = list(torch.randn(7, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).split([4, 1, 2]))
    return items, *batch_of(items, [[0, 2, 3, 4], [1], [2, 4]], width=5)


def assert_pools_like(module, reference):
    items, features, mask = example()
    expected = torch.tensor(np.array([reference(module, item.numpy()) for item in items]))
    torch.testing.assert_close(module(features, mask).detach(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(module.float()(features.float(), mask).detach(), expected.float(), atol=1e-4, rtol=1e-4)


def weighted(scores, values):
    """Σ e^score · value / Σ e^score, one term at a time."""
    total = sum(math.exp(score) for score in scores)
    return sum(math.exp(score) / total * value for score, value in zip(scores, values, strict=True))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def parameters(module):
    return {name: value.numpy() for name, value in module.state_dict().items()}


@every_precision
@every_pooling
@given(items=ITEMS, extra=st.integers(0, 3), garbage=st.sampled_from([math.nan, 1e30]), data=st.data())
@few_examples
def test_padding_never_changes_the_result(name, dtype, items, extra, garbage, data):
    pool, precision = seeded(build_pooling, name, DIM).to(dtype), 1e-6 if dtype == torch.float64 else 1e-5
    width = max(map(len, items)) + extra
    places = [sorted(data.draw(st.permutations(range(width)))[: len(item)]) for item in items]
    with torch.set_grad_enabled(data.draw(st.booleans())):  # attention has a fast path without gradients
        features, mask = batch_of(items, places, width, garbage)
        for item, pooled in zip(items, pool(features.to(dtype), mask), strict=True):
            torch.testing.assert_close(pooled, pool(item[None].to(dtype))[0], atol=precision, rtol=precision)


@pytest.mark.parametrize("name", [name for name in POOLINGS if name != "seq2seq"])
@given(item=ITEM, data=st.data())
@few_examples
def test_the_order_of_rows_does_not_matter(name, item, data):
    pool, rows = seeded(build_pooling, name, DIM), torch.tensor(item / 8)
    shuffled = rows[data.draw(st.permutations(range(len(rows))))]
    torch.testing.assert_close(pool(shuffled[None]), pool(rows[None]), atol=1e-6, rtol=1e-6)


def test_seq2seq_reads_the_rows_in_order():
    pool, (items, _, _) = seeded(Seq2Seq, DIM), example()
    assert not torch.allclose(pool(items[0][None]), pool(items[0].flip(0)[None]), atol=1e-3)


@every_precision
@every_pooling
@pytest.mark.parametrize("garbage", [math.nan, 1e30])
def test_gradients_are_finite_and_reach_real_rows_only(name, garbage, dtype):
    pool, (_, features, mask) = seeded(build_pooling, name, DIM).to(dtype).train(), example()
    features = features.masked_fill(~mask.unsqueeze(-1), garbage).to(dtype).requires_grad_()
    pool(features, mask).square().sum().backward()  # squared: the sum of a layer norm's output is constant
    assert features.grad.isfinite().all()
    assert (features.grad[~mask] == 0).all()
    assert features.grad.abs().sum((1, 2)).gt(0).all()
    for parameter in pool.parameters():
        assert parameter.grad.isfinite().all()


@every_pooling
@pytest.mark.parametrize("dim", [8, 72])  # the kernels work on 64 columns at a time
def test_single_precision_gives_the_values_and_gradients_of_double(name, dim):
    generator, results = torch.Generator().manual_seed(2), []
    features = torch.randn(3, 9, dim, dtype=torch.float64, generator=generator)
    mask = torch.rand(3, 9, generator=generator) < 0.7
    for dtype in (torch.float32, torch.float64):
        pool, inputs = seeded(build_pooling, name, dim).to(dtype), features.to(dtype).requires_grad_()
        pooled = pool(inputs, mask)
        gradients = torch.autograd.grad(pooled.tanh().sum(), [inputs, *pool.parameters()])
        results.append([tensor.double() for tensor in (pooled, *gradients)])
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-3)


@every_pooling
def test_training_works_on_a_single_row(name):
    pool = seeded(build_pooling, name, DIM).train()
    pooled = pool(torch.randn(1, 1, DIM, dtype=torch.float64))
    assert pooled.shape == (1, DIM)
    assert pooled.isfinite().all()


@every_pooling
@pytest.mark.parametrize(
    ("shape", "mask", "error", "message"),
    [
        ((2, DIM), None, ValueError, r"features are \(2, 8\), pooling needs three axes \(B, N, D\)"),
        ((2, 0, DIM), None, ValueError, "no rows to pool: N is 0"),
        ((2, 3, DIM), torch.ones(2, 4).bool(), ValueError, r"mask is \(2, 4\), features need \(2, 3\)"),
        ((2, 3, DIM), torch.ones(2, 3), TypeError, "mask is torch.float32, it must be torch.bool"),
        ((2, 3, DIM), torch.tensor([[True] * 3, [False] * 3]), ValueError, "no real row in batch item 1"),
    ],
    ids=["two axes", "no rows", "mask shape", "mask type", "only padding"],
)
def test_bad_input_is_refused_by_every_pooling(name, shape, mask, error, message):
    with pytest.raises(error, match=message):
        build_pooling(name, DIM)(torch.ones(shape), mask)


def test_unknown_names_list_the_choices():
    with pytest.raises(ValueError, match=f"unknown pooling 'median'; choose one of {', '.join(POOLINGS)}"):
        build_pooling("median", DIM)
    with pytest.raises(ValueError, match="unknown modality 'sound'; choose one of image, text"):
        build_pooling("manual", DIM, modality="sound")


def test_manual_is_five_max_for_images_and_the_mean_for_text():
    rows = torch.arange(7.0).reshape(1, 7, 1)
    assert build_pooling("manual", 1, "image")(rows).item() == pytest.approx((2 + 3 + 4 + 5 + 6) / 5)
    assert build_pooling("manual", 1, "text")(rows).item() == pytest.approx(3)


def test_options_reach_the_pooling():
    assert build_pooling("kmax", 1, k=2)(torch.tensor([[[1.0], [5.0], [3.0]]])).item() == 4
    assert build_pooling("adpool", DIM, variant="official").variant == "official"


def test_softpool_is_its_equation():
    assert_pools_like(SoftPool(), lambda _, rows: [weighted(column, column) for column in rows.T])


@pytest.mark.parametrize("mixing", [0.25, 3.0])  # a weight past 1 counts as 1
def test_adapool_is_its_equation(mixing):
    def by_loops(_, rows):
        pooled = []
        for column in rows.T:
            mean = sum(column) / len(column)
            dice = [2 * abs(value * mean) / (value**2 + mean**2) for value in column]
            pooled.append(min(mixing, 1) * weighted(dice, column) + (1 - min(mixing, 1)) * weighted(column, column))
        return pooled

    pool = AdaPool().double()
    pool.mix.data.fill_(mixing)
    assert_pools_like(pool, by_loops)


def test_lip_is_its_equation():
    def by_loops(pool, rows):
        learned, pooled = parameters(pool), []
        for d, column in enumerate(rows.T):
            scores = np.array([learned["score.weight"][d] @ row for row in rows])
            normed = (scores - scores.mean()) / np.sqrt(scores.var() + 1e-5)
            importance = 12 * sigmoid(normed * learned["scale"][d] + learned["shift"][d])
            pooled.append(weighted(importance, column))
        return pooled

    assert_pools_like(seeded(LIP, DIM), by_loops)


def test_gcn_is_its_equation():
    def by_loops(pool, rows):
        learned, out = parameters(pool), np.zeros_like(rows)

        def linear(name, row):
            return learned[f"layers.0.{name}.weight"] @ row + learned[f"layers.0.{name}.bias"]

        norm = [learned[f"layers.0.norm.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        for i, row in enumerate(rows):
            sent = sum(linear("query", row) @ linear("key", other) * linear("value", other) for other in rows)
            update = linear("out", sent / len(rows))
            out[i] = row + (update - norm[0]) / np.sqrt(norm[1] + 1e-5) * norm[2] + norm[3]
        return out.mean(0)

    assert_pools_like(seeded(GCN, DIM, layers=1), by_loops)


def gru_states(learned, inputs, suffix):
    """Cho et al.'s gated recurrent unit, a step at a time, from a state of zeros."""
    (w_in, w_state), (b_in, b_state) = ([learned[f"gru.{p}_{s}h_l0{suffix}"] for s in "ih"] for p in ("weight", "bias"))
    state, states = np.zeros(w_state.shape[1]), []
    for step in inputs:
        reset_in, update_in, new_in = np.split(w_in @ step + b_in, 3)
        reset_state, update_state, new_state = np.split(w_state @ state + b_state, 3)
        update = sigmoid(update_in + update_state)
        state = (1 - update) * np.tanh(new_in + sigmoid(reset_in + reset_state) * new_state) + update * state
        states.append(state)
    return np.array(states)


def test_seq2seq_averages_the_last_states_of_both_directions():
    def by_loops(pool, rows):
        learned = parameters(pool)
        return (gru_states(learned, rows, "")[-1] + gru_states(learned, rows[::-1], "_reverse")[-1]) / 2

    assert_pools_like(seeded(Seq2Seq, DIM), by_loops)


def test_gpo_is_its_equation():
    def by_loops(pool, rows):
        learned, encodings = parameters(pool), np.zeros((len(rows), 32))
        for rank in range(len(rows)):
            for pair in range(16):
                angle = rank / 10000 ** (2 * pair / 32)
                encodings[rank, 2 * pair : 2 * pair + 2] = math.sin(angle), math.cos(angle)
        backward = gru_states(learned, encodings[::-1], "_reverse")[::-1]
        scores = (gru_states(learned, encodings, "") + backward) / 2 @ learned["score.weight"][0] / 0.1
        return [weighted(scores, sorted(column, reverse=True)) for column in rows.T]

    assert_pools_like(seeded(GPO), by_loops)


@pytest.mark.parametrize("training", [True, False])
def test_row_norm_is_batch_norm_of_the_real_rows(training):
    items, features, mask = example()
    norm, plain = seeded(RowNorm, DIM).train(training), seeded(nn.BatchNorm1d, DIM).train(training)
    for _ in range(2):
        out = norm(features, mask)
        torch.testing.assert_close(out[mask], plain(torch.cat(items)))
        assert (out[~mask] == 0).all()
    torch.testing.assert_close(norm.state_dict(), plain.state_dict())


def test_row_norm_of_a_single_row_uses_the_running_statistics():
    norm, row = seeded(RowNorm, DIM), torch.randn(1, 1, DIM, dtype=torch.float64)
    mask = torch.ones(1, 1, dtype=torch.bool)
    expected = norm(row, mask)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    torch.testing.assert_close(norm.train()(row, mask), expected)
    torch.testing.assert_close(dict(norm.state_dict()), before)


@pytest.mark.parametrize("heads", [1, 2])
def test_dsrn_is_two_graphs_in_loops(heads: int) -> None:
    torch.manual_seed(0)
    pooling, features = DSRN(4, heads).double().eval(), torch.randn(1, 3, 4, dtype=torch.float64)
    nodes = list(features[0].numpy())
    for number, graph in enumerate(pooling.graphs):
        if number == 1:
            nodes = [sum(nodes) / len(nodes), *nodes]
        weights, biases = (part.detach().numpy() for part in (graph.in_proj_weight, graph.in_proj_bias))
        query, key, value = (
            [weights[4 * i : 4 * i + 4] @ n + biases[4 * i : 4 * i + 4] for n in nodes] for i in range(3)
        )
        related, size = [], 4 // heads
        for asked in query:
            parts = []
            for head in range(heads):
                own = slice(head * size, (head + 1) * size)
                scores = np.exp([asked[own] @ offered[own] / size**0.5 for offered in key])
                parts.append(sum(s / scores.sum() * each[own] for s, each in zip(scores, value, strict=True)))
            joined = np.concatenate(parts)
            related.append(graph.out_proj.weight.detach().numpy() @ joined + graph.out_proj.bias.detach().numpy())
        nodes = [node + new for node, new in zip(nodes, related, strict=True)]
    np.testing.assert_allclose(pooling(features)[0].detach().numpy(), sum(nodes) / len(nodes), atol=1e-9)
    plain = DSRN(4, relations=False)(features)
    torch.testing.assert_close(plain, features.mean(1))
