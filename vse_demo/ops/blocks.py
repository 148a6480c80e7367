"""Blocks of 64 columns: what the compiled kernels that sort and sum are made of."""

import functools

import numpy as np
from torch import Tensor

from vse_demo.ops.kernels import compiled

LANES = 64  # columns sorted together: 4 vector registers of 16 floats


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


def networks_of(mask: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The sorting networks for the numbers of real rows that a mask has: see `_networks`."""
    return _networks(frozenset(mask.sum(1).tolist()) or frozenset({0}))


@compiled
def load_block(features, mask, item, column, block):  # type: ignore[no-untyped-def]
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


@compiled
def sort_block(block, networks, first, last):  # type: ignore[no-untyped-def]
    for p in range(first, last):
        i, k = networks[p, 0], networks[p, 1]
        for j in range(LANES):
            a, b = block[i, j], block[k, j]
            block[i, j] = a if a > b else b
            block[k, j] = b if a > b else a


@compiled
def sort_with_origin(features, mask, item, column, networks, bounds, block, origin, keys):  # type: ignore[no-untyped-def]
    """Fill a block with 64 sorted columns, and `origin` with the row of each value; how many rows there are.

    What is sorted are integers: a value in the upper half, in a form that orders like the float, and
    its row in the lower half, so that of equal values the first row wins.
    """
    n = load_block(features, mask, item, column, block)
    bits, low = block.view(np.int32), np.int64(0xFFFFFFFF)
    place = 0
    for row in range(features.shape[1]):
        if mask[item, row]:
            for j in range(LANES):
                bit = np.int32(0) if block[place, j] == 0 else bits[place, j]  # −0 and 0 are equal
                ordered = bit ^ ((bit >> np.int32(31)) & np.int32(0x7FFFFFFF))
                keys[place, j] = (np.int64(ordered) << np.int64(32)) | (low - row)
            place += 1
    sort_block(keys, networks, bounds[n, 0], bounds[n, 1])
    for row in range(n):
        for j in range(LANES):
            ordered = np.int32(keys[row, j] >> np.int64(32))
            bits[row, j] = ordered ^ ((ordered >> np.int32(31)) & np.int32(0x7FFFFFFF))
        for j in range(LANES):
            origin[row, j] = np.int32(low - (keys[row, j] & low))
    return n


@compiled
def exponentials(values, row, column, top, power, scale, scale_bits):  # type: ignore[no-untyped-def]
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


@compiled
def softmax_in_place(scores, n):  # type: ignore[no-untyped-def]
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


@compiled
def fetch_item(features, item):  # type: ignore[no-untyped-def]
    """Read an item once from front to back, which memory is good at; blocks are then found in cache."""
    total = np.float32(0)
    for row in range(features.shape[1]):
        for column in range(0, features.shape[2], 16):  # one value of each cache line
            total += features[item, row, column]
    return total


@compiled
def put_block(block, whole, column):  # type: ignore[no-untyped-def]
    """Copy a block to its columns of an item."""
    for row in range(len(block)):
        for j in range(LANES):
            whole[row, column + j] = block[row, j]


@compiled
def write_item(whole, features, item):  # type: ignore[no-untyped-def]
    """Write an item once from front to back, as it was read."""
    for row in range(features.shape[1]):
        for column in range(features.shape[2]):
            features[item, row, column] = whole[row, column]


@compiled
def whole_blocks(columns):  # type: ignore[no-untyped-def]
    """Columns up to a full block: inner loops of a fixed length."""
    return (columns + LANES - 1) // LANES * LANES
