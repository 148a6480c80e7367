"""The page of the demo: its layout and its events; what it shows comes from `service`, as HTML from `html`."""

import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from PIL import Image

from vse_demo.app.guard import as_text, bounded
from vse_demo.app.html import drawings, results
from vse_demo.app.html import map as map_html
from vse_demo.app.html.markup import unpack_text
from vse_demo.app.service import ImageQuery, Query, SearchResult, Service, TextQuery, check_sentence
from vse_demo.data.images import read_image
from vse_demo.shipped import RUNS

TITLE = "Pictures and sentences in one space"
INTRODUCTION = f"""# {TITLE}
Type a sentence and get the nearest pictures, or give a picture and get the nearest sentences.
Choose a result to see why it matches."""
EXAMPLES = [  # the last one is a caption of the gallery, so its results are ticked and crossed
    "a mountain lake",
    "a boat on the beach",
    "a man playing a guitar",
    "a crowd at a concert",
    "A black and tan dog takes a blue ball from a woman's hand.",
]
NAMES = {"grid-minilm": "MiniLM (a small BERT)", "grid-bigru": "BiGRU", "ensemble": "both (ensemble)"}
HINT = '<p class="head"><small>The nearest captions appear here.</small></p>'
IMAGE_LABEL = "your picture"
PROGRESS = gr.Progress()
NEGATIVES = """### How many negatives?
AdOpt sets K, the number of negatives to learn from, by how aligned and how uniform the space is. The paper's equation
and the authors' code do not agree: move the sliders."""
BATCH = 128  # for the sliders of K
KEPT = 60, 900  # every 60 seconds, uploads and answers that are older than 900 seconds are deleted
NOW = "(...values) => [...values.slice(0, -1), performance.now()]"  # the time instead of the last input
REMEMBER = "(text, query) => [text.trim() ? text : query, 'sentence']"  # what is asked, and that it is a sentence
THEME = gr.themes.Soft(
    primary_hue="blue", neutral_hue="slate", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
)  # nothing is fetched
CSS = """
.gradio-container { width: 100% !important; max-width: 1160px !important; margin: auto !important; }
.main.app { padding: 12px clamp(12px, 3vw, 32px) !important; } .html-container { padding: 0 !important; }
#head { align-items: end; min-height: 96px; } footer .divider { display: none; }
#found-pictures { min-height: 228px; } #found-captions { min-height: 270px; } #space { min-height: 720px; }
#ask { min-height: 160px; } .why { min-height: 440px; }
@media (max-width: 760px) {
  .prose h1 { font-size: 21px; } .tab-container button { padding: 0 4px; font-size: 13px; }
  .tabs { max-width: calc(100vw - 24px); } #head { min-height: 246px; } #head > * { min-width: 100% !important; }
  #ask { min-height: 240px; } #found-pictures { min-height: 630px; } #space { min-height: 300px; }
  .why { min-height: 1000px; }
}
"""
STYLE = CSS + results.STYLE + map_html.STYLE
HtmlBlock = functools.partial(gr.HTML, apply_default_css=False)  # a part of the page that `html` makes


class Turns:
    """What one visitor has asked for last: an answer that a later request has overtaken is not shown.

    Requests run side by side and can end in any order. The page says when each was asked (`asked`, in
    milliseconds of its own clock). A search is overtaken by a later search that has begun. An explanation is
    overtaken by a later one that has begun, and by a search that has replaced the cards it was asked on.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: dict[str, float] = {}
        self.shown: dict[str, float] = {}

    def __deepcopy__(self, memo: object) -> "Turns":
        return Turns()  # Gradio copies the first value of a state for each visitor

    def begin(self, what: str, asked: float) -> None:
        with self.lock:
            self.begun[what] = max(asked, self.begun.get(what, 0))

    def show(self, what: str, asked: float) -> bool:
        """Whether the answer to a search can be shown; if so, earlier searches are out of date."""
        with self.lock:
            if asked < self.begun.get(what, 0):
                return False
            self.shown[what] = asked
            return True

    def is_current(self, what: str, asked: float, search: str, searched: float) -> bool:
        """Whether an explanation can be shown that was asked on the cards of a search."""
        with self.lock:
            return asked >= self.begun.get(what, 0) and searched >= self.shown.get(search, 0)


class Page:
    """The functions behind the page: from its fields to what they show."""

    def __init__(self, service: Service):
        self.service, self.samples = service, service.samples()
        self.map = functools.lru_cache(self._map)

    def read(self, name: str) -> Image.Image:
        return read_image(self.service.file(name))

    def wait(self, model: str, progress: gr.Progress) -> None:
        """Wait until the collection is there, and show how far it is."""
        for done, total in self.service.progress(model):
            progress((done, total) if total else None, desc="Getting to know the pictures", unit="pictures")

    def find_images(
        self, sentence: str, model: str, mapped: str, turns: Turns, asked: float, progress: gr.Progress = PROGRESS
    ) -> tuple[Any, ...]:
        """-> images, why the first one matches, the sentence's mark on the map."""
        sentence = check_sentence(sentence)
        turns.begin("images", asked)
        self.wait(model, progress)
        query = self.service.encode_text(sentence, model)
        found = self.service.find_images(query)
        cards = results.image_cards(sentence, found, self.read, self.service.describe, asked)
        why = self.explain(self.service.encode_image(self.read(found[0].item), model), query)
        mark = self.mark(query, sentence) if mapped == model else gr.skip()
        return (cards, why, mark) if turns.show("images", asked) else (gr.skip(),) * 3

    def choose_image(self, model: str, turns: Turns, asked: float, event: gr.SelectData) -> Any:
        """-> why the image of this card matches the sentence that it was found by."""
        item, sentence, searched = read_choice(event)
        turns.begin("why image", asked)
        image = self.service.encode_image(self.read(item), model)
        why = self.explain(image, self.service.encode_text(sentence, model))
        return why if turns.is_current("why image", asked, "images", searched) else gr.skip()

    def find_captions(
        self, image: Image.Image | None, model: str, mapped: str, turns: Turns, asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """-> captions, why the first one matches, the image's mark on the map."""
        turns.begin("captions", asked)
        if image is None:
            return (HINT, "", gr.skip()) if turns.show("captions", asked) else (gr.skip(),) * 3
        self.wait(model, progress)
        query = self.service.encode_image(image, model)
        found = self.service.find_captions(query)
        cards = results.caption_cards(found, asked)
        why = self.explain(query, self.service.encode_text(found[0].item, model))
        mark = self.mark(query, IMAGE_LABEL) if mapped == model else gr.skip()
        return (cards, why, mark) if turns.show("captions", asked) else (gr.skip(),) * 3

    def choose_caption(
        self, image: Image.Image | None, model: str, turns: Turns, asked: float, event: gr.SelectData
    ) -> Any:
        """-> why the caption of this card matches the image."""
        if image is None:
            return ""
        caption, _, searched = read_choice(event)
        turns.begin("why caption", asked)
        why = self.explain(self.service.encode_image(image, model), self.service.encode_text(caption, model))
        return why if turns.is_current("why caption", asked, "captions", searched) else gr.skip()

    def change_model(
        self, sentence: str, image: Image.Image | None, model: str, turns: Turns, asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """-> both results again, by another model."""
        images = self.find_images(sentence, model, "", turns, asked, progress)
        return *images[:2], *self.find_captions(image, model, "", turns, asked, progress)[:2]

    def explain(self, image: ImageQuery, text: TextQuery) -> str:
        why = self.service.explain(image, text)
        return results.attribution(image.image, why, self.service.usual_score(text.model))

    def pick(self, turns: Turns, asked: float, event: gr.SelectData) -> Any:
        """-> an image of the collection, chosen by its thumbnail."""
        turns.begin("sample", asked)
        image = self.read(read_choice(event)[0])
        return image if turns.show("sample", asked) else gr.skip()

    def draw_map(
        self, latest: str, sentence: str, image: Image.Image | None, model: str, mapped: str, turns: Turns,
        asked: float, progress: gr.Progress = PROGRESS,
    ) -> tuple[Any, Any]:  # fmt: skip
        """-> the map with the latest query, if it is not on the page already, and whose map it is."""
        turns.begin("map", asked)
        if mapped == model:
            return gr.skip(), gr.skip()
        self.wait(model, progress)
        progress(None, desc="Drawing the map")
        template = self.map(model)
        if latest == "picture" and image is not None:
            value = self.mark(self.service.encode_image(image, model), IMAGE_LABEL)
        else:
            value = self.mark(self.service.encode_text(sentence, model), sentence)
        return (gr.HTML(html_template=template, value=value), model) if turns.show("map", asked) else (gr.skip(),) * 2

    def redraw_map(
        self, latest: str, sentence: str, image: Image.Image | None, model: str, mapped: str, turns: Turns,
        asked: float, progress: gr.Progress = PROGRESS,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The same for another model, if there is a map on the page or on its way."""
        if not mapped and "map" not in turns.begun:
            return gr.skip(), gr.skip()
        return self.draw_map(latest, sentence, image, model, mapped, turns, asked, progress)

    def mark(self, query: Query, label: str) -> dict[str, Any]:
        return map_html.mark(self.service.place(query), self.service.map(query.model), label)

    def _map(self, model: str) -> str:
        return map_html.render_map(
            self.service.gallery(model), self.service.map(model), self.read, self.service.describe
        )


def read_choice(event: gr.SelectData) -> tuple[str, str, float]:
    """What a chosen card tells (see `results.CHOOSE`): its item, the sentence and the time of its search.

    The page keeps these, not the server: a card works even if the server was started anew.
    """
    value = event.value
    return unpack_text(value["item"]), unpack_text(value.get("sentence") or ""), value.get("asked") or 0


def user_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show what is wrong with an input as a message on the page; other errors are bugs, and are not shown."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ValueError, FileNotFoundError) as error:  # FileError is a ValueError
            raise as_text(error) from error

    return call


def make_page(service: Service, examples: Sequence[str] = EXAMPLES) -> gr.Blocks:
    """Lay out the page and connect its events.

    Args:
        service: What computes the answers.
        examples: Sentences to try; the page begins with a search for the first one.
    """
    page = Page(service)
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=KEPT) as blocks:
        with gr.Row(elem_id="head"):
            gr.Markdown(INTRODUCTION)
            with gr.Column(scale=0, min_width=240):
                models = [(NAMES.get(name, name), name) for name in service.sources]
                model = gr.Dropdown(models, value=service.default, label="Model", visible=len(models) > 1)
        with gr.Tab("Find pictures"):
            with gr.Column(elem_id="ask"):
                sentence, search = add_search("A sentence", f"Describe a picture: {examples[0]}", "Search")
                chips = gr.Dataset(
                    components=[sentence], samples=[[each] for each in examples], label="Try one of these"
                )
            found_images = HtmlBlock(js_on_load=results.CHOOSE, elem_id="found-pictures")
            why_image = HtmlBlock(elem_classes="why")
        with gr.Tab("Find captions", visible=bool(service.captions)):
            image, samples = add_image(page)
            found_captions = HtmlBlock(HINT, js_on_load=results.CHOOSE, elem_id="found-captions")
            why_caption = HtmlBlock(elem_classes="why")
        with gr.Tab("The space") as space_tab:
            map_sentence, show = add_search("On the map", "Where does a sentence lie?", "Show")
            space = HtmlBlock(value=map_html.NOWHERE, html_template="", js_on_load=map_html.SCRIPT, elem_id="space")
        if set(RUNS) <= set(service.sources):
            with gr.Tab("How it learned"):
                add_training()
        add_endpoints(service, sentence, image, model)  # first, so that their names are theirs

        # What the browser keeps, so that it is there when the server was started anew
        query = gr.Textbox(examples[0], visible=False)  # the sentence that was asked for last
        latest = gr.Textbox("sentence", visible=False)  # what was given last, a sentence or a picture
        mapped = gr.Textbox("", visible=False)  # the model whose map is on the page
        asked = gr.Number(0, visible=False)  # when an event happens: NOW puts the time in its place
        turns = gr.State(Turns())

        def on(trigger: Callable[..., Any], function: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> Any:
            """Connect a function that takes its turn: requests run side by side, and the last one wins."""
            return trigger(
                user_errors(function), [*inputs, turns, asked], outputs, js=NOW, trigger_mode="multiple",
                show_progress_on=outputs[0], api_visibility="private",
            )  # fmt: skip

        of_images, of_captions = [found_images, why_image], [found_captions, why_caption]
        on(blocks.load, page.find_images, [query, model, mapped], [*of_images, space])
        chips.click(None, chips, sentence, js=f"index => {json.dumps(list(examples))}[index]")
        for trigger, field in (
            (sentence.submit, sentence), (search.click, sentence), (chips.click, sentence),
            (map_sentence.submit, map_sentence), (show.click, map_sentence),
        ):  # fmt: skip
            trigger(None, [field, query], [query, latest], js=REMEMBER)
            on(trigger, page.find_images, [field, model, mapped], [*of_images, space])
        on(samples.select, page.pick, [], [image])
        image.change(None, None, latest, js="() => 'picture'")
        on(image.change, page.find_captions, [image, model, mapped], [*of_captions, space])
        on(found_images.select, page.choose_image, [model], [why_image])
        on(found_captions.select, page.choose_caption, [image, model], [why_caption])
        on_map = [latest, query, image, model, mapped]
        on(space_tab.select, page.draw_map, on_map, [space, mapped])
        on(model.change, page.change_model, [query, image, model], [*of_images, *of_captions])
        on(model.change, page.redraw_map, on_map, [space, mapped])
    return blocks


def add_image(page: Page) -> tuple[gr.Image, gr.HTML]:
    """Add a field for an image, and some images of the collection to choose from."""
    with gr.Row():
        image = bounded(gr.Image(
            label="A picture", type="pil", height=350, min_width=300,
            sources=["upload", "webcam", "clipboard"], buttons=[], alt_text="the picture to find captions for",
        ))  # fmt: skip
        with gr.Column(min_width=300):
            gr.Markdown("or choose one of these")
            cards = results.sample_cards(page.samples, page.read, page.service.describe)
            samples = HtmlBlock(cards, js_on_load=results.CHOOSE, elem_id="samples")
    return image, samples


def add_search(label: str, placeholder: str, verb: str) -> tuple[gr.Textbox, gr.Button]:
    """Add a field for a sentence and its button."""
    with gr.Row(elem_classes="search"):
        field = gr.Textbox(
            label=label, show_label=False, placeholder=placeholder, container=False, max_length=2000, scale=6
        )
        button = gr.Button(verb, variant="primary", scale=1, min_width=90)
    return field, button


def add_training() -> None:
    """Add the curves of the shipped runs, and K by both formulas."""
    first = next(iter(RUNS))
    run = gr.Radio([(NAMES[name], name) for name in RUNS], value=first, label="Training of")
    curves = HtmlBlock(drawings.curves(RUNS[first]))
    run.change(lambda name: drawings.curves(RUNS[name]), run, curves, api_visibility="private")
    gr.Markdown(NEGATIVES)
    with gr.Row():
        alignment = gr.Slider(0, 1, 0.4, step=0.01, label="Alignment: how near pairs are")
        uniformity = gr.Slider(0, 1.2, 1.0, step=0.01, label="Uniformity: how near all others are")
    planes = HtmlBlock(drawings.k_mark(0.4, 1.0, BATCH), html_template=drawings.k_planes(BATCH), elem_id="planes")
    for slider in (alignment, uniformity):
        slider.change(
            lambda a, u: drawings.k_mark(a, u, BATCH), [alignment, uniformity], planes,
            show_progress="hidden", trigger_mode="always_last", api_visibility="private",
        )  # fmt: skip


def add_endpoints(service: Service, sentence: gr.Textbox, image: gr.Image, model: gr.Dropdown) -> None:
    """Add `/find_images`, `/find_captions` and `/explain` for programs: fields of the page in, JSON out."""

    def find_images(sentence: str, model: str) -> list[dict[str, Any]]:
        """Find the five pictures nearest to an English sentence: name, cosine, and whether it is the right one."""
        return [as_json(each) for each in service.find_images(service.encode_text(sentence, model))]

    def find_captions(image: Image.Image, model: str) -> list[dict[str, Any]]:
        """Find the five captions nearest to a picture: caption, cosine, and whether it is a right one."""
        return [as_json(each) for each in service.find_captions(service.encode_image(needed(image), model))]

    def explain(image: Image.Image, sentence: str, model: str) -> dict[str, Any]:
        """Split the cosine of a picture and a sentence over words and over the picture's grid of cells."""
        why = service.explain(service.encode_image(needed(image), model), service.encode_text(sentence, model))
        words = [{"word": word, "part": part} for word, part in zip(why.words, why.parts.tolist(), strict=True)]
        return {"score": why.score, "words": words, "rest": why.rest, "cells": why.heat_map.tolist()}

    with gr.Row(visible=False):
        button, answer = gr.Button(), gr.JSON()
        button.click(user_errors(find_images), [sentence, model], answer, api_name="find_images")
        button.click(user_errors(find_captions), [image, model], answer, api_name="find_captions")
        button.click(user_errors(explain), [image, sentence, model], answer, api_name="explain")


def needed(image: Image.Image | None) -> Image.Image:
    """Refuse a request without an image."""
    if image is None:
        raise ValueError("Give a picture first")
    return image


def as_json(result: SearchResult) -> dict[str, Any]:
    """A result as programs get it."""
    return {"item": result.item, "score": round(result.score, 4), "right": result.right}
