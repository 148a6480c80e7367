"""Exact top-k search by dot products."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from vse_demo import ops

Vectors = Tensor | np.ndarray  # (M, D): a tensor, or a float16 array, which may be a mapped file


def top_k(
    queries: Tensor, vectors: Vectors, k: int, chunk: int = 65536, left_out: np.ndarray | None = None
) -> tuple[Tensor, Tensor]:
    """Find the k largest dot products of each query with a set of vectors.

    Exact. Only one chunk of similarities is held at a time.

    Args:
        queries: (Q, D).
        vectors: (M, D), on the same device.
        k: How many to find; all if there are fewer vectors.
        chunk: How many vectors are compared at a time.
        left_out: Numbers of vectors that are not to be found, ascending.

    Returns:
        Scores (Q, k), largest first, and the numbers of their vectors (Q, k).

    >>> top_k(torch.tensor([[1., 0.]]), torch.tensor([[0., 1.], [3., 0.], [2., 0.]]), 2)
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    left_out = np.empty(0, np.int64) if left_out is None else left_out
    k = min(k, len(vectors) - len(left_out))
    found = _nothing(queries)
    for start in range(0, len(vectors), chunk):
        part = vectors[start : start + chunk]
        here = ops.half_products(queries, part) if isinstance(part, np.ndarray) else ops.products(queries, part)
        first, last = np.searchsorted(left_out, [start, start + chunk])
        if last > first:
            here[:, torch.from_numpy(left_out[first:last] - start)] = -torch.inf
        best, where = here.topk(min(k, here.shape[1]), dim=1)
        found = _merge(found, (best, where + start), k)
    return found


def top_k_of_parts(
    queries: Tensor, parts: Iterable[tuple[Vectors, np.ndarray]], k: int
) -> list[list[tuple[float, int, int]]]:
    """Find the k largest dot products of each query with the vectors of several parts.

    Args:
        queries: (Q, D).
        parts: Vectors (M, D), and the numbers of those that are not to be found, ascending.
        k: How many to find.

    Returns:
        For each query its results, best first: the score, the number of the part, the number in it.
    """
    found, owners = _nothing(queries), torch.empty(len(queries), 0, dtype=torch.int64)
    for number, (vectors, left_out) in enumerate(parts):
        scores, numbers = top_k(queries, vectors, k, left_out=left_out)
        both = torch.cat([found[0], scores], 1)
        best, order = both.topk(min(k, both.shape[1]), dim=1)
        found = best, torch.cat([found[1], numbers], 1).gather(1, order)
        owners = torch.cat([owners, torch.full_like(numbers, number)], 1).gather(1, order)
    rows = zip(found[0].tolist(), owners.tolist(), found[1].tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def _nothing(queries: Tensor) -> tuple[Tensor, Tensor]:
    return queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.int64)


def _merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The k best of two sets of results."""
    scores = torch.cat([one[0], other[0]], 1)
    best, order = scores.topk(min(k, scores.shape[1]), dim=1)
    return best, torch.cat([one[1], other[1]], 1).gather(1, order)
