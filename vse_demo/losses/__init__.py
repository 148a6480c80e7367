"""What training minimises: (C, B) similarities and image_ids -> LossTerms. No encoder is known here."""

from vse_demo.losses.adopt import AdOpt
from vse_demo.losses.base import Objective
from vse_demo.losses.registry import OBJECTIVES, build_objective
from vse_demo.losses.statistics import K_VARIANTS, alignment, checked_image_ids, negative_count, uniformity
from vse_demo.losses.terms import LossTerms, mean_terms
from vse_demo.losses.triplet import HardTriplet, ScheduledTriplet, SumOfViolations

__all__ = [
    "K_VARIANTS",
    "OBJECTIVES",
    "AdOpt",
    "HardTriplet",
    "LossTerms",
    "Objective",
    "ScheduledTriplet",
    "SumOfViolations",
    "alignment",
    "build_objective",
    "checked_image_ids",
    "mean_terms",
    "negative_count",
    "uniformity",
]
