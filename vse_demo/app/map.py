"""A map of the joint space: a place in the plane for images and captions, near ones near each other."""

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vse_demo.retrieval.entries import Entry, Where
from vse_demo.retrieval.exact import top_k
from vse_demo.retrieval.store import Store
from vse_demo.utils.tensors import l2_normalize

MAX_IMAGES = 400  # on the map; with more the page would have many megabytes, and show nothing but dots
TEMPERATURE = 0.05  # of the weights of a query's neighbours


@dataclass(frozen=True)
class Sample:
    """What a map shows: all images of a store or `MAX_IMAGES` of them, with all their captions and vectors."""

    entries: list[Entry]
    images: Tensor  # (I, D)
    captions: Tensor  # (C, D)

    @classmethod
    def of(cls, gallery: Store, where: Where | None = None) -> "Sample":
        """That of a store, always the same as long as the store is."""
        entries = gallery.sample(MAX_IMAGES, where)
        images, captions = gallery.fetch([entry.digest for entry in entries])
        return cls(entries, images, torch.cat([torch.empty(0, gallery.model.dim), *captions]))

    @cached_property
    def centred(self) -> Tensor:
        """The vectors (I + C, D), images and captions each moved to a common centre.

        Images are all a little nearer to each other than to any caption, and the other way round (the
        "modality gap"); without this step a map would show two islands and nothing else.
        """
        return torch.cat([l2_normalize(side - side.mean(0)) for side in (self.images, self.captions) if len(side)])

    def place(self, places: np.ndarray, vector: Tensor, is_caption: bool, neighbours: int) -> np.ndarray:
        """Find where a vector (1, D) belongs on a map: among its nearest neighbours, the nearest counting most."""
        side = self.captions if is_caption and len(self.captions) else self.images
        scores, numbers = top_k(l2_normalize(vector - side.mean(0)), self.centred, neighbours)
        weights = (scores[0] / TEMPERATURE).softmax(0).numpy()
        return weights @ places[numbers[0].numpy()]


def compute_map(sample: Sample) -> np.ndarray:
    """Place images and captions together by UMAP, with the same result every time: (I + C, 2)."""
    vectors = sample.centred.numpy()
    if len(vectors) < 5:  # UMAP needs more; they are put on a line
        return np.stack([np.linspace(0, 1, len(vectors)), np.zeros(len(vectors))], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TensorFlow is missing, and that a fixed seed means one thread
        from umap import UMAP

        places = UMAP(n_neighbors=min(15, len(vectors) - 1), metric="cosine", random_state=0).fit_transform(vectors)
    return np.asarray(places, dtype=np.float32)
