"""Visual-semantic embedding: adaptive pooling (AdPool), adaptive negatives (AdOpt), and search.

The public names below, and the sub-packages, are loaded when they are first asked for: `import vse_demo` itself
imports neither PyTorch nor anything else.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from vse_demo.model import VSE, EmbeddingModel, Ensemble, ModelConfig, list_models, load_model
    from vse_demo.pooling import POOLINGS, AdPool, PoolTrace, RankPool, build_pooling
    from vse_demo.retrieval import Gallery
    from vse_demo.shipped import load_gallery
    from vse_demo.training import PRESETS, TrainConfig, make_config, train
    from vse_demo.utils.runtime import tune_process

__all__ = [
    "OBJECTIVES",
    "POOLINGS",
    "PRESETS",
    "VSE",
    "AdOpt",
    "AdPool",
    "CaptionedImages",
    "EmbeddingModel",
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
    "list_models",
    "load_gallery",
    "load_model",
    "make_config",
    "negative_count",
    "open_dataset",
    "retrieval_ranks",
    "train",
    "tune_process",
    "uniformity",
]

# Where the names live, as above.
_MODULES = {
    "data": ("CaptionedImages", "open_dataset"),
    "evaluation": ("evaluate", "retrieval_ranks"),
    "explanation": ("Explanation", "explain"),
    "losses": (
        "OBJECTIVES", "AdOpt", "HardTriplet", "ScheduledTriplet", "SumOfViolations", "alignment", "build_objective",
        "negative_count", "uniformity",
    ),
    "model": ("VSE", "EmbeddingModel", "Ensemble", "ModelConfig", "list_models", "load_model"),
    "pooling": ("POOLINGS", "AdPool", "PoolTrace", "RankPool", "build_pooling"),
    "retrieval": ("Gallery",),
    "shipped": ("load_gallery",),
    "training": ("PRESETS", "TrainConfig", "make_config", "train"),
    "utils.runtime": ("tune_process",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = (
    "calibration", "data", "encoders", "evaluation", "explanation", "interaction", "layers", "losses", "model",
    "ops", "plots", "pooling", "retrieval", "shipped", "training", "utils",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name, or a sub-module, when it is first asked for."""
    if name in _SUBMODULES:
        return importlib.import_module(f"vse_demo.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'vse_demo' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"vse_demo.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # the next access finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
