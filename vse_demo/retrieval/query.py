"""A query: a sentence, an image, or several of them added and subtracted, as one unit vector."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vse_demo.data.images import ImageLike
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.utils.tensors import l2_normalize

Term = str | ImageLike  # a string is a sentence; an image is a PIL image or a `Path`
Query = Term | Sequence[Term | tuple[Term, float]]


def encode_query(model: EmbeddingModel, query: Query) -> Tensor:
    """Encode what is searched for.

    Args:
        model: Of the store.
        query: A sentence; an image (a PIL image or a `Path`: a string is always a sentence); or a list of them, which
            are added up. `[("a beach", 1.0), ("people", -0.5), Path("dunes.jpg")]` is a beach like in this picture,
            rather without people. A weight that is not given is 1.

    Returns:
        A unit vector (1, D).

    Raises:
        ValueError: If a sentence is empty, or nothing is left of the sum.
        FileError: If a file cannot be read as an image.
        TypeError: If something is neither a sentence nor an image.
    """
    terms = query if isinstance(query, list | tuple) else [query]
    weighted = [_weighted(term) for term in terms]
    if not weighted:
        raise ValueError("a query needs a sentence or an image")
    vectors = torch.cat([encode_term(model, term) for term, _ in weighted])
    total = torch.tensor([weight for _, weight in weighted]) @ vectors
    if total.norm() < 1e-6:
        raise ValueError("nothing is left of this query: what it adds, it subtracts")
    return l2_normalize(total[None])


def encode_term(model: EmbeddingModel, term: Term) -> Tensor:
    """Encode one sentence or one image: (1, D)."""
    if isinstance(term, str):
        if not term.strip():
            raise ValueError(f"a sentence is empty: {term!r}")
        return model.encode_texts([term])
    return model.encode_images([term])


def _weighted(term: Any) -> tuple[Term, float]:
    if isinstance(term, tuple):
        if len(term) != 2 or not isinstance(term[1], int | float):
            raise TypeError(f"a part of a query must be (sentence or image, weight), not {term!r}")
        return term[0], float(term[1])
    if not isinstance(term, str | Path | Image.Image) and not hasattr(term, "shape") and not hasattr(term, "open"):
        raise TypeError(f"a query must be a sentence, a PIL image or a Path, not {type(term).__name__}")
    return term, 1.0
