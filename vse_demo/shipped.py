"""What comes with the package: trained models, the photo gallery as each of them sees it, logs of runs."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

from vse_demo.data.images import read_image
from vse_demo.data.layouts import open_dataset
from vse_demo.model.ensemble import Ensemble
from vse_demo.model.vse import VSE
from vse_demo.retrieval.gallery import Gallery
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import FileError, read_json
from vse_demo.utils.paths import shipped

MODELS = {  # name: the folders of assets/models that it is made of
    "grid-minilm": ("grid-minilm",),
    "grid-bigru": ("grid-bigru",),
    "ensemble": ("grid-minilm", "grid-bigru"),
}
DEFAULT = "grid-minilm"
RUNS = {"grid-minilm": "shipped-minilm", "grid-bigru": "shipped-bigru"}  # the run that made each, in assets/runs


def load_shipped(name: str = DEFAULT) -> Gallery:
    """A trained model (`.model`) and all photographs of the gallery with their captions, encoded by it."""
    check_choice(name, list(MODELS), "shipped model")
    parts = [
        Gallery.load(shipped("indexes") / part, VSE.from_pretrained(shipped("models") / part)) for part in MODELS[name]
    ]
    first = parts[0]
    if len(parts) == 1:
        return first
    return Gallery(
        Ensemble([part.model for part in parts if isinstance(part.model, VSE)]),
        first.names,
        first.digests,
        first.captions,
        first.image_ids,
        Ensemble.join([part.image_vectors for part in parts]),
        Ensemble.join([part.caption_vectors for part in parts]),
    )


def index_gallery(model: VSE | Ensemble) -> Gallery:
    """Encode the photographs of all splits, in the order that every shipped index has."""
    gallery, dataset = Gallery(model), open_dataset()
    for split in dataset.splits:
        gallery.add(dataset.split(split))
    return gallery


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
