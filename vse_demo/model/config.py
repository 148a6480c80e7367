"""What a model is made of, and how its settings are read back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vse_demo.utils.files import FileError, read_json

FORMAT = 1  # of the saved folder; raised when an older program could not read it
MAX_SIZE = 16384  # of any part of a stored model: more would fill the memory before it is found not to fit


@dataclass(frozen=True)
class ModelConfig:
    """What a model is made of; the defaults are the paper's sizes."""

    dim: int = 1024  # of the joint space
    vision: str = "grid"  # grid (timm CNN), patch (timm ViT) or region (precomputed vectors)
    backbone: str = "tf_efficientnet_lite0"  # timm name, for grid and patch
    image_size: int = 224  # pixels, both sides
    region_dim: int = 2048  # channels of precomputed regions
    text: str = "bigru"  # bigru or bert
    word_dim: int = 300  # of the BiGRU's word vectors
    projection: str = "mlp"  # of cells and of transformer states to the joint space: mlp or linear
    pooling: str = "adpool"  # any name of POOLINGS
    pooling_options: Mapping[str, Any] = field(default_factory=dict)  # e.g. {"variant": "official"}
    text_config: Mapping[str, Any] | None = None  # transformers settings of a bert


def read_config(folder: Path) -> ModelConfig:
    """The checked settings of a saved model."""
    path = folder / "config.json"
    content = read_json(path)
    if not isinstance(content, dict) or content.get("model_type") != "vse_demo":
        raise FileError(f'{path} is not of this project: "model_type" must be "vse_demo"')
    if content.get("format") != FORMAT:
        raise FileError(f"{path} has format {content.get('format')!r}; this version reads format {FORMAT}")
    settings = {key: value for key, value in content.items() if key not in ("model_type", "format")}
    unknown = sorted(set(settings) - {entry.name for entry in fields(ModelConfig)})
    if unknown:
        raise FileError(f"{path} has settings that this version does not know: {', '.join(unknown)}")
    for name in ("dim", "image_size", "region_dim", "word_dim"):
        value = settings.get(name, 1)
        if not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise FileError(f"{path}: {name} must be a whole number from 1 to {MAX_SIZE}, not {value!r}")
    return ModelConfig(**settings)
