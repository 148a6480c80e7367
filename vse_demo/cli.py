"""The `vse-demo` command: one verb per task, `vse-demo VERB --help` for each."""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from vse_demo.utils.files import FileError

INTRODUCTION = """\
Visual-semantic embedding: pictures and sentences in one space.

  vse-demo download flickr30k --out data/flickr30k     fetch a data set
  vse-demo train --data DIR --preset vse+2ad --out RUN train a model; RUN/best is the result
  vse-demo evaluate --model RUN/best --data DIR        Recall@1/5/10 both ways, RSUM
  vse-demo index --model RUN/best --data DIR --gallery G   encode pictures for search
  vse-demo search "a dog on the beach" --gallery G     find pictures by a sentence
  vse-demo search --image photo.jpg --gallery G        find captions by a picture
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except (ValueError, OSError, FloatingPointError) as error:
        if chosen.debug:
            raise
        print(f"vse-demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vse-demo: stopped", file=sys.stderr)
        return 130
    return 0


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("vse-demo", description=INTRODUCTION, formatter_class=raw)
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    verb = verbs.add_parser("download", help="fetch a data set from the Hugging Face hub")
    verb.add_argument("name", help="flickr30k (4.4 GB)")
    verb.add_argument("--out", type=Path, required=True, help="folder for its files")
    verb.set_defaults(run=run_download)

    verb = verbs.add_parser("train", help="train a model", epilog=TRAIN_EXAMPLES, formatter_class=raw)
    verb.add_argument("--data", type=Path, required=True, help="folder with train and val splits")
    verb.add_argument("--out", type=Path, required=True, help="folder of the run")
    verb.add_argument("--preset", help="a method, a model of the paper, or a shipped model: see below")
    verb.add_argument("--resume", action="store_true", help="continue the run in --out with its own settings")
    verb.add_argument("--cache", type=Path, help="folder for extracted cells (default: $VSE_DEMO_CACHE)")
    verb.add_argument("--device", default="cpu", help="cpu, cuda, mps (default: cpu)")
    verb.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard")
    add_config_flags(verb)
    verb.set_defaults(run=run_train)

    verb = verbs.add_parser("evaluate", help="measure a model: Recall@K both ways, RSUM, median rank")
    add_model_flag(verb)
    verb.add_argument("--data", type=Path, required=True, help="folder with pictures and captions")
    verb.add_argument("--split", default="test", help="any split that the folder has (default: test)")
    verb.add_argument("--folds", type=int, default=1, help="average over so many parts; 5 for COCO 1K (default: 1)")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run_evaluate)

    verb = verbs.add_parser("index", help="encode pictures and captions for search, or add to a gallery")
    add_model_flag(verb)
    verb.add_argument("--data", type=Path, required=True, help="folder with pictures, with or without captions")
    verb.add_argument("--split", help="one split only (default: all of them)")
    verb.add_argument("--gallery", type=Path, required=True, help="folder of the gallery")
    verb.set_defaults(run=run_index)

    verb = verbs.add_parser("search", help="find pictures by a sentence, or captions by a picture")
    verb.add_argument("text", nargs="?", help="a sentence")
    verb.add_argument("--image", type=Path, help="a picture, instead of a sentence")
    verb.add_argument("--gallery", type=Path, required=True, help="folder made by vse-demo index")
    add_model_flag(verb, required=False)
    verb.add_argument("-k", type=int, default=5, help="how many results (default: 5)")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run_search)
    return parser


def add_model_flag(verb: argparse.ArgumentParser, required: bool = True) -> None:
    text = "folder of a model; repeat for an ensemble" + ("" if required else " (default: the one that indexed)")
    verb.add_argument("--model", type=Path, action="append", required=required, help=text)


TRAIN_EXAMPLES = """\
presets:
  vse++, vse-infty, vse+2ad (default)    the methods, with the paper's sizes and schedule
  region-bigru, grid-bigru, patch-bigru  VSE+2AD as published, for a GPU: precomputed regions,
  region-bert, grid-bert, patch-bert     a ResNet-101 at 512 px or a ViT-B/16; a BiGRU or BERT-base
  shipped-bigru, shipped-minilm          the models that come with the package, for two CPU cores

A BiGRU on frozen grid cells, on a laptop:

  vse-demo train --data data/flickr30k --out runs/first --backbone-weights hub \\
      --dim 256 --captions-per-image 5 --epochs 10
"""


def add_config_flags(verb: argparse.ArgumentParser) -> None:
    """A flag for each setting of a model and its training; the comment beside the field is the help."""
    from vse_demo.model import ModelConfig
    from vse_demo.training import TrainConfig

    for title, config in (("model", ModelConfig), ("training", TrainConfig)):
        group = verb.add_argument_group(title)
        comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(config), re.MULTILINE))
        for entry in fields(config):
            if entry.name in ("model", "text_config"):
                continue
            help_text = comments.get(entry.name, "").replace("%", "%%")
            flag, kind = f"--{entry.name.replace('_', '-')}", entry.type
            if kind in (bool, "bool"):
                group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_text)
            elif entry.default is MISSING:  # a mapping
                group.add_argument(flag, nargs="+", type=key_value, metavar="KEY=VALUE", help=help_text)
            else:
                shown = f"{help_text} (default: {entry.default})" if entry.default != "" else help_text
                group.add_argument(flag, type=type(entry.default), help=shown.strip())


def key_value(text: str) -> tuple[str, Any]:
    """`variant=paper` -> ("variant", "paper"); numbers, true and false, and lists as in JSON."""
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def run_download(chosen: argparse.Namespace) -> None:
    from vse_demo.data import download

    download(chosen.name, chosen.out)
    print(f"{chosen.name} is in {chosen.out}")


def run_train(chosen: argparse.Namespace) -> None:
    from vse_demo.model import ModelConfig
    from vse_demo.training import TrainConfig, make_config, train

    names = [entry.name for config in (ModelConfig, TrainConfig) for entry in fields(config)]
    given = {name: value for name in names if (value := getattr(chosen, name, None)) is not None}
    overrides = {name: dict(value) if isinstance(value, list) else value for name, value in given.items()}
    if chosen.resume and (overrides or chosen.preset):
        raise ValueError(f"--resume keeps the settings of the run; leave out {', '.join(overrides) or '--preset'}")
    config = None if chosen.resume else make_config(chosen.preset or "vse+2ad", overrides)
    metrics = train(config, chosen.data, chosen.out, chosen.resume, chosen.cache, chosen.device, chosen.tensorboard)
    print_metrics(metrics)
    print(f"the best model is in {chosen.out / 'best'}")


def run_evaluate(chosen: argparse.Namespace) -> None:
    import torch

    from vse_demo.data import merge_duplicates, open_dataset
    from vse_demo.evaluation import evaluate
    from vse_demo.model import load_model

    model = load_model(chosen.model)
    data = merge_duplicates(open_dataset(chosen.data).split(chosen.split))
    if not data.captions:
        raise FileError(f"{chosen.data} has no captions: nothing to measure against")
    progress = not chosen.json
    images = model.encode_images(data.images, progress=progress)
    texts = model.encode_texts(data.captions, progress=progress)
    metrics = evaluate(images, texts, torch.from_numpy(data.image_ids), chosen.folds)
    print(json.dumps(metrics)) if chosen.json else print_metrics(metrics)


def print_metrics(metrics: Mapping[str, Any]) -> None:
    print(f"{metrics['images']} images, {metrics['captions']} captions")
    print("                   R@1    R@5   R@10   median rank")
    for way, name in (("i2t", "image → text"), ("t2i", "text → image")):
        row = metrics[way]
        print(f"  {name:14} {row['r1']:6.1f} {row['r5']:6.1f} {row['r10']:6.1f} {row['medr']:9.1f}")
    print(f"  RSUM           {metrics['rsum']:6.1f}")


def run_index(chosen: argparse.Namespace) -> None:
    from filelock import FileLock

    from vse_demo.data import open_dataset
    from vse_demo.model import load_model
    from vse_demo.retrieval import Gallery
    from vse_demo.utils.files import recover_folder

    model = load_model(chosen.model)
    dataset = open_dataset(chosen.data)
    chosen.gallery.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(chosen.gallery.with_name(f".{chosen.gallery.name}.lock")):  # or two would overwrite each other
        there = recover_folder(chosen.gallery).exists()
        gallery = Gallery.load(chosen.gallery, model) if there else Gallery(model)
        added = sum(gallery.add(dataset.split(name)) for name in ([chosen.split] if chosen.split else dataset.splits))
        gallery.save(chosen.gallery, models=chosen.model)
    print(
        f"{chosen.gallery}: {added} pictures added, {len(gallery)} pictures and {len(gallery.captions)} captions in all"
    )


def run_search(chosen: argparse.Namespace) -> None:
    from vse_demo.model import load_model
    from vse_demo.retrieval import Gallery, read_models

    if (chosen.text is None) == (chosen.image is None):
        raise ValueError('give a sentence, as in vse-demo search "a dog on the beach", or --image FILE')
    gallery = Gallery.load(chosen.gallery, load_model(chosen.model or read_models(chosen.gallery)))
    if chosen.text is not None:
        hits = gallery.search_images(chosen.text, chosen.k)
    else:
        hits = gallery.search_captions(chosen.image, chosen.k)
    if chosen.json:
        print(json.dumps([{"item": hit.item, "score": hit.score} for hit in hits], ensure_ascii=False))
    for hit in [] if chosen.json else hits:
        print(f"{hit.score:6.3f}  {hit.item}")


if __name__ == "__main__":
    sys.exit(main())
