"""Colours and sizes that all figures share."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.transforms import Bbox

IMAGE, TEXT, RIGHT, WRONG = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PALETTE = (IMAGE, TEXT, RIGHT, WRONG, "#CC79A7", "#56B4E9", "#F0E442", "#000000")
HELPS_OR_HURTS = LinearSegmentedColormap.from_list("helps_or_hurts", [WRONG, "#F7F7F7", RIGHT])
BESIDE = tuple(((across, up), side) for up in (4, -12) for across, side in ((7, "left"), (-7, "right")))
AROUND = (*BESIDE, ((0, 9), "center"), ((0, -18), "center"))  # where a name may stand: points from its dot, alignment


def new_axes(ax: Axes | None, width: float = 6.4, height: float = 4.0) -> Axes:
    """`ax`, or the Axes of a new figure of this size if it is None."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def name_points(ax: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write names beside points: inside the axes, and clear of each other and of what is drawn, where there is room."""
    ax.figure.canvas.figure.draw_without_rendering()  # from here on it is known where things are on the paper
    size = ax.figure.dpi / 72 * 5
    drawn = ax.transData.transform(np.concatenate([line.get_xydata() for line in ax.lines]))
    taken = [Bbox.from_bounds(x - size, y - size, 2 * size, 2 * size) for x, y in drawn]
    for name, point in points.items():
        notes = [ax.annotate(name, point, shift, textcoords="offset points", ha=side) for shift, side in AROUND]
        boxes = [note.get_window_extent() for note in notes]
        free = [ax.bbox.count_contains(box.corners()) == 4 and not box.count_overlaps(taken) for box in boxes]
        chosen = free.index(True) if any(free) else 0
        taken.append(boxes[chosen])
        for note in notes[:chosen] + notes[chosen + 1 :]:
            note.remove()
