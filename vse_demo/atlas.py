"""The map of the joint space as a piece of a web page: SVG points, a tip for each, and a mark for the query.

It is safe to draw captions and file names that strangers wrote: they reach the page as text only.
"""

import base64
import html
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vse_demo.plots import IMAGE, TEXT, WRONG
from vse_demo.retrieval import Gallery

SIZE = 1000, 640  # of the drawing, in its own units
MAX_PICTURES = 400  # more would be a page of many megabytes, and a map of nothing but dots
NOWHERE = {"x": -99.0, "y": -99.0, "label": ""}  # of the mark, before anything is searched for

STYLE = """
.atlas { position: relative; width: 100%; }
.atlas svg { width: 100%; height: auto; display: block; }
.atlas .tip { position: absolute; display: none; pointer-events: none; max-width: 220px; padding: 6px; z-index: 5;
  border-radius: 6px; font-size: 13px; background: var(--background-fill-primary);
  border: 1px solid var(--border-color-primary); }
.atlas .tip img { max-width: 206px; max-height: 160px; display: block; }
"""
SCRIPT = """
const hide = () => { element.querySelector('.tip').style.display = 'none'; };
element.addEventListener('pointerleave', hide);
element.addEventListener('pointermove', event => {
  const point = event.target.closest('[data-tip]');
  if (!point) { hide(); return; }
  const tip = element.querySelector('.tip');
  tip.replaceChildren();
  if (point.dataset.src) { const img = new Image(); img.src = point.dataset.src; img.alt = ''; tip.append(img); }
  tip.append(point.dataset.tip);
  const box = element.querySelector('.atlas').getBoundingClientRect();
  tip.style.left = Math.max(0, Math.min(event.clientX - box.left + 14, box.width - 230)) + 'px';
  tip.style.top = (event.clientY - box.top + 14) + 'px';
  tip.style.display = 'block';
});
"""


def to_page(places: np.ndarray, all_places: np.ndarray) -> np.ndarray:
    """Places on the map -> coordinates on the page."""
    low, high = all_places.min(0), all_places.max(0)
    share = (places - low) / np.maximum(high - low, 1e-9)
    margin = 20
    return margin + share * (np.array(SIZE) - 2 * margin)


def plain(text: str) -> str:
    """Text that can be nothing but text, in an attribute and in the page's template language."""
    return "".join(f"&#{ord(sign)};" if sign in "${}`\\" else sign for sign in html.escape(text))


def thumbnail(picture: Image.Image) -> str:
    """A small JPEG as a data address."""
    picture.thumbnail((140, 140))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def draw_atlas(gallery: Gallery, places: np.ndarray, photo: Callable[[str], Image.Image]) -> dict[str, Any]:
    """Arguments of `gr.HTML` for a map; its value is the mark: {"x", "y", "label"}."""
    shown = sorted(np.random.default_rng(0).permutation(len(gallery))[:MAX_PICTURES].tolist())
    page = to_page(places, places)
    images, captions = page[: len(gallery)], page[len(gallery) :]
    wanted = set(shown)
    mine = [number for number, picture in enumerate(gallery.owner.tolist()) if picture in wanted]
    lines = [_line(captions[number], images[gallery.owner[number]]) for number in mine]
    dots = [_dot(captions[number], 3, TEXT, gallery.captions[number]) for number in mine]
    photos = [
        _dot(images[index], 7, IMAGE, gallery.names[index], thumbnail(photo(gallery.names[index]))) for index in shown
    ]
    mark = (
        f'<g transform="translate(${{value.x}} ${{value.y}})" data-tip="${{value.label}}">'
        f'<circle r="15" fill="none" stroke="{WRONG}" stroke-width="4"/><circle r="4" fill="{WRONG}"/></g>'
    )
    label = "A map of pictures (blue) and captions (orange)"
    svg = f'<svg viewBox="0 0 {SIZE[0]} {SIZE[1]}" role="img" aria-label="{label}">'
    body = "".join([svg, *lines, *dots, *photos, mark, "</svg>"])
    template = f'<div class="atlas">{body}<div class="tip"></div></div>'
    return {"html_template": template, "css_template": STYLE, "js_on_load": SCRIPT, "value": NOWHERE}


def mark(place: np.ndarray, places: np.ndarray, label: str) -> dict[str, Any]:
    """The value of the map for a query at this place."""
    x, y = to_page(place, places).tolist()
    return {"x": round(x, 1), "y": round(y, 1), "label": plain(label)}


def _line(start: Sequence[float], end: Sequence[float]) -> str:
    return f'<path d="M{start[0]:.0f} {start[1]:.0f}L{end[0]:.0f} {end[1]:.0f}" stroke="#8888" stroke-width=".5"/>'


def _dot(place: Sequence[float], radius: int, colour: str, tip: str, picture: str = "") -> str:
    source = f' data-src="{picture}"' if picture else ""
    return (
        f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius}" fill="{colour}" fill-opacity=".75" '
        f'data-tip="{plain(tip)}"{source}/>'
    )
