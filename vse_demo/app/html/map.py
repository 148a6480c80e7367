"""The map of the joint space as HTML: a dot for each image and caption, a tip for each, a mark for the query.

Pointing at a dot, tapping near it or moving there with the arrow keys shows what it is, and joins an
image with its captions by lines. One can zoom, and open an image.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vse_demo.app.html.markup import escape_html, read_text, render
from vse_demo.retrieval.entries import Entry

SIZE = 1000, 620  # of the drawing, in its own units, as in map.js
MARGIN = 24
LABEL = 32  # characters of a query beside its mark: as many as fit into half of the map
NOWHERE = {"x": -99.0, "y": -99.0, "anchor": "start", "shift": 0, "label": ""}  # before anything is searched for
SCRIPT = read_text("map.js")


def to_page(places: np.ndarray, all_places: np.ndarray) -> np.ndarray:
    """Turn places on the map into coordinates of the drawing."""
    low, high = all_places.min(0), all_places.max(0)
    share = (places - low) / np.maximum(high - low, 1e-9)
    return MARGIN + share * (np.array(SIZE) - 2 * MARGIN)


def render_map(shown: Sequence[Entry], places: np.ndarray, describe: Callable[[str], str], total: int) -> str:
    """Draw the map as a template whose value is what `mark` gives.

    Args:
        shown: The images on it, with their captions.
        places: Where the images are, and then their captions: (I + C, 2).
        describe: From the name of an image to its text.
        total: How many images there are.
    """
    page = to_page(places, places)
    captions = [(number, caption) for number, entry in enumerate(shown) for caption in entry.captions]
    return render(
        "map.html", width=SIZE[0], height=SIZE[1], total=f"{total:,}", total_more=total > len(shown),
        images=[_dot(page[number], number, describe(entry.name), entry.name) for number, entry in enumerate(shown)],
        captions=[_dot(page[place], *of) for place, of in enumerate(captions, len(shown))],
    )  # fmt: skip


def mark(place: np.ndarray, places: np.ndarray, label: str) -> dict[str, Any]:
    """The value of the map's template for a query at this place."""
    x, y = to_page(place, places).tolist()
    short = label if len(label) <= LABEL else label[: LABEL - 1] + "…"
    anchor, shift = ("start", 28) if x < SIZE[0] / 2 else ("end", -28)
    return {"x": round(x, 1), "y": round(y, 1), "anchor": anchor, "shift": shift, "label": escape_html(short)}


def _dot(place: Sequence[float], image: int, tip: str, name: str = "") -> dict[str, Any]:
    return {"x": f"{place[0]:.1f}", "y": f"{place[1]:.1f}", "of": image, "tip": tip, "name": name}
