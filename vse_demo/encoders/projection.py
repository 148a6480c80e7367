"""From the width of an encoder to the joint dimension."""

from torch import Tensor, nn

from vse_demo.layers import RowLinear, RowNorm, all_real
from vse_demo.utils.checks import check_choice


class Projection(nn.Module):
    """Features of an encoder -> the joint dimension, row by row: (B, N, in_dim) -> (B, N, dim).

    `linear` is the paper's equation; `mlp` adds a two-layer perceptron beside it, which is what the
    paper's appendix and VSE∞ use for regions, grids and BERT.
    """

    KINDS = ("linear", "mlp")

    def __init__(self, in_dim: int, dim: int, kind: str = "mlp"):
        super().__init__()
        check_choice(kind, self.KINDS, "projection")
        self.linear = RowLinear(in_dim, dim)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.hidden = self.norm = self.out = None
        if kind == "mlp":
            self.hidden = RowLinear(in_dim, dim // 2)
            self.norm = RowNorm(dim // 2)
            self.out = RowLinear(dim // 2, dim)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        if not all_real(mask):  # what padding holds must not reach a gradient: 0 × NaN is NaN
            features = features.masked_fill(~mask.unsqueeze(-1), 0)
        projected = self.linear(features)
        if self.hidden is not None and self.norm is not None and self.out is not None:
            projected = projected + self.out(self.norm(self.hidden(features), mask).relu())
        return projected
