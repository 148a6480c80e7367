import pytest
import torch
import torch._dynamo.config
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vse_demo.encoders import BiGRU
from vse_demo.layers import bidirectional_states
from vse_demo.ops import plain


def make(sizes: tuple[int, int] = (5, 4), seed: int = 0) -> nn.GRU:
    torch.manual_seed(seed)
    return nn.GRU(*sizes, batch_first=True, bidirectional=True).double()


def by_torch(gru: nn.GRU, features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    packed = pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=features.shape[1])
    return states.unflatten(-1, (2, -1))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), spare=st.integers(0, 3), seed=st.integers(0, 99))
def test_states_and_gradients_are_those_of_torch(lengths, spare, seed):
    gru = make(seed=seed)
    lengths = torch.tensor(lengths)
    features = torch.randn(len(lengths), int(lengths.max()) + spare, 5, dtype=torch.float64, requires_grad=True)
    ours, theirs = bidirectional_states(gru, features, lengths), by_torch(gru, features, lengths)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    inputs = [features, *gru.parameters()]
    for mine, other in zip(
        *(torch.autograd.grad((states * weights).sum(), inputs) for states in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_large_batches_in_single_precision_agree_too():
    gru = make((24, 16)).float()
    lengths = torch.randint(1, 9, (50,))
    features = torch.randn(50, 8, 24, requires_grad=True)
    ours, theirs = bidirectional_states(gru, features, lengths), by_torch(gru, features, lengths)
    torch.testing.assert_close(ours, theirs)
    inputs = [features, *gru.parameters()]
    for mine, other in zip(*(torch.autograd.grad(each.square().sum(), inputs) for each in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spare", [0, 2])
def test_a_single_query_gets_the_states_of_a_batch(spare):
    gru, lengths = make().float(), torch.tensor([4, 4])
    features = torch.randn(2, 4 + spare, 5)
    with torch.no_grad():
        alone = bidirectional_states(gru, features[:1], lengths[:1])
    torch.testing.assert_close(alone, bidirectional_states(gru, features, lengths)[:1])


def test_gradients_are_those_of_small_steps():
    gru, lengths = make((3, 2)), torch.tensor([2, 4, 1])
    features = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: bidirectional_states(gru, given, lengths), features)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
def test_what_lies_after_the_end_does_not_matter(garbage):
    gru, lengths = make(), torch.tensor([2, 4])
    features = torch.randn(2, 4, 5, dtype=torch.float64)
    dirty = features.clone()
    dirty[0, 2:] = garbage
    clean, again = (bidirectional_states(gru, each.requires_grad_(), lengths) for each in (features, dirty))
    assert torch.equal(clean, again)
    assert (again[0, 2:] == 0).all()
    again.sum().backward()
    assert dirty.grad.isfinite().all()


def test_half_the_states_have_read_what_comes_before_and_half_what_comes_after():
    gru, lengths = make(), torch.tensor([4])
    features = torch.randn(1, 4, 5, dtype=torch.float64)
    changed = features.clone()
    changed[0, 2] += 1
    moved = (bidirectional_states(gru, features, lengths) != bidirectional_states(gru, changed, lengths)).any(-1)[0]
    assert moved.tolist() == [[False, True], [False, True], [True, True], [True, False]]


def sentences():
    """A small encoder, token numbers (3, 7) and their mask."""
    torch.manual_seed(0)
    mask = torch.arange(7) < torch.tensor([[3], [7], [1]])
    return BiGRU(9, 8, 6), torch.randint(1, 9, (3, 7)) * mask, mask


def test_autocast_trains_an_encoder():
    encoder, tokens, mask = sentences()
    gradients = []
    for enabled in (False, True):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            states = encoder(tokens, mask)
        states.float().square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in encoder.parameters()])
    for full, half in zip(*gradients, strict=True):
        assert (full - half).abs().max() < 0.05 * full.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_encoder_in_half_precision_gives_about_the_same(dtype):
    encoder, tokens, mask = sentences()
    expected = encoder(tokens, mask)
    states = encoder.to(dtype)(tokens, mask)
    assert states.dtype == dtype
    assert (states.float() - expected).abs().max() < 0.02


def test_torch_func_sees_through_an_encoder():
    encoder, tokens, mask = sentences()
    parameters = dict(encoder.named_parameters())
    found = torch.func.grad(lambda given: torch.func.functional_call(encoder, given, (tokens, mask)).square().sum())(
        parameters
    )
    encoder(tokens, mask).square().sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name], parameter.grad)
    each = torch.func.vmap(lambda one, real: encoder(one[None], real[None])[0])(tokens, mask)
    torch.testing.assert_close(each, encoder(tokens, mask))


def test_second_derivatives_are_those_of_torch():
    gru, lengths = make((3, 2)), torch.tensor([2, 4, 1])
    features = torch.randn(3, 4, 3, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.functional.hessian(
            lambda given, function=function: function(gru, given, lengths).square().sum(), features
        )
        for function in (bidirectional_states, by_torch)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_an_encoder_compiles_as_a_whole_and_exports():
    encoder, tokens, mask = sentences()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
        states = compiled(tokens, mask)
        found = torch.autograd.grad(states.square().sum(), list(encoder.parameters()))
    torch._dynamo.reset()
    expected = torch.autograd.grad(encoder(tokens, mask).square().sum(), list(encoder.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    sizes = {0: torch.export.Dim("items", min=1, max=64), 1: torch.export.Dim("tokens", min=1, max=99)}
    program = torch.export.export(encoder, (tokens, mask), dynamic_shapes=(sizes, sizes))
    short = tokens[:2, :3], mask[:2, :3]
    torch.testing.assert_close(program.module()(*short), encoder(*short))


def test_an_encoder_moves_to_the_meta_device():
    encoder, tokens, mask = sentences()
    assert encoder.to("meta")(tokens.to("meta"), mask.to("meta")).shape == (3, 7, 8)


def test_the_plain_version_is_that_of_torch():
    gru, lengths = make(), torch.tensor([2, 4, 1])
    features = torch.randn(3, 4, 5, dtype=torch.float64)
    weights = [weight for way in gru.all_weights for weight in way]
    torch.testing.assert_close(
        plain.bidirectional_gru(features, lengths, *weights).movedim(0, 2), by_torch(gru, features, lengths)
    )
