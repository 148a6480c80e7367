"""The page of the demo: its layout and its events; what it shows comes from `service`, as HTML from `html`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from PIL import Image

from vse_demo.app.guard import as_text, bounded
from vse_demo.app.html import drawings, results
from vse_demo.app.html import map as map_html
from vse_demo.app.service import SearchResult, Service, check_sentence
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
KEPT = 60, 900  # every so many seconds, uploads and answers of so many seconds ago are deleted
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
HtmlBlock = functools.partial(gr.HTML, apply_default_css=False)  # of the page, made by `html`


class Page:
    """The functions behind the page: from its fields to what they show."""

    def __init__(self, service: Service):
        self.service, self.samples = service, service.samples()
        self.map = functools.lru_cache(self._map)

    def photo(self, name: str) -> Image.Image:
        return read_image(self.service.file(name))

    def wait(self, model: str, progress: gr.Progress) -> None:
        """Until the collection is there; everyone who waits sees how far it is."""
        for done, total in self.service.progress(model):
            progress((done, total) if total else None, desc="Getting to know the pictures", unit="pictures")

    def find_images(self, sentence: str, model: str, mapped: str, progress: gr.Progress = PROGRESS) -> tuple[Any, ...]:
        """-> pictures, reasons for the first, names of all; the sentence's mark, the sentence, what was given last."""
        sentence = check_sentence(sentence)
        self.wait(model, progress)
        found = self.service.find_images(sentence, model)
        cards = results.image_cards(f"Nearest to “{sentence}”", found, self.photo, self.service.describe)
        reasons = self.reasons(self.photo(found[0].item), sentence, model)
        mark = self.mark(sentence, sentence, model) if mapped == model else gr.skip()
        return cards, reasons, [each.item for each in found], mark, sentence, "sentence"

    def choose_image(self, names: list[str], sentence: str, model: str, event: gr.SelectData) -> str:
        return self.reasons(self.photo(names[event.index]), sentence, model)

    def find_captions(
        self, image: Image.Image | None, model: str, mapped: str, progress: gr.Progress = PROGRESS
    ) -> tuple[Any, ...]:
        """-> captions, reasons for the first, all captions as a list; the picture's mark, what was given last."""
        if image is None:
            return HINT, "", [], gr.skip(), gr.skip()
        self.wait(model, progress)
        found = self.service.find_captions(image, model)
        cards = results.caption_cards("Nearest captions", found)
        mark = self.mark(image, IMAGE_LABEL, model) if mapped == model else gr.skip()
        return cards, self.reasons(image, found[0].item, model), [each.item for each in found], mark, "picture"

    def choose_caption(self, image: Image.Image | None, captions: list[str], model: str, event: gr.SelectData) -> str:
        return "" if image is None else self.reasons(image, captions[event.index], model)

    def change_model(
        self, sentence: str, image: Image.Image | None, model: str, progress: gr.Progress = PROGRESS
    ) -> tuple[Any, ...]:
        """-> both results again, by another model."""
        images = self.find_images(sentence, model, "", progress)
        return *images[:3], *self.find_captions(image, model, "", progress)[:3]

    def reasons(self, image: Image.Image, sentence: str, model: str) -> str:
        why = self.service.explain(image, sentence, model)
        return results.reasons(image, why, self.service.usual_score(model))

    def pick(self, event: gr.SelectData) -> Image.Image:
        """A picture of the collection, chosen by its thumbnail."""
        return self.photo(self.samples[event.index])

    def draw_map(
        self, latest: str, sentence: str, image: Image.Image | None, model: str, mapped: str,
        progress: gr.Progress = PROGRESS,
    ) -> tuple[Any, Any]:  # fmt: skip
        """-> the map with the latest query, if it is not on the page already, and whose map it is."""
        if mapped == model:
            return gr.skip(), model
        self.wait(model, progress)
        progress(None, desc="Drawing the map")
        template, value = self.map(model), map_html.NOWHERE
        if latest == "sentence":
            value = self.mark(sentence, sentence, model)
        elif image is not None:
            value = self.mark(image, IMAGE_LABEL, model)
        return gr.HTML(html_template=template, value=value), model

    def redraw_map(self, *fields: Any) -> tuple[Any, Any]:
        """The same for another model, if there is a map on the page at all."""
        return self.draw_map(*fields) if fields[-1] else (gr.skip(), "")

    def mark(self, query: str | Image.Image, label: str, model: str) -> dict[str, Any]:
        return map_html.mark(self.service.place(query, model), self.service.map(model), label)

    def _map(self, model: str) -> str:
        return map_html.draw_atlas(
            self.service.gallery(model), self.service.map(model), self.photo, self.service.describe
        )


def user_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is wrong with an input appears on the page as it is; other errors are bugs, and do not."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ValueError, FileNotFoundError) as error:  # FileError is a ValueError
            raise as_text(error) from error

    return call


def make_page(service: Service, examples: Sequence[str] = EXAMPLES) -> gr.Blocks:
    page = Page(service)
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=KEPT) as blocks:
        names, captions = gr.State([]), gr.State([])  # of the results on the page
        query, latest = gr.State(examples[0]), gr.State("")  # the sentence of these results, what was given last
        mapped = gr.State("")  # the model whose map is on the page
        with gr.Row(elem_id="head"):
            gr.Markdown(INTRODUCTION)
            with gr.Column(scale=0, min_width=240):
                models = [(NAMES.get(name, name), name) for name in service.sources]
                model = gr.Dropdown(models, value=service.default, label="Model", visible=len(models) > 1)
        with gr.Tab("Find pictures"):
            with gr.Column(elem_id="ask"):
                sentence, search = add_search("A sentence", f"Describe a picture: {examples[0]}", "Search")
                chips = gr.Examples([[each] for each in examples], sentence, label="Try one of these")
            found = HtmlBlock(js_on_load=results.CHOOSE, elem_id="found-pictures")
            image_reasons = HtmlBlock(elem_classes="why")
        with gr.Tab("Find captions", visible=bool(service.captions)):
            with gr.Row():
                image = bounded(gr.Image(
                    label="A picture", type="pil", height=350, min_width=300,
                    sources=["upload", "webcam", "clipboard"], buttons=[], alt_text="the picture to find captions for",
                ))  # fmt: skip
                with gr.Column(min_width=300):
                    gr.Markdown("or choose one of these")
                    cards = results.sample_cards(page.samples, page.photo, service.describe)
                    samples = HtmlBlock(cards, js_on_load=results.CHOOSE, elem_id="samples")
            found_captions = HtmlBlock(HINT, js_on_load=results.CHOOSE, elem_id="found-captions")
            caption_reasons = HtmlBlock(elem_classes="why")
        with gr.Tab("The space") as space_tab:
            place, show = add_search("On the map", "Where does a sentence lie?", "Show")
            space = HtmlBlock(value=map_html.NOWHERE, html_template="", js_on_load=map_html.SCRIPT, elem_id="space")
        if set(RUNS) <= set(service.sources):
            with gr.Tab("How it learned"):
                add_training()

        add_endpoints(service, sentence, image, model)  # first, so that their names are theirs
        find_images, find_captions = user_errors(page.find_images), user_errors(page.find_captions)
        of_images, of_captions = [found, image_reasons, names], [found_captions, caption_reasons, captions]
        search_by_text = {
            "fn": find_images, "outputs": [*of_images, space, query, latest], "api_visibility": "private",
        }  # fmt: skip
        first = blocks.load(inputs=[query, model, mapped], show_progress_on=found, **search_by_text)
        for trigger, field, shown in (
            (sentence.submit, sentence, found),
            (search.click, sentence, found),
            (chips.load_input_event.then, sentence, found),
            (place.submit, place, space),
            (show.click, place, space),
        ):  # whoever is quicker than the first answer does not want it any more
            trigger(inputs=[field, model, mapped], show_progress_on=shown, cancels=first, **search_by_text)
        samples.select(page.pick, None, image, api_visibility="private")
        image.change(
            find_captions, [image, model, mapped], [*of_captions, space, latest],
            show_progress_on=found_captions, api_visibility="private",
        )  # fmt: skip
        found.select(user_errors(page.choose_image), [names, query, model], image_reasons, api_visibility="private")
        found_captions.select(
            user_errors(page.choose_caption), [image, captions, model], caption_reasons, api_visibility="private"
        )
        on_map = {"inputs": [latest, query, image, model, mapped], "outputs": [space, mapped]}
        space_tab.select(user_errors(page.draw_map), **on_map, show_progress_on=space, api_visibility="private")
        model.change(
            user_errors(page.change_model), [query, image, model], [*of_images, *of_captions],
            show_progress_on=[found, found_captions], api_visibility="private",
        ).then(user_errors(page.redraw_map), **on_map, show_progress_on=space, api_visibility="private")  # fmt: skip
    return blocks


def add_search(label: str, placeholder: str, verb: str) -> tuple[gr.Textbox, gr.Button]:
    """A field for a sentence and its button."""
    with gr.Row(elem_classes="search"):
        field = gr.Textbox(
            label=label, show_label=False, placeholder=placeholder, container=False, max_length=2000, scale=6
        )
        button = gr.Button(verb, variant="primary", scale=1, min_width=90)
    return field, button


def add_training() -> None:
    """Curves of the real runs, and K by both formulas."""
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
    """`/find_images`, `/find_captions` and `/explain` for programs: fields of the page in, JSON out."""

    def find_images(sentence: str, model: str) -> list[dict[str, Any]]:
        """Find the five pictures nearest to an English sentence: name, cosine, and whether it is the right one."""
        return [as_json(each) for each in service.find_images(sentence, model)]

    def find_captions(image: Image.Image, model: str) -> list[dict[str, Any]]:
        """Find the five captions nearest to a picture: caption, cosine, and whether it is a right one."""
        return [as_json(each) for each in service.find_captions(needed(image), model)]

    def explain(image: Image.Image, sentence: str, model: str) -> dict[str, Any]:
        """Split the cosine of a picture and a sentence over words and over the picture's grid of cells."""
        why = service.explain(needed(image), sentence, model)
        words = [{"word": word, "part": part} for word, part in zip(why.words, why.parts.tolist(), strict=True)]
        return {"score": why.score, "words": words, "rest": why.rest, "cells": why.cells.tolist()}

    with gr.Row(visible=False):
        button, answer = gr.Button(), gr.JSON()
        button.click(user_errors(find_images), [sentence, model], answer, api_name="find_images")
        button.click(user_errors(find_captions), [image, model], answer, api_name="find_captions")
        button.click(user_errors(explain), [image, sentence, model], answer, api_name="explain")


def needed(image: Image.Image | None) -> Image.Image:
    if image is None:
        raise ValueError("Give a picture first")
    return image


def as_json(found: SearchResult) -> dict[str, Any]:
    return {"item": found.item, "score": round(found.score, 4), "right": found.right}
