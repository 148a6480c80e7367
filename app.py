"""The demo: type a sentence and get pictures, give a picture and get captions.

    python app.py [--model DIR] [--data DIR] [--port 7860]

Layout and events only; all computing is in `vse_demo`.
"""

import argparse
from pathlib import Path

import gradio as gr
from PIL import Image

from vse_demo.data import Dataset, open_dataset, shipped
from vse_demo.files import FileError
from vse_demo.model import load_model
from vse_demo.retrieval import Gallery


def shipped_model() -> Path:
    """The model that comes with the package."""
    try:
        return min(path for path in shipped("models").iterdir() if path.is_dir())
    except (FileError, ValueError):
        raise FileError("no model is shipped yet: train one with vse-demo train, then give --model RUN/best") from None


def build_gallery(models: list[Path], dataset: Dataset) -> tuple[Gallery, list[Path]]:
    """Everything in the data set, encoded, and the file of each picture."""
    gallery, files = Gallery(load_model(models)), {}
    for name in dataset.splits:
        split = dataset.split(name)
        gallery.add(split)
        files |= dict(zip(split.names, split.images, strict=True))
    return gallery, [files[name] for name in gallery.names]


def make_page(gallery: Gallery, files: list[Path]) -> gr.Blocks:
    def find_images(sentence: str) -> list[tuple[Path, str]]:
        if not sentence.strip():
            raise gr.Error("Type a sentence first, for example: a dog on the beach")
        return [(files[hit.index], f"{hit.score:.2f}") for hit in gallery.search_images(sentence)]

    def find_captions(picture: Image.Image | None) -> list[list[str]]:
        if picture is None:
            raise gr.Error("Choose a picture first")
        return [[f"{hit.score:.2f}", hit.item] for hit in gallery.search_captions(picture)]

    with gr.Blocks(title="Visual-semantic embedding", analytics_enabled=False) as page:
        gr.Markdown("# Pictures and sentences in one space")
        with gr.Tab("Find pictures"):
            sentence = gr.Textbox(label="A sentence", placeholder="a dog on the beach", submit_btn=True)
            found = gr.Gallery(label="Nearest pictures", columns=5, object_fit="contain")
            sentence.submit(find_images, sentence, found, api_name="find_images")
        with gr.Tab("Find captions"):
            picture = gr.Image(label="A picture", type="pil")
            captions = gr.Dataframe(headers=["cosine", "caption"], label="Nearest captions")
            picture.change(find_captions, picture, captions, api_name="find_captions")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", help="folder of a model; repeat for an ensemble")
    parser.add_argument("--data", type=Path, help="folder with pictures (default: the shipped gallery)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    parser.add_argument("--share", action="store_true", help="make a public link through Gradio's servers")
    chosen = parser.parse_args()
    try:
        gallery, files = build_gallery(chosen.model or [shipped_model()], open_dataset(chosen.data))
    except FileError as error:
        raise SystemExit(f"app.py: {error}") from error
    make_page(gallery, files).launch(
        server_name=chosen.host,
        server_port=chosen.port,
        share=chosen.share,
        allowed_paths=sorted({str(file.parent) for file in files}),
    )


if __name__ == "__main__":
    main()
