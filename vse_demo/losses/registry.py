"""Losses by name."""

import functools
import inspect

from vse_demo.losses.adopt import AdOpt
from vse_demo.losses.base import Objective
from vse_demo.losses.plain import PlainLoss
from vse_demo.losses.triplet import HardTriplet, ScheduledTriplet, SumOfViolations
from vse_demo.utils.checks import check_choice
from vse_demo.utils.objects import import_object, is_reference

OBJECTIVES: dict[str, type[Objective]] = {
    "adopt": AdOpt,
    "hard": HardTriplet,
    "sum": SumOfViolations,
    "vse++": ScheduledTriplet,
}


def build_objective(name: str, **options: object) -> Objective:
    """Any loss by name.

    Args:
        name: a key of `OBJECTIVES`, or `package.module:Name` of a loss of your own (see `PlainLoss`).
        **options: arguments of its constructor.

    Raises:
        ValueError: for an unknown name, an unknown option, or an option that the loss cannot use.

    Example:
        >>> build_objective("adopt", fixed_k=3).fixed_k
        3
    """
    if not is_reference(name):
        check_choice(name, list(OBJECTIVES), "objective")
    kind = import_object(name) if is_reference(name) else OBJECTIVES[name]
    known = list(inspect.signature(kind).parameters)
    for option in options:
        check_choice(option, known, f"option of objective {name}")
    try:
        loss = kind(**options) if isinstance(kind, type) else functools.partial(kind, **options)
        return loss if isinstance(loss, Objective) else PlainLoss(loss)
    except TypeError as error:
        raise ValueError(f"objective {name} cannot use the options {options}: {error}") from error
