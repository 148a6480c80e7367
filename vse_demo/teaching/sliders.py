"""Figures with sliders that need no kernel: every picture is drawn ahead, and a few lines of script show one of them.

So they move in a notebook that only reads and on a web page alike. Without scripts the picture of the start is there.
"""

import base64
import io
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from html import escape

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

QUALITY = 80  # of WebP: a line figure takes a few kilobytes
SCRIPT = """
(figure => {
  const pictures = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const sliders = [...figure.querySelectorAll("input")];
  const show = () => {
    let number = 0;
    for (const slider of sliders) {
      number = number * (+slider.max + 1) + +slider.value;
      slider.nextElementSibling.value = slider.dataset.values.split(" ")[slider.value];
    }
    figure.querySelector("img").src = "data:image/webp;base64," + pictures[number];
  };
  for (const slider of sliders) slider.addEventListener("input", show);
  figure.querySelector("p").hidden = false;
})(document.getElementById("NAME"));
"""


@dataclass(frozen=True)
class Sliders:
    """Pictures for every choice of some values, and the choice to begin with."""

    values: dict[str, tuple[str, ...]]  # as they are shown, by the name of their slider
    start: tuple[int, ...]  # the place of each slider
    pictures: tuple[str, ...]  # WebP in base64; the last slider moves fastest

    def __repr__(self) -> str:
        names = " and ".join(self.values)
        return f"a figure for {len(self.pictures)} choices of {names}, to be moved in a browser"

    def _repr_html_(self) -> str:
        first = 0
        for place, shown in zip(self.start, self.values.values(), strict=True):
            first = first * len(shown) + place
        name = f"sliders-{blake2b(''.join(self.pictures).encode(), digest_size=6).hexdigest()}"
        inputs = "".join(
            f'<label style="display: block">{escape(label)} <input type="range" min="0" max="{len(shown) - 1}" '
            f'value="{place}" data-values="{escape(" ".join(shown))}"> <output>{escape(shown[place])}</output></label>'
            for (label, shown), place in zip(self.values.items(), self.start, strict=True)
        )
        return (
            f'<figure id="{name}" style="margin: 0">'
            f'<img alt="{escape(repr(self))}" src="data:image/webp;base64,{self.pictures[first]}">'
            f"<p hidden>{inputs}</p>"
            f'<script type="application/json">{json.dumps(self.pictures)}</script>'
            f"<script>{SCRIPT.replace('NAME', name)}</script></figure>"
        )


def sliders(draw: Callable[..., None], start: Sequence[float], **values: Sequence[float]) -> Sliders:
    """Draw a figure for every choice of `values`, to be chosen from by a slider each.

    Args:
        draw: Makes a matplotlib figure of one value for each name; it does not show it.
        start: The values to begin with, in the order of `values`.
        values: By name, what a slider runs through.

    Raises:
        ValueError: If a value of `start` is none of those that its slider has.
    """
    for name, wanted in zip(values, start, strict=True):
        if wanted not in values[name]:
            raise ValueError(f"{name} starts at {wanted}, which is not among {list(values[name])}")
    pictures = []
    for choice in itertools.product(*values.values()):
        draw(**dict(zip(values, choice, strict=True)))
        pictures.append(_as_webp(plt.gcf()))
        plt.close()
    return Sliders(
        {name: tuple(f"{value:g}" for value in shown) for name, shown in values.items()},
        tuple(list(shown).index(wanted) for shown, wanted in zip(values.values(), start, strict=True)),
        tuple(pictures),
    )


def _as_webp(figure: Figure) -> str:
    drawn, made = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=72)
    Image.open(drawn).convert("RGB").save(made, "WEBP", quality=QUALITY)
    return base64.b64encode(made.getvalue()).decode()
