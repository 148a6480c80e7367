"""The app's figures as pictures: `plots` on transparent paper, legible on light and dark pages.

Nothing here touches pyplot, whose figures belong to one thread: a server has many.
"""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from vse_demo import plots
from vse_demo.explanation import Explanation, Side
from vse_demo.pooling import VARIANTS
from vse_demo.shipped import read_evidence, read_log

GREY = "#7d8590"  # reads on white and on black
STYLE: dict[Any, Any] = {
    "text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "font.size": 11,
}  # fmt: skip


def draw(plot: Callable[[Axes], object], width: float, height: float, title: str) -> Image.Image:
    """A picture of what `plot` draws on its Axes, under a title."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        ax = figure.subplots()
        plot(ax)
        ax.set_title(title, fontsize=12)
        return _picture(figure)


def _picture(figure: Figure) -> Image.Image:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return Image.open(stream)


def heat_map(photo: Image.Image, reason: Explanation) -> Image.Image:
    """The photo under what its cells add to the score."""
    height = max(1.5, min(8, 5 * photo.height / photo.width))
    plot = partial(plots.plot_heat_map, photo, reason.heat_map.numpy())
    return draw(plot, 5, height, "What each part of the picture adds")


def word_bars(reason: Explanation) -> Image.Image:
    """What each word adds to the score."""
    plot = partial(plots.plot_word_parts, reason.words, reason.text.parts.numpy())
    return draw(plot, 5, 1.4 + 0.3 * len(reason.words), "What each word adds")


def rank_weights(reason: Explanation) -> Image.Image:
    """How much each rank counted on both sides, over the share of the ranks (both have another number of rows)."""

    def plot(ax: Axes) -> None:
        for side, name, colour in ((reason.image, "cells", plots.IMAGE), (reason.text, "words", plots.TEXT)):
            if side.rank_weights is not None:
                count = len(side.rank_weights)
                ax.plot(np.linspace(0, 100, count), side.rank_weights * count, "o-", ms=3, color=colour, label=name)
        ax.axhline(1, color=GREY, lw=0.8, ls=":")
        ax.set(xlabel="rank, from the largest value (0 %) to the smallest", ylabel="weight (1 = mean pooling)")
        ax.set_ylim(0, None)
        ax.legend(frameon=False)

    return draw(plot, 5, 3.6, "How much each rank counts")


def balance_text(side: Side) -> str:
    """The balance of the two levels, in words."""
    token, embedding = side.balance
    return f"{token:.0%} ranks, {embedding:.0%} soft maximum"


def curves(run: str) -> list[tuple[str, Image.Image]]:
    """How a shipped model learned: loss, K, alignment and uniformity by step, RSUM by epoch; each with its name."""
    log, evidence = read_log(run), read_evidence(run)
    steps = log["step"]
    recalls = evidence["validation"]
    panels: list[tuple[str, dict[str, tuple[Any, Any]], str]] = [
        ("Loss", {"loss": (steps, log["loss"])}, "loss"),
        ("K, the number of negatives", {"K": (steps, log["k"])}, "K of 128"),
        (
            "Alignment and uniformity",
            {"alignment": (steps, log["alignment"]), "uniformity": (steps, log["uniformity"])},
            "",
        ),
        ("Recall on photos held out", {"RSUM": ([r["step"] for r in recalls], [r["rsum"] for r in recalls])}, "RSUM"),
    ]
    return [
        (title, draw(partial(plots.plot_curves, lines, "step", label), 5, 3.2, title)) for title, lines, label in panels
    ]


def k_planes(alignment: float, uniformity: float, batch_size: int) -> Image.Image:
    """K by both formulas over the plane, and where these two numbers are."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4), layout="constrained")
        for ax, variant in zip(figure.subplots(1, 2), VARIANTS, strict=True):
            plots.plot_k_plane(variant, batch_size, ax)
            ax.plot([alignment], [uniformity], "o", ms=12, mfc="none", mec=plots.WRONG, mew=3)
        return _picture(figure)
