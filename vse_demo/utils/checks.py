"""Choices by name, checked where a caller gives them."""

from collections.abc import Sequence


def check_choice(value: str, choices: Sequence[str], what: str) -> str:
    """Return `value`, or say which choices there are."""
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}; choose one of {', '.join(choices)}")
    return value


VARIANTS = ("paper", "official")  # the equations of the paper, or the authors' code where they part
