"""Sums weighted by a softmax along N."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vse_demo.ops.blocks import LANES, exponentials, fetch_item, load_block, whole_blocks
from vse_demo.ops.dispatch import compiled, over_batch


def softmax_sum(scores: Tensor, values: Tensor, mask: Tensor, relu: bool = False) -> Tensor:
    """Sum values (B, N, D) over N, weighted by the softmax of scores (B, N, D) along N, or of their ReLU."""
    return _SoftmaxSum.apply(scores.contiguous(), values.contiguous(), mask.contiguous(), relu)


class _SoftmaxSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, mask: Tensor, relu: bool) -> Tensor:
        result, top, total = values.new_empty(3, len(values), values.shape[2])
        ctx.lowest = 0.0 if relu else -float("inf")  # of a score
        over_batch(_softmax_sum, scores, values, mask, ctx.lowest, result, top, total)
        ctx.save_for_backward(scores, values, mask, result, top, total)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scores, values, mask, result, top, total = ctx.saved_tensors
        same = scores.data_ptr() == values.data_ptr()  # a soft maximum: both gradients are one
        to_values = torch.empty_like(values)
        to_scores = to_values if same else torch.empty_like(scores)
        over_batch(
            _softmax_sum_backward, scores, values, mask, ctx.lowest, result, top, total, gradients[0].contiguous(),
            to_scores, to_values, same,
        )  # fmt: skip
        return None if same else to_scores, to_values, None, None


@compiled
def _softmax_sum(start, stop, scores, values, mask, lowest, result, top, total):  # type: ignore[no-untyped-def]
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
def _softmax_sum_backward(  # type: ignore[no-untyped-def]
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
