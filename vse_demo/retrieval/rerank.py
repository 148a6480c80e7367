"""Two stages: a quick model finds candidates among all items, a careful one puts them in order."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from vse_demo.data.images import Images
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.entries import Hit

CANDIDATES = 50  # that the first stage finds, unless somebody asks for more


@runtime_checkable
class Comparer(Protocol):
    """A model that compares images with sentences by itself."""

    def similarity(self, images: Images, texts: Sequence[str]) -> Tensor:
        """Of every image with every sentence: (images, sentences)."""
        ...


def rerank(model: Comparer | EmbeddingModel, hits: Sequence[Hit], images: Images, texts: Sequence[str]) -> list[Hit]:
    """Order results by another model's similarities, best first.

    Args:
        model: That orders them: one that interacts (`vse_demo.model.InteractionModel`), or one of vectors.
        hits: What was found.
        images: The images of the hits where a sentence was searched for, else the one that was searched for.
        texts: The captions of the hits where an image was searched for, else the sentence.

    Returns:
        The same results with the model's scores. Where it cannot tell two apart, they stay in their order.

    Raises:
        ValueError: If there are not as many pairs as hits.
    """
    if len(images) * len(texts) != len(hits) or min(len(images), len(texts)) > 1:
        raise ValueError(f"{len(hits)} results need as many pairs, not {len(images)} images and {len(texts)} texts")
    if not hits:
        return []
    if isinstance(model, Comparer):
        scores = model.similarity(images, texts).flatten()
    else:
        scores = (model.encode_images(images) @ model.encode_texts(texts).T).flatten()
    order = scores.argsort(descending=True, stable=True).tolist()
    return [replace(hits[place], score=float(scores[place])) for place in order]
