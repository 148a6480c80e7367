"""Sorting and soft maxima on a CPU at the speed of its memory, compiled by Numba.

Why it is needed: `torch.sort` along N sorts each of the B × D columns by itself, one value at a time.
Here a block of 64 neighbouring columns is copied into the first-level cache and sorted by a *sorting
network*: a fixed list of (i, k), each of which puts the larger of rows i and k first. It knows no
branches, so every step works on whole vector registers. What follows the sort (scores, exponentials,
sums) happens while the block is still in cache; inference never writes the sorted values to memory.

Gradients need to know where each value came from. There the network sorts 64-bit integers whose upper
half orders like the value and whose lower half is the row: one comparison moves both.

Kernels run without the interpreter lock on slices of the batch, one per thread, and return when all
are done. The public functions are exact replacements for the plain ones in `pooling`, which calls
them when `usable` says so. Nothing else of ours is imported here.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

try:
    from numba import njit
except ImportError:  # everything still works, only slower
    njit = None

LANES = 64  # columns sorted together: 4 vector registers of 16 floats
MAX_ROWS = 1024  # larger sets would not stay in cache
_switched_off = False


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels apply: float32 on a CPU, not too many rows, Numba there, not switched off."""
    return (
        njit is not None
        and not _switched_off
        and all(t.device.type == "cpu" and t.dtype == torch.float32 and t.shape[1] <= MAX_ROWS for t in tensors)
    )


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Use plain PyTorch inside this block, for comparison."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


@functools.lru_cache(maxsize=4096)
def sorting_network(n: int) -> np.ndarray:
    """Batcher's merge exchange (Knuth, algorithm 5.2.2M): pairs (i, k), i < k, that sort any n rows."""
    pairs = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return np.array(pairs, dtype=np.int32).reshape(-1, 2)


@functools.lru_cache(maxsize=256)
def _networks(lengths: frozenset[int]) -> tuple[np.ndarray, np.ndarray]:
    """The networks of several lengths in one array, and where that of each length begins and ends."""
    bounds = np.zeros((max(lengths) + 1, 2), dtype=np.int64)
    parts, total = [], 0
    for length in sorted(lengths):
        parts.append(sorting_network(length))
        bounds[length] = total, total + len(parts[-1])
        total += len(parts[-1])
    return np.concatenate(parts), bounds


def adpool_levels(features: Tensor, mask: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Both levels of AdPool in the paper's variant, (B, N, D) -> two (B, D), in one pass.

    `score` (D,) gives each sorted row its token-level score.
    """
    return _AdPoolLevels.apply(features.contiguous(), mask.contiguous(), score.contiguous(), _needs(features, score))


def sort_rows(features: Tensor, mask: Tensor) -> Tensor:
    """Sort each dimension, largest first; padded rows come last and hold 0."""
    return _SortRows.apply(features.contiguous(), mask.contiguous(), _needs(features))


def softmax_sum(scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Sum values (B, N, D) over N, weighted by the softmax of scores (B, N, D) along N."""
    return _SoftmaxSum.apply(scores.contiguous(), values.contiguous(), mask.contiguous())


def _needs(*tensors: Tensor) -> bool:
    """Whether a gradient will be asked for: then the sort has to remember where values came from."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _AdPoolLevels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, mask: Tensor, score: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        token, soft, total = features.new_empty(3, len(features), features.shape[2])
        weights, order = features.new_empty(features.shape[:2]), _room_for_order(features, keep)
        _over_batch(_levels, features, mask, score, *_networks_of(mask), keep, order, weights, token, soft, total)
        ctx.save_for_backward(features, order, mask, score, weights, soft, total)
        return token, soft

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features, order, mask, score, weights, soft, total = ctx.saved_tensors
        to_token, to_soft = (gradient.contiguous() for gradient in gradients)
        to_features, to_score = torch.empty_like(features), torch.zeros_like(soft)
        _over_batch(
            _levels_backward, features, order, mask, score, weights, soft, total, to_token, to_soft,
            to_features, to_score,
        )  # fmt: skip
        return to_features, None, to_score.sum(0), None


class _SortRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, mask: Tensor, keep: bool) -> Tensor:
        values, order = torch.empty_like(features), _room_for_order(features, keep)
        _over_batch(_sort, features, mask, *_networks_of(mask), keep, values, order)
        ctx.save_for_backward(order, mask)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        order, mask = ctx.saved_tensors
        to_features = torch.empty_like(gradients[0], memory_format=torch.contiguous_format)
        _over_batch(_unsort, gradients[0].contiguous(), order, mask, to_features)
        return to_features, None, None


class _SoftmaxSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        result, top, total = values.new_empty(3, len(values), values.shape[2])
        _over_batch(_softmax_sum, scores, values, mask, result, top, total)
        ctx.save_for_backward(scores, values, mask, result, top, total)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scores, values, mask, result, top, total = ctx.saved_tensors
        same = scores.data_ptr() == values.data_ptr()  # a soft maximum: both gradients are one
        to_values = torch.empty_like(values)
        to_scores = to_values if same else torch.empty_like(scores)
        arguments = (scores, values, mask, result, top, total, gradients[0].contiguous(), to_scores, to_values)
        _over_batch(_softmax_sum_backward, *arguments, same)
        return None if same else to_scores, to_values, None


def _room_for_order(features: Tensor, keep: bool) -> Tensor:
    """Space for the row that each sorted value came from; none if it is not kept."""
    return torch.empty(features.shape if keep else (0, 0, 0), dtype=torch.uint16)


def _networks_of(mask: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return _networks(frozenset(mask.sum(1).tolist()))


# Threads. The batch is cut into as many slices as PyTorch has threads.

_threads: ThreadPoolExecutor | None = None


def _forget_threads() -> None:
    """A forked process has none of its parent's threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _over_batch(kernel: Callable[..., None], *arguments: Tensor | np.ndarray | bool) -> None:
    """Run a kernel on slices of the batch at once and wait for all."""
    global _threads
    arrays = [a.detach().numpy() if isinstance(a, Tensor) else a for a in arguments]
    items, count = len(arrays[0]), torch.get_num_threads()  # type: ignore[arg-type]
    cuts = [items * number // count for number in range(count + 1)]
    slices = [(start, stop) for start, stop in itertools.pairwise(cuts) if stop > start]
    if len(slices) == 1:
        kernel(*slices[0], *arrays)
        return
    if _threads is None:
        _threads = ThreadPoolExecutor(count)
    for future in [_threads.submit(kernel, *bounds, *arrays) for bounds in slices]:
        future.result()


# The kernels. Each works on items start … stop − 1; inner loops run over the LANES columns of a block.


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first use and keep the result on disk.

    Sums may be reordered (that is what vector units do), but infinities and NaN keep their meaning.
    """
    if njit is None:
        return function
    return njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})(function)


@_compiled
def _load(features, mask, item, column, block):  # type: ignore[no-untyped-def]
    """Copy the real rows of 64 columns into a block; how many rows there are."""
    rows, columns = features.shape[1], features.shape[2]
    width = min(LANES, columns - column)
    n = 0
    for row in range(rows):
        if mask[item, row]:
            if width == LANES:
                for j in range(LANES):
                    block[n, j] = features[item, row, column + j]
            else:
                for j in range(LANES):
                    block[n, j] = features[item, row, column + j] if j < width else np.float32(0)
            n += 1
    return n


@_compiled
def _sort_block(block, networks, first, last):  # type: ignore[no-untyped-def]
    for p in range(first, last):
        i, k = networks[p, 0], networks[p, 1]
        for j in range(LANES):
            a, b = block[i, j], block[k, j]
            block[i, j] = a if a > b else b
            block[k, j] = b if a > b else a


@_compiled
def _sort_columns(features, mask, item, column, networks, bounds, keep, block, keys):  # type: ignore[no-untyped-def]
    """Fill a block with 64 sorted columns; how many rows there are.

    With `keep`, what is sorted are integers made of a value (upper half) and its row (lower half; of
    equal values the first row wins), and they stay in `keys`.
    """
    n = _load(features, mask, item, column, block)
    if not keep:
        _sort_block(block, networks, bounds[n, 0], bounds[n, 1])
        return n
    bits, n = block.view(np.int32), 0
    for row in range(mask.shape[1]):
        if mask[item, row]:
            for j in range(LANES):
                bit = np.int32(0) if block[n, j] == 0 else bits[n, j]  # −0 and 0 are equal
                ordered = bit ^ ((bit >> np.int32(31)) & np.int32(0x7FFFFFFF))  # orders like the float
                keys[n, j] = (np.int64(ordered) << np.int64(32)) | (np.int64(0xFFFFFFFF) - row)
            n += 1
    _sort_block(keys, networks, bounds[n, 0], bounds[n, 1])
    for row in range(n):
        for j in range(LANES):
            ordered = np.int32(keys[row, j] >> np.int64(32))
            bits[row, j] = ordered ^ ((ordered >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return n


@_compiled
def _store_order(keys, row, width, order, item, column):  # type: ignore[no-untyped-def]
    for j in range(width):
        low = np.int64(0xFFFFFFFF)
        order[item, row, column + j] = np.uint16(low - (keys[row, j] & low))


@_compiled
def _exponentials(block, row, top, power, scale, scale_bits):  # type: ignore[no-untyped-def]
    """e^(block[row] − top) for differences of at most 0, as power · scale, 64 at a time.

    x = q·ln 2 + r; e^r by a polynomial (Cephes), 2^q by writing q into the exponent of a float.
    """
    for j in range(LANES):
        x = max(block[row, j] - top[j], np.float32(-87.0))  # e^-87 is the smallest normal float
        q = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
        r = x - np.float32(q) * np.float32(0.693359375) + np.float32(q) * np.float32(2.12194440e-4)
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        power[j] = p * r * r + r + np.float32(1.0)
        scale_bits[j] = (q + np.int32(127)) << np.int32(23)
    for j in range(LANES):
        power[j] *= scale[j]


@_compiled
def _softmax(scores, n):  # type: ignore[no-untyped-def]
    """In place, of the first n entries."""
    top = scores[0]
    for i in range(n):
        top = max(top, scores[i])
    total = np.float32(0)
    for i in range(n):
        scores[i] = np.exp(scores[i] - top)
        total += scores[i]
    for i in range(n):
        scores[i] /= total


@_compiled
def _fetch(features, item):  # type: ignore[no-untyped-def]
    """Read an item once from front to back, which memory is good at; blocks are then found in cache."""
    total = np.float32(0)
    for row in range(features.shape[1]):
        for column in range(0, features.shape[2], 16):  # one value of each cache line
            total += features[item, row, column]
    return total


@_compiled
def _levels(  # type: ignore[no-untyped-def]
    start, stop, features, mask, score, networks, bounds, keep, order, weights, token, soft, total
):
    """Both levels of AdPool. Only one item's sorted values exist at a time."""
    rows, columns = features.shape[1], features.shape[2]
    padded = (columns + LANES - 1) // LANES * LANES  # whole blocks: inner loops of a fixed length
    block, keys = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.int64)
    power, scale, top = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    sums, summed = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    ranked, mixed = np.empty((rows, padded), np.float32), np.empty(padded, np.float32)
    scores, weight = np.empty((rows, LANES), np.float32), np.empty(rows, np.float32)
    line = np.zeros(padded, np.float32)
    line[:columns] = score
    for item in range(start, stop):
        n = 0
        token[item, 0] = _fetch(features, item)  # overwritten below; unused, the compiler would drop it
        scores[:] = 0
        for column in range(0, columns, LANES):
            n = _sort_columns(features, mask, item, column, networks, bounds, keep, block, keys)
            width = min(LANES, columns - column)
            for j in range(LANES):
                top[j] = block[0, j]
                sums[j] = 0
                summed[j] = 0
            for row in range(n):
                _exponentials(block, row, top, power, scale, scale_bits)
                for j in range(LANES):
                    sums[j] += power[j]
                    summed[j] += power[j] * block[row, j]
                for j in range(LANES):
                    scores[row, j] += block[row, j] * line[column + j]
                    ranked[row, column + j] = block[row, j]
                if keep:
                    _store_order(keys, row, width, order, item, column)
            for j in range(width):
                total[item, column + j] = sums[j]
                soft[item, column + j] = summed[j] / sums[j]
        for row in range(n):
            weight[row] = scores[row].sum()
        _softmax(weight, n)
        mixed[:] = 0
        for row in range(n):
            weights[item, row] = weight[row]
            for column in range(padded):
                mixed[column] += weight[row] * ranked[row, column]
        for column in range(columns):
            token[item, column] = mixed[column]


@_compiled
def _levels_backward(  # type: ignore[no-untyped-def]
    start, stop, features, order, mask, score, weights, soft, total, to_token, to_soft, to_features, to_score
):
    """Gradient of both levels, put back to the rows that the values came from.

    Token level: with g = to_token and s = θ ⊙ (g·u − Σ θ g·u), du = θ g + s w and dw = Σ s u.
    Embedding level: du = δ (1 + u − soft) to_soft, with δ = e^(u − top) / total.
    """
    rows, columns = features.shape[1], features.shape[2]
    block, back = np.zeros((rows, LANES), np.float32), np.zeros((rows, LANES), np.float32)
    power, scale, top = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.zeros(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    outer, centre = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    ranked, slope = np.empty((rows, columns), np.float32), np.empty(rows, np.float32)
    for item in range(start, stop):
        n = 0
        for row in range(rows):
            n += mask[item, row]
        for column in range(0, columns, LANES):  # sort again, by the order that is known now
            width = min(LANES, columns - column)
            for row in range(rows):
                for j in range(width):
                    block[row, j] = features[item, row, column + j]
            for row in range(n):
                for j in range(width):
                    ranked[row, column + j] = block[order[item, row, column + j], j]
        mean = np.float32(0)
        for row in range(n):
            part = np.float32(0)
            for column in range(columns):
                part += to_token[item, column] * ranked[row, column]
            slope[row] = part
            mean += weights[item, row] * part
        for row in range(n):
            slope[row] = weights[item, row] * (slope[row] - mean)
        back[:] = 0
        for column in range(0, columns, LANES):
            width = min(LANES, columns - column)
            for j in range(width):
                top[j] = ranked[0, column + j]
                outer[j] = to_soft[item, column + j] / total[item, column + j]
                centre[j] = soft[item, column + j]
            for row in range(n):
                for j in range(width):
                    block[row, j] = ranked[row, column + j]
                _exponentials(block, row, top, power, scale, scale_bits)
                share, s = weights[item, row], slope[row]
                for j in range(width):
                    value, push = block[row, j], power[j] * outer[j]
                    to_score[item, column + j] += s * value
                    power[j] = share * to_token[item, column + j] + s * score[column + j]
                    power[j] += push + push * (value - centre[j])
                for j in range(width):
                    back[order[item, row, column + j], j] = power[j]
            for row in range(rows):
                for j in range(width):
                    to_features[item, row, column + j] = back[row, j]


@_compiled
def _sort(start, stop, features, mask, networks, bounds, keep, values, order):  # type: ignore[no-untyped-def]
    rows, columns = features.shape[1], features.shape[2]
    block, keys = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.int64)
    for item in range(start, stop):
        for column in range(0, columns, LANES):
            width = min(LANES, columns - column)
            n = _sort_columns(features, mask, item, column, networks, bounds, keep, block, keys)
            for row in range(n):
                for j in range(width):
                    values[item, row, column + j] = block[row, j]
                if keep:
                    _store_order(keys, row, width, order, item, column)
            for row in range(n, rows):
                for j in range(width):
                    values[item, row, column + j] = 0


@_compiled
def _unsort(start, stop, gradient, order, mask, to_features):  # type: ignore[no-untyped-def]
    """Send the gradient of each sorted value home; padded rows get 0."""
    rows, columns = gradient.shape[1], gradient.shape[2]
    back = np.empty((rows, LANES), np.float32)
    for item in range(start, stop):
        n = 0
        for row in range(rows):
            n += mask[item, row]
        back[:] = 0
        for column in range(0, columns, LANES):
            width = min(LANES, columns - column)
            for row in range(n):
                for j in range(width):
                    back[order[item, row, column + j], j] = gradient[item, row, column + j]
            for row in range(rows):
                for j in range(width):
                    to_features[item, row, column + j] = back[row, j]


@_compiled
def _softmax_sum(start, stop, scores, values, mask, result, top, total):  # type: ignore[no-untyped-def]
    rows, columns = scores.shape[1], scores.shape[2]
    block, peak = np.zeros((rows, LANES), np.float32), np.empty(LANES, np.float32)
    power, scale = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    sums, summed = np.empty(LANES, np.float32), np.zeros(LANES, np.float32)
    for item in range(start, stop):
        for column in range(0, columns, LANES):
            width = min(LANES, columns - column)
            n = _load(scores, mask, item, column, block)
            for j in range(LANES):
                peak[j] = block[0, j]
                sums[j] = 0
                summed[j] = 0
            for row in range(1, n):
                for j in range(LANES):
                    peak[j] = max(peak[j], block[row, j])
            n = 0
            for row in range(rows):
                if mask[item, row]:
                    _exponentials(block, n, peak, power, scale, scale_bits)
                    for j in range(width):
                        sums[j] += power[j]
                        summed[j] += power[j] * values[item, row, column + j]
                    n += 1
            for j in range(width):
                top[item, column + j] = peak[j]
                total[item, column + j] = sums[j]
                result[item, column + j] = summed[j] / sums[j]


@_compiled
def _softmax_sum_backward(  # type: ignore[no-untyped-def]
    start, stop, scores, values, mask, result, top, total, gradient, to_scores, to_values, same
):
    """With δ the softmax: d values = δ g and d scores = δ (values − result) g; their sum if both are the `same`."""
    rows, columns = scores.shape[1], scores.shape[2]
    block, peak = np.zeros((1, LANES), np.float32), np.zeros(LANES, np.float32)
    power, scale = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    inverse = np.empty(columns, np.float32)
    for item in range(start, stop):
        for column in range(columns):
            inverse[column] = gradient[item, column] / total[item, column]
        for row in range(rows):
            if not mask[item, row]:
                for column in range(columns):
                    to_values[item, row, column] = 0
                    to_scores[item, row, column] = 0
                continue
            for column in range(0, columns, LANES):
                width = min(LANES, columns - column)
                for j in range(width):
                    block[0, j] = scores[item, row, column + j]
                    peak[j] = top[item, column + j]
                _exponentials(block, 0, peak, power, scale, scale_bits)
                for j in range(width):
                    power[j] *= inverse[column + j]
                if same:
                    for j in range(width):
                        d = column + j
                        to_values[item, row, d] = power[j] + power[j] * (values[item, row, d] - result[item, d])
                else:
                    for j in range(width):
                        d = column + j
                        to_scores[item, row, d] = power[j] * (values[item, row, d] - result[item, d])
                        to_values[item, row, d] = power[j]
