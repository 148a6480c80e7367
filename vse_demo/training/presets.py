"""Recipes by name: the methods, the paper's six models in full size, and two small models for a CPU.

The methods that the paper compares with are in `methods`.

The defaults of `TrainConfig` are the paper's: d = 1024, batches of 128, 25 epochs. A preset says what
differs, and any setting can be given beside it.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vse_demo.model.config import ModelConfig
from vse_demo.model.names import shipped_folder
from vse_demo.model.storage import backbone_settings
from vse_demo.training.config import TrainConfig
from vse_demo.training.methods import COMPETITORS, competitor
from vse_demo.utils.checks import check_choice


def _two_ad(variant: str) -> dict[str, Any]:
    """AdPool and AdOpt, both by the authors' code (`official`) or both by the paper's equations (`paper`)."""
    options = {"variant": variant}
    return {"pooling": "adpool", "pooling_options": options, "objective": "adopt", "objective_options": options}


METHODS: dict[str, dict[str, Any]] = {
    "vse++": {"pooling": "mean", "projection": "linear", "objective": "vse++"},
    "vse-infty": {"pooling": "gpo", "objective": "vse++"},
    "vse+2ad": _two_ad("official"),  # the published figures come from the authors' code
    "vse+2ad-paper": _two_ad("paper"),
}
IMAGES: dict[str, dict[str, Any]] = {
    "region": {"vision": "region", "region_dim": 2048},  # 36 per image, precomputed by a detector
    # The paper's grid network is the detector's ResNet-101; timm's has seen ImageNet alone.
    "grid": {"backbone": "resnet101", "image_size": 512, "finetune_image": True, "backbone_weights": "hub"},
    "patch": {"vision": "patch", "backbone": "vit_base_patch16_224", "finetune_image": True, "backbone_weights": "hub"},
}
CAPTIONS: dict[str, dict[str, Any]] = {
    "bigru": {"text": "bigru"},
    "bert": {"text": "bert", "text_backbone": "bert-base-uncased", "finetune_text": True},
}
# For two CPU cores and 6,000 photos: a frozen mobile backbone whose features are computed once.
SMALL: dict[str, Any] = {
    **METHODS["vse+2ad"],
    "dim": 512, "backbone": "tf_efficientnet_lite2", "image_size": 384, "mirror": True, "feature_dropout": 0.7,
    "word_dropout": 0.1, "captions_per_image": 2, "schedule": "cosine", "warmup_steps": 100, "weight_decay": 0.01,
    "ema_decay": 0.995,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    **METHODS,
    **{name: competitor(name) for name in COMPETITORS},
    **{
        f"{images}-{captions}": {**METHODS["vse+2ad"], **IMAGES[images], **CAPTIONS[captions]}
        for images in IMAGES
        for captions in CAPTIONS
    },
    "small-bigru": {**SMALL, "text": "bigru", "text_epochs": 2, "epochs": 8, "learning_rate": 8e-4},
    "small-minilm": {**SMALL, "text": "bert", "finetune_text": True, "epochs": 6},
}


def make_config(preset: str, overrides: Mapping[str, Any]) -> TrainConfig:
    """A preset with changes.

    Options of a pooling, an objective or an interaction are added to the preset's; with another one the preset's
    options are left out. Backbone weights of a saved model bring its backbone and image size along, instead of the
    preset's.

    Args:
        preset: a key of `PRESETS`.
        overrides: values by name, each a field of `TrainConfig` or of `ModelConfig`.

    Raises:
        ValueError: for an unknown preset, or a value that cannot be meant.
        FileError: if a folder of backbone weights holds no model with a backbone.

    Example:
        >>> make_config("vse+2ad", {"epochs": 3, "dim": 256}).model.dim
        256
    """
    check_choice(preset, list(PRESETS), "preset")
    recipe = PRESETS[preset]
    settings = {**recipe, **overrides}
    weights = shipped_folder(overrides.get("backbone_weights", ""))
    if weights and Path(weights).is_dir() and settings.get("vision") != "region":
        settings = {**recipe, **backbone_settings(weights), **overrides}
    for part in ("pooling", "objective", "interaction"):
        kept = recipe.get(f"{part}_options", {}) if settings.get(part) == recipe.get(part) else {}
        settings[f"{part}_options"] = {**kept, **overrides.get(f"{part}_options", {})}
    of_model = {entry.name for entry in fields(ModelConfig)}
    model = ModelConfig(**{key: value for key, value in settings.items() if key in of_model})
    return TrainConfig(model=model, **{key: value for key, value in settings.items() if key not in of_model})
