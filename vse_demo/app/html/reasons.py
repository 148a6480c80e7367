"""Why a result matches, as HTML: its words and its picture in colours, and how both were pooled."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from vse_demo import plots
from vse_demo.app.attribution import Attribution
from vse_demo.app.html.drawings import rank_weights
from vse_demo.app.html.markup import data_url, number_text, render
from vse_demo.app.service import Photo
from vse_demo.explanation import Explanation

DARKEST = 60  # percent of colour behind the word that counts most: text on it can still be read
HEIGHT = 300  # of the picture, in pixels
SMOOTH = 96  # pixels of the colours before the browser stretches them: cells no longer show


def attribution(
    image: Image.Image, why: Attribution, usual: float | None, photo: Photo | None = None, searched: float = 0
) -> str:
    """Show why an image and a sentence match.

    Args:
        image: The image, which is shown coloured by what its parts add.
        why: Their score, split; a word has the more colour behind it, the more it adds.
        usual: The score to compare with, if there is one.
        photo: What is known of the image, if it is of the collection.
        searched: When the search was asked that found it, by the page's clock.
    """
    scale = "1 would be a perfect match and 0 is none"
    if usual is not None:
        scale += f"; a picture and a caption written for it have about {number_text(usual)} here"
    ratio = image.width / image.height
    return render(
        "reasons.html", why=why, scale=scale, words=_words(why), photo=photo, searched=searched,
        ratio=f"{ratio:.3f}", width=round(HEIGHT * ratio), grey=data_url(image.convert("L"), 640),
        colours=data_url(_colours(why.heat_map), SMOOTH), balance=_balance(why.explanations),
        drawing=Markup(rank_weights(why.explanations)) if why.explanations else "",
    )  # fmt: skip


def only_about(photo: Photo | None, searched: float = 0) -> str:
    """Show what an image of the collection is, with its credit, where no score is explained."""
    return render("about.html", photo=photo, searched=searched) if photo else ""


def _words(why: Attribution) -> list[dict[str, Any]]:
    most = max(1e-9, *np.abs(why.parts)) if len(why.parts) else 1.0
    return [
        {"text": word, "part": part, "share": round(DARKEST * abs(part) / most)}
        for word, part in zip(why.words, why.parts.tolist(), strict=True)
    ]


def _colours(heat_map: np.ndarray) -> Image.Image:
    limit = max(float(np.abs(heat_map).max()), 1e-9)
    colours = np.zeros((*heat_map.shape, 4), np.uint8)
    for colour, where in ((plots.RIGHT, heat_map >= 0), (plots.WRONG, heat_map < 0)):
        colours[where, :3] = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    colours[..., 3] = 215 * np.abs(heat_map) / limit
    return Image.fromarray(colours).resize((SMOOTH, SMOOTH), Image.Resampling.BICUBIC)


def _balance(explanations: Mapping[str, Explanation]) -> list[dict[str, Any]]:
    rows = []
    for name, explanation in explanations.items():
        for side, what in ((explanation.image, "picture"), (explanation.text, "sentence")):
            token, embedding = (round(100 * share) for share in side.balance)
            label = f"{what}, {name}" if len(explanations) > 1 else what
            rows.append({"label": label, "token": token, "embedding": embedding})
    return rows
