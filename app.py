"""The demo: type a sentence and get pictures, give a picture and get captions, and see why.

    python app.py [--data DIR] [--model DIR] [--host 127.0.0.1] [--port 7860] [--share]

Layout and events only; all computing is in `vse_demo`.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image
from starlette.middleware import Middleware

from vse_demo import atlas, figures
from vse_demo.data import read_image
from vse_demo.explanation import Explanation
from vse_demo.files import FileError
from vse_demo.guard import MAX_UPLOAD, Guard, as_text, bounded, run_no_errands
from vse_demo.objectives import negative_count
from vse_demo.service import Found, Service, check_sentence, open_service
from vse_demo.shipped import RUNS

TITLE = "Pictures and sentences in one space"
INTRODUCTION = f"""# {TITLE}
Type a sentence and get the nearest pictures, or give a picture and get the nearest sentences. Choose a result to see
which words and which parts of the picture made the match."""
EXAMPLES = [
    "a dog runs on the beach",
    "people walking in the snow",
    "a child playing with water",
    "a man riding a bicycle on a street",
    "food on a plate",
]
MARKS = {True: "✅ ", False: "❌ ", None: ""}
NO_REASONS = (None, None, None, "")
THUMBNAIL = (480, 480)
BATCH = 128  # for the sliders of K
MAX_WAITING = 100  # requests in the queue; more are told to come back later
MAX_SESSIONS = 1000  # whose state is kept
KEPT = 60, 900  # every so many seconds, uploads and answers of so many seconds ago are deleted
THEME = gr.themes.Soft(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])  # nothing is fetched
CSS = """
.gradio-container { max-width: 1100px !important; margin: auto !important; }
#found-pictures, #found-captions { min-height: 230px; }
"""


class Page:
    """The functions behind the page: from its fields to what they show."""

    def __init__(self, service: Service):
        self.service = service

    def picture(self, name: str) -> Image.Image:
        picture = read_image(self.service.file(name))
        picture.thumbnail(THUMBNAIL)
        return picture

    def find_images(self, sentence: str, model: str) -> tuple[Any, ...]:
        """-> pictures with scores, their names, the sentence, its mark on the map, and the reasons for the first."""
        sentence = check_sentence(sentence)
        found = self.service.find_images(sentence, model)
        pictures = [(self.picture(each.item), f"{MARKS[each.right]}{each.score:.2f}") for each in found]
        mark = self.mark(sentence, sentence, model)
        reasons = self.reasons(read_image(self.service.file(found[0].item)), sentence, model)
        return gr.Gallery(pictures, selected_index=0), [each.item for each in found], sentence, mark, *reasons

    def choose_image(self, names: list[str], sentence: str, model: str, event: gr.SelectData) -> tuple[Any, ...]:
        return self.reasons(read_image(self.service.file(names[event.index])), sentence, model)

    def find_captions(self, picture: Image.Image | None, model: str) -> tuple[Any, ...]:
        """-> captions with scores to choose from, the same without, the mark, and the reasons for the first."""
        if picture is None:
            return gr.Radio(choices=[], value=None), {}, gr.skip(), *NO_REASONS
        found = self.service.find_captions(picture, model)
        if not found:
            raise gr.Error("This collection has no captions: give a folder with captions, or search for pictures")
        lines = {f"{MARKS[each.right]}{each.score:.2f} · {each.item}": each.item for each in found}
        mark = self.mark(picture, "your picture", model)
        first = next(iter(lines))
        return gr.Radio(list(lines), value=first), lines, mark, *self.reasons(picture, found[0].item, model)

    def choose_caption(
        self, picture: Image.Image | None, lines: dict[str, str], line: str | None, model: str
    ) -> tuple[Any, ...]:
        return NO_REASONS if picture is None or line not in lines else self.reasons(picture, lines[line], model)

    def reasons(self, picture: Image.Image, sentence: str, model: str) -> tuple[Any, ...]:
        """-> heat map, word bars, rank weights, and a line of text."""
        why = self.service.explain(picture, sentence, model)
        return figures.heat_map(picture, why), figures.word_bars(why), figures.rank_weights(why), summary(why)

    def pick(self, event: gr.SelectData) -> Image.Image:
        """A picture of the collection, chosen by its thumbnail."""
        return read_image(self.service.file(self.service.samples()[event.index]))

    def mark(self, query: str | Image.Image, label: str, model: str) -> Any:
        """A query's mark on the map, if the map is there."""
        if not self.service.drawn(model):
            return gr.skip()
        return atlas.mark(self.service.place(query, model), self.service.map(model), label)

    def map(self, model: str) -> dict[str, Any]:
        return atlas.draw_atlas(self.service.gallery(model), self.service.map(model), self.picture)

    def redraw(self, model: str) -> Any:
        return gr.HTML(**self.map(model)) if self.service.quick or self.service.drawn(model) else gr.skip()

    def draw_once(self, model: str) -> Any:
        """The map, when its tab is opened for the first time."""
        return gr.skip() if self.service.drawn(model) else gr.HTML(**self.map(model))


def summary(why: Explanation) -> str:
    return (
        f"**Score {why.score:.2f}**: the coloured parts of the picture add up to it, and so do the bars of the words. "
        f"Pooling of cells: {figures.balance_text(why.image)}; of words: {figures.balance_text(why.text)}."
    )


def in_plain_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is wrong with an input appears on the page as it is; other errors are bugs, and do not."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ValueError, FileNotFoundError) as error:  # FileError is a ValueError
            raise as_text(error) from error

    return call


def make_page(service: Service) -> gr.Blocks:
    page = Page(service)
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=KEPT) as blocks:
        gr.Markdown(INTRODUCTION)
        names_of_models = list(service.sources)
        model = gr.Dropdown(names_of_models, value=service.default, label="Model", visible=len(names_of_models) > 1)
        space = gr.HTML(render=False, **page.map(service.default)) if service.quick else gr.HTML(render=False)
        with gr.Tab("Find pictures"):
            sentence = gr.Textbox(
                label="A sentence", placeholder=EXAMPLES[0], submit_btn="Search", max_length=2000, autofocus=True
            )
            examples = gr.Examples(EXAMPLES, sentence, label="Try one of these")
            gr.Markdown("**Nearest pictures**: choose one to see why")
            found = gr.Gallery(
                show_label=False, buttons=[], columns=5, height=230, object_fit="contain",
                allow_preview=False, elem_id="found-pictures", interactive=False,
            )  # fmt: skip
            names, query = gr.State([]), gr.State("")
            image_reasons = add_reasons()
        with gr.Tab("Find captions"):
            with gr.Row():
                picture = bounded(gr.Image(
                    label="A picture", type="pil", height=280, sources=["upload", "clipboard", "webcam"],
                    alt_text="the picture to find captions for",
                ))  # fmt: skip
                samples = gr.Gallery(
                    value=[page.picture(name) for name in service.samples()], show_label=False, buttons=[], columns=4,
                    height=280, allow_preview=False, interactive=False, object_fit="cover",
                )  # fmt: skip
            captions = gr.Radio(label="Nearest captions: choose one to see why", choices=[], elem_id="found-captions")
            lines = gr.State({})
            caption_reasons = add_reasons()
        with gr.Tab("The space") as space_tab:
            gr.Markdown(
                "All pictures (blue) and captions (orange); near ones mean alike things. Point at one to see it."
            )
            space.render()
        if service.quick:
            with gr.Tab("How it learned"):
                add_training()

        add_endpoints(service, sentence, picture, model)  # first, so that their names are theirs
        search = {
            "fn": in_plain_words(page.find_images), "inputs": [sentence, model],
            "outputs": [found, names, query, space, *image_reasons], "api_visibility": "private",
        }  # fmt: skip
        sentence.submit(**search)
        examples.load_input_event.then(**search)
        found.select(in_plain_words(page.choose_image), [names, query, model], image_reasons, api_visibility="private")
        samples.select(page.pick, None, picture, api_visibility="private")
        gr.on(
            [picture.change, model.change], in_plain_words(page.find_captions), [picture, model],
            [captions, lines, space, *caption_reasons], api_visibility="private",
        )  # fmt: skip
        captions.input(
            in_plain_words(page.choose_caption), [picture, lines, captions, model], caption_reasons,
            api_visibility="private",
        )  # fmt: skip
        model.change(page.redraw, model, space, api_visibility="private")
        space_tab.select(page.draw_once, model, space, api_visibility="private")
    return blocks


def add_reasons() -> list[Any]:
    """Places for a heat map, word bars, rank weights and a line of text."""
    text = gr.Markdown()
    with gr.Row():
        heat, words, ranks = (add_figure(name) for name in ("parts of the picture", "words", "weights by rank"))
    return [heat, words, ranks, text]


def add_figure(alt_text: str, value: Image.Image | None = None, height: int = 300) -> gr.Image:
    return gr.Image(
        value, interactive=False, show_label=False, buttons=["fullscreen"], height=height, alt_text=alt_text
    )


def add_training() -> None:
    """Curves of the real runs, and K by both formulas."""
    run = gr.Radio(list(RUNS), value=next(iter(RUNS)), label="Training of")
    first = figures.curves(RUNS[run.value])
    panels = []
    for row in (first[:2], first[2:]):
        with gr.Row():
            panels += [add_figure(title, picture) for title, picture in row]
    run.change(
        lambda name: [picture for _, picture in figures.curves(RUNS[name])], run, panels, api_visibility="private"
    )
    gr.Markdown("### How many negatives?\nAdOpt sets K by how aligned and how uniform the space is. The paper's "
                "equation and the authors' code do not agree: move the sliders.")  # fmt: skip
    with gr.Row():
        alignment = gr.Slider(0, 1, 0.4, step=0.01, label="Alignment")
        uniformity = gr.Slider(0, 1.2, 1.0, step=0.01, label="Uniformity")
    answer = gr.Markdown(k_text(0.4, 1.0))
    planes = add_figure("K over the plane", figures.k_planes(0.4, 1.0, BATCH), height=380)
    for slider in (alignment, uniformity):
        slider.change(k_text, [alignment, uniformity], answer, api_visibility="private", show_progress="hidden")
        slider.release(
            lambda a, u: figures.k_planes(a, u, BATCH), [alignment, uniformity], planes, api_visibility="private"
        )


def k_text(alignment: float, uniformity: float) -> str:
    paper, official = (negative_count(alignment, uniformity, BATCH, variant) for variant in ("paper", "official"))
    return f"K = **{paper}** of {BATCH} by the paper's equation, **{official}** by the authors' code."


def add_endpoints(service: Service, sentence: gr.Textbox, picture: gr.Image, model: gr.Dropdown) -> None:
    """`/find_images`, `/find_captions` and `/explain` for programs: fields of the page in, JSON out."""

    def find_images(sentence: str, model: str) -> list[dict[str, Any]]:
        """Find the five pictures nearest to an English sentence: name, cosine, and whether it is the right one."""
        return [as_json(each) for each in service.find_images(sentence, model)]

    def find_captions(picture: Image.Image, model: str) -> list[dict[str, Any]]:
        """Find the five captions nearest to a picture: caption, cosine, and whether it is a right one."""
        return [as_json(each) for each in service.find_captions(needed(picture), model)]

    def explain(picture: Image.Image, sentence: str, model: str) -> dict[str, Any]:
        """Split the cosine of a picture and a sentence over words and over the picture's grid of cells."""
        why = service.explain(needed(picture), sentence, model)
        words = [{"word": word, "part": part} for word, part in zip(why.words, why.text.parts.tolist(), strict=True)]
        return {"score": why.score, "words": words, "cells": why.heat_map.tolist()}

    with gr.Row(visible=False):
        button, answer = gr.Button(), gr.JSON()
        button.click(in_plain_words(find_images), [sentence, model], answer, api_name="find_images")
        button.click(in_plain_words(find_captions), [picture, model], answer, api_name="find_captions")
        button.click(in_plain_words(explain), [picture, sentence, model], answer, api_name="explain")


def needed(picture: Image.Image | None) -> Image.Image:
    if picture is None:
        raise ValueError("Give a picture first")
    return picture


def as_json(found: Found) -> dict[str, Any]:
    return {"item": found.item, "score": round(found.score, 4), "right": found.right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[], help="folder of a model; repeat: ensemble")
    parser.add_argument("--data", type=Path, help="folder with pictures (default: the gallery that comes along)")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to serve other machines (default: this one only)")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    parser.add_argument("--share", action="store_true", help="make a public link through Gradio's servers")
    chosen = parser.parse_args()
    try:
        service = open_service(chosen.data, chosen.model)
        page = make_page(service)
    except FileError as error:
        raise SystemExit(f"app.py: {error}") from error
    run_no_errands()
    try:
        page.queue(max_size=MAX_WAITING, default_concurrency_limit=2).launch(
            server_name=chosen.host, server_port=chosen.port, share=chosen.share, theme=THEME, css=CSS,
            max_file_size=MAX_UPLOAD, footer_links=["api"], app_kwargs={"middleware": [Middleware(Guard)]},
            state_session_capacity=MAX_SESSIONS, run_history=False, enable_monitoring=False,
        )  # fmt: skip
    except (OSError, OverflowError) as error:
        taken = f"port {chosen.port} cannot be used" if chosen.port else "no port from 7860 on is free"
        raise SystemExit(f"app.py: {taken}: choose another one with --port") from error


if __name__ == "__main__":
    main()
