"""Figures for lessons, app and papers: arrays in, matplotlib Axes out; no model is needed.

Every function draws on `ax`, or on a new figure if it is None, and returns the Axes. Colours are Okabe and Ito's,
which most people can tell apart: blue is for images, orange for texts, green for right, vermilion for wrong.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import LogLocator
from PIL import Image

from vse_demo.losses.statistics import negative_count

IMAGE, TEXT, RIGHT, WRONG = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PALETTE = (IMAGE, TEXT, RIGHT, WRONG, "#CC79A7", "#56B4E9", "#F0E442", "#000000")
HELPS_OR_HURTS = LinearSegmentedColormap.from_list("helps_or_hurts", [WRONG, "#F7F7F7", RIGHT])
MARKS: dict[bool | None, tuple[str, str]] = {True: ("✓", RIGHT), False: ("✗", WRONG), None: ("", "#888888")}
LONG_WORD = 24  # letters of a word that have room beside its bar


def _axes(ax: Axes | None, width: float = 6.4, height: float = 4.0) -> Axes:
    return plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def plot_pipeline(ax: Axes | None = None) -> Axes:
    """Draw the whole method: two encoders, two poolings, one space."""
    ax = _axes(ax, 10, 3)
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


def plot_matrix(
    values: np.ndarray, rows: Sequence[str] = (), columns: Sequence[str] = (), ax: Axes | None = None, digits: int = 1
) -> Axes:
    """Draw a small matrix with its numbers, shaded by value.

    Args:
        values: The matrix.
        rows: Labels of the rows, if any.
        columns: Labels of the columns, if any.
        ax: Axes to draw on; a new figure if None.
        digits: Digits after the decimal point.
    """
    values = np.asarray(values, dtype=float)
    ax = _axes(ax, 1.2 + 0.7 * values.shape[1], 0.8 + 0.5 * values.shape[0])
    ax.imshow(values, cmap="Blues", aspect="auto", vmin=values.min(), vmax=values.min() + 1.5 * np.ptp(values) + 1e-9)
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
    ax = _axes(ax)
    for colour, (name, values) in zip(cycle(colours), weights.items(), strict=False):
        style = "o-" if len(values) <= 40 else "-"  # more dots than that only make a line thick
        ax.plot(range(1, len(values) + 1), values, style, ms=4, lw=1.8, color=colour, label=name)
    ax.set(xlabel="rank (1 = largest value)", ylabel="weight", ylim=(0, None))
    ax.legend(frameon=False)
    return ax


def plot_heat_map(image: Image.Image, parts: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw an image under what each place of it adds to a score: green helps, vermilion hurts.

    Args:
        image: The image, of any size; it is shown in grey.
        parts: (rows, columns) what each place of the grid adds.
        ax: Axes to draw on; a new figure if None.
    """
    ax = _axes(ax, 4.5, 4)
    parts = np.asarray(parts)
    limit = max(float(np.abs(parts).max()), 1e-9)
    ax.imshow(np.asarray(image.convert("L").convert("RGB")))
    extent = (0, image.width, image.height, 0)
    norm = TwoSlopeNorm(0, -limit, limit)
    ax.imshow(parts, HELPS_OR_HURTS, norm, alpha=0.6, extent=extent, interpolation="bilinear")
    ax.axis("off")
    return ax


def plot_word_parts(words: Sequence[str], parts: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw what each word adds to a score, in the order of the sentence.

    Args:
        words: The words; long ones are cut.
        parts: What each word adds.
        ax: Axes to draw on; a new figure if None.
    """
    ax = _axes(ax, 5, 0.8 + 0.3 * len(words))
    parts = np.asarray(parts)
    ax.barh(range(len(words)), parts, color=[RIGHT if part >= 0 else WRONG for part in parts])
    short = [word if len(word) <= LONG_WORD else word[: LONG_WORD - 1] + "…" for word in words]
    ax.set_yticks(range(len(words)), short, parse_math=False)  # a $ that somebody typed is a $
    ax.set_ylim(len(words) - 0.4, -0.6)  # not `invert_yaxis`: that turns axes that share y twice
    ax.axvline(0, color="black", lw=0.8)
    ax.set_xlabel(f"part of the score (they sum to {parts.sum():.2f})")
    return ax


def plot_retrieved_images(
    query: str, images: Sequence[Image.Image], scores: Sequence[float], right: Sequence[bool | None]
) -> Axes:
    """Draw a sentence and the images found for it, ticked or crossed, as in the paper's figure.

    Args:
        query: The sentence.
        images: The images, best first.
        scores: Of the images.
        right: Whether each image belongs to the sentence; None leaves it unmarked.

    Returns:
        The Axes of the first image.
    """
    tallest = max(image.height / image.width for image in images)
    size = 2.6 * len(images), 0.8 + 2.6 * min(tallest, 1)
    figure, all_axes = plt.subplots(1, len(images), figsize=size, layout="constrained", squeeze=False)
    figure.suptitle(fill(f"“{query}”", 40 * len(images)), fontsize=13, parse_math=False)
    for ax, image, score, is_right in zip(all_axes[0], images, scores, right, strict=True):
        ax.imshow(np.asarray(image))
        ax.set(xticks=[], yticks=[], anchor="N")  # tops, and so titles, in one line
        mark, colour = MARKS[is_right]
        ax.set_title(f"{mark} {score:.2f}".strip().replace("-", "−"), color=colour, fontsize=13)
        for spine in ax.spines.values():
            spine.set(edgecolor=colour, linewidth=3)
    return all_axes[0, 0]


def plot_retrieved_captions(
    image: Image.Image, captions: Sequence[str], scores: Sequence[float], right: Sequence[bool | None]
) -> Axes:
    """Draw an image and the captions found for it, ticked or crossed; long ones take two lines and are cut there.

    Args:
        image: The image.
        captions: The captions, best first.
        scores: Of the captions.
        right: Whether each caption belongs to the image; None leaves it unmarked.

    Returns:
        The Axes of the captions.
    """
    size = 11, max(2.4, 0.2 + 0.54 * len(captions))
    _, (left, ax) = plt.subplots(1, 2, figsize=size, width_ratios=(1, 2.6), layout="constrained")
    left.imshow(np.asarray(image))
    left.axis("off")
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(len(captions) - 0.5, -0.5))
    for row, (caption, score, is_right) in enumerate(zip(captions, scores, right, strict=True)):
        mark, colour = MARKS[is_right]
        ax.text(
            0,
            row,
            f"{mark or '·'} {score:.2f}".replace("-", "−"),
            color=colour,
            va="center",
            fontsize=13,
            weight="bold",
        )
        lines = fill(caption, 78, max_lines=2, placeholder=" …")
        ax.text(0.15, row, lines, va="center", fontsize=12, parse_math=False)
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
    ax = _axes(ax, 5, 4)
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
        side, shift = ("left", 12) if a < 0.5 else ("right", -12)
        box = {"fc": "white", "ec": "none", "pad": 1.5}
        ax.annotate(label, (a, u), (shift, 8), textcoords="offset points", ha=side, bbox=box, zorder=6)
    ax.set(xlabel="alignment", ylabel="uniformity", title=f"K of {batch_size}, {variant}")
    ax.figure.colorbar(shown, ax=ax, label="K")
    return ax


def plot_curves(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    ax: Axes | None = None,
    colours: Sequence[str] = PALETTE,
) -> Axes:
    """Draw lines, such as the loss, K, alignment or RSUM of runs.

    Args:
        curves: Name -> (x, y).
        xlabel: What x is.
        ylabel: What y is.
        ax: Axes to draw on; a new figure if None.
        colours: Of the lines; repeated if there are more lines.
    """
    ax = _axes(ax)
    for colour, (name, (x, y)) in zip(cycle(colours), curves.items(), strict=False):
        ax.plot(x, y, color=colour, label=name, lw=1.8)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if len(curves) > 1:
        ax.legend(frameon=False)
    return ax


def plot_comparison(
    results: Mapping[str, Sequence[float]], xlabel: str = "RSUM", highlight: str = "", ax: Axes | None = None
) -> Axes:
    """Draw one row per setting: every seed a dot, their mean a line.

    Args:
        results: Name -> one value per seed.
        xlabel: What the values are.
        highlight: Name of a row in another colour.
        ax: Axes to draw on; a new figure if None.
    """
    ax = _axes(ax, 6.4, 0.8 + 0.4 * len(results))
    _plot_seeds(ax, results, [WRONG if name == highlight else IMAGE for name in results])
    ax.set_xlabel(f"{xlabel} (dot: a seed, line: the mean)")
    return ax


def plot_differences(
    differences: Mapping[str, Sequence[float]],
    expected: Mapping[str, float] | None = None,
    colours: Sequence[str] = (),
    xlabel: str = "difference in RSUM",
    ax: Axes | None = None,
) -> Axes:
    """Draw one row per claim: every seed a dot, their mean a line, the expected value a diamond.

    Args:
        differences: Claim -> one difference per seed; 0 is no difference.
        expected: Claim -> the expected difference, where there is one.
        colours: Of the rows.
        xlabel: What the values are.
        ax: Axes to draw on; a new figure if None.
    """
    ax = _axes(ax, 7.5, 1.0 + 0.3 * len(differences))
    ax.axvline(0, color="black", lw=1)
    _plot_seeds(ax, differences, colours or [IMAGE] * len(differences))
    known = [(value, row) for row, name in enumerate(differences) if (value := (expected or {}).get(name)) is not None]
    ax.plot([value for value, _ in known], [row for _, row in known], "D", mfc="none", mec="black", ms=6)
    ax.set_xlabel(f"{xlabel} (dot: a seed, line: the mean{', diamond: expected' if known else ''})")
    return ax


def _plot_seeds(ax: Axes, rows: Mapping[str, Sequence[float]], colours: Sequence[str]) -> None:
    """Draw named rows from the top, every value a dot and the mean a line."""
    for row, (values, colour) in enumerate(zip(rows.values(), colours, strict=True)):
        ax.plot(values, [row] * len(values), "o", color=colour, ms=6, alpha=0.7)
        ax.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], color=colour, lw=2.5)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(axis="x", alpha=0.3)


def plot_time_parts(bars: Mapping[str, Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """Draw milliseconds: a bar for each thing, divided into its parts.

    Args:
        bars: Name of a bar -> name of a part -> milliseconds.
        ax: Axes to draw on; a new figure if None.
    """
    ax = _axes(ax, 7.5, 0.9 + 0.55 * len(bars))
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    longest = max(sum(parts.values()) for parts in bars.values())
    for number, name in enumerate(names):
        widths = [parts.get(name, 0.0) for parts in bars.values()]
        before = [sum(parts.get(other, 0.0) for other in names[:number]) for parts in bars.values()]
        ax.barh(range(len(bars)), widths, left=before, height=0.6, color=PALETTE[number % len(PALETTE)], label=name)
    for row, parts in enumerate(bars.values()):
        ax.text(sum(parts.values()) + 0.01 * longest, row, f"{sum(parts.values()):.3g} ms", va="center", fontsize=11)
    ax.set_yticks(range(len(bars)), list(bars))
    ax.set(ylim=(len(bars) - 0.5, -0.5), xlim=(0, 1.15 * longest), xlabel="milliseconds, less is better")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower right")
    return ax


def plot_trade_off(
    points: Mapping[str, tuple[float, float]], xlabel: str, ylabel: str, highlight: str = "", ax: Axes | None = None
) -> Axes:
    """Draw two virtues of each thing, such as speed and quality: right and up is better.

    Args:
        points: Name -> (x, y); x is on a log scale.
        xlabel: What x is.
        ylabel: What y is.
        highlight: Name of a point in another colour.
        ax: Axes to draw on; a new figure if None.
    """
    ax = _axes(ax, 7, 4.2)
    x, y = np.array(list(points.values())).T
    across, up = ((values - values.min()) / max(np.ptp(values), 1e-9) for values in (np.log(x), y))
    for number, name in enumerate(points):
        ax.plot(x[number], y[number], "o", ms=9, color=WRONG if name == highlight else IMAGE)
        ahead, aside = across - across[number], np.abs(up - up[number])
        crowded = ((ahead > 0) & (ahead < 0.25) & (aside < 0.06)).any()  # a name to the right would touch a point
        shift, side = ((-7, 4), "right") if crowded else ((7, 4), "left")
        ax.annotate(name, (x[number], y[number]), shift, textcoords="offset points", ha=side)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale="log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.margins(x=0.2, y=0.1)
    return ax


def plot_space(
    images: np.ndarray, texts: np.ndarray, image_ids: np.ndarray, groups: Sequence[str] = (), ax: Axes | None = None
) -> Axes:
    """Draw a map of images and texts, each text joined to its image.

    Args:
        images: (B, 2) places of the images.
        texts: (C, 2) places of the texts.
        image_ids: (C,) the index of each text's image.
        groups: A name for each image; a group has a colour and a shape of its own.
        ax: Axes to draw on; a new figure if None.
    """
    ax = _axes(ax, 7, 6)
    for text, image in zip(texts, images[image_ids], strict=True):
        ax.plot(*np.stack([text, image]).T, color="#999999", lw=0.4, alpha=0.5, zorder=1)
    ax.scatter(texts[:, 0], texts[:, 1], s=8, color="#BBBBBB", label="texts", zorder=2)
    names = np.array(groups if len(groups) else ["images"] * len(images))
    for number, name in enumerate(dict.fromkeys(names)):
        colour, marker = PALETTE[number % len(PALETTE)], "osD^v"[number // len(PALETTE) % 5]
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
