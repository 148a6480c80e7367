"""What nbval leaves out when it runs the lessons: their figures.

nbval runs each cell and compares its output with the stored one, but passes over pictures. Here they are compared
too: coarsely enough that the rounding of another CPU does not show, finely enough that another photo or curve does.
A cell whose figure shows a measured time, or is drawn live, has the tag `figure-varies`; its text is still compared.
"""

import base64
import io
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from nbval.plugin import IPyNbCell
from PIL import Image, ImageChops, ImageFilter

os.environ["HF_HUB_OFFLINE"] = "1"  # kernels inherit it: no lesson may look outside

IMAGE_SUFFIXES = ("image/png", "image/jpeg")
PIXELS = 8  # by which the sides of two figures may differ: a label that is one digit longer
BLOCKS = (96, 48)  # in which two figures are compared
BLUR = ImageFilter.GaussianBlur(3)  # before that: a line may be drawn a pixel lower
LEVELS = 12  # of 256, by which a block must differ to count
SHARE = 0.02  # of the blocks that may differ


def figures(outputs: Sequence[dict]) -> list[Image.Image]:
    """The pictures among a cell's outputs, in their order."""
    coded = [data[kind] for output in outputs for kind in IMAGE_SUFFIXES if kind in (data := output.get("data", {}))]
    return [Image.open(io.BytesIO(base64.b64decode(code))).convert("RGB") for code in coded]


def difference(stored: Sequence[Image.Image], drawn: Sequence[Image.Image]) -> str:
    """What is different about two lists of figures, in words; nothing where they look the same."""
    if len(stored) != len(drawn):
        return f"{len(stored)} stored, {len(drawn)} drawn"
    for number, (one, other) in enumerate(zip(stored, drawn, strict=True), 1):
        if max(abs(a - b) for a, b in zip(one.size, other.size, strict=True)) > PIXELS:
            return f"number {number} is stored in {one.size} pixels and was drawn in {other.size}"
        small = [image.filter(BLUR).resize(BLOCKS, Image.Resampling.BOX) for image in (one, other)]
        share = float((np.asarray(ImageChops.difference(*small)).max(axis=2) > LEVELS).mean())
        if share > SHARE:
            return f"number {number} looks different in {share:.0%} of its area"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    if not isinstance(item, IPyNbCell) or not item.options["check"]:
        return
    if "figure-varies" not in item.cell.metadata.get("tags", []):
        problem = difference(figures(item.cell.outputs), figures(item.test_outputs))
        if problem:
            item.raise_cell_error(f"Figures differ: {problem}")
