"""How all tests are run: the lessons too, their figures compared, and at the end what was left out.

Where nbval is installed and the folder `notebooks` is tested, it runs each cell of a lesson and compares its output
with the stored one, but passes over images. Here they are compared too: coarsely enough that the rounding of another
CPU does not show, finely enough that another photo or curve does. A cell whose figure shows a measured time, or is
drawn live, has the tag `figure-varies`; its text is still compared.

Markers (see pyproject.toml) separate unit tests from the rest. Cells of lessons and tests that use the fixture
`browser` get theirs here.
"""

import base64
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageFilter

try:
    from nbval.plugin import IPyNbCell
except ImportError:  # unit tests do without
    IPyNbCell = None

os.environ["HF_HUB_OFFLINE"] = "1"  # kernels inherit it: no lesson may look outside

IMAGE_SUFFIXES = ("image/png", "image/jpeg")
PIXELS = 8  # by which the sides of two figures may differ: a label that is one digit longer
BLOCKS = (96, 48)  # in which two figures are compared
BLUR = ImageFilter.GaussianBlur(3)  # before that: a line may be drawn a pixel lower
LEVELS = 12  # of 256, by which a block must differ to count
SHARE = 0.02  # of the blocks that may differ

collect_ignore = ["notebooks/source", "notebooks/student"]  # what is run is the teacher's copy: a student's has gaps
MARKERS = ("slow", "browser", "notebook")
LEFT_OUT = pytest.StashKey[Counter[str]]()  # how many tests of each marker were deselected


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    if IPyNbCell is not None:
        config.option.nbval = config.option.nbval_current_env = True


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_cell(item):
        item.add_marker("notebook")
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker("browser")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT].update(name for name in MARKERS if item.get_closest_marker(name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not run, and how to have it run."""
    left_out = config.stash[LEFT_OUT]
    skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    if not left_out and not skipped:
        return
    terminalreporter.section("not run")
    if left_out:
        counts = ", ".join(f"{left_out[name]} {name}" for name in MARKERS if left_out[name])
        terminalreporter.line(f"left out by their markers: {counts}. Everything runs with: make test")
    for reason, count in skipped.items():
        terminalreporter.line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


def is_cell(item: pytest.Item) -> bool:
    """Whether a test is a cell of a lesson."""
    return IPyNbCell is not None and isinstance(item, IPyNbCell)


def figures(outputs: Sequence[dict]) -> list[Image.Image]:
    """The images among a cell's outputs, in their order."""
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
    if not is_cell(item) or not item.options["check"]:
        return
    if "figure-varies" not in item.cell.metadata.get("tags", []):
        problem = difference(figures(item.cell.outputs), figures(item.test_outputs))
        if problem:
            item.raise_cell_error(f"Figures differ: {problem}")
