"""Parts of the page that several of its tabs have."""

import functools

import gradio as gr

from vse_demo.app.guard import bounded

NAMES = {"grid-minilm": "MiniLM (a small BERT)", "grid-bigru": "BiGRU", "ensemble": "both (ensemble)"}
HtmlBlock = functools.partial(gr.HTML, apply_default_css=False)  # a part of the page that `html` makes


def picture_field(label: str, height: int) -> gr.Image:
    """Add a field for an image: a file, the camera or the clipboard."""
    return bounded(gr.Image(
        label=label, type="pil", height=height, min_width=300, sources=["upload", "webcam", "clipboard"], buttons=[],
        alt_text="the picture to search by", elem_classes="picture-field",
    ))  # fmt: skip


def add_search(label: str, placeholder: str, verb: str) -> tuple[gr.Textbox, gr.Button]:
    """Add a field for a sentence and its button."""
    with gr.Row(elem_classes="search"):
        field = gr.Textbox(
            label=label,
            show_label=False,
            placeholder=placeholder,
            container=False,
            max_length=2000,
            max_lines=1,
            scale=6,
        )
        button = gr.Button(verb, variant="primary", scale=1, min_width=90)
    return field, button
