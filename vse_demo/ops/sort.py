"""Sort each dimension of a set on its own, largest first."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
from vse_demo.ops.dispatch import compiled, over_batch


def sort_rows(features: Tensor, mask: Tensor) -> Tensor:
    """Sort each dimension, largest first; padded rows come last and hold 0."""
    return _SortRows.apply(features.contiguous(), mask.contiguous())


class _SortRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, mask: Tensor) -> Tensor:
        values = torch.empty_like(features)
        over_batch(_sort, features, mask, *networks_of(mask), values)
        ctx.save_for_backward(features, mask)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features, mask = ctx.saved_tensors
        to_features = torch.empty_like(features)
        over_batch(_sort_backward, features, mask, *networks_of(mask), gradients[0].contiguous(), to_features)
        return to_features, None


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
    """Send the gradient of each sorted value home; padded rows get 0."""
    rows, columns = features.shape[1], features.shape[2]
    block, home = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.int32)
    keys, back = np.empty((rows, LANES), np.int64), np.empty((rows, LANES), np.float32)
    whole = np.empty((rows, whole_blocks(columns)), np.float32)
    for item in range(start, stop):
        to_features[item, 0, 0] = fetch_item(features, item) + fetch_item(gradient, item)  # overwritten below
        back[:] = 0
        for column in range(0, columns, LANES):
            n = sort_with_origin(features, mask, item, column, networks, bounds, block, home, keys)
            for row in range(n):
                for j in range(min(LANES, columns - column)):
                    back[home[row, j], j] = gradient[item, row, column + j]
            put_block(back, whole, column)
        write_item(whole, to_features, item)
