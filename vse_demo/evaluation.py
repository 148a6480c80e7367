"""Recall@K, median rank and RSUM, exactly and in bounded memory.

A query's rank is 1 + the number of wrong items that score at least as high as its best right item.
So ties count against the model: one that maps everything to a single point scores nothing instead
of everything. Ranks are counted, nothing is sorted.

Equal embeddings can differ in the last bits of their products, since matrix products of other
shapes add in another order; `evaluate` takes scores closer than `TIE` as equal.
"""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor

from vse_demo import ops

RECALLS = (1, 5, 10)
TIE = 1e-6


class Direction(TypedDict):
    """Recall in percent, and the median rank (1 is best), of one direction."""

    r1: float
    r5: float
    r10: float
    medr: float


class Metrics(TypedDict):
    """Both directions, image → text (i2t) and text → image (t2i), and the sum of the six recalls."""

    i2t: Direction
    t2i: Direction
    rsum: float
    images: int
    captions: int


def retrieval_ranks(similarities: Tensor, image_ids: Tensor, chunk: int = 512) -> tuple[Tensor, Tensor]:
    """Ranks, from 1, of the right items in a matrix of similarities.

    Args:
        similarities: (C, I) of C texts and I images.
        image_ids: (C,) the index of each text's image; every image has at least one text.
        chunk: texts that are looked at together.

    Returns:
        The rank of the best right text for each image (I,), and of the right image for each text (C,).

    Raises:
        ValueError: if the shapes do not fit, an image has no text, or a similarity is NaN.
        TypeError: if `image_ids` does not hold whole numbers (torch.int64).

    >>> retrieval_ranks(torch.tensor([[.9, .1], [.8, .3]]), torch.tensor([0, 1]))
    (tensor([1, 1]), tensor([1, 2]))
    """
    texts, images = similarities.shape
    _check_image_ids(texts, images, image_ids)
    right = _right(similarities, image_ids)
    return _count_ranks(lambda rows: similarities[rows], right, images, image_ids, chunk, tie=0.0)


def evaluate(images: Tensor, texts: Tensor, image_ids: Tensor, folds: int = 1, chunk: int = 512) -> Metrics:
    """Recalls, median ranks and RSUM of embeddings that are compared by dot product.

    The similarities are computed a chunk of texts at a time and never held as a whole.

    Args:
        images: (I, D).
        texts: (C, D).
        image_ids: (C,) the index of each text's image; every image has at least one text.
        folds: the images are cut into so many equal consecutive parts, each is searched by itself, and the
            figures are averaged: five folds of 1,000 images are "COCO 1K".
        chunk: texts that are looked at together.

    Raises:
        ValueError: if the shapes or folds do not fit, an image has no text, or a similarity is NaN.
        TypeError: if `image_ids` does not hold whole numbers (torch.int64).
    """
    _check_image_ids(len(texts), len(images), image_ids)

    def measure(some_images: Tensor, some_texts: Tensor, ids: Tensor) -> tuple[Direction, Direction]:
        return _evaluate_fold(images[some_images], texts[some_texts], ids, chunk)

    return _evaluate_folds(measure, len(images), image_ids, folds)


def evaluate_pairs(
    compare: Callable[[Tensor, Tensor], Tensor], images: int, image_ids: Tensor, folds: int = 1
) -> Metrics:
    """The same of similarities that are computed in another way, as with late interaction.

    Args:
        compare: given the numbers of c texts and of i images, returns their similarities (c, i).
        images: how many there are.
        image_ids: (C,) the index of each text's image; every image has at least one text.
        folds: as for `evaluate`; pairs of different folds are never compared.
    """
    _check_image_ids(len(image_ids), images, image_ids)

    def measure(some_images: Tensor, some_texts: Tensor, ids: Tensor) -> tuple[Direction, Direction]:
        ranks = retrieval_ranks(compare(some_texts, some_images), ids)
        return _direction(ranks[0]), _direction(ranks[1])

    return _evaluate_folds(measure, images, image_ids, folds)


def _evaluate_folds(
    measure: Callable[[Tensor, Tensor, Tensor], tuple[Direction, Direction]], images: int, image_ids: Tensor, folds: int
) -> Metrics:
    """The mean over folds of what `measure` finds for the images and texts of each, by their numbers."""
    check_folds(images, folds)
    parts = []
    for some_images in torch.arange(images).split(images // folds):
        some_texts = ((image_ids >= some_images[0]) & (image_ids <= some_images[-1])).nonzero().flatten()
        parts.append(measure(some_images, some_texts, image_ids[some_texts] - some_images[0]))
    i2t, t2i = (_mean_direction([part[way] for part in parts]) for way in (0, 1))
    rsum = sum(direction[recall] for direction in (i2t, t2i) for recall in ("r1", "r5", "r10"))
    return {"i2t": i2t, "t2i": t2i, "rsum": rsum, "images": images, "captions": len(image_ids)}


def check_folds(images: int, folds: int) -> None:
    """Raise a ValueError if so many images do not split into so many equal folds."""
    if folds < 1 or images % folds:
        raise ValueError(f"{images} images do not split into {folds} equal folds")


def _evaluate_fold(images: Tensor, texts: Tensor, image_ids: Tensor, chunk: int) -> tuple[Direction, Direction]:
    right = torch.cat([_right(texts[rows] @ images.T, image_ids[rows]) for rows in _chunks(image_ids, chunk)])
    ranks = _count_ranks(lambda rows: texts[rows] @ images.T, right, len(images), image_ids, chunk, TIE)
    return _direction(ranks[0]), _direction(ranks[1])


def _count_ranks(
    block: Callable[[slice], Tensor], right: Tensor, images: int, image_ids: Tensor, chunk: int, tie: float
) -> tuple[Tensor, Tensor]:
    """Ranks from blocks of similarities (chunk, I) and the similarity of each text to its own image (C,)."""
    best = right.new_full((images,), -torch.inf).scatter_reduce_(0, image_ids, right, "amax")
    text_ranks, image_ranks = torch.empty_like(image_ids), torch.ones_like(best, dtype=torch.int64)
    for rows in _chunks(image_ids, chunk):
        text_ranks[rows], in_columns = _count_at_least(block(rows), right[rows] - tie, best - tie)
        image_ranks += in_columns  # a text's own image counts too, so ranks begin at 1
    image_ranks.scatter_add_(0, image_ids, -(right >= best[image_ids] - tie).long())  # but right texts are no rivals
    return image_ranks, text_ranks


def _count_at_least(similarities: Tensor, of_rows: Tensor, of_columns: Tensor) -> tuple[Tensor, Tensor]:
    """How many values of each row, and of each column, are at least its own threshold."""
    if ops.usable(similarities):
        counts = ops.count_at_least(similarities, of_rows, of_columns)
        broken = bool((counts[0] < 0).any())
    else:
        counts = (similarities >= of_rows.unsqueeze(1)).sum(1), (similarities >= of_columns).sum(0)
        broken = bool(similarities.isnan().any())
    if broken:
        raise ValueError("some similarities are NaN: the model that made them is broken")
    return counts


def _chunks(image_ids: Tensor, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, len(image_ids), size)]


def _right(similarities: Tensor, image_ids: Tensor) -> Tensor:
    return similarities.gather(1, image_ids.unsqueeze(1)).squeeze(1)


def _direction(ranks: Tensor) -> Direction:
    r1, r5, r10 = (100 * (ranks <= k).double().mean().item() for k in RECALLS)
    return {"r1": r1, "r5": r5, "r10": r10, "medr": ranks.double().quantile(0.5).item()}


def _mean_direction(parts: list[Direction]) -> Direction:
    mean = {key: sum(part[key] for part in parts) / len(parts) for key in Direction.__annotations__}  # type: ignore[literal-required]
    return Direction(**mean)  # type: ignore[typeddict-item]


def _check_image_ids(texts: int, images: int, image_ids: Tensor) -> None:
    if image_ids.shape != (texts,):
        raise ValueError(f"image_ids is {tuple(image_ids.shape)}, {texts} texts need ({texts},)")
    if image_ids.dtype != torch.int64:
        raise TypeError(f"image_ids is {image_ids.dtype}, it must be torch.int64: the index of each text's image")
    if texts == 0 or images == 0:
        raise ValueError(f"nothing to evaluate: {images} images and {texts} texts")
    if image_ids.min() < 0 or image_ids.max() >= images:
        raise ValueError(f"image_ids points outside the {images} images")
    counts = torch.bincount(image_ids, minlength=images)
    if (counts == 0).any():
        raise ValueError(f"image {int((counts == 0).nonzero()[0])} has no text: nothing would be right for it")
