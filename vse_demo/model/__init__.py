"""The joint space: two encoders, two poolings, unit vectors; several models as one; models on disk."""

from vse_demo.model.card import model_card
from vse_demo.model.config import FORMAT, MAX_SIZE, ModelConfig, read_config
from vse_demo.model.ensemble import Ensemble, load_model
from vse_demo.model.interaction import (
    InteractionModel,
    holds_interaction,
    load_any,
    measure,
    measure_versions,
    new_model,
)
from vse_demo.model.names import find_models, list_models
from vse_demo.model.pretrained import PretrainedModel, is_pretrained
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.model.storage import load_tokenizer, load_weights, with_backbone_of
from vse_demo.model.vse import VSE

__all__ = [
    "FORMAT",
    "MAX_SIZE",
    "VSE",
    "EmbeddingModel",
    "Ensemble",
    "InteractionModel",
    "ModelConfig",
    "PretrainedModel",
    "find_models",
    "holds_interaction",
    "is_pretrained",
    "list_models",
    "load_any",
    "load_model",
    "load_tokenizer",
    "load_weights",
    "measure",
    "measure_versions",
    "model_card",
    "new_model",
    "read_config",
    "with_backbone_of",
]
