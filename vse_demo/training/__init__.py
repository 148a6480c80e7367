"""Training: recipes, what a step sees, the loop, its log and its checkpoints."""

from vse_demo.training.batches import (
    Batch,
    CaptionPairDataset,
    PairDataset,
    drop_features,
    drop_words,
    epoch_batches,
    kept_features,
)
from vse_demo.training.checkpoints import Run
from vse_demo.training.config import PRECISIONS, SCHEDULES, TrainConfig
from vse_demo.training.loader import BatchInputs, InputMaker, StepDataset, load_steps
from vse_demo.training.log import Log, flatten
from vse_demo.training.loop import WORKERS, check_device, run_epochs, train, validation_name
from vse_demo.training.presets import CAPTIONS, IMAGES, METHODS, PRESETS, SMALL, make_config
from vse_demo.training.setup import build_model, caption_groups
from vse_demo.training.trainer import Trainer, learning_rate, validate

__all__ = [
    "CAPTIONS",
    "IMAGES",
    "METHODS",
    "PRECISIONS",
    "PRESETS",
    "SCHEDULES",
    "SMALL",
    "WORKERS",
    "Batch",
    "BatchInputs",
    "CaptionPairDataset",
    "InputMaker",
    "Log",
    "PairDataset",
    "Run",
    "StepDataset",
    "TrainConfig",
    "Trainer",
    "build_model",
    "caption_groups",
    "check_device",
    "drop_features",
    "drop_words",
    "epoch_batches",
    "flatten",
    "kept_features",
    "learning_rate",
    "load_steps",
    "make_config",
    "run_epochs",
    "train",
    "validate",
    "validation_name",
]
