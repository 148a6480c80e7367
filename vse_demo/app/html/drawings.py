"""Curves and planes as SVG in the colours of the page, legible when it is light and when it is dark.

Nothing here uses pyplot, whose figures belong to one thread: a server has many. Plotly would bring a
script of 4.6 MB, and its figures have no alternative texts.
"""

import io
import re
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vse_demo import plots
from vse_demo.app.html.markup import escape_html
from vse_demo.explanation import Explanation
from vse_demo.losses.statistics import negative_count
from vse_demo.shipped import read_evidence, read_log
from vse_demo.utils.checks import VARIANTS

GREY = "#7d8590"  # stands for the colour of the page's text
COLOURS = {  # of a drawing -> of the page, which has lighter ones when it is dark
    GREY: "currentColor", plots.IMAGE: "var(--image)", plots.TEXT: "var(--text)", plots.WRONG: "var(--wrong)",
}  # fmt: skip
DRAWING: dict[Any, Any] = {
    "text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "font.size": 11,
    "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none",
}  # fmt: skip
MARGINS = {"left": 0.12, "right": 0.99, "bottom": 0.19, "top": 0.97}  # of a drawing of 4.2 × 2.7 inches
ONE_AT_A_TIME = threading.Lock()  # matplotlib's settings are those of the whole program


def rank_weights(explanations: Mapping[str, Explanation]) -> str:
    """Draw how much each rank counted when image and sentence were pooled, for each model by name.

    Ranks are given in percent, since an image has another number of them than a sentence.
    """

    def plot(ax: Axes) -> None:
        for (name, each), style in zip(explanations.items(), _styles(len(explanations)), strict=True):
            for side, what, colour in ((each.image, "picture", plots.IMAGE), (each.text, "sentence", plots.TEXT)):
                if side.rank_weights is not None:
                    count = len(side.rank_weights)
                    label = f"{what}, {name}" if len(explanations) > 1 else what
                    weights = side.rank_weights * count
                    ax.plot(np.linspace(0, 100, count), weights, style, lw=2, color=colour, label=label)
        ax.axhline(1, color=GREY, lw=0.8, ls=":")
        ax.set(xlabel="rank: largest value 0 %, smallest 100 %", ylabel="weight (1 = mean)")
        ax.set_ylim(0, None)
        ax.legend(frameon=False, fontsize=10, loc="upper center")

    return draw(plot, 4.2, 2.7, "Weight by rank", MARGINS)


def _styles(count: int) -> list[str]:
    return [("-", "--", ":", "-.")[number % 4] for number in range(count)]


def draw(
    plot: Callable[[Axes], object], width: float, height: float, label: str, margins: Mapping[str, float] | None = None
) -> str:
    """Let `plot` draw on an Axes of so many inches; `label` is the alternative text of the SVG.

    With `margins` matplotlib need not find out how much room the labels take, which is half of the time.
    """
    with ONE_AT_A_TIME, matplotlib.rc_context(DRAWING):
        figure = Figure(figsize=(width, height), layout=None if margins else "constrained")
        plot(figure.subplots(gridspec_kw=dict(margins or {})))
        return _svg(figure, label)


def _svg(figure: Figure, label: str) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    body = text[text.index(">", box.end()) + 1 :]
    body = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL
    )  # a style is for all the page
    body = re.sub(r' id="[\w.]+_\d+"', "", body)  # patch_1 and the like, which every drawing has
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)  # the page has its own
    for colour, name in COLOURS.items():
        body = body.replace(colour.lower(), name)
    return f'<svg class="drawing" {box[0]} role="img" aria-label="{escape_html(label)}">{body}'


def curves(run: str) -> str:
    """Draw how a shipped model learned: loss, K, alignment and uniformity by step, RSUM by epoch."""
    log, evidence = read_log(run), read_evidence(run)
    steps = log["step"]
    recalls = evidence["validation"]
    panels: list[tuple[str, dict[str, tuple[Any, Any]], str]] = [
        ("Loss", {"loss": (steps, log["loss"])}, "loss"),
        ("K, the number of negatives", {"K": (steps, log["k"])}, f"K of {evidence['config']['batch_size']}"),
        (
            "Alignment and uniformity",
            {"alignment": (steps, log["alignment"]), "uniformity": (steps, log["uniformity"])},
            "",
        ),
        (
            "Recall on photos held out",
            {"RSUM": ([r["step"] for r in recalls], [r["rsum"] for r in recalls])},
            "RSUM, 600 at best",
        ),
    ]
    figures = [
        f"<figure><h3>{title}</h3>{draw(partial(plots.plot_curves, lines, 'step', label), 5, 2.6, title)}</figure>"
        for title, lines, label in panels
    ]
    return f'<div class="panels">{"".join(figures)}</div>'


def k_planes(batch_size: int) -> str:
    """Draw K over alignment and uniformity by both formulas, as a template whose value is what `k_mark` gives."""
    ring = '<circle class="ring" cx="${value.x}" cy="${value.y}" r="7"/></svg>'
    names = {"paper": "The paper's equation", "official": "The authors' code"}
    panels = [
        f"<figure><h3>{name}: K = ${{value.{variant}}} of {batch_size}</h3>"
        f"{_k_plane(variant, batch_size)[0].replace('</svg>', ring)}</figure>"
        for variant, name in names.items()
    ]
    return f'<div class="panels">{"".join(panels)}</div>'


def k_mark(alignment: float, uniformity: float, batch_size: int) -> dict[str, float]:
    """Find where these two numbers are on the planes, and K by both formulas."""
    left, top, width, height = _k_plane("paper", batch_size)[1]  # both look the same
    counts = {variant: negative_count(alignment, uniformity, batch_size, variant) for variant in VARIANTS}
    return {"x": round(left + width * alignment, 1), "y": round(top + height * (1 - uniformity / 1.2), 1), **counts}


@lru_cache
def _k_plane(variant: str, batch_size: int) -> tuple[str, tuple[float, float, float, float]]:
    """Draw the plane of a variant, and tell where its axes are in it: left, top, width and height."""
    with ONE_AT_A_TIME, matplotlib.rc_context(DRAWING):
        figure = Figure(figsize=(5, 3.6))
        ax = figure.add_axes((0.13, 0.14, 0.89, 0.83))  # of which a fifth is for the bar
        plots.plot_k_plane(variant, batch_size, ax).set_title("")
        box, (width, height) = ax.get_position(), 72 * figure.get_size_inches()
        frame = box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height
        return _svg(figure, f"K by alignment and uniformity, {variant}"), frame
