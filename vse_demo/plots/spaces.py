"""The joint space: maps of it, and unit vectors on a circle."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from vse_demo.plots.style import IMAGE, PALETTE, TEXT, new_axes


def plot_space(
    images: np.ndarray,
    texts: np.ndarray,
    image_ids: np.ndarray,
    groups: Sequence[str] = (),
    ax: Axes | None = None,
    shown: Sequence[str] = (),
) -> Axes:
    """Draw a map of images and texts, each text joined to its image.

    Args:
        images: (B, 2) places of the images.
        texts: (C, 2) places of the texts.
        image_ids: (C,) the index of each text's image.
        groups: A name for each image; a group has a colour and a shape of its own.
        ax: Axes to draw on; a new figure if None.
        shown: The groups that have a colour and lines, all if empty; the others are grey dots behind them.
    """
    ax = new_axes(ax, 7, 6)
    names = np.array(groups if len(groups) else ["images"] * len(images))
    chosen = list(shown) or list(dict.fromkeys(names.tolist()))
    clear = np.isin(names, chosen)
    for text, image in zip(texts[clear[image_ids]], images[image_ids][clear[image_ids]], strict=True):
        ax.plot(*np.stack([text, image]).T, color="#999999", lw=0.4, alpha=0.5, zorder=1)
    ax.scatter(texts[:, 0], texts[:, 1], s=8, color=TEXT, alpha=0.45, lw=0, label="texts", zorder=2)
    if not clear.all():
        ax.scatter(images[~clear, 0], images[~clear, 1], s=14, color="#BBBBBB", label="other images", zorder=2)
    colours = [colour for colour in PALETTE if colour != TEXT]
    for number, name in enumerate(chosen):
        colour, marker = colours[number % len(colours)], "osD^v<>pPX"[number // len(colours) % 10]
        mine = images[names == name]
        ax.scatter(
            mine[:, 0], mine[:, 1], s=28, color=colour, marker=marker, label=name, edgecolor="#333333", lw=0.4, zorder=3
        )
    ax.set_xticks([])
    ax.set_yticks([])
    ax.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def plot_circle(images: np.ndarray, texts: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw unit vectors on the circle, true pairs joined: alignment is short lines, uniformity a full circle.

    Args:
        images: (B, 2) unit vectors.
        texts: (B, 2) unit vectors, each the pair of the image of the same index.
        ax: Axes to draw on; a new figure if None.
    """
    ax = new_axes(ax, 4, 4)
    ax.add_patch(plt.Circle((0, 0), 1, fill=False, color="#BBBBBB"))
    for pair in np.stack([images, texts], 1):
        ax.plot(*pair.T, color="#999999", lw=1)
    ax.scatter(images[:, 0], images[:, 1], color=IMAGE, s=40, label="images", zorder=3)
    ax.scatter(texts[:, 0], texts[:, 1], color=TEXT, s=40, label="texts", zorder=3)
    ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    ax.axis("off")
    ax.legend(frameon=False, loc="center")
    return ax
