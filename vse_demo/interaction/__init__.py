"""Similarities that need both sides: image features (B, N, D), text features (C, M, D) -> similarities (C, B).

Each is written from its paper's formulation as its docstring tells it, and tested against plain loops of that. The
numbers of sections and equations are a guide for readers: they were not compared with the papers line by line.
"""

from vse_demo.interaction.base import BLOCK_VALUES, FeatureSets, Interaction, all_similarities
from vse_demo.interaction.caan import CAAN
from vse_demo.interaction.cvse import CVSE
from vse_demo.interaction.dime import DIME
from vse_demo.interaction.fusion import Fusion
from vse_demo.interaction.imram import IMRAM
from vse_demo.interaction.pvse import PVSE
from vse_demo.interaction.registry import INTERACTIONS, build_interaction
from vse_demo.interaction.scan import SCAN

__all__ = [
    "BLOCK_VALUES",
    "CAAN",
    "CVSE",
    "DIME",
    "IMRAM",
    "INTERACTIONS",
    "PVSE",
    "SCAN",
    "FeatureSets",
    "Fusion",
    "Interaction",
    "all_similarities",
    "build_interaction",
]
