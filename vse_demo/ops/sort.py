"""Sort each dimension of a set on its own, largest first."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vse_demo.ops import plain
from vse_demo.ops.blocks import (
    LANES,
    fetch_item,
    load_block,
    networks_of,
    put_block,
    sort_block,
    sort_with_origin,
    whole_blocks,
    write_item,
)
from vse_demo.ops.dispatch import usable
from vse_demo.ops.kernels import compiled, over_batch
from vse_demo.ops.library import gradients_by_plain, register, register_gradient


def sort_rows(features: Tensor, mask: Tensor) -> Tensor:
    """Sort each dimension on its own, largest first; padded rows come last and hold 0.

    Args:
        features: (B, N, D).
        mask: (B, N) bool, True where a row is real; at least one in each item.

    Returns:
        The sorted values, (B, N, D).

    >>> sort_rows(torch.tensor([[[1., 6.], [3., 4.]]]), torch.tensor([[True, True]]))
    tensor([[[3., 6.],
             [1., 4.]]])
    """
    if usable(features):
        return _sort_rows(features.contiguous(), mask.contiguous())
    return plain.sort_with_order(features, mask)[0]


def _run(features: Tensor, mask: Tensor) -> Tensor:
    features, mask = features.contiguous(), mask.contiguous()
    values = torch.empty_like(features)
    over_batch(_sort, features, mask, *networks_of(mask), values)
    return values


def _run_backward(gradient: Tensor, features: Tensor, mask: Tensor) -> Tensor:
    gradient, features, mask = gradient.contiguous(), features.contiguous(), mask.contiguous()
    to_features = torch.empty_like(features)
    over_batch(_sort_backward, features, mask, *networks_of(mask), gradient, to_features)
    return to_features


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
    features, mask = ctx.saved_tensors
    if torch.is_grad_enabled():
        return gradients_by_plain(lambda x: plain.sort_with_order(x, mask)[0], [features], [gradient])[0], None
    return _sort_rows_backward(gradient, features, mask), None


_sort_rows = register(
    "sort_rows(Tensor features, Tensor mask) -> Tensor", _run, lambda features, mask: torch.empty_like(features)
)
_sort_rows_backward = register(
    "sort_rows_backward(Tensor gradient, Tensor features, Tensor mask) -> Tensor",
    _run_backward,
    lambda gradient, features, mask: torch.empty_like(features),
)
register_gradient("sort_rows", _setup, _backward)


@compiled
def _sort(start, stop, features, mask, networks, bounds, values):  # type: ignore[no-untyped-def]
    rows, columns = features.shape[1], features.shape[2]
    block, ranked = np.empty((rows, LANES), np.float32), np.empty((rows, whole_blocks(columns)), np.float32)
    for item in range(start, stop):
        values[item, 0, 0] = fetch_item(features, item)  # overwritten below
        for column in range(0, columns, LANES):
            n = load_block(features, mask, item, column, block)
            sort_block(block, networks, bounds[n, 0], bounds[n, 1])
            block[n:] = 0
            put_block(block, ranked, column)
        write_item(ranked, values, item)


@compiled
def _sort_backward(start, stop, features, mask, networks, bounds, gradient, to_features):  # type: ignore[no-untyped-def]
    """Give the gradient of each sorted value to the row that it came from; padded rows get 0."""
    rows, columns = features.shape[1], features.shape[2]
    block, origin = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.int32)
    keys, back = np.empty((rows, LANES), np.int64), np.empty((rows, LANES), np.float32)
    whole = np.empty((rows, whole_blocks(columns)), np.float32)
    for item in range(start, stop):
        to_features[item, 0, 0] = fetch_item(features, item) + fetch_item(gradient, item)  # overwritten below
        back[:] = 0
        for column in range(0, columns, LANES):
            n = sort_with_origin(features, mask, item, column, networks, bounds, block, origin, keys)
            for row in range(n):
                for j in range(min(LANES, columns - column)):
                    back[origin[row, j], j] = gradient[item, row, column + j]
            put_block(back, whole, column)
        write_item(whole, to_features, item)
