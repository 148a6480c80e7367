"""Results as HTML: cards to choose from, and a picture in large.

Captions, file names and queries go through the templates, which escape them: whatever they hold, the page shows it
as text.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vse_demo.app.html.markup import pack_text, render
from vse_demo.app.service import Photo, SearchResult

COUNTS = (5, 20, 50)  # results that one can choose to see
MORE = 20  # more of them when one scrolls to the end
MOST = 500
LISTED = 100  # files of a collection that cannot be read
MARKS = {True: ("right", "✓", "its own"), False: ("wrong", "✗", "not its own"), None: ("", "", "")}


@dataclass(frozen=True)
class Note:
    """A remark above results, and a sentence that may have been meant instead."""

    text: str
    instead: str = ""


@dataclass(frozen=True)
class Asked:
    """What results are the answer to; the page keeps it beside them."""

    sentence: str = ""
    like: str = ""  # name of an image of the collection
    upload: bool = False  # whether an image was given that is not of the collection
    count: int = COUNTS[0]
    at: float = 0  # when, in milliseconds of the page's own clock

    @property
    def title(self) -> str:
        """What was asked, in words."""
        picture = "your picture" if self.upload else "this picture" if self.like else ""
        sentence = f"“{self.sentence}”" if self.sentence else ""
        return "Nearest to " + " and ".join(filter(None, [sentence, picture]))


def image_cards(
    asked: Asked,
    found: Sequence[SearchResult],
    describe: Callable[[str], str],
    rows: Sequence[dict[str, Any]] = (),
    notes: Sequence[Note] = (),
    total: int = 0,
    far: bool = False,
    left_out: Sequence[str] = (),
) -> str:
    """Show images to choose from, each with its score and, where it is known, a tick or a cross.

    Args:
        asked: What was searched for. A card that is chosen tells this and its item.
        found: The results, best first.
        describe: From the name of an image to its alternative text.
        rows: The results as programs get them, to be downloaded.
        notes: What is to be said above them.
        total: How many images there are; the page offers more results as long as there are.
        far: Whether nothing of this is close, so that one has to ask to see it all the same.
        left_out: Files that cannot be read, and why.
    """
    more = min(len(found) + MORE, total, MOST)
    return _cards(
        "pictures", asked, asked.title, found, describe, rows, notes, more if more > len(found) else 0, far, left_out
    )


def caption_cards(
    found: Sequence[SearchResult], asked: Asked, rows: Sequence[dict[str, Any]] = (), far: bool = False
) -> str:
    """Show captions to choose from, as `image_cards` shows images."""
    return _cards("captions", asked, "Nearest captions", found, str, rows, (), 0, far)


def _cards(
    kind: str, asked: Asked, title: str, found: Sequence[SearchResult], describe: Callable[[str], str],
    rows: Sequence[dict[str, Any]], notes: Sequence[Note], more: int, far: bool = False, left_out: Sequence[str] = (),
) -> str:  # fmt: skip
    cards = []
    for each in found:
        mark, sign, words = MARKS[each.right]
        cards.append(
            {"item": each.item, "text": describe(each.item), "score": each.score}
            | {"kind": mark, "sign": sign, "words": words}
        )
    saved = pack_text(json.dumps(list(rows)))
    return render(
        "cards.html", kind=kind, title=title, sentence=asked.sentence, like=asked.like, asked=asked.at,
        count=asked.count, counts=COUNTS, cards=cards, results=saved, notes=notes,
        more=more, far=far, left_out=left_out, listed=LISTED, marked=any(each.right is not None for each in found),
    )  # fmt: skip


def refusal(text: str, like: str) -> str:
    """Say why there are no results, and lead on without the image that was searched by, if there is one."""
    return render("refusal.html", text=text, like=like)


def sample_cards(names: Sequence[str], describe: Callable[[str], str]) -> str:
    """Show small images to choose from."""
    return render("samples.html", samples=[(name, describe(name)) for name in names])


def large_view(photo: Photo, text: str) -> str:
    """Show an image as large as the window allows, with its name, captions and credit."""
    return render("large.html", photo=photo, text=text)
