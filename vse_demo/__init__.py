"""Visual-semantic embedding: adaptive pooling (AdPool), adaptive negatives (AdOpt), and search."""

import os

# After each operation PyTorch's threads wait for the next one by spinning, for milliseconds, on cores that `kernels`
# could use. Waiting a tenth of a millisecond that way does as well. (It counts only if PyTorch is not loaded yet.)
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from vse_demo.data import CaptionedImages, open_dataset
from vse_demo.evaluation import evaluate, retrieval_ranks
from vse_demo.explanation import Explanation, explain
from vse_demo.losses import (
    OBJECTIVES,
    AdOpt,
    HardTriplet,
    ScheduledTriplet,
    SumOfViolations,
    alignment,
    build_objective,
    negative_count,
    uniformity,
)
from vse_demo.model import VSE, Ensemble, ModelConfig
from vse_demo.pooling import POOLINGS, AdPool, PoolTrace, RankPool, build_pooling
from vse_demo.retrieval import Gallery
from vse_demo.training import PRESETS, TrainConfig, make_config, train

__all__ = [
    "OBJECTIVES",
    "POOLINGS",
    "PRESETS",
    "VSE",
    "AdOpt",
    "AdPool",
    "CaptionedImages",
    "Ensemble",
    "Explanation",
    "Gallery",
    "HardTriplet",
    "ModelConfig",
    "PoolTrace",
    "RankPool",
    "ScheduledTriplet",
    "SumOfViolations",
    "TrainConfig",
    "alignment",
    "build_objective",
    "build_pooling",
    "evaluate",
    "explain",
    "make_config",
    "negative_count",
    "open_dataset",
    "retrieval_ranks",
    "train",
    "uniformity",
]
