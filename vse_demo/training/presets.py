"""Recipes by name: three methods, the paper's six models in full size, and the two models that are shipped.

The defaults of `TrainConfig` are the paper's: d = 1024, batches of 128, 25 epochs. A preset says what
differs, and any setting can be given beside it.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vse_demo.model.config import ModelConfig
from vse_demo.training.config import TrainConfig
from vse_demo.utils.checks import check_choice

METHODS: dict[str, dict[str, Any]] = {
    "vse++": {"pooling": "mean", "projection": "linear", "objective": "vse++"},
    "vse-infty": {"pooling": "gpo", "objective": "vse++"},
    "vse+2ad": {"pooling": "adpool", "objective": "adopt"},
}
# The published figures come from the authors' code, so these follow it where it differs from the paper.
AUTHORS = {**METHODS["vse+2ad"], "pooling_options": {"variant": "official"}}
IMAGES: dict[str, dict[str, Any]] = {
    "region": {"vision": "region", "region_dim": 2048},  # 36 per picture, precomputed by a detector
    # The paper's grid network is the detector's ResNet-101; timm's has seen ImageNet alone.
    "grid": {"backbone": "resnet101", "image_size": 512, "finetune_image": True, "backbone_weights": "hub"},
    "patch": {"vision": "patch", "backbone": "vit_base_patch16_224", "finetune_image": True, "backbone_weights": "hub"},
}
CAPTIONS: dict[str, dict[str, Any]] = {
    "bigru": {"text": "bigru"},
    "bert": {"text": "bert", "text_backbone": "bert-base-uncased", "finetune_text": True},
}
# For two CPU cores and 6,000 photos: a frozen mobile backbone whose cells are computed once.
SMALL: dict[str, Any] = {
    **AUTHORS,
    "dim": 512, "backbone": "tf_efficientnet_lite2", "image_size": 384, "mirror": True, "feature_dropout": 0.7,
    "word_dropout": 0.1, "captions_per_image": 2, "schedule": "cosine", "warmup_steps": 100, "weight_decay": 0.01,
    "ema_decay": 0.995,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    **METHODS,
    **{
        f"{images}-{captions}": {**AUTHORS, **IMAGES[images], **CAPTIONS[captions]}
        for images in IMAGES
        for captions in CAPTIONS
    },
    "shipped-bigru": {**SMALL, "text": "bigru", "text_epochs": 2, "epochs": 8, "learning_rate": 8e-4},
    "shipped-minilm": {**SMALL, "text": "bert", "finetune_text": True, "epochs": 6},
}


def make_config(preset: str, overrides: Mapping[str, Any]) -> TrainConfig:
    """A preset with overrides, each a field of TrainConfig or of ModelConfig."""
    check_choice(preset, list(PRESETS), "preset")
    settings = {**PRESETS[preset], **overrides}
    of_model = {entry.name for entry in fields(ModelConfig)}
    model = ModelConfig(**{key: value for key, value in settings.items() if key in of_model})
    return TrainConfig(model=model, **{key: value for key, value in settings.items() if key not in of_model})
