"""A map of the joint space: a place in the plane for images and captions, near ones near each other."""

import warnings

import numpy as np
import torch
from torch import Tensor

from vse_demo.retrieval.gallery import Gallery
from vse_demo.utils.tensors import l2_normalize

MAX_IMAGES = 400  # on the map; with more the page would have many megabytes, and show nothing but dots


def items_on_map(gallery: Gallery) -> tuple[list[int], list[int]]:
    """Choose what a map shows: all images, or `MAX_IMAGES` of them, and all their captions.

    Returns:
        The numbers of the images and of the captions in the gallery.
    """
    images = sorted(np.random.default_rng(0).permutation(len(gallery))[:MAX_IMAGES].tolist())
    return images, np.flatnonzero(np.isin(gallery.image_ids, images)).tolist()


def centred_vectors(gallery: Gallery) -> Tensor:
    """The vectors of `items_on_map` (I + C, D), images and captions each moved to a common centre.

    Images are all a little nearer to each other than to any caption, and the other way round (the
    "modality gap"); without this step a map would show two islands and nothing else.
    """
    images, captions = items_on_map(gallery)
    sides = [(gallery.image_vectors, images), (gallery.caption_vectors, captions)]
    return torch.cat([l2_normalize(side[shown] - side.mean(0)) for side, shown in sides if len(shown)])


def compute_map(gallery: Gallery) -> np.ndarray:
    """Place images and captions together by UMAP, with the same result every time: (I + C, 2)."""
    vectors = centred_vectors(gallery).numpy()
    if len(vectors) < 5:  # UMAP needs more; they are put on a line
        return np.stack([np.linspace(0, 1, len(vectors)), np.zeros(len(vectors))], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TensorFlow is missing, and that a fixed seed means one thread
        from umap import UMAP

        places = UMAP(n_neighbors=min(15, len(vectors) - 1), metric="cosine", random_state=0).fit_transform(vectors)
    return np.asarray(places, dtype=np.float32)
