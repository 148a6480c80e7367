"""Results as HTML: cards to choose from, and why a result matches.

Captions, file names and queries are escaped: whatever they hold, the page shows it as text.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image

from vse_demo import plots
from vse_demo.app.html.drawings import rank_weights
from vse_demo.app.html.markup import data_url, escape_html, number_text, pack_text
from vse_demo.app.service import Attribution, SearchResult
from vse_demo.explanation import Explanation

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
  const { index, item } = card.dataset, { sentence, asked } = card.parentElement.dataset;
  trigger('select', { index: Number(index), value: { item, sentence, asked: Number(asked) } });
});
"""


def image_cards(
    sentence: str,
    found: Sequence[SearchResult],
    read: Callable[[str], Image.Image],
    describe: Callable[[str], str],
    asked: float = 0,
) -> str:
    """Show images to choose from, each with its score and, where it is known, a tick or a cross.

    Args:
        sentence: What was searched for.
        found: The results, best first.
        read: From the name of an image to the image.
        describe: From the name of an image to its alternative text.
        asked: When the search was asked for. A card that is chosen tells this, its item and the sentence.
    """
    cards = [
        _card(number, f'<img src="{data_url(read(each.item), 480)}" alt="{escape_html(describe(each.item))}">', each)
        for number, each in enumerate(found)
    ]
    title = _title(f"Nearest to “{sentence}”", found)
    data = f'data-sentence="{pack_text(sentence)}" data-asked="{asked}"'
    return f'{title}<div class="cards pictures" {data}>{"".join(cards)}</div>'


def caption_cards(found: Sequence[SearchResult], asked: float = 0) -> str:
    """Show captions to choose from, as `image_cards` shows images."""
    cards = [_card(number, "", each, escape_html(each.item)) for number, each in enumerate(found)]
    title = _title("Nearest captions", found)
    return f'{title}<div class="cards captions" data-asked="{asked}">{"".join(cards)}</div>'


def sample_cards(names: Sequence[str], read: Callable[[str], Image.Image], describe: Callable[[str], str]) -> str:
    """Show small images to choose from."""
    cards = [
        f'<button type="button" class="card" data-index="{number}" data-item="{pack_text(name)}">'
        f'<img src="{data_url(read(name), 160)}" alt="{escape_html(describe(name))}"></button>'
        for number, name in enumerate(names)
    ]
    return f'<div class="cards samples">{"".join(cards)}</div>'


def _title(text: str, found: Sequence[SearchResult]) -> str:
    legend = ""
    if any(each.right is not None for each in found):
        legend = ' <small><span class="right"><span class="mark">✓</span> its own</span> · '
        legend += '<span class="wrong"><span class="mark">✗</span> not its own</span></small>'
    return f'<p class="head"><strong>{escape_html(text)}</strong>{legend}</p>'


def _card(number: int, image: str, result: SearchResult, caption: str = "") -> str:
    kind, sign, words = ("", "", "") if result.right is None else MARKS[result.right]
    mark = f'<span class="mark">{sign}<span class="unseen">{words}</span></span>' if sign else ""
    return (
        f'<button type="button" class="card {kind}" data-index="{number}" data-item="{pack_text(result.item)}" '
        f'aria-pressed="{str(number == 0).lower()}">'
        f'{image}<span class="line">{mark}<span class="score">{number_text(result.score)}</span>'
        f'<span class="caption">{caption}</span></span></button>'
    )


def attribution(image: Image.Image, why: Attribution, usual: float | None) -> str:
    """Show why an image and a sentence match.

    Args:
        image: The image, which is shown coloured by what its parts add.
        why: Their score, split; words have bars over them.
        usual: The score to compare with, if there is one.
    """
    scale = "1 would be a perfect match and 0 is none"
    if usual is not None:
        scale += f"; a picture and a caption written for it have about {number_text(usual)} here"
    return (
        f'<div class="reasons"><p class="head"><strong>Why {number_text(why.score)}?</strong> '
        f"<small>{scale}.</small></p>{_heat_map(image, why)}{_words(why)}{_pooling(why.explanations)}</div>"
    )


def _heat_map(image: Image.Image, why: Attribution) -> str:
    limit = max(float(np.abs(why.heat_map).max()), 1e-9)
    colours = np.zeros((*why.heat_map.shape, 4), np.uint8)
    for colour, where in ((plots.RIGHT, why.heat_map >= 0), (plots.WRONG, why.heat_map < 0)):
        colours[where, :3] = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    colours[..., 3] = 215 * np.abs(why.heat_map) / limit
    smooth = Image.fromarray(colours).resize((192, 192), Image.Resampling.BICUBIC)
    ratio = image.width / image.height
    return (
        f"<figure><h3>In the picture</h3>"
        f'<div class="heat" style="aspect-ratio: {ratio:.3f}; width: {300 * ratio:.0f}px">'
        f'<img src="{data_url(image.convert("L"), 640)}" alt="The picture, in grey">'
        f'<img src="{data_url(smooth, 192)}" alt="What its parts add to the score, as colours"></div>'
        '<figcaption>lowers <span class="scale"></span> raises the score; all cells add up to it</figcaption></figure>'
    )


def _words(why: Attribution) -> str:
    words, parts = [*map(escape_html, why.words)], [*why.parts]
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


def _pooling(explanations: Mapping[str, Explanation]) -> str:
    rows = []
    for name, explanation in explanations.items():
        for side, what in ((explanation.image, "picture"), (explanation.text, "sentence")):
            token, embedding = side.balance
            label = f"{what}, {name}" if len(explanations) > 1 else what
            rows.append(
                f'<span>{escape_html(label)}</span><span class="parts"><span style="width: {token:.0%}">{token:.0%} '
                f"ranks</span><em>{embedding:.0%}</em></span>"
            )
    return (
        f"<figure><h3>How it was pooled</h3>{rank_weights(explanations)}"
        f'<div class="balance">{"".join(rows)}</div>'
        "<figcaption>the weight of each rank, and the share of ranks (the rest is a soft maximum)</figcaption></figure>"
    )
