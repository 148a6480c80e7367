"""The joint space: two encoders, two poolings, unit vectors; several models as one; models on disk."""

from vse_demo.model.card import model_card
from vse_demo.model.config import FORMAT, MAX_SIZE, ModelConfig, read_config
from vse_demo.model.ensemble import Ensemble, load_model
from vse_demo.model.storage import load_tokenizer, load_weights, with_backbone_of
from vse_demo.model.vse import VSE

__all__ = [
    "FORMAT",
    "MAX_SIZE",
    "VSE",
    "Ensemble",
    "ModelConfig",
    "load_model",
    "load_tokenizer",
    "load_weights",
    "model_card",
    "read_config",
    "with_backbone_of",
]
