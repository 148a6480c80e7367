"""What was measured: curves of runs, seeds, differences, times, two virtues at once."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from vse_demo.plots.style import IMAGE, PALETTE, name_points, new_axes

HIGHLIGHT = "#000000"  # neither right nor wrong


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
    ax = new_axes(ax)
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
        highlight: Name of a row in black.
        ax: Axes to draw on; a new figure if None.
    """
    ax = new_axes(ax, 6.4, 0.8 + 0.4 * len(results))
    _plot_seeds(ax, results, [HIGHLIGHT if name == highlight else IMAGE for name in results])
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
    ax = new_axes(ax, 7.5, 1.0 + 0.3 * len(differences))
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
    ax = new_axes(ax, 7.5, 0.9 + 0.55 * len(bars))
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
        highlight: Name of a point in black.
        ax: Axes to draw on; a new figure if None.
    """
    ax = new_axes(ax, 7, 4.2)
    x, y = np.array(list(points.values())).T
    for number, name in enumerate(points):
        ax.plot(x[number], y[number], "o", ms=9, color=HIGHLIGHT if name == highlight else IMAGE)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale="log")
    wide = np.ptp(np.log10(x)) > 2  # a tick for each power of ten is enough then
    ax.xaxis.set_major_locator(LogLocator(subs=(1,), numticks=5) if wide else LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:,.10g}")
    ax.xaxis.set_minor_formatter("")
    ax.margins(x=0.2, y=0.1)
    name_points(ax, points)
    return ax
