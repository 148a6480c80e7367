"""The map of the joint space as HTML: a dot for each image and caption, a tip for each, a mark for the query.

Pointing at a dot, tapping near it or moving there with the arrow keys shows what it is, and joins an
image with its captions by lines.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vse_demo.app.html.markup import data_url, escape_html
from vse_demo.app.map import items_on_map
from vse_demo.retrieval.gallery import Gallery

SIZE = 1000, 620  # of the drawing, in its own units
MARGIN = 24
LABEL = 32  # characters of a query beside its mark: as many as fit into half of the map
NOWHERE = {"x": -99.0, "y": -99.0, "anchor": "start", "shift": 0, "label": ""}  # before anything is searched for
STYLE = """
.atlas { position: relative; width: 100%; }
.atlas svg { width: 100%; height: auto; display: block; cursor: crosshair; }
.atlas svg:focus-visible { outline: 3px solid var(--color-accent); border-radius: 6px; }
.atlas .picture { fill: var(--image); } .atlas .caption { fill: var(--text); }
.atlas circle { fill-opacity: .7; } .atlas .on, .atlas .kin { fill-opacity: 1; stroke: currentColor; stroke-width: 2; }
.atlas .joins { fill: none; stroke: currentColor; stroke-width: 1.5; }
.atlas .mark circle { fill: none; stroke: var(--wrong); stroke-width: 5; fill-opacity: 1; }
.atlas .mark text { font-size: 22px; font-weight: 700; fill: currentColor; paint-order: stroke; stroke-width: 6px;
  stroke: var(--body-background-fill); }
.atlas .tip { position: absolute; display: none; pointer-events: none; width: 230px; padding: 8px; z-index: 5;
  border-radius: 8px; font-size: 14px; line-height: 1.35; background: var(--background-fill-primary);
  border: 1px solid var(--border-color-primary); box-shadow: 0 4px 14px #0004; }
.atlas .tip img { width: 100%; max-height: 190px; object-fit: contain; display: block; margin: 0 0 6px; }
.key .picture { color: var(--image); } .key .caption { color: var(--text); } .key .query { color: var(--wrong); }
@media (max-width: 760px) {
  .atlas .picture { r: 13px; } .atlas .caption { r: 6px; } .atlas .mark text { font-size: 30px; }
  .atlas .mark circle { r: 34px; stroke-width: 10px; }
}
"""
SCRIPT = """
const every = () => [...element.querySelectorAll('svg > circle')];
const at = point => [Number(point.getAttribute('cx')), Number(point.getAttribute('cy'))];
const hide = () => {
  element.querySelector('.tip').style.display = 'none';
  element.querySelector('.joins').setAttribute('d', '');
  for (const each of element.querySelectorAll('.on, .kin')) each.classList.remove('on', 'kin');
};
const show = point => {
  hide();
  const box = element.querySelector('svg').getBoundingClientRect(), scale = box.width / WIDTH, [x, y] = at(point);
  const kin = every().filter(each => each.dataset.of === point.dataset.of);
  const photo = kin.find(each => each.dataset.src);
  for (const each of kin) each.classList.add(each === point ? 'on' : 'kin');
  if (photo) {
    const lines = kin.map(each => `M${at(photo)}L${at(each)}`).join('');
    element.querySelector('.joins').setAttribute('d', lines);
  }
  const tip = element.querySelector('.tip');
  tip.replaceChildren();
  if (photo) { const img = new Image(); img.src = photo.dataset.src; img.alt = ''; tip.append(img); }
  tip.append(point.dataset.tip);
  tip.style.display = 'block';
  tip.style.left = Math.max(0, Math.min(x * scale + 14, box.width - 232)) + 'px';
  const below = y * scale + 14, tall = tip.offsetHeight;
  tip.style.top = (below + tall > box.height && y * scale > tall ? y * scale - tall - 14 : below) + 'px';
};
const near = event => {
  const svg = event.target.closest('svg');
  if (!svg) return;
  const box = svg.getBoundingClientRect(), scale = WIDTH / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  let best = null, least = (event.pointerType === 'mouse' ? 14 : 30) * scale;
  for (const each of every()) {
    const [px, py] = at(each), far = Math.hypot(px - x, py - y) - Number(each.getAttribute('r'));
    if (far < least) { best = each; least = far; }
  }
  if (!best) hide(); else if (!best.classList.contains('on')) show(best);
};
element.addEventListener('pointermove', near);
element.addEventListener('pointerdown', near);
element.addEventListener('pointerleave', event => { if (event.pointerType === 'mouse') hide(); });
element.addEventListener('focusout', hide);
element.addEventListener('keydown', event => {
  if (event.key === 'Escape') { hide(); return; }
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }, way = ways[event.key];
  if (!way) return;
  event.preventDefault();
  const here = element.querySelector('.on'), [x, y] = here ? at(here) : [WIDTH / 2, HEIGHT / 2];
  let best = null, least = Infinity;
  for (const each of every()) {
    const [px, py] = at(each), ahead = (px - x) * way[0] + (py - y) * way[1];
    const aside = Math.abs((px - x) * way[1]) + Math.abs((py - y) * way[0]);
    if (each !== here && ahead > 0 && ahead >= aside && ahead + 2 * aside < least) {
      best = each; least = ahead + 2 * aside;
    }
  }
  if (best) show(best);
});
""".replace("WIDTH", str(SIZE[0])).replace("HEIGHT", str(SIZE[1]))
KEY = (
    '<p class="head key"><small><span class="picture">●</span> pictures &nbsp; <span class="caption">●</span> captions '
    '&nbsp; <span class="query">◯</span> your query &nbsp; (point, tap or use the arrow keys)</small>'
    "</p>"
)


def to_page(places: np.ndarray, all_places: np.ndarray) -> np.ndarray:
    """Turn places on the map into coordinates of the drawing."""
    low, high = all_places.min(0), all_places.max(0)
    share = (places - low) / np.maximum(high - low, 1e-9)
    return MARGIN + share * (np.array(SIZE) - 2 * MARGIN)


def render_map(
    gallery: Gallery, places: np.ndarray, read: Callable[[str], Image.Image], describe: Callable[[str], str]
) -> str:
    """Draw the map as a template whose value is what `mark` gives.

    Args:
        gallery: The images and captions.
        places: Where those of `items_on_map` are: (I + C, 2).
        read: From the name of an image to the image.
        describe: From the name of an image to its text.
    """
    images, captions = items_on_map(gallery)
    page = to_page(places, places)
    dots = [
        _dot("caption", page[len(images) + place], 3.5, int(gallery.image_ids[number]), gallery.captions[number])
        for place, number in enumerate(captions)
    ] + [
        _dot("picture", page[place], 8, number, describe(name), data_url(read(name), 220, 65))
        for place, (number, name) in enumerate((number, gallery.names[number]) for number in images)
    ]
    mark = (
        '<g class="mark" transform="translate(${value.x} ${value.y})"><circle r="17"/>'
        '<text x="${value.shift}" y="8" text-anchor="${value.anchor}">${value.label}</text></g>'
    )
    svg = f'<svg viewBox="0 0 {SIZE[0]} {SIZE[1]}" tabindex="0" role="img" aria-label="A map of pictures and captions">'
    body = "".join([svg, '<path class="joins"/>', *dots, mark, "</svg>"])
    return f'{KEY}<div class="atlas">{body}<div class="tip" aria-live="polite"></div></div>'


def mark(place: np.ndarray, places: np.ndarray, label: str) -> dict[str, Any]:
    """The value of the map's template for a query at this place."""
    x, y = to_page(place, places).tolist()
    short = label if len(label) <= LABEL else label[: LABEL - 1] + "…"
    anchor, shift = ("start", 28) if x < SIZE[0] / 2 else ("end", -28)
    return {"x": round(x, 1), "y": round(y, 1), "anchor": anchor, "shift": shift, "label": escape_html(short)}


def _dot(kind: str, place: Sequence[float], radius: float, image: int, tip: str, source: str = "") -> str:
    thumbnail = f' data-src="{source}"' if source else ""
    return (
        f'<circle class="{kind}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius}" data-of="{image}" '
        f'data-tip="{escape_html(tip)}"{thumbnail}/>'
    )
