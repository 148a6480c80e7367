"""Losses by name."""

from vse_demo.losses.adopt import AdOpt
from vse_demo.losses.base import Objective
from vse_demo.losses.triplet import HardTriplet, ScheduledTriplet, SumOfViolations
from vse_demo.utils.checks import check_choice

OBJECTIVES: dict[str, type[Objective]] = {
    "adopt": AdOpt,
    "hard": HardTriplet,
    "sum": SumOfViolations,
    "vse++": ScheduledTriplet,
}


def build_objective(name: str, **options: object) -> Objective:
    """Any objective by name; `options` go to its constructor."""
    check_choice(name, list(OBJECTIVES), "objective")
    return OBJECTIVES[name](**options)
