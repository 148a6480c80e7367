"""Where images and captions lie on a map of the joint space: near ones near each other."""

import warnings

import numpy as np
import torch
from torch import Tensor

from vse_demo.retrieval.gallery import Gallery
from vse_demo.utils.tensors import l2_normalize

MAX_CHARTED = 400  # pictures on the map; more would be a page of many megabytes, and nothing but dots


def charted(gallery: Gallery) -> tuple[list[int], list[int]]:
    """The pictures and captions that a map shows: all of them, or of some pictures if there are very many."""
    images = sorted(np.random.default_rng(0).permutation(len(gallery))[:MAX_CHARTED].tolist())
    return images, np.flatnonzero(np.isin(gallery.image_ids, images)).tolist()


def centred(gallery: Gallery) -> Tensor:
    """The `charted` pictures and captions (P + C, D), each side moved to its common centre.

    Pictures are all a little nearer to each other than to any caption, and the other way round (the
    "modality gap"); without this step a map would show two islands and nothing else.
    """
    images, captions = charted(gallery)
    sides = [(gallery.image_vectors, images), (gallery.caption_vectors, captions)]
    return torch.cat([l2_normalize(side[shown] - side.mean(0)) for side, shown in sides if len(shown)])


def compute_map(gallery: Gallery) -> np.ndarray:
    """UMAP of pictures and captions together, the same every time."""
    vectors = centred(gallery).numpy()
    if len(vectors) < 5:  # too few for UMAP; a line will do
        return np.stack([np.linspace(0, 1, len(vectors)), np.zeros(len(vectors))], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TensorFlow is missing, and that a fixed seed means one thread
        from umap import UMAP

        places = UMAP(n_neighbors=min(15, len(vectors) - 1), metric="cosine", random_state=0).fit_transform(vectors)
    return np.asarray(places, dtype=np.float32)
