"""What a model is made of, and how its settings are read back."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from vse_demo.utils.files import FileError, read_json, write_json
from vse_demo.utils.objects import is_reference, reference_of, stored_class
from vse_demo.utils.settings import setting

MODEL_TYPE = "vse_demo"
FORMAT = 1  # of the saved folder; raised when an older program could not read it
MAX_SIZE = 16384  # of any part of a stored model: more would fill the memory before it is found not to fit
MAX_BUCKETS = 2**20  # of n-grams: 1.2 GB of vectors of the usual size
SIZES = (  # of a model: name, least, most
    *((name, 1, MAX_SIZE) for name in ("dim", "image_size", "region_dim", "word_dim")),
    ("ngram_buckets", 0, MAX_BUCKETS),
)
PARTS = ("backbone", "text", "pooling")  # settings that may be somebody's own class
Colour = tuple[float, float, float]  # red, green, blue


@dataclass(frozen=True)
class ModelConfig:
    """What a model is made of; the defaults are the paper's sizes.

    Raises:
        ValueError: If a size cannot be meant; the message says which can.
    """

    dim: int = setting(1024, "of the joint space")
    vision: str = setting("grid", "grid (a timm network's feature map), patch (a timm ViT) or region (precomputed)")
    backbone: str = setting("tf_efficientnet_lite0", "timm name, for grid and patch, or package.module:Name")
    image_size: int = setting(224, "pixels, both sides")
    region_dim: int = setting(2048, "channels of precomputed regions")
    text: str = setting("bigru", "bigru, bert, liwe (words letter by letter), or package.module:Name")
    word_dim: int = setting(300, "of the BiGRU's word vectors")
    ngram_buckets: int = setting(0, "hashed character n-grams that the BiGRU adds to its word vectors; 0 for none")
    projection: str = setting("mlp", "of image features and transformer states to the joint space: mlp or linear")
    pooling: str = setting("adpool", "any name of POOLINGS, or package.module:Name")
    pooling_options: Mapping[str, Any] = setting(
        dict, "of the pooling, one or more, as in variant=official token=false"
    )
    interaction: str = setting("", "any name of INTERACTIONS: features are compared themselves, without a pooling")
    interaction_options: Mapping[str, Any] = setting(dict, "of the interaction, as in direction=i2t")
    text_config: Mapping[str, Any] | None = None  # transformers settings of a bert
    image_mean: Colour | None = None  # that the backbone expects of pixels in [0, 1]; by default timm's
    image_std: Colour | None = None

    def __post_init__(self) -> None:
        for name in PARTS:  # a class becomes its place, which can be stored
            object.__setattr__(self, name, reference_of(getattr(self, name)))
        for name in ("image_mean", "image_std"):  # JSON has lists
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        for name, least, most in SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


def described(config: ModelConfig) -> dict[str, Any]:
    """The settings that name a model. What came after format 1 counts where it is set: older names stay valid."""
    later = ("ngram_buckets", "interaction", "interaction_options")
    return {key: value for key, value in asdict(config).items() if value or key not in later}


def write_config(config: ModelConfig, folder: Path) -> None:
    """Write the settings of a model that is being saved."""
    write_json(folder / "config.json", {"model_type": MODEL_TYPE, "format": FORMAT, **described(config)})


def read_config(folder: Path) -> ModelConfig:
    """Read and check the settings of a saved model.

    Raises:
        FileError: If the file is missing or broken, of another program or version, or has a value that cannot be.
    """
    path = folder / "config.json"
    content = read_json(path)
    if not isinstance(content, dict) or content.get("model_type") != MODEL_TYPE:
        raise FileError(f'{path} is not of this project: "model_type" must be "{MODEL_TYPE}"')
    if content.get("format") != FORMAT:
        raise FileError(f"{path} has format {content.get('format')!r}; this version reads format {FORMAT}")
    settings = {key: value for key, value in content.items() if key not in ("model_type", "format")}
    unknown = sorted(set(settings) - {entry.name for entry in fields(ModelConfig)})
    if unknown:
        raise FileError(f"{path} has settings that this version does not know: {', '.join(unknown)}")
    for name in ("image_mean", "image_std"):
        if not _is_colour(settings.get(name), positive=name == "image_std"):
            raise FileError(f"{path}: {name} must be three numbers, one for each colour, not {settings[name]!r}")
    for name in PARTS:
        check_stored_part(path, name, settings.get(name))
    try:
        return ModelConfig(**settings)
    except ValueError as error:
        raise FileError(f"{path} describes no model: {error}") from error


def check_stored_part(path: Path, name: str, value: object) -> None:
    """Raise a FileError if a stored setting names a class that this program has not imported itself."""
    if is_reference(value):
        try:
            stored_class(str(value), nn.Module)
        except ValueError as error:
            raise FileError(f"{path}: {name} {error}") from error


def _is_colour(value: object, positive: bool) -> bool:
    """Whether a value is three numbers, or None, which stands for timm's."""
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 3:
        return False
    if not all(isinstance(each, int | float) and math.isfinite(each) for each in value):
        return False
    return not positive or min(value) > 0
