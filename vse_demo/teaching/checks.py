"""Checks of the exercises: each looks at an answer and says in a sentence what is right or what is off.

An exercise is a function that is given the answer (and what of the lesson it needs), raises `Wrong` with what is off,
and returns what is right about it. The modules of `vse_demo.teaching.exercises` hold one for each exercise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from vse_demo.utils.checks import check_choice

EXERCISES: dict[str, Callable[..., str]] = {}  # lesson.number: its check


class Wrong(Exception):  # noqa: N818 — it is what a reader's answer is, not an error of ours
    """What is off about an answer."""


@dataclass(frozen=True)
class Verdict:
    """What a check says; true only if the answer is right."""

    mark: str
    message: str

    def __bool__(self) -> bool:
        return self.mark == "✓"

    def __repr__(self) -> str:
        return f"{self.mark} {self.message}"


def exercise(name: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register the check of an exercise, such as `2.1`."""

    def register(function: Callable[..., str]) -> Callable[..., str]:
        EXERCISES[name] = function
        return function

    return register


def check(name: str, *answers: object, **lesson: object) -> Verdict:
    """Look at the answers of an exercise.

    Args:
        name: Of the exercise, such as `2.1`.
        answers: What the reader has put in place of the dots.
        lesson: What the check needs of the lesson to judge them.

    Returns:
        A verdict that is true only for a right answer, and shows itself as a sentence.
    """
    import_module("vse_demo.teaching.exercises")  # here, since every exercise imports this module
    check_choice(name, list(EXERCISES), "exercise")
    if not answers or any(map(is_untouched, answers)):
        return Verdict("○", f"Exercise {name} is not answered yet: replace the dots, run that cell, then this one.")
    try:
        return Verdict("✓", f"Right. {EXERCISES[name](*answers, **lesson)}")
    except Wrong as off:
        return Verdict("✗", f"Not yet: {off}")
    except Exception as error:  # whatever a reader's answer may do, it is no reason to stop the lesson
        return Verdict("✗", f"Not yet: the answer could not be used ({type(error).__name__}: {error}).")


def is_untouched(answer: object) -> bool:
    """Whether an answer is still the skeleton: dots, nothing, or nothing inside.

    >>> [is_untouched(answer) for answer in (..., None, {}, (1, ...), 0, [2, 2])]
    [True, True, True, True, False, False]
    """
    if answer is ... or answer is None:
        return True
    if isinstance(answer, dict):
        return not answer or any(map(is_untouched, answer.values()))
    return isinstance(answer, list | tuple) and (not len(answer) or any(map(is_untouched, answer)))


def need(condition: object, otherwise: str) -> None:
    """Raise `Wrong` with a sentence unless a condition holds."""
    if not bool(condition):
        raise Wrong(otherwise)


def as_array(answer: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Numbers of a given shape, as an array of float64; `Wrong` if they are not."""
    if isinstance(answer, torch.Tensor):
        answer = answer.detach().cpu()
    try:
        values = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{what} should be numbers, not {type(answer).__name__}.") from None
    need(values.shape == shape, f"{what} should have the shape {shape}, yours has {values.shape}.")
    need(np.isfinite(values).all(), f"{what} should be finite numbers.")
    return values


def as_number(answer: Any, what: str) -> float:
    """One number; `Wrong` if it is not."""
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, int | float | np.number):
        raise Wrong(f"{what} should be a number, not {type(answer).__name__}.")
    need(np.isfinite(answer), f"{what} should be a finite number.")
    return float(answer)


def too(value: float, expected: float) -> str:
    """What is off about a number, without giving the right one away: `too large` or `too small`."""
    return "too large" if value > expected else "too small"


def near(value: object, expected: object, tolerance: float = 1e-4) -> bool:
    """Whether numbers are the expected ones, up to rounding."""
    return bool(np.allclose(np.asarray(value, float), np.asarray(expected, float), rtol=tolerance, atol=tolerance))
