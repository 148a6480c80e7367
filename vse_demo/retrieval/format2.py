"""Galleries of format 2: one JSON file and one of tensors, as earlier versions wrote them. They are only read."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vse_demo.utils.files import CHECKSUMS, FileError, verify_checksums

FORMAT = 2
FILES = ("gallery.safetensors", "models.json", CHECKSUMS)  # besides gallery.json


def read_format_2(folder: Path, about: dict[str, Any], dim: int) -> dict[str, Tensor]:
    """The tensors of a gallery whose `gallery.json` has been read.

    Raises:
        FileError: If the two files do not speak of the same things, or are not as they were saved.
    """
    try:
        tensors = load_file(folder / "gallery.safetensors")
    except (OSError, SafetensorError) as error:
        raise FileError(f"{folder / 'gallery.safetensors'} cannot be read: {error}") from error
    _check_parts(folder, about, tensors, dim)
    verify_checksums(folder)
    return tensors


def _check_parts(folder: Path, about: dict[str, Any], tensors: dict[str, Tensor], dim: int) -> None:
    """The two files of a gallery must speak of the same things."""
    for key in ("names", "digests", "captions"):
        if not isinstance(about.get(key), list) or not all(isinstance(item, str) for item in about[key]):
            raise FileError(f"{folder / 'gallery.json'}: {key!r} must be a list of strings")
    images, captions = len(about["names"]), len(about["captions"])
    expected = {"image_vectors": (images, dim), "caption_vectors": (captions, dim), "image_ids": (captions,)}
    for key, shape in expected.items():
        if key not in tensors or tuple(tensors[key].shape) != shape:
            raise FileError(f"{folder}: {key!r} in gallery.safetensors does not fit gallery.json, which needs {shape}")
        floats = tensors[key].dtype in (torch.float16, torch.float32) and bool(tensors[key].isfinite().all())
        if key != "image_ids" and not floats:
            raise FileError(f"{folder}: {key!r} in gallery.safetensors are not all numbers")
    image_ids = tensors["image_ids"]
    if (
        len(about["digests"]) != images
        or image_ids.dtype != torch.int64
        or ((image_ids < 0) | (image_ids >= images)).any()
    ):
        raise FileError(f"{folder}: a caption or a digest belongs to no image")
