"""Exact top-k search by dot products."""

import torch
from torch import Tensor

from vse_demo import ops


def top_k(queries: Tensor, vectors: Tensor, k: int, chunk: int = 65536) -> tuple[Tensor, Tensor]:
    """Find the k largest dot products of each query with a set of vectors.

    Exact. Only one chunk of similarities is held at a time.

    Args:
        queries: (Q, D).
        vectors: (M, D), on the same device.
        k: How many to find; all if there are fewer vectors.
        chunk: How many vectors are compared at a time.

    Returns:
        Scores (Q, k), largest first, and the numbers of their vectors (Q, k).

    >>> top_k(torch.tensor([[1., 0.]]), torch.tensor([[0., 1.], [3., 0.], [2., 0.]]), 2)
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    k = min(k, len(vectors))
    scores = queries.new_empty(len(queries), 0)
    numbers = queries.new_empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(vectors), chunk):
        here = ops.products(queries, vectors[start : start + chunk])
        best, where = here.topk(min(k, here.shape[1]), dim=1)
        scores, order = torch.cat([scores, best], 1).topk(min(k, scores.shape[1] + best.shape[1]), dim=1)
        numbers = torch.cat([numbers, where + start], 1).gather(1, order)
    return scores, numbers
