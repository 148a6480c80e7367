"""Exercises on AdOpt: a number to recognise in a log, a formula to mend, and a prediction to test."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from vse_demo.teaching.checks import as_number, exercise, near, need, too

SPACES = {
    "random start": (0.0, 0.0),
    "ideal": (1.0, 0.008),
    "collapsed": (0.99, 0.99),
}  # alignment, the paper's uniformity


@exercise("5.1")
def loss_of_a_collapsed_adopt(stuck_at: float) -> str:
    value = as_number(stuck_at, "the loss")
    right = math.log(1 + 11 * math.exp(4))
    need(not near(value, math.log(12)), "the margin is missing: every wrong score is raised by 0.2 before the softmax.")
    need(not near(value, math.log(1 + 11 * math.exp(0.2))), "the margin is divided by the temperature too: 0.2 / 0.05.")
    need(
        not near(value, math.log(11 * math.exp(4)), 1e-5),
        "close: the positive stands below the line as well, so 1 is added.",
    )
    need(not near(value, 0.2), "0.2 is what the hard triplet shows.")
    need(
        abs(value - right) < 0.005,
        f"{value:.2f} is {too(value, right)}: the formula of the hint, with K = 11, margin 0.2 and τ = 0.05.",
    )
    return f"A log that rests at {right:.2f} with K = 11 tells of a collapsed space."


@exercise("5.2")
def mended_formula(count: Callable[[float, float, int], int]) -> str:
    need(callable(count), "my_count should be a function of alignment, uniformity and the batch size.")
    k = {name: count(*space, 128) for name, space in SPACES.items()}
    need(all(value is not None and value is not ... for value in k.values()), "the function returns nothing yet.")
    for name, value in k.items():
        need(
            isinstance(value, int | np.integer) and 1 <= value <= 127,
            f"K of the {name} space is {value}; it should be a whole number from 1 to 127.",
        )
    need(k["random start"] == 127, f"at the random start K should be 127, yours is {k['random start']}.")
    need(k["ideal"] <= 5, f"in the ideal space K should be at most 5, yours is {k['ideal']}.")
    need(k["collapsed"] > 60, f"on one point K is {k['collapsed']}: that space has to start over, with many negatives.")
    told = f"127 at the start, {k['ideal']} in the ideal space, {k['collapsed']} on one point"
    return f"{told}: the difference tells them apart, the sum cannot."


@exercise("5.3")
def who_escapes(runs: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    need(
        set(runs) == {"AdOpt, code", "fixed K = 63"},
        "harder should have two runs, named 'AdOpt, code' and 'fixed K = 63'.",
    )
    adopt, fixed = (runs[name] for name in ("AdOpt, code", "fixed K = 63"))
    need((fixed["k"] == 63).all(), "the second run should have K = 63 all the time: AdOpt('official', fixed_k=63).")
    need(not (adopt["k"] == adopt["k"][0]).all(), "the first run should choose its K itself: AdOpt('official').")
    need(adopt["alignment"][-1] > 0.99, "AdOpt escaped, so the noise was not 1.3: train_small(…, noise=1.3).")
    need(fixed["alignment"][-1] < 0.99, "with all negatives the model should escape at noise 1.3.")
    return "AdOpt falls in, all negatives escape: the K that AdOpt chose on one point was too small."
