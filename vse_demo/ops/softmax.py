"""Sums over N that a softmax along N weights: of the values themselves (a soft maximum), or of other scores."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vse_demo.ops import plain
from vse_demo.ops.blocks import LANES, exponentials, fetch_item, load_block, whole_blocks
from vse_demo.ops.dispatch import usable
from vse_demo.ops.kernels import compiled, over_batch
from vse_demo.ops.library import gradients_by_plain, register, register_gradient


def softmax_sum(scores: Tensor, values: Tensor, mask: Tensor, relu: bool = False) -> Tensor:
    """Sum values over N, weighted by the softmax of scores along N.

    Args:
        scores: (B, N, D).
        values: (B, N, D).
        mask: (B, N) bool, True where a row is real; at least one in each item.
        relu: Take the ReLU of the scores first.

    Returns:
        (B, D).

    >>> softmax_sum(torch.tensor([[[9.], [9.]]]), torch.tensor([[[1.], [5.]]]), torch.tensor([[True, True]]))
    tensor([[3.]])
    """
    if usable(scores, values):
        return _softmax_sum(scores.contiguous(), values.contiguous(), mask.contiguous(), relu)[0]
    return plain.softmax_sum(scores, values, mask, relu)


def soft_maximum(features: Tensor, mask: Tensor) -> Tensor:
    """Sum features over N, weighted by their own softmax along N: `softmax_sum(features, features, mask)`, faster.

    Args:
        features: (B, N, D).
        mask: (B, N) bool, True where a row is real; at least one in each item.

    Returns:
        (B, D), in each dimension between the mean and the maximum of the real rows.
    """
    if usable(features):
        return _soft_maximum(features.contiguous(), mask.contiguous())[0]
    return plain.softmax_sum(features, features, mask)


def _run(scores: Tensor, values: Tensor, mask: Tensor, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The sums, and what the backward pass needs of each softmax: its largest score, and its denominator."""
    scores, values, mask = scores.contiguous(), values.contiguous(), mask.contiguous()
    result, top, total = (values.new_empty(len(values), values.shape[2]) for _ in range(3))
    over_batch(_sum, scores, values, mask, _lowest(relu), result, top, total)
    return result, top, total


def _run_backward(
    gradient: Tensor, scores: Tensor, values: Tensor, mask: Tensor, relu: bool, result: Tensor, top: Tensor,
    total: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    gradient, scores, values, mask = (tensor.contiguous() for tensor in (gradient, scores, values, mask))
    to_scores, to_values = torch.empty_like(scores), torch.empty_like(values)
    over_batch(
        _sum_backward, scores, values, mask, _lowest(relu), result, top, total, gradient, to_scores, to_values, False
    )
    return to_scores, to_values


def _run_maximum(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _run(features, features, mask, False)


def _run_maximum_backward(
    gradient: Tensor, features: Tensor, mask: Tensor, result: Tensor, top: Tensor, total: Tensor
) -> Tensor:
    gradient, features, mask = (tensor.contiguous() for tensor in (gradient, features, mask))
    both = torch.empty_like(features)
    over_batch(_sum_backward, features, features, mask, _lowest(False), result, top, total, gradient, both, both, True)
    return both


def _lowest(relu: bool) -> float:
    """The lowest value that a score can have."""
    return 0.0 if relu else -float("inf")


def _fake(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    result, top, total = (values.new_empty(values.shape[0], values.shape[2]) for _ in range(3))
    return result, top, total


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.relu = inputs
    _keep(ctx, tensors, output)


def _keep(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return None, None, None, None
    scores, values, mask, result, top, total = ctx.saved_tensors
    if torch.is_grad_enabled():
        again = gradients_by_plain(lambda s, v: plain.softmax_sum(s, v, mask, ctx.relu), [scores, values], [gradient])
        return *again, None, None
    return *_softmax_sum_backward(gradient, scores, values, mask, ctx.relu, result, top, total), None, None


def _backward_of_maximum(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, None]:
    if gradient is None:
        return None, None
    features, mask, result, top, total = ctx.saved_tensors
    if torch.is_grad_enabled():
        return gradients_by_plain(lambda x: plain.softmax_sum(x, x, mask), [features], [gradient])[0], None
    return _soft_maximum_backward(gradient, features, mask, result, top, total), None


_softmax_sum = register(
    "softmax_sum(Tensor scores, Tensor values, Tensor mask, bool relu) -> (Tensor, Tensor, Tensor)",
    _run,
    lambda scores, values, mask, relu: _fake(values),
)
_softmax_sum_backward = register(
    "softmax_sum_backward(Tensor gradient, Tensor scores, Tensor values, Tensor mask, bool relu, Tensor result, "
    "Tensor top, Tensor total) -> (Tensor, Tensor)",
    _run_backward,
    lambda gradient, scores, values, *_: (torch.empty_like(scores), torch.empty_like(values)),
)
register_gradient("softmax_sum", _setup, _backward)
_soft_maximum = register(
    "soft_maximum(Tensor features, Tensor mask) -> (Tensor, Tensor, Tensor)",
    _run_maximum,
    lambda features, mask: _fake(features),
)
_soft_maximum_backward = register(
    "soft_maximum_backward(Tensor gradient, Tensor features, Tensor mask, Tensor result, Tensor top, Tensor total) "
    "-> Tensor",
    _run_maximum_backward,
    lambda gradient, features, *_: torch.empty_like(features),
)
register_gradient("soft_maximum", _keep, _backward_of_maximum)


@compiled
def _sum(start, stop, scores, values, mask, lowest, result, top, total):  # type: ignore[no-untyped-def]
    rows, columns = scores.shape[1], scores.shape[2]
    block, other = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.float32)
    power, scale, peak = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    sums, summed, floor = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.float32(lowest)
    for item in range(start, stop):
        result[item, 0] = fetch_item(scores, item) + fetch_item(values, item)  # overwritten below
        for column in range(0, columns, LANES):
            n = load_block(scores, mask, item, column, block)
            load_block(values, mask, item, column, other)
            for j in range(LANES):
                peak[j] = -np.inf
                sums[j] = 0
                summed[j] = 0
            for row in range(n):
                for j in range(LANES):
                    block[row, j] = floor if block[row, j] < floor else block[row, j]  # NaN stays
                    peak[j] = max(peak[j], block[row, j])
            for row in range(n):
                exponentials(block, row, 0, peak, power, scale, scale_bits)
                for j in range(LANES):
                    sums[j] += power[j]
                    summed[j] += power[j] * other[row, j]
            for j in range(min(LANES, columns - column)):
                top[item, column + j] = peak[j]
                total[item, column + j] = sums[j]
                result[item, column + j] = summed[j] / sums[j]


@compiled
def _sum_backward(  # type: ignore[no-untyped-def]
    start, stop, scores, values, mask, lowest, result, top, total, gradient, to_scores, to_values, same
):
    """With δ the softmax: d values = δ g and d scores = δ (values − result) g; their sum if both are the `same`."""
    rows, columns = scores.shape[1], scores.shape[2]
    padded = whole_blocks(columns)
    line, peak, share = np.zeros((1, padded), np.float32), np.zeros(padded, np.float32), np.empty(padded, np.float32)
    inverse, floor = np.empty(columns, np.float32), np.float32(lowest)
    power, scale = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    for item in range(start, stop):
        for column in range(columns):
            inverse[column] = gradient[item, column] / total[item, column]
            peak[column] = top[item, column]
        for row in range(rows):
            if not mask[item, row]:
                to_values[item, row] = 0
                to_scores[item, row] = 0
                continue
            for column in range(columns):
                score = scores[item, row, column]
                line[0, column] = floor if score < floor else score
            for column in range(0, columns, LANES):
                exponentials(line, 0, column, peak, power, scale, scale_bits)
                for j in range(LANES):
                    share[column + j] = power[j]
            for column in range(columns):
                push = share[column] * inverse[column]
                slope = push * (values[item, row, column] - result[item, column])
                if same:
                    to_values[item, row, column] = push + slope
                else:
                    to_values[item, row, column] = push
                    to_scores[item, row, column] = slope if scores[item, row, column] > floor else np.float32(0)
