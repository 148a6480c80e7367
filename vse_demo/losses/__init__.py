"""What training minimises, on one batch of the joint space; no encoder in sight."""

from vse_demo.losses.adopt import AdOpt
from vse_demo.losses.base import Objective
from vse_demo.losses.registry import OBJECTIVES, build_objective
from vse_demo.losses.statistics import alignment, checked_image_ids, negative_count, uniformity
from vse_demo.losses.triplet import HardTriplet, ScheduledTriplet, SumOfViolations

__all__ = [
    "OBJECTIVES",
    "AdOpt",
    "HardTriplet",
    "Objective",
    "ScheduledTriplet",
    "SumOfViolations",
    "alignment",
    "build_objective",
    "checked_image_ids",
    "negative_count",
    "uniformity",
]
