"""Figures for lessons, app and papers: arrays in, matplotlib Axes out; no model in sight.

Every function draws on `ax`, or on a new figure, and returns the Axes. Colours are Okabe and Ito's,
which most people can tell apart: blue is for images, orange for texts, green for right, vermilion for
wrong.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image

from vse_demo.objectives import negative_count

IMAGE, TEXT, RIGHT, WRONG = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PALETTE = (IMAGE, TEXT, RIGHT, WRONG, "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def _axes(ax: Axes | None, width: float = 6.4, height: float = 4.0) -> Axes:
    return plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def plot_pipeline(ax: Axes | None = None) -> Axes:
    """The whole method in one picture: two encoders, two poolings, one space."""
    ax = _axes(ax, 10, 3.4)
    cells, words, space, adopt = "CNN\ngrid cells", "BiGRU or BERT\nwords", "joint space\nunit vectors", "AdOpt\nloss"
    boxes = {  # name: x, y, colour
        "photo": (0, 1, IMAGE), cells: (2, 1, IMAGE), "AdPool\nof cells": (4, 1, IMAGE),
        "sentence": (0, 0, TEXT), words: (2, 0, TEXT), "AdPool\nof words": (4, 0, TEXT),
        space: (6, 0.5, RIGHT), "cosine": (8, 1, "#000000"), adopt: (8, 0, WRONG),
    }  # fmt: skip
    arrows = [
        ("photo", cells, "pixels"), (cells, "AdPool\nof cells", "(N, D)"), ("AdPool\nof cells", space, "(D)"),
        ("sentence", words, "tokens"), (words, "AdPool\nof words", "(M, D)"), ("AdPool\nof words", space, "(D)"),
        (space, "cosine", "search"), (space, adopt, "training"),
    ]  # fmt: skip
    for name, (x, y, colour) in boxes.items():
        patch = FancyBboxPatch((x - 0.7, y - 0.22), 1.4, 0.44, boxstyle="round,pad=0.05", fc="white", ec=colour, lw=2)
        ax.add_patch(patch)
        ax.text(x, y, name, ha="center", va="center", fontsize=11)
    for start, end, label in arrows:
        (x0, y0, _), (x1, y1, _) = boxes[start], boxes[end]
        ax.add_patch(
            FancyArrowPatch((x0 + 0.76, y0), (x1 - 0.76, y1), arrowstyle="-|>", mutation_scale=14, color="#555555")
        )
        ax.text((x0 + x1) / 2, (y0 + y1) / 2 + 0.1, label, ha="center", fontsize=8, color="#555555")
    ax.set(xlim=(-0.9, 8.9), ylim=(-0.45, 1.45))
    ax.axis("off")
    return ax


def plot_matrix(
    values: np.ndarray, rows: Sequence[str] = (), columns: Sequence[str] = (), ax: Axes | None = None, digits: int = 1
) -> Axes:
    """A small matrix with its numbers, shaded by value."""
    values = np.asarray(values, dtype=float)
    ax = _axes(ax, 1.2 + 0.7 * values.shape[1], 0.8 + 0.5 * values.shape[0])
    ax.imshow(values, cmap="Blues", aspect="auto", vmin=values.min(), vmax=values.min() + 1.5 * np.ptp(values) + 1e-9)
    for (row, column), value in np.ndenumerate(values):
        ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=11)
    ax.set_xticks(range(values.shape[1]), columns or [""] * values.shape[1])
    ax.set_yticks(range(values.shape[0]), rows or [""] * values.shape[0])
    ax.tick_params(length=0)
    return ax


def plot_rank_weights(weights: Mapping[str, np.ndarray], ax: Axes | None = None) -> Axes:
    """How much each rank counts, a line per pooling or model; rank 1 is the largest value."""
    ax = _axes(ax)
    for colour, (name, values) in zip(PALETTE, weights.items(), strict=False):
        ax.plot(range(1, len(values) + 1), values, "o-", ms=4, color=colour, label=name)
    ax.set(xlabel="rank (1 = largest value)", ylabel="weight", ylim=(0, None))
    ax.legend(frameon=False)
    return ax


def plot_heat_map(image: Image.Image, parts: np.ndarray, ax: Axes | None = None) -> Axes:
    """A photo under the parts that its cells add to a score: green helps, vermilion hurts."""
    ax = _axes(ax, 4.5, 4)
    parts = np.asarray(parts)
    limit = max(float(np.abs(parts).max()), 1e-9)
    ax.imshow(np.asarray(image.convert("L").convert("RGB")))
    extent = (0, image.width, image.height, 0)
    ax.imshow(
        parts, cmap="PiYG", norm=TwoSlopeNorm(0, -limit, limit), alpha=0.55, extent=extent, interpolation="bilinear"
    )
    ax.axis("off")
    return ax


def plot_word_parts(words: Sequence[str], parts: np.ndarray, ax: Axes | None = None) -> Axes:
    """What each word adds to a score, in the order of the sentence."""
    ax = _axes(ax, 5, 0.8 + 0.3 * len(words))
    parts = np.asarray(parts)
    ax.barh(range(len(words)), parts, color=[RIGHT if part >= 0 else WRONG for part in parts])
    ax.set_yticks(range(len(words)), words)
    ax.invert_yaxis()
    ax.axvline(0, color="black", lw=0.8)
    ax.set_xlabel(f"part of the score (they sum to {parts.sum():.2f})")
    return ax


def plot_retrieved_images(
    query: str, images: Sequence[Image.Image], scores: Sequence[float], right: Sequence[bool | None]
) -> Axes:
    """The paper's figure: a sentence and its pictures, ticked or crossed; None leaves a picture unmarked."""
    figure, all_axes = plt.subplots(
        1, len(images), figsize=(2.6 * len(images), 2.9), layout="constrained", squeeze=False
    )
    figure.suptitle(f"“{query}”", fontsize=13)
    for ax, image, score, is_right in zip(all_axes[0], images, scores, right, strict=True):
        ax.imshow(np.asarray(image))
        ax.set_xticks([])
        ax.set_yticks([])
        mark, colour = {True: ("✓", RIGHT), False: ("✗", WRONG), None: ("", "#888888")}[is_right]
        ax.set_title(f"{mark} {score:.2f}".strip(), color=colour, fontsize=13)
        for spine in ax.spines.values():
            spine.set(edgecolor=colour, linewidth=3)
    return all_axes[0, 0]


def plot_retrieved_captions(
    image: Image.Image, captions: Sequence[str], scores: Sequence[float], right: Sequence[bool | None]
) -> Axes:
    """The other way round: a picture and its captions."""
    _, (left, ax) = plt.subplots(1, 2, figsize=(11, 2.9), width_ratios=(1, 2.6), layout="constrained")
    left.imshow(np.asarray(image))
    left.axis("off")
    ax.axis("off")
    for number, (caption, score, is_right) in enumerate(zip(captions, scores, right, strict=True)):
        mark, colour = {True: ("✓", RIGHT), False: ("✗", WRONG), None: ("·", "#888888")}[is_right]
        ax.text(0, 0.92 - number * 0.2, f"{mark} {score:.2f}", color=colour, fontsize=13, weight="bold")
        ax.text(0.11, 0.92 - number * 0.2, caption, fontsize=12)
    return ax


def plot_k_plane(variant: str, batch_size: int = 128, ax: Axes | None = None) -> Axes:
    """K over the plane of alignment and uniformity, by one variant's formula."""
    ax = _axes(ax, 5, 4)
    alignment = np.linspace(0, 1, 101)
    uniformity = np.linspace(0, 1.2, 121)
    k = [[negative_count(a, u, batch_size, variant) for a in alignment] for u in uniformity]
    shown = ax.imshow(k, origin="lower", extent=(0, 1, 0, 1.2), aspect="auto", cmap="cividis", vmin=1, vmax=batch_size)
    contours = ax.contour(alignment, uniformity, k, levels=[2, 10, 40, 80, 120], colors="white", linewidths=1)
    ax.clabel(contours, fmt="%d", fontsize=9)
    ax.set(xlabel="alignment", ylabel="uniformity", title=f"K of {batch_size}, {variant}")
    ax.figure.colorbar(shown, ax=ax, label="K")
    return ax


def plot_curves(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], xlabel: str, ylabel: str, ax: Axes | None = None
) -> Axes:
    """Lines of (x, y), such as the loss, K, alignment or RSUM of runs."""
    ax = _axes(ax)
    for colour, (name, (x, y)) in zip(PALETTE, curves.items(), strict=False):
        ax.plot(x, y, color=colour, label=name, lw=1.8)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if len(curves) > 1:
        ax.legend(frameon=False)
    return ax


def plot_comparison(
    results: Mapping[str, Sequence[float]], xlabel: str = "RSUM", highlight: str = "", ax: Axes | None = None
) -> Axes:
    """One row per setting: every seed a dot, their mean a line; comparable at a glance."""
    ax = _axes(ax, 6.4, 0.8 + 0.4 * len(results))
    for row, (name, values) in enumerate(results.items()):
        colour = WRONG if name == highlight else IMAGE
        ax.plot(values, [row] * len(values), "o", color=colour, ms=6, alpha=0.7)
        ax.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], color=colour, lw=2.5)
    ax.set_yticks(range(len(results)), list(results))
    ax.invert_yaxis()
    ax.grid(axis="x", alpha=0.3)
    ax.set_xlabel(f"{xlabel} (dot: a seed, line: the mean)")
    return ax


def plot_space(
    images: np.ndarray, texts: np.ndarray, owner: np.ndarray, groups: Sequence[str] = (), ax: Axes | None = None
) -> Axes:
    """A map (n, 2) of images and texts, each text joined to its image; images coloured by group."""
    ax = _axes(ax, 7, 6)
    for text, picture in zip(texts, images[owner], strict=True):
        ax.plot(*np.stack([text, picture]).T, color="#999999", lw=0.4, alpha=0.5, zorder=1)
    ax.scatter(texts[:, 0], texts[:, 1], s=8, color="#BBBBBB", label="texts", zorder=2)
    names = np.array(groups if len(groups) else ["images"] * len(images))
    colours = plt.get_cmap("tab20")
    for number, name in enumerate(dict.fromkeys(names)):
        colour = IMAGE if not len(groups) else colours(number % 20)
        mine = images[names == name]
        ax.scatter(mine[:, 0], mine[:, 1], s=28, color=colour, label=name, edgecolor="white", lw=0.5, zorder=3)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def plot_circle(images: np.ndarray, texts: np.ndarray, ax: Axes | None = None) -> Axes:
    """Unit vectors (n, 2) on the circle, true pairs joined: alignment is short lines, uniformity a full circle."""
    ax = _axes(ax, 4, 4)
    ax.add_patch(plt.Circle((0, 0), 1, fill=False, color="#BBBBBB"))
    for pair in np.stack([images, texts], 1):
        ax.plot(*pair.T, color="#999999", lw=1)
    ax.scatter(images[:, 0], images[:, 1], color=IMAGE, s=40, label="images", zorder=3)
    ax.scatter(texts[:, 0], texts[:, 1], color=TEXT, s=40, label="texts", zorder=3)
    ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    ax.axis("off")
    ax.legend(frameon=False, loc="center")
    return ax
