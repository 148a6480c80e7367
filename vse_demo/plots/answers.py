"""What a model answers, and why: results with ticks and crosses, heat maps, parts of words."""

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from PIL import Image

from vse_demo.plots.style import HELPS_OR_HURTS, RIGHT, TEXT, WRONG, new_axes

MARKS: dict[bool | None, tuple[str, str]] = {True: ("✓", RIGHT), False: ("✗", WRONG), None: ("", "#888888")}
LONG_WORD = 24  # letters of a word that have room beside its bar


def plot_heat_map(
    image: Image.Image, parts: np.ndarray, ax: Axes | None = None, limit: float | None = None, label: str = ""
) -> Axes:
    """Draw an image under what each place of it adds to a score: green helps, vermilion hurts, nothing stays clear.

    Args:
        image: The image, of any size; it is shown in pale grey.
        parts: (rows, columns) what each place of the grid adds.
        ax: Axes to draw on; a new figure if None.
        limit: The part that has the full colour; the largest of this map if None.
        label: Of a bar that says which colour is how much; no bar if empty.
    """
    ax = new_axes(ax, 4.5, 4)
    parts = np.asarray(parts)
    limit = limit or max(float(np.abs(parts).max()), 1e-9)
    grey = np.asarray(image.convert("L").convert("RGB"))
    ax.imshow(255 - (255 - grey) // 2)  # half as dark: colours on black would be mud
    norm = TwoSlopeNorm(0, -limit, limit)
    size = (4 * parts.shape[1], 4 * parts.shape[0])  # smooth, so that nobody takes cells for outlines
    smooth = np.asarray(Image.fromarray(parts.astype(np.float32)).resize(size, Image.Resampling.BICUBIC))
    strength = np.clip(np.abs(smooth) / limit, 0, 1) ** 0.7
    extent = (0, image.width, image.height, 0)
    ax.imshow(smooth, HELPS_OR_HURTS, norm, alpha=0.85 * strength, extent=extent)
    if label:
        bar = plt.cm.ScalarMappable(norm, HELPS_OR_HURTS)
        ax.figure.colorbar(bar, ax=ax, label=label, shrink=0.8)
    ax.axis("off")
    return ax


def plot_word_parts(
    words: Sequence[str], parts: np.ndarray, ax: Axes | None = None, helps_or_hurts: bool = True
) -> Axes:
    """Draw what each word adds to a score, in the order of the sentence.

    Args:
        words: The words; long ones are cut.
        parts: What each word adds.
        ax: Axes to draw on; a new figure if None.
        helps_or_hurts: Green above zero and vermilion below; otherwise all bars have the colour of texts, as for
            shares and weights.
    """
    ax = new_axes(ax, 5, 0.8 + 0.3 * len(words))
    parts = np.asarray(parts)
    signs = [RIGHT if part >= 0 else WRONG for part in parts]
    ax.barh(range(len(words)), parts, color=signs if helps_or_hurts else TEXT)
    short = [word if len(word) <= LONG_WORD else word[: LONG_WORD - 1] + "…" for word in words]
    ax.set_yticks(range(len(words)), short, parse_math=False)  # a $ that somebody typed is a $
    ax.set_ylim(len(words) - 0.4, -0.6)  # not `invert_yaxis`: that turns axes that share y twice
    ax.axvline(0, color="black", lw=0.8)
    ax.set_xlabel(f"part of the score (they sum to {parts.sum():.2f})")
    return ax


def plot_retrieved_images(
    query: str,
    images: Sequence[Image.Image],
    scores: Sequence[float],
    right: Sequence[bool | None],
    note: str = "",
) -> Axes:
    """Draw a sentence and the images found for it, ticked or crossed, as in the paper's figure.

    Args:
        query: The sentence.
        images: The images, best first.
        scores: Of the images.
        right: Whether each image belongs to the sentence; None leaves it unmarked.
        note: What else to say of the query, after its quotation marks.

    Returns:
        The Axes of the first image.
    """
    tallest = max(image.height / image.width for image in images)
    size = 2.6 * len(images), 0.8 + 2.6 * min(tallest, 1)
    figure, all_axes = plt.subplots(1, len(images), figsize=size, layout="constrained", squeeze=False)
    title = f"“{query}” {note}".strip()
    figure.suptitle(fill(title, 40 * len(images)), fontsize=13, parse_math=False)
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
