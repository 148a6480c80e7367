"""Both levels of AdPool in one pass: (B, N, D) -> two (B, D)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vse_demo.ops import plain
from vse_demo.ops.blocks import (
    LANES,
    exponentials,
    fetch_item,
    load_block,
    networks_of,
    put_block,
    softmax_in_place,
    sort_block,
    sort_with_origin,
    whole_blocks,
    write_item,
)
from vse_demo.ops.dispatch import usable
from vse_demo.ops.kernels import compiled, over_batch
from vse_demo.ops.library import gradients_by_plain, register, register_gradient


def adpool_levels(features: Tensor, mask: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Both levels of AdPool in the paper's variant.

    Args:
        features: (B, N, D).
        mask: (B, N) bool, True where a row is real; at least one in each item.
        score: (D,), which gives each sorted row its score at the token level.

    Returns:
        The token level and the embedding level, (B, D) each.
    """
    if usable(features, score):
        token, soft, _, _ = _adpool_levels(features.contiguous(), mask.contiguous(), score.contiguous())
        return token, soft
    return plain.adpool_levels(features, mask, score)


def _run(features: Tensor, mask: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both levels, and for the backward pass the token weights (B, N) and the soft maxima's denominators (B, D)."""
    features, mask, score = features.contiguous(), mask.contiguous(), score.contiguous()
    token, soft, total = (features.new_empty(len(features), features.shape[2]) for _ in range(3))
    weights = features.new_zeros(features.shape[:2])
    over_batch(_levels, features, mask, score, *networks_of(mask), weights, token, soft, total)
    return token, soft, weights, total


def _run_backward(
    to_token: Tensor, to_soft: Tensor, features: Tensor, mask: Tensor, score: Tensor, soft: Tensor, weights: Tensor,
    total: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    to_token, to_soft, features, mask, score = (
        tensor.contiguous() for tensor in (to_token, to_soft, features, mask, score)
    )
    to_features, to_score = torch.empty_like(features), torch.empty_like(soft)
    over_batch(
        _levels_backward, features, mask, score, *networks_of(mask), weights, soft, total, to_token, to_soft,
        to_features, to_score,
    )  # fmt: skip
    return to_features, to_score.sum(0)


def _fake(features: Tensor, mask: Tensor, score: Tensor) -> tuple[Tensor, ...]:
    batch, rows, columns = features.shape
    return tuple(features.new_empty(batch, width) for width in (columns, columns, rows, columns))


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output[1:])


def _backward(ctx: Any, to_token: Tensor | None, to_soft: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    features, mask, score, soft, weights, total = ctx.saved_tensors
    if torch.is_grad_enabled():
        to_features, to_score = gradients_by_plain(
            lambda x, w: plain.adpool_levels(x, mask, w), [features, score], [to_token, to_soft]
        )
        return to_features, None, to_score
    to_token, to_soft = (torch.zeros_like(soft) if part is None else part for part in (to_token, to_soft))
    to_features, to_score = _adpool_levels_backward(to_token, to_soft, features, mask, score, soft, weights, total)
    return to_features, None, to_score


_adpool_levels = register(
    "adpool_levels(Tensor features, Tensor mask, Tensor score) -> (Tensor, Tensor, Tensor, Tensor)", _run, _fake
)
_adpool_levels_backward = register(
    "adpool_levels_backward(Tensor to_token, Tensor to_soft, Tensor features, Tensor mask, Tensor score, Tensor soft, "
    "Tensor weights, Tensor total) -> (Tensor, Tensor)",
    _run_backward,
    lambda to_token, to_soft, features, mask, score, *_: (torch.empty_like(features), torch.empty_like(score)),
)
register_gradient("adpool_levels", _setup, _backward)


@compiled
def _levels(  # type: ignore[no-untyped-def]
    start, stop, features, mask, score, networks, bounds, weights, token, soft, total
):
    """Both levels of AdPool. Only one item's sorted values exist at a time."""
    rows, columns = features.shape[1], features.shape[2]
    padded = whole_blocks(columns)
    block = np.empty((rows, LANES), np.float32)
    power, scale, top = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    sums, summed = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    ranked, mixed = np.empty((rows, padded), np.float32), np.empty(padded, np.float32)
    scores, weight = np.empty((rows, LANES), np.float32), np.empty(rows, np.float32)
    line = np.zeros(padded, np.float32)
    line[:columns] = score
    for item in range(start, stop):
        n = 0
        token[item, 0] = fetch_item(features, item)  # overwritten below; unused, the compiler would drop it
        scores[:] = 0
        for column in range(0, columns, LANES):
            n = load_block(features, mask, item, column, block)
            sort_block(block, networks, bounds[n, 0], bounds[n, 1])
            for j in range(LANES):
                top[j] = block[0, j]
                sums[j] = 0
                summed[j] = 0
            for row in range(n):
                exponentials(block, row, 0, top, power, scale, scale_bits)
                for j in range(LANES):
                    sums[j] += power[j]
                    summed[j] += power[j] * block[row, j]
                for j in range(LANES):
                    scores[row, j] += block[row, j] * line[column + j]
                    ranked[row, column + j] = block[row, j]
            for j in range(min(LANES, columns - column)):
                total[item, column + j] = sums[j]
                soft[item, column + j] = summed[j] / sums[j]
        for row in range(n):
            weight[row] = scores[row].sum()
        softmax_in_place(weight, n)
        mixed[:] = 0
        for row in range(n):
            weights[item, row] = weight[row]
            for column in range(padded):
                mixed[column] += weight[row] * ranked[row, column]
        for column in range(columns):
            token[item, column] = mixed[column]


@compiled
def _levels_backward(  # type: ignore[no-untyped-def]
    start, stop, features, mask, score, networks, bounds, weights, soft, total, to_token, to_soft, to_features, to_score
):
    """Gradient of both levels, put back to the rows that the values came from.

    Token level: with g = to_token and s = θ ⊙ (g·u − Σ θ g·u), du = θ g + s w and dw = Σ s u.
    Embedding level: du = δ (1 + u − soft) to_soft, with δ = e^(u − top) / total.
    """
    rows, columns = features.shape[1], features.shape[2]
    blocks = (columns + LANES - 1) // LANES
    ranked, origin = np.empty((blocks, rows, LANES), np.float32), np.empty((blocks, rows, LANES), np.int32)
    keys, back = np.empty((rows, LANES), np.int64), np.empty((rows, LANES), np.float32)
    power, scale, top = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    line, outer = np.zeros(blocks * LANES, np.float32), np.zeros(blocks * LANES, np.float32)
    inner, centre, pull = np.zeros(LANES, np.float32), np.zeros(LANES, np.float32), np.empty(LANES, np.float32)
    slope, whole = np.empty(rows, np.float32), np.empty((rows, blocks * LANES), np.float32)
    line[:columns] = score
    for item in range(start, stop):
        n = 0
        to_score[item, 0] = fetch_item(features, item)  # overwritten below
        outer[:columns] = to_token[item]
        slope[:] = 0
        for number in range(blocks):
            block, column = ranked[number], number * LANES
            n = sort_with_origin(features, mask, item, column, networks, bounds, block, origin[number], keys)
            for row in range(n):
                part = np.float32(0)
                for j in range(LANES):
                    part += outer[column + j] * block[row, j]
                slope[row] += part
        mean = np.float32(0)
        for row in range(n):
            mean += weights[item, row] * slope[row]
        for row in range(n):
            slope[row] = weights[item, row] * (slope[row] - mean)
        back[:] = 0
        for number in range(blocks):
            block, source, column = ranked[number], origin[number], number * LANES
            width = min(LANES, columns - column)
            for j in range(width):
                inner[j] = to_soft[item, column + j] / total[item, column + j]
                centre[j] = soft[item, column + j]
            for j in range(LANES):
                top[j] = block[0, j]
                pull[j] = 0
            for row in range(n):
                exponentials(block, row, 0, top, power, scale, scale_bits)
                share, s = weights[item, row], slope[row]
                for j in range(LANES):
                    value, push = block[row, j], power[j] * inner[j]
                    pull[j] += s * value
                    power[j] = share * outer[column + j] + s * line[column + j] + push + push * (value - centre[j])
                for j in range(LANES):
                    back[source[row, j], j] = power[j]
            for j in range(width):
                to_score[item, column + j] = pull[j]
            put_block(back, whole, column)
        write_item(whole, to_features, item)
