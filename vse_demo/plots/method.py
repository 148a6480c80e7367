"""How the method works: the whole pipeline, small matrices, weights of ranks, K over the plane."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image

from vse_demo.losses.statistics import negative_count
from vse_demo.plots.style import IMAGE, PALETTE, RIGHT, TEXT, WRONG, new_axes


def plot_pipeline(ax: Axes | None = None) -> Axes:
    """Draw the whole method: two encoders, two poolings, one space."""
    ax = new_axes(ax, 10, 3)
    grid, words, space, adopt = "CNN\ngrid cells", "BiGRU or BERT\nwords", "joint space\nunit vectors", "AdOpt\nloss"
    boxes = {  # name: column, row, colour
        "photo": (0, 1, IMAGE), grid: (1, 1, IMAGE), "AdPool\nof cells": (2, 1, IMAGE),
        "sentence": (0, 0, TEXT), words: (1, 0, TEXT), "AdPool\nof words": (2, 0, TEXT),
        space: (3, 0.5, RIGHT), "cosine": (4, 1, "#000000"), adopt: (4, 0, WRONG),
    }  # fmt: skip
    arrows = [
        ("photo", grid, "pixels"), (grid, "AdPool\nof cells", "(N, D)"), ("AdPool\nof cells", space, "(D)"),
        ("sentence", words, "tokens"), (words, "AdPool\nof words", "(M, D)"), ("AdPool\nof words", space, "(D)"),
        (space, "cosine", "search"), (space, adopt, "training"),
    ]  # fmt: skip
    half = 0.32  # of the width of a box; columns are 1 apart
    for name, (x, y, colour) in boxes.items():
        corner, shape = (x - half, y - 0.2), "round,pad=0,rounding_size=0.04"
        ax.add_patch(FancyBboxPatch(corner, 2 * half, 0.4, boxstyle=shape, fc="white", ec=colour, lw=2))
        ax.text(x, y, name, ha="center", va="center", fontsize=11)
    for start, end, label in arrows:
        (x0, y0, _), (x1, y1, _) = boxes[start], boxes[end]
        ends = (x0 + half + 0.01, y0), (x1 - half - 0.01, y1)
        ax.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=14, color="#555555"))
        if y0 == y1:  # above a level arrow; else beside it, on the side away from the boxes
            right, up, side = 0.0, 0.09, "center"
        else:
            right, side = (0.05, "left") if y1 == 0.5 else (-0.05, "right")
            up = 0.08 if y0 + y1 > 1 else -0.08
        place = (x0 + x1) / 2 + right, (y0 + y1) / 2 + up
        ax.text(*place, label, ha=side, va="center", fontsize=9, color="#555555")
    ax.set(xlim=(-0.4, 4.4), ylim=(-0.3, 1.3))
    ax.axis("off")
    return ax


def plot_worked_pipeline(
    photo: Image.Image,
    cells: np.ndarray,
    words: Sequence[str],
    word_features: np.ndarray,
    image_vector: np.ndarray,
    text_vector: np.ndarray,
    dims: int = 48,
) -> Axes:
    """Draw the way of one photo and one sentence through the method, with the numbers that a model really makes.

    Args:
        photo: The image.
        cells: (N, D) its features; N is the square of a whole number.
        words: The pieces of the sentence.
        word_features: (M, D) their features.
        image_vector: (D,) the pooled image, of length 1.
        text_vector: (D,) the pooled sentence, of length 1.
        dims: How many of the D dimensions are shown.

    Returns:
        The Axes of the products, whose sum is the score.
    """
    _, axes = plt.subplots(
        2, 4, figsize=(13, 5.2), layout="constrained", width_ratios=(1.15, 1.5, 1.5, 1.5), squeeze=False
    )
    side = round(len(cells) ** 0.5)
    axes[0, 0].imshow(np.asarray(photo.resize((400, 400))))
    for line in np.arange(1, side) * 400 / side:
        axes[0, 0].axhline(line, color="white", lw=0.6)
        axes[0, 0].axvline(line, color="white", lw=0.6)
    axes[0, 0].set_title(f"photo: {side} × {side} cells", color=IMAGE)
    axes[1, 0].text(0.5, 0.5, fill(" ".join(words), 24), ha="center", va="center", fontsize=13, wrap=True)
    axes[1, 0].set_title(f"sentence: {len(words)} pieces", color=TEXT)
    rows = ((cells, image_vector, IMAGE, "cells"), (word_features, text_vector, TEXT, "pieces"))
    for row, (features, vector, colour, name) in enumerate(rows):
        scale = float(np.abs(features[:, :dims]).max())
        axes[row, 1].imshow(features[:, :dims], cmap="PuOr", vmin=-scale, vmax=scale, aspect="auto")
        axes[row, 1].set_title(f"features: {len(features)} {name} × {features.shape[1]} numbers", color=colour)
        if name == "pieces":
            axes[row, 1].set_yticks(range(len(words)), list(words), fontsize=8, parse_math=False)
        axes[row, 2].bar(range(dims), vector[:dims], color=colour, width=1)
        axes[row, 2].set_title("pooled, length 1: one vector", color=colour)
    products = image_vector * text_vector
    axes[0, 3].bar(
        range(dims), products[:dims], color=[RIGHT if part > 0 else WRONG for part in products[:dims]], width=1
    )
    axes[0, 3].set_title("multiplied, number by number")
    axes[1, 3].plot(np.cumsum(products), color="#000000", lw=1.8)
    axes[1, 3].axhline(float(products.sum()), color=RIGHT, ls="--", lw=1)
    axes[1, 3].set(title=f"added up: the cosine is {products.sum():.2f}", xlabel=f"numbers added, of {len(products)}")
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        if ax is not axes[1, 3]:
            ax.set_xticks([])
        if ax not in (axes[1, 1], axes[1, 3]):
            ax.set_yticks([])
    axes[1, 0].axis("off")
    for ax in (axes[0, 1], axes[1, 1], axes[0, 2], axes[1, 2], axes[0, 3]):
        ax.set_xlabel(f"the first {dims} dimensions", fontsize=9, color="#555555")
    return axes[0, 3]


def plot_matrix(
    values: np.ndarray,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    ax: Axes | None = None,
    digits: int = 1,
    limits: tuple[float, float] | None = None,
) -> Axes:
    """Draw a small matrix with its numbers, shaded by value.

    Args:
        values: The matrix.
        rows: Labels of the rows, if any.
        columns: Labels of the columns, if any.
        ax: Axes to draw on; a new figure if None.
        digits: Digits after the decimal point.
        limits: The values of the lightest and of the darkest shade, to be the same in panels that are compared; the
            smallest and the largest value if None.
    """
    values = np.asarray(values, dtype=float)
    ax = new_axes(ax, 1.2 + 0.7 * values.shape[1], 0.8 + 0.5 * values.shape[0])
    low, high = limits or (values.min(), values.max())
    ax.imshow(values, cmap="Blues", aspect="auto", vmin=low, vmax=low + 1.5 * (high - low) + 1e-9)
    for (row, column), value in np.ndenumerate(values):
        ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=11)
    ax.set_xticks(range(values.shape[1]), columns or [""] * values.shape[1])
    ax.set_yticks(range(values.shape[0]), rows or [""] * values.shape[0])
    ax.tick_params(length=0)
    return ax


def plot_rank_weights(
    weights: Mapping[str, np.ndarray], ax: Axes | None = None, colours: Sequence[str] = PALETTE
) -> Axes:
    """Draw how much each rank counts, a line per pooling or model.

    Args:
        weights: Name -> the weight of each rank, rank 1 (the largest value) first.
        ax: Axes to draw on; a new figure if None.
        colours: Of the lines; repeated if there are more lines.
    """
    ax = new_axes(ax)
    for colour, (name, values) in zip(cycle(colours), weights.items(), strict=False):
        style = "o-" if len(values) <= 40 else "-"  # more dots than that only make a line thick
        ax.plot(range(1, len(values) + 1), values, style, ms=4, lw=1.8, color=colour, label=name)
    ax.set(xlabel="rank (1 = largest value)", ylabel="weight", ylim=(0, None))
    ax.legend(frameon=False)
    return ax


def plot_k_plane(
    variant: str,
    batch_size: int = 128,
    ax: Axes | None = None,
    points: Mapping[str, tuple[float, float]] | None = None,
    path: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Axes:
    """Draw K over the plane of alignment and uniformity, by one variant's formula.

    Args:
        variant: `paper` or `official`.
        batch_size: The largest K, plus one.
        ax: Axes to draw on; a new figure if None.
        points: Spaces to mark with the K that they get, name -> (alignment, uniformity).
        path: The alignment and the uniformity of each step of a run, drawn as a line from a dot.
    """
    ax = new_axes(ax, 5, 4)
    alignment, uniformity = np.linspace(0, 1, 101), np.linspace(0, 1.2, 121)
    k = [[negative_count(a, u, batch_size, variant) for a in alignment] for u in uniformity]
    shown = ax.imshow(
        k, origin="lower", extent=(0, 1, 0, 1.2), aspect="auto", cmap="cividis", vmin=1, vmax=batch_size,
        interpolation="nearest",
    )  # fmt: skip
    contours = ax.contour(alignment, uniformity, k, levels=[2, 10, 40, 80, 120], colors="white", linewidths=1)
    ax.clabel(contours, fmt="%d", fontsize=9)
    if path is not None:
        ax.plot(*path, color=WRONG, lw=2)
        ax.plot(path[0][0], path[1][0], "o", color=WRONG, mec="white", ms=10)
    for name, (a, u) in (points or {}).items():
        ax.plot(a, u, "o", color=WRONG, mec="white", ms=12, clip_on=False, zorder=5)
        label = f"{name}: K = {negative_count(a, u, batch_size, variant)}"
        side, shift = ("left", 14) if a < 0.5 else ("right", -14)
        box = {"fc": "white", "ec": "none", "pad": 1.5}
        ax.annotate(label, (a, u), (shift, 8), textcoords="offset points", ha=side, bbox=box, zorder=6, fontsize=9)
    ax.set(xlabel="alignment", ylabel="uniformity", title=f"K of {batch_size}, {variant}")
    ax.figure.colorbar(shown, ax=ax, label="K")
    return ax
