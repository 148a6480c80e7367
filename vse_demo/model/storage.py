"""A model on disk: which files it is, and how its tokenizer and weights are read back.

A folder made by `VSE.save_pretrained` is self-contained, the frozen backbone included: `config.json`,
`model.safetensors`, the tokenizer's file, a model card and checksums. `vse-demo calibrate` adds `calibration.json`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vse_demo.calibration import FILE as CALIBRATION
from vse_demo.encoders.characters import CharacterTokenizer
from vse_demo.encoders.tokenizers import SubwordTokenizer, Tokenizer, WordTokenizer
from vse_demo.model.config import MODEL_TYPE, ModelConfig, described, read_config
from vse_demo.utils.files import CHECKSUMS, FileError, read_json, recover_folder, saved_files
from vse_demo.utils.tensors import update_digest

WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, WordTokenizer.FILE, SubwordTokenizer.FILE, CALIBRATION, "README.md", CHECKSUMS)


def model_files(folder: Path) -> set[str]:
    """The names in a folder that an earlier save of a model may have written; none if it holds no model."""
    return saved_files(folder, FILES, _holds_model)


def load_tokenizer(config: ModelConfig, folder: Path) -> Tokenizer:
    """Read the tokenizer that was saved with a model of this config."""
    if config.text == "bert":
        return SubwordTokenizer.load(folder)
    if config.text == "liwe":
        return CharacterTokenizer.load(folder)
    return WordTokenizer.load(folder, config.ngram_buckets)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, as they are stored.

    Raises:
        FileError: If it cannot be read.
    """
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be read as safetensors: {error}") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from a safetensors file that fits it exactly, in the model's own precision.

    Raises:
        FileError: If the file cannot be read, or if a tensor is missing, too many, or of another shape.
    """
    fill_weights(model, read_weights(path), path)


def fill_weights(model: nn.Module, stored: Mapping[str, Tensor], path: Path) -> None:
    """Fill a model, or a part of one, from tensors that fit it exactly; `path` is where they were read."""
    expected = model.state_dict()
    wrong = [
        f"{name} is missing"
        if name not in stored
        else f"{name} is {tuple(stored[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name not in stored or stored[name].shape != tensor.shape
    ] + [f"{name} is not part of the model" for name in stored if name not in expected]
    if wrong:
        raise FileError(
            f"{path} does not fit its config.json: {wrong[0]}" + f" (and {len(wrong) - 1} more)" * (len(wrong) > 1)
        )
    model.load_state_dict(stored)


def fingerprint_of(config: ModelConfig, tensors: Mapping[str, Tensor]) -> str:
    """The name of a model of this config and these tensors, which are as precise in the model as single precision."""
    digest = hashlib.blake2b(json.dumps(described(config), sort_keys=True).encode(), digest_size=16)
    update_digest(digest, tensors)
    return digest.hexdigest()


def backbone_settings(folder: str | Path) -> dict[str, Any]:
    """The settings of the backbone of a saved model, and of what it sees.

    Raises:
        FileError: If it holds no model, or one without a backbone.
    """
    stored = read_config(recover_folder(Path(folder)))
    if stored.vision == "region":
        raise FileError(f"{folder} has no backbone: it takes precomputed regions")
    return {name: getattr(stored, name) for name in ("vision", "backbone", "image_size", "image_mean", "image_std")}


def with_backbone_of(config: ModelConfig, folder: str | Path) -> ModelConfig:
    """A config whose images are prepared as for the backbone of a saved model.

    Raises:
        FileError: If that backbone is another one, or sees images of another size.
    """
    stored = backbone_settings(folder)
    wanted = {name: stored[name] for name in ("vision", "backbone", "image_size")}
    if any(getattr(config, name) != value for name, value in wanted.items()):
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in wanted.items())
        raise FileError(f"{folder} was trained with another backbone or size: pass {flags}")
    return replace(config, image_mean=stored["image_mean"], image_std=stored["image_std"])


def _holds_model(folder: Path) -> bool:
    try:
        content = read_json(folder / "config.json")
    except FileError:
        return False
    return isinstance(content, dict) and content.get("model_type") == MODEL_TYPE
