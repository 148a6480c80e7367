"""What comes with the package: trained models, the photo gallery as each of them sees it, logs of runs."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file

from vse_demo.data.images import read_image
from vse_demo.data.layouts import open_dataset
from vse_demo.model.ensemble import Ensemble, check_backend, load_folder, load_model
from vse_demo.model.names import DEFAULT, MODELS
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.address import load_store, stored_models
from vse_demo.retrieval.gallery import Gallery
from vse_demo.retrieval.store import Store
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import FileError, read_json, recover_folder
from vse_demo.utils.paths import shipped

RUNS = {"grid-minilm": "shipped-minilm", "grid-bigru": "shipped-bigru"}  # the run that made each, in assets/runs


def load_shipped(
    name: str = DEFAULT, device: str | torch.device = "cpu", backend: str = "torch", lazy: bool = False
) -> Gallery:
    """A trained model (`.model`) and all photographs of the gallery with their captions, encoded by it.

    Args:
        name: One of `list_models()`.
        device: Where the model computes.
        backend: As for `load_model`, and so is `lazy`.
        lazy: See there.

    Raises:
        ValueError: If there is no such model, or the backend cannot compute on that device here.
    """
    check_choice(name, list(MODELS), "shipped model")
    check_backend(backend, device)
    root = shipped("gallery") / "images"
    parts = [
        Gallery.load(shipped("indexes") / part, load_folder(shipped("models") / part, device, backend, lazy)).moved(
            root
        )
        for part in MODELS[name]
    ]
    first = parts[0]
    if len(parts) == 1:
        return first
    return Gallery(
        Ensemble([part.model for part in parts]),
        first.names,
        first.digests,
        first.captions,
        first.image_ids,
        Ensemble.join([part.image_vectors for part in parts]),
        Ensemble.join([part.caption_vectors for part in parts]),
        root,
    )


def load_gallery(
    name: str | Path = "default",
    models: str | Path | Sequence[str | Path] | None = None,
    device: str | torch.device = "cpu",
    backend: str = "torch",
    lazy: bool = False,
) -> Store:
    """A gallery with its model, ready to be searched.

    Args:
        name: The folder of a gallery, `postgresql://user@host/database`, or `default`, the photographs that come with
            the package.
        models: What `load_model` takes; by default the model that encoded the gallery, and for `default`
            grid-minilm. The photographs that come along are encoded anew by a model that did not come along.
        device: Where the model computes.
        backend: What computes, `torch` or `onnx`: see `load_model`.
        lazy: Whether each side of the model is built when it first has something to encode: see `load_model`.

    Raises:
        FileError: If there is no such gallery or model, or one is broken.
    """
    names = [str(models)] if isinstance(models, str | Path) else [str(model) for model in models or ()]
    folder = Path(name)
    if str(name) != "default" or recover_folder(folder).is_dir():
        return load_store(name, load_model(names or stored_models(name), device, backend, lazy))
    if len(names) > 1 or not set(names) <= set(MODELS):
        return index_gallery(load_model(names, device, backend)).moved(shipped("gallery") / "images")
    return load_shipped(names[0] if names else DEFAULT, device, backend, lazy)


def index_gallery(model: EmbeddingModel) -> Gallery:
    """Encode the photographs of all splits, in the order that every shipped index has."""
    gallery, dataset = Gallery(model), open_dataset()
    for split in dataset.splits:
        gallery.add(dataset.split(split))
    return gallery.moved(None)  # where the photographs are is not the same everywhere


def gallery_file(name: str) -> Path:
    """The file of a photograph of the gallery, by its name in `Gallery.names`."""
    return shipped("gallery") / "images" / name


def gallery_photo(name: str) -> Image.Image:
    """A photograph of the gallery, by its name in `Gallery.names`."""
    return read_image(gallery_file(name))


def read_map(name: str = DEFAULT) -> np.ndarray:
    """Where the photographs and captions of `load_shipped(name)` lie on a map: (I + C, 2)."""
    check_choice(name, list(MODELS), "shipped model")
    return load_file(shipped("maps") / f"{name}.safetensors")["places"].astype(np.float32)


def read_evidence(name: str) -> dict[str, Any]:
    """What is known of the training of a shipped model: its config, its validations, its figures as shipped."""
    return read_json(shipped("runs") / f"{name}.json")


def read_log(name: str) -> dict[str, np.ndarray]:
    """The steps of a run in assets/runs, a column each: step, loss, k, alignment, uniformity, lr …"""
    folder = shipped("runs")
    path = next((path for path in (folder / f"{name}.csv", folder / "steps" / f"{name}.csv") if path.exists()), None)
    if path is None:
        known = sorted(path.stem for path in folder.rglob("*.csv"))
        raise FileError(f"{folder} has no run {name!r}; it has {', '.join(known)}")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
