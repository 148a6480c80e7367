"""Small parts that encoders and pooling share. All know about masks: padding never leaks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vse_demo import kernels


def check_choice(value: str, choices: Sequence[str], what: str) -> str:
    """Return `value`, or say which choices there are."""
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}; choose one of {', '.join(choices)}")
    return value


def add_tensors(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    """Let the names and contents of tensors take part in a fingerprint, a `hashlib` object."""
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


class RowLinear(nn.Linear):
    """A linear layer over rows (B, N, in) -> (B, N, out), by the fastest product that a CPU has."""

    def forward(self, rows: Tensor) -> Tensor:
        return kernels.linear(rows, self.weight, self.bias)


class RowNorm(nn.BatchNorm1d):
    """Batch norm of (B, N, D) over the real rows only; padded rows come out as 0.

    While training, a batch with a single real row has no variance: it is normalised by the running
    statistics instead.
    """

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        everywhere = bool(mask.all())
        rows = features.flatten(0, 1) if everywhere else features[mask]
        if self.training and len(rows) == 1:
            rows = nn.functional.batch_norm(
                rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        else:
            rows = super().forward(rows)
        if everywhere:
            return rows.view_as(features)
        return rows.new_zeros(features.shape).masked_scatter(mask.unsqueeze(-1), rows)


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
        if not mask.all():  # what padding holds must not reach a gradient: 0 × NaN is NaN
            features = features.masked_fill(~mask.unsqueeze(-1), 0)
        projected = self.linear(features)
        if self.hidden is not None and self.norm is not None and self.out is not None:
            projected = projected + self.out(self.norm(self.hidden(features), mask).relu())
        return projected


@torch.no_grad()
def round_to_half(module: nn.Module) -> None:
    """Round the matrices of a frozen module to what fp16 can hold, the precision they are stored in.

    Features cached in training are then exactly those that the saved model computes. Vectors (biases,
    norms and their running statistics) are few and stay fp32.
    """
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            parameter.copy_(parameter.half().float())
