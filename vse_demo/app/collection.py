"""From a folder of images, or from what is shipped, to a `Service` over it."""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from vse_demo.app.credits import read_credits
from vse_demo.app.folder import FolderGalleries, cached_map
from vse_demo.app.service import Service
from vse_demo.app.spelling import vocabulary
from vse_demo.data.layouts import open_dataset
from vse_demo.encoders.tokenizers import SubwordTokenizer, WordTokenizer
from vse_demo.model.ensemble import Ensemble, load_model
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.model.vse import VSE
from vse_demo.retrieval.address import load_store, stored_models
from vse_demo.shipped import MODELS, load_shipped, read_map
from vse_demo.utils.files import FileError
from vse_demo.utils.paths import shipped


def open_service(data: Path | None = None, models: Sequence[str | Path] = (), gallery: str = "") -> Service:
    """Make the service of the shipped models or of given ones.

    Args:
        data: A folder of images; without it, the shipped gallery.
        models: Folders of a model; several are an ensemble.
        gallery: The folder or the address of a gallery of these images that is there already: it is searched where it
            is, and nothing is encoded. Of what else it holds nothing is found.

    Raises:
        FileError: The data or a model cannot be read, or the data are no images.
    """
    dataset = open_dataset(data)
    splits = [*(dataset.present(name)[0] for name in dataset.splits), dataset.unlisted()]
    if any(isinstance(split.images, np.ndarray) for split in splits):
        raise FileError(f"{dataset.folder} holds precomputed regions, which cannot be shown: give a folder of pictures")
    files = {name: file for split in splits for name, file in zip(split.names, split.images, strict=True)}
    captions: dict[str, list[str]] = {}
    for split in splits:
        for text, image in zip(split.captions, split.image_ids, strict=True):
            captions.setdefault(split.names[image], []).append(text)
    known: dict[str, Any] = {"credits": read_credits(dataset.folder), "real_words": shipped_words}
    if data is None and not models and not gallery:
        sources = {name: _loader(name) for name in MODELS}
        return Service(sources, files, captions, lambda name, _: read_map(name), **known)
    known |= {"show_paths": data is not None}
    if gallery:
        model = load_model(list(models) or stored_models(gallery))
        store, of_folder = load_store(gallery, model), {"source": os.path.abspath(dataset.folder)}
        known |= {"where": of_folder if store.sample(1, of_folder) else None}
        if known["where"] is None and not any(entry.name in files for entry in store.entries()):
            raise FileError(f"this gallery holds no picture of {dataset.folder}: add them with vse-demo index")
        sources = {"given": lambda _: store}
        return Service(sources, files, captions, lambda _, sample: cached_map(sample, model), **known)
    if models:
        given = load_model(list(models))  # now: what is wrong with it should be said at once
        folder = FolderGalleries(lambda: {"given": given}, dataset)
    else:
        folder = FolderGalleries(load_models, dataset)
    sources = {name: partial(folder.get, name) for name in (["given"] if models else MODELS)}
    known |= {"found": lambda: folder.report}
    return Service(sources, files, captions, lambda name, sample: cached_map(sample, folder.get(name).model), **known)


def _loader(name: str) -> Any:
    return lambda _: load_shipped(name)


def load_models() -> Mapping[str, EmbeddingModel]:
    """All shipped models by name; ensembles are made of the others."""
    parts = {part: VSE.from_pretrained(shipped("models") / part) for names in MODELS.values() for part in names}
    return {
        name: parts[names[0]] if len(names) == 1 else Ensemble([parts[part] for part in names])
        for name, names in MODELS.items()
    }


@lru_cache
def shipped_words() -> frozenset[str]:
    """The words that any shipped model knows."""
    folders = [shipped("models") / part for parts in MODELS.values() for part in parts]
    tokenizers: list[WordTokenizer | SubwordTokenizer] = []
    for kind in (WordTokenizer, SubwordTokenizer):
        tokenizers += [kind.load(folder) for folder in dict.fromkeys(folders) if (folder / kind.FILE).exists()]
    return frozenset(word for tokenizer in tokenizers for word in vocabulary(tokenizer))
