"""What poolings are made of: masks, sorts, softmaxes and weighted sums over N."""

import torch
from torch import Tensor

from vse_demo import ops


def real_rows(features: Tensor, mask: Tensor | None) -> Tensor:
    """The mask of `features`, checked: all True when none was given."""
    if features.dim() != 3:
        raise ValueError(f"features are {tuple(features.shape)}, pooling needs three axes (B, N, D)")
    if features.shape[1] == 0:
        raise ValueError("features have no rows to pool: N is 0")
    if mask is None:
        return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    if mask.shape != features.shape[:2]:
        raise ValueError(f"mask is {tuple(mask.shape)}, features need {tuple(features.shape[:2])}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask is {mask.dtype}, it must be torch.bool: True where a row is real")
    empty = (~mask.any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"nothing to pool: no real row in batch item {', '.join(map(str, empty[:5]))}")
    return mask


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax along N of (B, N) or (B, N, D) scores; padded rows get weight 0."""
    if scores.dim() == 3:
        mask = mask.unsqueeze(-1)
    return scores.masked_fill(~mask, -torch.inf).softmax(1)


def sort_rows(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each dimension on its own, largest first; padded rows come last and hold 0.

    Returns the sorted values (B, N, D), and which ranks are real (B, N).

    >>> values, ranks = sort_rows(torch.tensor([[[1., 6.], [3., 4.]]]), torch.tensor([[True, True]]))
    >>> values
    tensor([[[3., 6.],
             [1., 4.]]])
    """
    if ops.usable(features):
        return ops.sort_rows(features, mask), real_ranks(mask)
    return sort_with_order(features, mask)[0], real_ranks(mask)


def sort_with_order(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The sorted values, and the row that each came from; of equal values the first row comes first."""
    order = features.masked_fill(~mask.unsqueeze(-1), -torch.inf).argsort(dim=1, descending=True, stable=True)
    values = features.gather(1, order)
    return values.masked_fill(~real_ranks(mask).unsqueeze(-1), 0), order


def real_ranks(mask: Tensor) -> Tensor:
    """Which ranks (B, N) are real once padding has come last."""
    return torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)


def softmax_sum(scores: Tensor, values: Tensor, mask: Tensor, relu: bool = False) -> Tensor:
    """Sum values (B, N, D) over N, each weighted by the softmax of the scores (B, N, D) along N, or of their ReLU."""
    if ops.usable(scores, values):
        return ops.softmax_sum(scores, values, mask, relu)
    scores = scores.relu() if relu else scores
    return weighted_sum(masked_softmax(scores, mask), values.masked_fill(~mask.unsqueeze(-1), 0))


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Sum (B, N, D) values over N with weights per row (B, N) or per value (B, N, D)."""
    if weights.dim() == 2:
        return torch.einsum("bn,bnd->bd", weights, values)
    return (weights * values).sum(1)


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    """Average the real rows: (B, N, D) and (B, N) -> (B, D)."""
    keep = mask.unsqueeze(-1)
    return features.masked_fill(~keep, 0).sum(1) / keep.sum(1)
