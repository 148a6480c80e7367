"""Dot products with few queries, and counting for ranks: at the speed of reading memory."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vse_demo.ops.dispatch import usable
from vse_demo.ops.kernels import compiled, over_batch
from vse_demo.ops.library import register, register_gradient

FEW = 4  # queries; more of them keep a matrix product busy
BLOCK = 4096  # vectors in half precision that are widened together
GROUP = 128  # rows of similarities that are counted together


def products(queries: Tensor, vectors: Tensor) -> Tensor:
    """Dot products of queries with vectors, `queries @ vectors.T`; a few queries have a kernel of their own.

    Args:
        queries: (Q, D).
        vectors: (M, D).

    Returns:
        (Q, M).
    """
    if len(queries) <= FEW and usable(queries, vectors):
        return _products(queries.contiguous(), vectors.contiguous()).T
    return queries @ vectors.T


def half_products(queries: Tensor, vectors: np.ndarray) -> Tensor:
    """Dot products of float32 queries with vectors that are stored in half precision, without a float32 copy of them.

    Args:
        queries: (Q, D) float32 on a CPU.
        vectors: (M, D) float16, contiguous; a mapped file will do.

    Returns:
        (Q, M) float32.
    """
    queries = queries.detach().contiguous()
    if len(queries) <= FEW and usable(queries):
        scores = torch.empty(len(vectors), len(queries))
        over_batch(_multiply_halves, vectors.view(np.uint16), queries, scores)
        return scores.T
    parts = [vectors[start : start + BLOCK].astype(np.float32) for start in range(0, len(vectors), BLOCK)]
    products = [queries @ torch.from_numpy(part).T for part in parts]
    return torch.cat(products, dim=1) if products else queries.new_empty(len(queries), 0)


def count_at_least(similarities: Tensor, of_rows: Tensor, of_columns: Tensor) -> tuple[Tensor, Tensor]:
    """Count the values of each row, and of each column, that are at least its own threshold, in one pass over memory.

    Args:
        similarities: (C, I) float32 on a CPU.
        of_rows: (C,), the threshold of each row.
        of_columns: (I,), the threshold of each column.

    Returns:
        The counts of the rows (C,) and of the columns (I,). A NaN makes the count of its row negative.
    """
    in_rows, in_columns = _count_at_least(similarities, of_rows, of_columns)
    return in_rows, in_columns


def _run_products(queries: Tensor, vectors: Tensor) -> Tensor:
    scores = queries.new_empty(len(vectors), len(queries))
    over_batch(_multiply, vectors.contiguous(), queries.contiguous(), scores)
    return scores


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    queries, vectors = ctx.saved_tensors
    return gradient.T @ vectors, gradient @ queries


_products = register(
    "products(Tensor queries, Tensor vectors) -> Tensor",
    _run_products,
    lambda queries, vectors: queries.new_empty(vectors.shape[0], queries.shape[0]),
)
register_gradient("products", _setup, _backward)


def _run_count(similarities: Tensor, of_rows: Tensor, of_columns: Tensor) -> tuple[Tensor, Tensor]:
    texts, images = similarities.shape
    in_rows = torch.empty(texts, dtype=torch.int64)
    in_columns = torch.zeros(-(-texts // GROUP), images, dtype=torch.int32)  # each thread counts by itself
    over_batch(_count, in_columns, similarities.contiguous(), of_rows, of_columns, in_rows)
    return in_rows, in_columns.sum(0)


_count_at_least = register(
    "count_at_least(Tensor similarities, Tensor of_rows, Tensor of_columns) -> (Tensor, Tensor)",
    _run_count,
    lambda similarities, *_: tuple(similarities.new_empty(size, dtype=torch.int64) for size in similarities.shape),
)


@compiled
def _multiply(start, stop, vectors, queries, scores):  # type: ignore[no-untyped-def]
    for number in range(start, stop):
        for query in range(len(queries)):
            total = np.float32(0)
            for d in range(vectors.shape[1]):
                total += vectors[number, d] * queries[query, d]
            scores[number, query] = total


@compiled
def _multiply_halves(start, stop, vectors, queries, scores):  # type: ignore[no-untyped-def]
    # The bits of a float16, moved to their places in a float32, are its value times 2^-112. No infinity, no NaN.
    scale = np.float32(2.0**112)
    for number in range(start, stop):
        for query in range(len(queries)):
            total = np.float32(0)
            for d in range(vectors.shape[1]):
                half = np.uint32(vectors[number, d])
                sign, size = (half & np.uint32(0x8000)) << np.uint32(16), (half & np.uint32(0x7FFF)) << np.uint32(13)
                total += np.uint32(sign | size).view(np.float32) * queries[query, d]
            scores[number, query] = total * scale


@compiled
def _count(start, stop, in_columns, similarities, of_rows, of_columns, in_rows):  # type: ignore[no-untyped-def]
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
