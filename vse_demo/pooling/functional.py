"""What poolings are made of: masks, sorts, softmaxes and weighted sums over N."""

import torch
from torch import Tensor

from vse_demo import ops
from vse_demo.ops.plain import masked_softmax, real_ranks, sort_with_order, weighted_sum
from vse_demo.ops.softmax import soft_maximum, softmax_sum

__all__ = [
    "masked_mean",
    "masked_softmax",
    "real_ranks",
    "real_rows",
    "soft_maximum",
    "softmax_sum",
    "sort_rows",
    "sort_with_order",
    "weighted_sum",
]


def real_rows(features: Tensor, mask: Tensor | None) -> Tensor:
    """Check the arguments of a pooling, and make its mask where none was given.

    Args:
        features: (B, N, D).
        mask: (B, N) bool, True where a row is real; all of them if None.

    Returns:
        The mask.

    Raises:
        ValueError: If features have other axes than (B, N, D) or no rows, if the mask has another shape, or if an
            item has no real row. The last is not noticed where values cannot be seen: while compiling, on the `meta`
            device, and inside `torch.vmap`.
        TypeError: If the mask is not bool.
    """
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
    empty = _items_without_rows(mask)
    if empty:
        raise ValueError(f"nothing to pool: no real row in batch item {', '.join(map(str, empty[:5]))}")
    return mask


def _items_without_rows(mask: Tensor) -> list[int]:
    """Their numbers, where values can be seen."""
    if torch.compiler.is_compiling():
        return []
    try:
        return (~mask.any(1)).nonzero().flatten().tolist()
    except RuntimeError:
        return []


def sort_rows(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each dimension on its own, largest first; padded rows come last and hold 0.

    Args:
        features: (B, N, D).
        mask: (B, N) bool, True where a row is real.

    Returns:
        The sorted values (B, N, D), and which ranks are real (B, N).

    >>> values, ranks = sort_rows(torch.tensor([[[1., 6.], [3., 4.]]]), torch.tensor([[True, True]]))
    >>> values
    tensor([[[3., 6.],
             [1., 4.]]])
    """
    return ops.sort_rows(features, mask), real_ranks(mask)


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    """Average the real rows.

    Args:
        features: (B, N, D).
        mask: (B, N) bool, True where a row is real.

    Returns:
        (B, D).
    """
    keep = mask.unsqueeze(-1)
    return features.masked_fill(~keep, 0).sum(1) / keep.sum(1)
