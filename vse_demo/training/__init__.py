"""Training: recipes, what a step sees, the loop, its log and its checkpoints."""

from vse_demo.training.batches import (
    Batch,
    CaptionPairDataset,
    PairDataset,
    Share,
    drop_features,
    drop_words,
    epoch_batches,
    hide_words,
    kept_features,
)
from vse_demo.training.checkpoints import Run
from vse_demo.training.chunks import ChunkedModel
from vse_demo.training.config import PRECISIONS, SCHEDULES, TrainConfig
from vse_demo.training.distributed import World, is_first_process, join_world
from vse_demo.training.loader import BatchInputs, InputMaker, StepDataset, load_steps
from vse_demo.training.log import Log, flatten
from vse_demo.training.loop import WORKERS, run_epochs, train, validation_name
from vse_demo.training.methods import COMPETITORS
from vse_demo.training.presets import CAPTIONS, IMAGES, METHODS, PRESETS, SMALL, make_config
from vse_demo.training.setup import build_model, caption_groups
from vse_demo.training.trainer import Trainer, learning_rate, validate

__all__ = [
    "CAPTIONS",
    "COMPETITORS",
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
    "ChunkedModel",
    "InputMaker",
    "Log",
    "PairDataset",
    "Run",
    "Share",
    "StepDataset",
    "TrainConfig",
    "Trainer",
    "World",
    "build_model",
    "caption_groups",
    "drop_features",
    "drop_words",
    "epoch_batches",
    "flatten",
    "hide_words",
    "is_first_process",
    "join_world",
    "kept_features",
    "learning_rate",
    "load_steps",
    "make_config",
    "run_epochs",
    "train",
    "validate",
    "validation_name",
]
