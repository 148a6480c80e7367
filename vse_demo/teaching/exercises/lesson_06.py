"""Exercises on training: the level of chance, one batch by heart, and a fair comparison."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vse_demo.teaching.checks import as_number, exercise, near, need, too
from vse_demo.training import TrainConfig


def rsum_by_chance(photos: int, captions: int = 5) -> float:
    """The expected RSUM of a guess, with so many captions for each photo."""
    texts = photos * captions
    by_text = sum(k / photos for k in (1, 5, 10))
    by_image = sum(1 - math.comb(texts - captions, k) / math.comb(texts, k) for k in (1, 5, 10))
    return 100 * (by_text + by_image)


@exercise("6.1")
def chance_among_41(value: float) -> str:
    return check_chance(value, 41)


def check_chance(value: float, photos: int) -> str:
    """Tell the usual slips in a level of chance apart."""
    given, right = as_number(value, "the level of chance"), rsum_by_chance(photos)
    texts = 5 * photos
    t2i = sum(100 * k / photos for k in (1, 5, 10))
    need(not near(given, right / 100), "recalls are in per cent: 100 times that.")
    need(
        not near(given, 2 * t2i),
        "a photo is found with any of its five captions, and not exactly five times as easily: see the hint.",
    )
    need(
        not near(given, t2i + sum(100 * k / texts for k in (1, 5, 10))),
        "a photo has five right captions, you counted one.",
    )
    need(not near(given, t2i), "that is one direction; add the other.")
    need(
        abs(given - right) < 0.05,
        f"{given:.1f} is {too(given, right)}: three recalls for each direction, each as in the hint, in per cent.",
    )
    return "R@K by chance: K of all photos one way; the other way, one minus the chance to miss all five captions."


@exercise("6.2")
def one_batch_by_heart(losses: Sequence[float]) -> str:
    need(len(losses) == 25, f"there should be 25 losses, one for each step; there are {len(losses)}.")
    values = [as_number(loss, "a loss") for loss in losses]
    need(len(set(values)) > 1, "the loss never changes: does every step go on with the same model?")
    need(values[-1] < values[0], "the loss does not fall: is it the same batch in every step, with nothing dropped?")
    need(
        values[-1] < values[0] / 2,
        f"it fell from {values[0]:.2f} to {values[-1]:.2f}, not to less than half: fresh model, rate 3e-3?",
    )
    return "The model can learn one batch by heart, so gradients reach all that they should."


@exercise("6.3")
def arms_of_a_fair_comparison(arms: Mapping[str, TrainConfig], config: TrainConfig) -> str:
    need(set(arms) == {"K = 1", "all negatives"}, "arms should have two configs, named 'K = 1' and 'all negatives'.")
    for name, arm in arms.items():
        need(isinstance(arm, TrainConfig), f"{name!r} should be a config: replace(config, …).")
        need(
            arm.epochs == config.epochs,
            f"{name!r} has {arm.epochs} epochs: its rate ends where the other's is still high; keep {config.epochs}.",
        )
        need(
            arm.objective == "adopt",
            f"{name!r} should keep the soft loss, objective 'adopt'; it has {arm.objective!r}.",
        )
        same = replace(arm, objective_options=config.objective_options)
        need(same == config, f"{name!r} differs from the AdOpt run in more than K.")
        need(
            _all_but_k(arm) == _all_but_k(config),
            f"{name!r} differs from the AdOpt run in more than K: its loss has another variant, temperature or margin.",
        )
    fixed = {name: arm.objective_options.get("fixed_k") for name, arm in arms.items()}
    need(fixed["K = 1"] == 1, "the arm 'K = 1' needs objective_options={'fixed_k': 1}.")
    many = fixed["all negatives"]
    need(
        many is not None and many >= config.batch_size - 1,
        f"all negatives of a batch of {config.batch_size} are {config.batch_size - 1}.",
    )
    return "The two arms differ from AdOpt in K and in nothing else."


def _all_but_k(config: TrainConfig) -> dict[str, object]:
    """The options of AdOpt that do not set K; a variant that is not named is the authors' code."""
    options = {"variant": "official", **config.objective_options}
    return {name: value for name, value in options.items() if name != "fixed_k"}
