"""Losses by name."""

import inspect

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
    """Any loss by name.

    Args:
        name: a key of `OBJECTIVES`.
        **options: arguments of its constructor.

    Raises:
        ValueError: for an unknown name, an unknown option, or an option that the loss cannot use.

    Example:
        >>> build_objective("adopt", fixed_k=3).fixed_k
        3
    """
    check_choice(name, list(OBJECTIVES), "objective")
    known = list(inspect.signature(OBJECTIVES[name]).parameters)
    for option in options:
        check_choice(option, known, f"option of objective {name}")
    try:
        return OBJECTIVES[name](**options)
    except TypeError as error:
        raise ValueError(f"objective {name} cannot use the options {options}: {error}") from error
