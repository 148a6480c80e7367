"""Exact top-k search by dot products."""

import torch
from torch import Tensor

from vse_demo import ops

FEW = 4  # queries


def top_k(queries: Tensor, vectors: Tensor, k: int, chunk: int = 65536) -> tuple[Tensor, Tensor]:
    """The k largest dot products of each query (Q, D) with vectors (M, D): scores and numbers, (Q, k).

    Exact. Only one chunk of similarities is held at a time.
    """
    k = min(k, len(vectors))
    scores = queries.new_empty(len(queries), 0)
    numbers = torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(vectors), chunk):
        here = _products(queries, vectors[start : start + chunk])
        best, where = here.topk(min(k, here.shape[1]), dim=1)
        scores, order = torch.cat([scores, best], 1).topk(min(k, scores.shape[1] + best.shape[1]), dim=1)
        numbers = torch.cat([numbers, where + start], 1).gather(1, order)
    return scores, numbers


def _products(queries: Tensor, vectors: Tensor) -> Tensor:
    """`queries @ vectors.T`; a few queries do not keep a matrix product busy, and have a kernel of their own."""
    if len(queries) <= FEW and ops.usable(queries, vectors):
        return ops.products(queries, vectors)
    return queries @ vectors.T
