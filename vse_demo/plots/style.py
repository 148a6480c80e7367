"""Colours and sizes that all figures share."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

IMAGE, TEXT, RIGHT, WRONG = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PALETTE = (IMAGE, TEXT, RIGHT, WRONG, "#CC79A7", "#56B4E9", "#F0E442", "#000000")
HELPS_OR_HURTS = LinearSegmentedColormap.from_list("helps_or_hurts", [WRONG, "#F7F7F7", RIGHT])


def new_axes(ax: Axes | None, width: float = 6.4, height: float = 4.0) -> Axes:
    """`ax`, or the Axes of a new figure of this size if it is None."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax
