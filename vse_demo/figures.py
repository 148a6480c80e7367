"""What the app shows, as pieces of a web page: results to choose from, reasons, curves, the planes of K.

What strangers wrote (captions, file names, queries) reaches the page as text and as nothing else.
Drawings are SVG in the colours of the page, so they are sharp on every screen and legible on light and
dark ones. Nothing here touches pyplot, whose figures belong to one thread: a server has many.
"""

import base64
import html
import io
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from vse_demo import plots
from vse_demo.explanation import Explanation
from vse_demo.objectives import negative_count
from vse_demo.pooling import VARIANTS
from vse_demo.service import Found, Reasons
from vse_demo.shipped import read_evidence, read_log

GREY = "#7d8590"  # stands for the colour of the page's text
COLOURS = {  # of a drawing -> of the page, which has lighter ones when it is dark
    GREY: "currentColor", plots.IMAGE: "var(--image)", plots.TEXT: "var(--text)", plots.WRONG: "var(--wrong)",
}  # fmt: skip
DRAWING: dict[Any, Any] = {
    "text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "font.size": 11,
    "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none",
}  # fmt: skip
ONE_AT_A_TIME = threading.Lock()  # matplotlib's settings are those of the whole program
AROUND = "<em>(start, end)</em>"  # what a model puts around a sentence
MARKS = {True: ("right", "✓", "its own"), False: ("wrong", "✗", "not its own")}

STYLE = """
.gradio-container { --image: #0072b2; --text: #c27800; --right: #00805d; --wrong: #c24e00; }
.dark .gradio-container, .gradio-container.dark {
  --image: #56b4e9; --text: #f0b840; --right: #2bc59a; --wrong: #ff8a4c; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.head { margin: 0 0 8px; overflow-wrap: anywhere; }
.head small { opacity: .75; font-size: 14px; }
.cards { display: grid; gap: 10px; }
.cards.pictures { grid-template-columns: repeat(5, 1fr); }
.cards.samples { grid-template-columns: repeat(4, 1fr); }
.card { position: relative; padding: 0; overflow: hidden; cursor: pointer; text-align: left; color: inherit;
  font-weight: 400; font-size: 16px; line-height: 1.4;
  border: 2px solid var(--border-color-primary); border-radius: 10px; background: var(--background-fill-primary); }
.card:hover { border-color: var(--color-accent); }
.card:focus-visible { outline: 3px solid var(--color-accent); outline-offset: 2px; }
.card[aria-pressed=true] { border-color: var(--color-accent); box-shadow: 0 0 0 1px var(--color-accent); }
.card img { display: block; width: 100%; aspect-ratio: 4 / 3; object-fit: cover; margin: 0; }
.card .line { display: flex; align-items: baseline; gap: 8px; padding: 6px 14px; }
.card .score { font-variant-numeric: tabular-nums; font-weight: 600; }
.card .caption { overflow-wrap: anywhere; }
.card .mark { font-weight: 800; }
.right .mark { color: var(--right); } .wrong .mark { color: var(--wrong); }
.card.right::before, .card.wrong::before { content: ""; position: absolute; inset: 0 auto 0 0; width: 6px; }
.card.right::before { background: var(--right); } .card.wrong::before { background: var(--wrong); }
.reasons { display: grid; grid-template-columns: repeat(3, 1fr); gap: 24px; align-items: start; align-content: start;
  min-height: 420px; }
.reasons > .head { grid-column: 1 / -1; margin: 0; }
.reasons figure { margin: 0; min-width: 0; }
.reasons h3, .panels h3 { font-size: 15px; margin: 0 0 8px; font-weight: 600; }
.reasons figcaption { font-size: 13px; opacity: .8; margin-top: 8px; }
.heat { position: relative; max-height: 300px; max-width: 100%; }
.heat img { position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; border-radius: 6px; }
.scale { display: inline-block; width: 70px; height: 10px; border-radius: 5px; vertical-align: -1px;
  background: linear-gradient(90deg, var(--wrong), transparent, var(--right)); }
.words { display: flex; flex-wrap: wrap; gap: 8px 7px; }
.word { display: flex; flex-direction: column; align-items: center; max-width: 100%; }
.word .bar { position: relative; width: 22px; height: 60px; }
.word .bar i { position: absolute; inset: auto 0; border-radius: 2px; background: var(--right); }
.word .bar i.minus { background: var(--wrong); }
.word b { font-weight: 600; overflow-wrap: anywhere; } .word em { font-weight: 400; font-size: 13px; }
.word small { font-size: 12px; opacity: .75; font-variant-numeric: tabular-nums; }
.balance { display: grid; grid-template-columns: auto 1fr; gap: 4px 10px; font-size: 13px; align-items: center; }
.balance .parts { display: flex; border-radius: 4px; overflow: hidden; line-height: 20px; white-space: nowrap;
  background: var(--border-color-primary); }
.balance .parts span { background: var(--image); color: white; padding: 0 6px; }
.dark .balance .parts span { color: black; }
.balance .parts em { font-style: normal; padding: 0 6px; }
.panels { display: grid; grid-template-columns: 1fr 1fr; gap: 24px; }
.panels figure { margin: 0; min-width: 0; }
svg .ring { fill: none; stroke: #d55e00; stroke-width: 4; }
svg.drawing { display: block; width: 100%; height: auto; }
@media (max-width: 760px) {
  .reasons, .panels { grid-template-columns: 1fr; }
  .cards.pictures { grid-template-columns: 1fr 1fr; } .cards.pictures .card:first-child { grid-column: 1 / -1; }
  .cards.pictures .card:first-child img { aspect-ratio: 16 / 9; }
}
"""
CHOOSE = """
element.addEventListener('click', event => {
  const card = event.target.closest('.card');
  if (!card) return;
  for (const each of element.querySelectorAll('.card')) each.setAttribute('aria-pressed', each === card);
  trigger('select', { index: Number(card.dataset.index), value: null });
});
"""


def plain(text: str) -> str:
    """Text that can be nothing but text, in an attribute and in the page's template language."""
    return "".join(f"&#{ord(sign)};" if sign in "${}`\\" else sign for sign in html.escape(text))


def address(picture: Image.Image, size: int, quality: int = 80) -> str:
    """A picture, no larger than this, as a data address."""
    picture = picture.copy()
    picture.thumbnail((size, size))
    stream = io.BytesIO()
    if picture.mode == "RGBA":
        picture.save(stream, "PNG")
        return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    picture.convert("RGB").save(stream, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


# Results


def picture_cards(
    title: str, found: Sequence[Found], photo: Callable[[str], Image.Image], describe: Callable[[str], str]
) -> str:
    """Pictures to choose from, each with its score and, where it is known, a tick or a cross."""
    cards = [
        _card(number, f'<img src="{address(photo(each.item), 480)}" alt="{plain(describe(each.item))}">', each)
        for number, each in enumerate(found)
    ]
    return f'{_head(title, found)}<div class="cards pictures">{"".join(cards)}</div>'


def caption_cards(title: str, found: Sequence[Found]) -> str:
    """The same with captions."""
    cards = [_card(number, "", each, plain(each.item)) for number, each in enumerate(found)]
    return f'{_head(title, found)}<div class="cards captions">{"".join(cards)}</div>'


def sample_cards(names: Sequence[str], photo: Callable[[str], Image.Image], describe: Callable[[str], str]) -> str:
    """Small pictures to choose from."""
    cards = [
        f'<button type="button" class="card" data-index="{number}">'
        f'<img src="{address(photo(name), 160)}" alt="{plain(describe(name))}"></button>'
        for number, name in enumerate(names)
    ]
    return f'<div class="cards samples">{"".join(cards)}</div>'


def _head(title: str, found: Sequence[Found]) -> str:
    legend = ""
    if any(each.right is not None for each in found):
        legend = ' <small><span class="right"><span class="mark">✓</span> its own</span> · '
        legend += '<span class="wrong"><span class="mark">✗</span> not its own</span></small>'
    return f'<p class="head"><strong>{plain(title)}</strong>{legend}</p>'


def _card(number: int, picture: str, found: Found, caption: str = "") -> str:
    kind, sign, words = MARKS.get(found.right, ("", "", "")) if found.right is not None else ("", "", "")
    mark = f'<span class="mark">{sign}<span class="unseen">{words}</span></span>' if sign else ""
    return (
        f'<button type="button" class="card {kind}" data-index="{number}" aria-pressed="{str(number == 0).lower()}">'
        f'{picture}<span class="line">{mark}<span class="score">{number_text(found.score)}</span>'
        f'<span class="caption">{caption}</span></span></button>'
    )


def number_text(value: float) -> str:
    """Two digits, and a minus that is as wide as a digit."""
    return f"{value:.2f}".replace("-", "−")


# Reasons


def reasons(photo: Image.Image, why: Reasons, usual: float | None) -> str:
    """The picture coloured by what its parts add, bars over the words, and how the parts were pooled."""
    scale = "1 would be a perfect match and 0 is none"
    if usual is not None:
        scale += f"; a picture and a caption written for it have about {number_text(usual)} here"
    return (
        f'<div class="reasons"><p class="head"><strong>Why {number_text(why.score)}?</strong> '
        f"<small>{scale}.</small></p>{_heat(photo, why)}{_words(why)}{_pooling(why.members)}</div>"
    )


def _heat(photo: Image.Image, why: Reasons) -> str:
    limit = max(float(np.abs(why.cells).max()), 1e-9)
    colours = np.zeros((*why.cells.shape, 4), np.uint8)
    for colour, mine in ((plots.RIGHT, why.cells >= 0), (plots.WRONG, why.cells < 0)):
        colours[mine, :3] = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    colours[..., 3] = 215 * np.abs(why.cells) / limit
    smooth = Image.fromarray(colours).resize((192, 192), Image.Resampling.BICUBIC)
    ratio = photo.width / photo.height
    return (
        f"<figure><h3>In the picture</h3>"
        f'<div class="heat" style="aspect-ratio: {ratio:.3f}; width: {300 * ratio:.0f}px">'
        f'<img src="{address(photo.convert("L"), 640)}" alt="The picture, in grey">'
        f'<img src="{address(smooth, 192)}" alt="What its parts add to the score, as colours"></div>'
        '<figcaption>lowers <span class="scale"></span> raises the score; all cells add up to it</figcaption></figure>'
    )


def _words(why: Reasons) -> str:
    words, parts = [*map(plain, why.words)], [*why.parts]
    if why.rest:
        words, parts = [*words, AROUND], [*parts, why.rest]
    low, high = min(0.0, *parts), max(1e-9, *parts)
    bars = []
    for word, part in zip(words, parts, strict=True):
        bottom, height = 100 * (min(part, 0) - low) / (high - low), 100 * abs(part) / (high - low)
        kind = ' class="minus"' if part < 0 else ""
        bars.append(
            f'<span class="word"><span class="bar"><i{kind} style="bottom: {bottom:.1f}%; height: {height:.1f}%"></i>'
            f"</span><b>{word}</b><small>{number_text(part)}</small></span>"
        )
    note = "; start and end are tokens that the model puts around a sentence" if why.rest else ""
    return (
        f'<figure><h3>In the sentence</h3><div class="words">{"".join(bars)}</div>'
        f"<figcaption>what each word adds; all add up to the score{note}</figcaption></figure>"
    )


def _pooling(members: Mapping[str, Explanation]) -> str:
    rows = []
    for name, member in members.items():
        for side, what in ((member.image, "picture"), (member.text, "sentence")):
            token, embedding = side.balance
            label = f"{what}, {name}" if len(members) > 1 else what
            rows.append(
                f'<span>{plain(label)}</span><span class="parts"><span style="width: {token:.0%}">{token:.0%} ranks'
                f"</span><em>{embedding:.0%}</em></span>"
            )
    return (
        f"<figure><h3>How it was pooled</h3>{rank_weights(members)}"
        f'<div class="balance">{"".join(rows)}</div>'
        "<figcaption>the weight of each rank, and the share of ranks (the rest is a soft maximum)</figcaption></figure>"
    )


def rank_weights(members: Mapping[str, Explanation]) -> str:
    """How much each rank counted on both sides, over the share of the ranks (both have another number of rows)."""

    def plot(ax: Axes) -> None:
        for (name, member), style in zip(members.items(), _styles(len(members)), strict=True):
            for side, what, colour in ((member.image, "picture", plots.IMAGE), (member.text, "sentence", plots.TEXT)):
                if side.rank_weights is not None:
                    count = len(side.rank_weights)
                    label = f"{what}, {name}" if len(members) > 1 else what
                    weights = side.rank_weights * count
                    ax.plot(np.linspace(0, 100, count), weights, style, lw=2, color=colour, label=label)
        ax.axhline(1, color=GREY, lw=0.8, ls=":")
        ax.set(xlabel="rank: largest value 0 %, smallest 100 %", ylabel="weight (1 = mean)")
        ax.set_ylim(0, None)
        ax.legend(frameon=False, fontsize=10, loc="upper center")

    return draw(plot, 4.2, 2.7, "Weight by rank")


def _styles(count: int) -> list[str]:
    return [("-", "--", ":", "-.")[number % 4] for number in range(count)]


# Drawings


def draw(plot: Callable[[Axes], object], width: float, height: float, label: str) -> str:
    """What `plot` draws on its Axes, as SVG in the colours of the page."""
    with ONE_AT_A_TIME, matplotlib.rc_context(DRAWING):
        figure = Figure(figsize=(width, height), layout="constrained")
        plot(figure.subplots())
        return _svg(figure, label)


def _svg(figure: Figure, label: str) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    body = text[text.index(">", box.end()) + 1 :]
    body = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL
    )  # a style is for all the page
    body = re.sub(r' id="[\w.]+_\d+"', "", body)  # patch_1 and the like, which every drawing has
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)  # the page has its own
    for colour, name in COLOURS.items():
        body = body.replace(colour.lower(), name)
    return f'<svg class="drawing" {box[0]} role="img" aria-label="{plain(label)}">{body}'


def curves(run: str) -> str:
    """How a shipped model learned: loss, K, alignment and uniformity by step, RSUM by epoch."""
    log, evidence = read_log(run), read_evidence(run)
    steps = log["step"]
    recalls = evidence["validation"]
    panels: list[tuple[str, dict[str, tuple[Any, Any]], str]] = [
        ("Loss", {"loss": (steps, log["loss"])}, "loss"),
        ("K, the number of negatives", {"K": (steps, log["k"])}, "K of 128"),
        (
            "Alignment and uniformity",
            {"alignment": (steps, log["alignment"]), "uniformity": (steps, log["uniformity"])},
            "",
        ),
        (
            "Recall on photos held out",
            {"RSUM": ([r["step"] for r in recalls], [r["rsum"] for r in recalls])},
            "RSUM, 600 at best",
        ),
    ]
    figures = [
        f"<figure><h3>{title}</h3>{draw(partial(plots.plot_curves, lines, 'step', label), 5, 2.6, title)}</figure>"
        for title, lines, label in panels
    ]
    return f'<div class="panels">{"".join(figures)}</div>'


def k_planes(batch_size: int) -> str:
    """A template of both planes of K; its value is what `k_mark` gives."""
    ring = '<circle class="ring" cx="${value.x}" cy="${value.y}" r="7"/></svg>'
    names = {"paper": "The paper's equation", "official": "The authors' code"}
    panels = [
        f"<figure><h3>{name}: K = ${{value.{variant}}} of {batch_size}</h3>"
        f"{_k_plane(variant, batch_size)[0].replace('</svg>', ring)}</figure>"
        for variant, name in names.items()
    ]
    return f'<div class="panels">{"".join(panels)}</div>'


def k_mark(alignment: float, uniformity: float, batch_size: int) -> dict[str, float]:
    """Where these two numbers are on the planes, and K by both formulas."""
    left, top, width, height = _k_plane("paper", batch_size)[1]  # both look the same
    counts = {variant: negative_count(alignment, uniformity, batch_size, variant) for variant in VARIANTS}
    return {"x": round(left + width * alignment, 1), "y": round(top + height * (1 - uniformity / 1.2), 1), **counts}


@lru_cache
def _k_plane(variant: str, batch_size: int) -> tuple[str, tuple[float, float, float, float]]:
    """The plane of a variant, and where its axes are in it: left, top, width and height."""
    with ONE_AT_A_TIME, matplotlib.rc_context(DRAWING):
        figure = Figure(figsize=(5, 3.6))
        ax = figure.add_axes((0.13, 0.14, 0.89, 0.83))  # of which a fifth is for the bar
        plots.plot_k_plane(variant, batch_size, ax).set_title("")
        box, (width, height) = ax.get_position(), 72 * figure.get_size_inches()
        frame = box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height
        return _svg(figure, f"K by alignment and uniformity, {variant}"), frame
