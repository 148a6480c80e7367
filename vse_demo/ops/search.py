"""Dot products with few queries, and counting for ranks: at the speed of reading memory."""

import numpy as np
import torch
from torch import Tensor

from vse_demo.ops.dispatch import compiled, over_batch

GROUP = 128  # rows of similarities that are counted together


def products(queries: Tensor, vectors: Tensor) -> Tensor:
    """`queries @ vectors.T`, (Q, D) and (M, D) -> (Q, M), for few queries: at the speed of reading the vectors."""
    scores = queries.new_empty(len(vectors), len(queries))
    over_batch(_products, vectors.contiguous(), queries.contiguous(), scores)
    return scores.T


def count_at_least(similarities: Tensor, of_rows: Tensor, of_columns: Tensor) -> tuple[Tensor, Tensor]:
    """How many values of each row, and of each column, are at least its own threshold: (C, I) -> (C,), (I,).

    One pass over memory. A NaN among them makes the count of its row negative.
    """
    texts, images = similarities.shape
    in_rows = torch.empty(texts, dtype=torch.int64)
    in_columns = torch.zeros(-(-texts // GROUP), images, dtype=torch.int32)  # each thread counts by itself
    over_batch(_count_at_least, in_columns, similarities.contiguous(), of_rows, of_columns, in_rows)
    return in_rows, in_columns.sum(0)


@compiled
def _products(start, stop, vectors, queries, scores):  # type: ignore[no-untyped-def]
    for number in range(start, stop):
        for query in range(len(queries)):
            total = np.float32(0)
            for d in range(vectors.shape[1]):
                total += vectors[number, d] * queries[query, d]
            scores[number, query] = total


@compiled
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
