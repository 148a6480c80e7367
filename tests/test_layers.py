"""The parts that encoders and pooling share."""

import pytest
import torch

from vse_demo.encoders import Projection
from vse_demo.layers import RowLinear, RowNorm, all_real
from vse_demo.utils.tensors import round_to_half


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_projection_works_row_by_row(kind: str) -> None:
    torch.manual_seed(0)
    layer, features = Projection(5, 8, kind).eval(), torch.randn(3, 4, 5)
    mask = torch.tensor([[True] * 4, [True, False, False, False], [False, True, True, False]])
    together = layer(features, mask)
    for item, row in mask.nonzero().tolist():
        alone = layer(features[item : item + 1, row : row + 1], torch.ones(1, 1, dtype=torch.bool))
        assert torch.allclose(together[item, row], alone[0, 0], atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_what_padding_holds_reaches_no_gradient(kind: str) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    gradients = []
    for garbage in (0.0, torch.nan):
        layer = Projection(5, 8, kind)
        layer.load_state_dict({name: torch.full_like(value, 0.1) for name, value in layer.state_dict().items()})
        features = torch.arange(30.0).view(2, 3, 5).masked_fill(~mask.unsqueeze(-1), garbage)
        layer(features, mask)[mask].sum().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    for clean, dirty in zip(*gradients, strict=True):
        assert torch.equal(clean, dirty)


def test_a_linear_projection_is_the_equation_of_the_paper() -> None:
    layer, features = Projection(5, 8, "linear"), torch.randn(2, 3, 5)
    expected = features @ layer.linear.weight.T + layer.linear.bias
    assert torch.allclose(layer(features, torch.ones(2, 3, dtype=torch.bool)), expected, atol=1e-6)


def test_rounding_to_half_leaves_vectors_alone() -> None:
    layer = torch.nn.Linear(7, 7)
    bias, weight = layer.bias.clone(), layer.weight.clone()
    round_to_half(layer)
    assert torch.equal(layer.bias, bias)
    assert torch.equal(layer.weight, weight.half().float())
    assert not torch.equal(layer.weight, weight)


@pytest.mark.parametrize("shape", [(40,), (3, 40), (2, 50, 40), (2, 33, 4, 40)])
def test_a_linear_layer_takes_rows_of_any_shape(shape: tuple[int, ...]) -> None:
    layer, rows = RowLinear(40, 7), torch.randn(shape)
    torch.testing.assert_close(layer(rows), rows @ layer.weight.T + layer.bias, atol=1e-5, rtol=1e-5)


def test_a_mask_that_cannot_be_seen_may_have_padding() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert all_real(mask)
    assert not all_real(mask.to("meta"))
    assert torch.func.vmap(lambda one: torch.tensor(all_real(one)).expand(1))(mask).tolist() == [[False], [False]]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[0, 1, 4, 5], [0, 1, 2, 3, 4, 5], [3]], ids=["some", "all", "one"])
def test_a_compiled_norm_learns_the_same_statistics(rows: list[int]) -> None:
    mask = torch.zeros(6, dtype=torch.bool).index_fill_(0, torch.tensor(rows), True).view(2, 3)
    features = torch.randn(2, 3, 4).masked_fill(~mask.unsqueeze(-1), torch.nan)
    norm, other = RowNorm(4), RowNorm(4)
    expected = norm(features, mask)
    torch.testing.assert_close(torch.compile(other, backend="eager", fullgraph=True)(features, mask), expected)
    torch._dynamo.reset()
    for ours, theirs in zip(other.buffers(), norm.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
