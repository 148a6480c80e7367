"""Sorting, soft maxima, counting and products on a CPU at the speed of its memory; most of it compiled by Numba.

Why it is needed: `torch.sort` along N sorts each of the B × D columns by itself, one value at a time.
Here a block of 64 neighbouring columns is copied into the first-level cache and sorted by a *sorting
network*: a fixed list of (i, k), each of which puts the larger of rows i and k first. It knows no
branches, so every step works on whole vector registers. What follows the sort (scores, exponentials,
sums) happens while the block is still in cache; the sorted values of a batch are never written to memory.

Gradients need to know where each value came from, so the backward pass sorts once more: this time
64-bit integers whose upper half orders like the value and whose lower half is the row. One
comparison moves both. Sorting twice is cheaper than writing down and reading a number for every value.

Kernels run without the interpreter lock on slices of the batch, one per thread, and return when all
are done. The public functions are exact replacements for plain ones in `pooling`, `layers`, `retrieval` and
`evaluation`, which call them when `usable` says so. Nothing else of ours is imported here.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
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
SLICES = 4  # of a batch, for each thread
GROUP = 128  # rows of similarities that are counted together
_switched_off = False


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels apply: float32 on a CPU, not too many rows in (B, N, D), Numba there, not switched off."""
    few_rows = all(tensor.dim() != 3 or tensor.shape[1] <= MAX_ROWS for tensor in tensors)
    return njit is not None and few_rows and _fit(*tensors)


def switched_off() -> bool:
    """Whether this is inside a `plain` block."""
    return _switched_off


def _fit(*tensors: Tensor) -> bool:
    return not _switched_off and all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)


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
    return _AdPoolLevels.apply(features.contiguous(), mask.contiguous(), score.contiguous())


def sort_rows(features: Tensor, mask: Tensor) -> Tensor:
    """Sort each dimension, largest first; padded rows come last and hold 0."""
    return _SortRows.apply(features.contiguous(), mask.contiguous())


def softmax_sum(scores: Tensor, values: Tensor, mask: Tensor, relu: bool = False) -> Tensor:
    """Sum values (B, N, D) over N, weighted by the softmax of scores (B, N, D) along N, or of their ReLU."""
    return _SoftmaxSum.apply(scores.contiguous(), values.contiguous(), mask.contiguous(), relu)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`nn.functional.linear` of (B, N, C) rows, as a convolution with a kernel of one pixel.

    It is the same product, but PyTorch hands convolutions to oneDNN and products to MKL, and on the AMD
    processor where both were timed oneDNN was about twice as fast.
    """
    if not _fit(rows, weight) or rows.shape[1] < 32 or not torch.backends.mkldnn.is_available():
        return torch.nn.functional.linear(rows, weight, bias)
    pixels = rows.contiguous().unsqueeze(2).permute(0, 3, 1, 2)  # (B, C, N, 1), channels last
    return torch.nn.functional.conv2d(pixels, weight[:, :, None, None], bias).permute(0, 2, 3, 1).squeeze(2)


def gru_states(gates: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """States (2, N, H) of a bidirectional GRU over one sequence, from what its inputs say to the gates (2, N, 3H).

    `weights` (3H, H) and `biases` (3H,) are the recurrent ones of each direction. Such a query waits for
    nothing but the weights, which are read once a step; here each direction reads its own.
    """
    states = gates.new_empty(*gates.shape[:2], weights[0].shape[1])
    _at_once([(_gru_states, (gates[way], weights[way], biases[way], states[way])) for way in (0, 1)])
    return states


def products(queries: Tensor, vectors: Tensor) -> Tensor:
    """`queries @ vectors.T`, (Q, D) and (M, D) -> (Q, M), for few queries: at the speed of reading the vectors."""
    scores = queries.new_empty(len(vectors), len(queries))
    _over_batch(_products, vectors.contiguous(), queries.contiguous(), scores)
    return scores.T


def count_at_least(similarities: Tensor, of_rows: Tensor, of_columns: Tensor) -> tuple[Tensor, Tensor]:
    """How many values of each row, and of each column, are at least its own threshold: (C, I) -> (C,), (I,).

    One pass over memory. A NaN among them makes the count of its row negative.
    """
    texts, images = similarities.shape
    in_rows = torch.empty(texts, dtype=torch.int64)
    in_columns = torch.zeros(-(-texts // GROUP), images, dtype=torch.int32)  # each thread counts by itself
    _over_batch(_count_at_least, in_columns, similarities.contiguous(), of_rows, of_columns, in_rows)
    return in_rows, in_columns.sum(0)


class _AdPoolLevels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, mask: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        token, soft, total = features.new_empty(3, len(features), features.shape[2])
        weights = features.new_empty(features.shape[:2])
        _over_batch(_levels, features, mask, score, *_networks_of(mask), weights, token, soft, total)
        ctx.save_for_backward(features, mask, score, weights, soft, total)
        return token, soft

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features, mask, score, weights, soft, total = ctx.saved_tensors
        to_token, to_soft = (gradient.contiguous() for gradient in gradients)
        to_features, to_score = torch.empty_like(features), torch.empty_like(soft)
        _over_batch(
            _levels_backward, features, mask, score, *_networks_of(mask), weights, soft, total, to_token, to_soft,
            to_features, to_score,
        )  # fmt: skip
        return to_features, None, to_score.sum(0)


class _SortRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, mask: Tensor) -> Tensor:
        values = torch.empty_like(features)
        _over_batch(_sort, features, mask, *_networks_of(mask), values)
        ctx.save_for_backward(features, mask)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features, mask = ctx.saved_tensors
        to_features = torch.empty_like(features)
        _over_batch(_sort_backward, features, mask, *_networks_of(mask), gradients[0].contiguous(), to_features)
        return to_features, None


class _SoftmaxSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, mask: Tensor, relu: bool) -> Tensor:
        result, top, total = values.new_empty(3, len(values), values.shape[2])
        ctx.lowest = 0.0 if relu else -float("inf")  # of a score
        _over_batch(_softmax_sum, scores, values, mask, ctx.lowest, result, top, total)
        ctx.save_for_backward(scores, values, mask, result, top, total)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scores, values, mask, result, top, total = ctx.saved_tensors
        same = scores.data_ptr() == values.data_ptr()  # a soft maximum: both gradients are one
        to_values = torch.empty_like(values)
        to_scores = to_values if same else torch.empty_like(scores)
        _over_batch(
            _softmax_sum_backward, scores, values, mask, ctx.lowest, result, top, total, gradients[0].contiguous(),
            to_scores, to_values, same,
        )  # fmt: skip
        return None if same else to_scores, to_values, None, None


def _networks_of(mask: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return _networks(frozenset(mask.sum(1).tolist()))


# Threads. The batch is cut into as many slices as PyTorch has threads.

Argument = Tensor | np.ndarray | bool | float
_threads: ThreadPoolExecutor | None = None


def _forget_threads() -> None:
    """A forked process has none of its parent's threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _over_batch(kernel: Callable[..., None], *arguments: Argument) -> None:
    """Run a kernel on slices of the batch at once and wait for all.

    There are more slices than threads: PyTorch's own threads keep spinning for a while after each of
    its operations, so that not all of ours advance equally.
    """
    items, threads = len(arguments[0]), torch.get_num_threads()  # type: ignore[arg-type]
    count = SLICES * threads if threads > 1 else 1
    cuts = [items * number // count for number in range(count + 1)]
    slices = [(start, stop) for start, stop in itertools.pairwise(cuts) if stop > start]
    _at_once([(kernel, (*bounds, *arguments)) for bounds in slices])


def _at_once(calls: list[tuple[Callable[..., None], tuple[Argument, ...]]]) -> None:
    global _threads
    ready = [(kernel, [_array(argument) for argument in arguments]) for kernel, arguments in calls]
    if len(ready) == 1 or torch.get_num_threads() == 1:
        for kernel, arrays in ready:
            kernel(*arrays)
        return
    if _threads is None:
        _threads = ThreadPoolExecutor(torch.get_num_threads())
    for future in [_threads.submit(kernel, *arrays) for kernel, arrays in ready]:
        future.result()


def _array(argument: Argument) -> Any:
    return argument.detach().numpy() if isinstance(argument, Tensor) else argument


# The kernels. Each works on items start … stop − 1; inner loops run over the LANES columns of a block.


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first use and keep the result on disk, if there is a place for it.

    Sums may be reordered (that is what vector units do), but infinities and NaN keep their meaning.
    """
    if njit is None:
        return function
    options = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return njit(**options)(function)


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
def _sort_with_origin(features, mask, item, column, networks, bounds, block, origin, keys):  # type: ignore[no-untyped-def]
    """Fill a block with 64 sorted columns, and `origin` with the row of each value; how many rows there are.

    What is sorted are integers: a value in the upper half, in a form that orders like the float, and
    its row in the lower half, so that of equal values the first row wins.
    """
    n = _load(features, mask, item, column, block)
    bits, low = block.view(np.int32), np.int64(0xFFFFFFFF)
    place = 0
    for row in range(features.shape[1]):
        if mask[item, row]:
            for j in range(LANES):
                bit = np.int32(0) if block[place, j] == 0 else bits[place, j]  # −0 and 0 are equal
                ordered = bit ^ ((bit >> np.int32(31)) & np.int32(0x7FFFFFFF))
                keys[place, j] = (np.int64(ordered) << np.int64(32)) | (low - row)
            place += 1
    _sort_block(keys, networks, bounds[n, 0], bounds[n, 1])
    for row in range(n):
        for j in range(LANES):
            ordered = np.int32(keys[row, j] >> np.int64(32))
            bits[row, j] = ordered ^ ((ordered >> np.int32(31)) & np.int32(0x7FFFFFFF))
        for j in range(LANES):
            origin[row, j] = np.int32(low - (keys[row, j] & low))
    return n


@_compiled
def _exponentials(values, row, column, top, power, scale, scale_bits):  # type: ignore[no-untyped-def]
    """e^(values − top) for differences of at most 0, as power · scale, 64 at a time.

    x = q·ln 2 + r; e^r by a polynomial (Cephes), 2^q by writing q into the exponent of a float.
    """
    for j in range(LANES):
        x = max(values[row, column + j] - top[column + j], np.float32(-87.0))  # e^-87 is the smallest normal float
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
def _put(block, whole, column):  # type: ignore[no-untyped-def]
    """Copy a block to its columns of an item."""
    for row in range(len(block)):
        for j in range(LANES):
            whole[row, column + j] = block[row, j]


@_compiled
def _write(whole, features, item):  # type: ignore[no-untyped-def]
    """Write an item once from front to back, as it was read."""
    for row in range(features.shape[1]):
        for column in range(features.shape[2]):
            features[item, row, column] = whole[row, column]


@_compiled
def _whole_blocks(columns):  # type: ignore[no-untyped-def]
    """Columns up to a full block: inner loops of a fixed length."""
    return (columns + LANES - 1) // LANES * LANES


@_compiled
def _levels(  # type: ignore[no-untyped-def]
    start, stop, features, mask, score, networks, bounds, weights, token, soft, total
):
    """Both levels of AdPool. Only one item's sorted values exist at a time."""
    rows, columns = features.shape[1], features.shape[2]
    padded = _whole_blocks(columns)
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
        token[item, 0] = _fetch(features, item)  # overwritten below; unused, the compiler would drop it
        scores[:] = 0
        for column in range(0, columns, LANES):
            n = _load(features, mask, item, column, block)
            _sort_block(block, networks, bounds[n, 0], bounds[n, 1])
            for j in range(LANES):
                top[j] = block[0, j]
                sums[j] = 0
                summed[j] = 0
            for row in range(n):
                _exponentials(block, row, 0, top, power, scale, scale_bits)
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
        to_score[item, 0] = _fetch(features, item)  # overwritten below
        outer[:columns] = to_token[item]
        slope[:] = 0
        for number in range(blocks):
            block, column = ranked[number], number * LANES
            n = _sort_with_origin(features, mask, item, column, networks, bounds, block, origin[number], keys)
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
            block, home, column = ranked[number], origin[number], number * LANES
            width = min(LANES, columns - column)
            for j in range(width):
                inner[j] = to_soft[item, column + j] / total[item, column + j]
                centre[j] = soft[item, column + j]
            for j in range(LANES):
                top[j] = block[0, j]
                pull[j] = 0
            for row in range(n):
                _exponentials(block, row, 0, top, power, scale, scale_bits)
                share, s = weights[item, row], slope[row]
                for j in range(LANES):
                    value, push = block[row, j], power[j] * inner[j]
                    pull[j] += s * value
                    power[j] = share * outer[column + j] + s * line[column + j] + push + push * (value - centre[j])
                for j in range(LANES):
                    back[home[row, j], j] = power[j]
            for j in range(width):
                to_score[item, column + j] = pull[j]
            _put(back, whole, column)
        _write(whole, to_features, item)


@_compiled
def _sort(start, stop, features, mask, networks, bounds, values):  # type: ignore[no-untyped-def]
    rows, columns = features.shape[1], features.shape[2]
    block, ranked = np.empty((rows, LANES), np.float32), np.empty((rows, _whole_blocks(columns)), np.float32)
    for item in range(start, stop):
        values[item, 0, 0] = _fetch(features, item)  # overwritten below
        for column in range(0, columns, LANES):
            n = _load(features, mask, item, column, block)
            _sort_block(block, networks, bounds[n, 0], bounds[n, 1])
            block[n:] = 0
            _put(block, ranked, column)
        _write(ranked, values, item)


@_compiled
def _sort_backward(start, stop, features, mask, networks, bounds, gradient, to_features):  # type: ignore[no-untyped-def]
    """Send the gradient of each sorted value home; padded rows get 0."""
    rows, columns = features.shape[1], features.shape[2]
    block, home = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.int32)
    keys, back = np.empty((rows, LANES), np.int64), np.empty((rows, LANES), np.float32)
    whole = np.empty((rows, _whole_blocks(columns)), np.float32)
    for item in range(start, stop):
        to_features[item, 0, 0] = _fetch(features, item) + _fetch(gradient, item)  # overwritten below
        back[:] = 0
        for column in range(0, columns, LANES):
            n = _sort_with_origin(features, mask, item, column, networks, bounds, block, home, keys)
            for row in range(n):
                for j in range(min(LANES, columns - column)):
                    back[home[row, j], j] = gradient[item, row, column + j]
            _put(back, whole, column)
        _write(whole, to_features, item)


@_compiled
def _softmax_sum(start, stop, scores, values, mask, lowest, result, top, total):  # type: ignore[no-untyped-def]
    rows, columns = scores.shape[1], scores.shape[2]
    block, other = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.float32)
    power, scale, peak = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale_bits = scale.view(np.int32)
    sums, summed, floor = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.float32(lowest)
    for item in range(start, stop):
        result[item, 0] = _fetch(scores, item) + _fetch(values, item)  # overwritten below
        for column in range(0, columns, LANES):
            n = _load(scores, mask, item, column, block)
            _load(values, mask, item, column, other)
            for j in range(LANES):
                peak[j] = -np.inf
                sums[j] = 0
                summed[j] = 0
            for row in range(n):
                for j in range(LANES):
                    block[row, j] = floor if block[row, j] < floor else block[row, j]  # NaN stays
                    peak[j] = max(peak[j], block[row, j])
            for row in range(n):
                _exponentials(block, row, 0, peak, power, scale, scale_bits)
                for j in range(LANES):
                    sums[j] += power[j]
                    summed[j] += power[j] * other[row, j]
            for j in range(min(LANES, columns - column)):
                top[item, column + j] = peak[j]
                total[item, column + j] = sums[j]
                result[item, column + j] = summed[j] / sums[j]


@_compiled
def _softmax_sum_backward(  # type: ignore[no-untyped-def]
    start, stop, scores, values, mask, lowest, result, top, total, gradient, to_scores, to_values, same
):
    """With δ the softmax: d values = δ g and d scores = δ (values − result) g; their sum if both are the `same`."""
    rows, columns = scores.shape[1], scores.shape[2]
    padded = _whole_blocks(columns)
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
                _exponentials(line, 0, column, peak, power, scale, scale_bits)
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


@_compiled
def _gru_states(gates, weight, bias, states):  # type: ignore[no-untyped-def]
    size = states.shape[1]
    recurrent, state, one = np.empty(3 * size, np.float32), np.zeros(size, np.float32), np.float32(1)
    for step in range(len(gates)):
        for gate in range(3 * size):
            total = np.float32(0)
            for j in range(size):
                total += weight[gate, j] * state[j]
            recurrent[gate] = total + bias[gate]
        for j in range(size):
            reset = one / (one + np.exp(-gates[step, j] - recurrent[j]))
            update = one / (one + np.exp(-gates[step, size + j] - recurrent[size + j]))
            new = np.tanh(gates[step, 2 * size + j] + reset * recurrent[2 * size + j])
            state[j] = new + update * (state[j] - new)
            states[step, j] = state[j]


@_compiled
def _products(start, stop, vectors, queries, scores):  # type: ignore[no-untyped-def]
    for number in range(start, stop):
        for query in range(len(queries)):
            total = np.float32(0)
            for d in range(vectors.shape[1]):
                total += vectors[number, d] * queries[query, d]
            scores[number, query] = total


@_compiled
def _count_at_least(start, stop, in_columns, similarities, of_rows, of_columns, in_rows):  # type: ignore[no-untyped-def]
    texts, images = similarities.shape
    for group in range(start, stop):
        for text in range(group * GROUP, min(texts, (group + 1) * GROUP)):
            threshold, count, broken = of_rows[text], 0, 0
            for image in range(images):
                value = similarities[text, image]
                count += value >= threshold
                broken += value != value
                in_columns[group, image] += value >= of_columns[image]
            in_rows[text] = -1 if broken else count
