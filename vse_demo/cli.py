"""The `vse-demo` command: one verb per task, `vse-demo VERB --help` for each.

PyTorch is loaded by the verbs that need it, so help and mistakes are answered at once.
"""

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from vse_demo.utils.files import FileError
from vse_demo.utils.runtime import tune_process

INTRODUCTION = """\
Visual-semantic embedding: images and sentences in one space.

  vse-demo download flickr30k --out data/flickr30k     fetch a data set
  vse-demo train --data DIR --preset vse+2ad --out RUN train a model; RUN/best is the result
  vse-demo evaluate --model RUN/best --data DIR        Recall@1/5/10 both ways, RSUM
  vse-demo index --model RUN/best --data DIR --gallery G   encode images for search
  vse-demo search "a dog on the beach" --gallery G     find images by a sentence
  vse-demo search --image photo.jpg --gallery G        find captions by an image
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 after an error, 130 after Ctrl-C.

    Args:
        arguments: of the command line; without them, those of this process.
    """
    tune_process()
    chosen = make_parser().parse_args(arguments)
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


class VerbParser(argparse.ArgumentParser):
    """The parser of one verb; flags that take long to list are added when the verb is used."""

    add_late: Callable[["VerbParser"], None] | None = None

    def parse_known_args(self, *arguments: Any, **more: Any) -> Any:
        if self.add_late is not None:
            add_late, self.add_late = self.add_late, None
            add_late(self)
        return super().parse_known_args(*arguments, **more)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("vse-demo", description=INTRODUCTION, formatter_class=raw)
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    parser.add_argument("--version", action="version", version=f"vse-demo {version()}")
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=VerbParser)

    verb = verbs.add_parser("download", help="fetch a data set from the Hugging Face hub")
    verb.add_argument("name", help="flickr30k (4.4 GB)")
    verb.add_argument("--out", type=Path, required=True, help="folder for its files")
    verb.set_defaults(run=run_download)

    verb = verbs.add_parser("train", help="train a model", epilog=TRAIN_EXAMPLES, formatter_class=raw)
    verb.add_late = add_train_flags
    verb.set_defaults(run=run_train)

    verb = verbs.add_parser("evaluate", help="measure a model: Recall@K both ways, RSUM, median rank")
    add_model_flag(verb)
    verb.add_argument("--data", type=Path, required=True, help="folder with images and captions")
    verb.add_argument("--split", default="test", help="any split that the folder has (default: test)")
    verb.add_argument("--folds", type=int, default=1, help="average over so many parts; 5 for COCO 1K (default: 1)")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run_evaluate)

    verb = verbs.add_parser("index", help="encode images and captions for search, or add to a gallery")
    add_model_flag(verb)
    verb.add_argument("--data", type=Path, required=True, help="folder with images, with or without captions")
    verb.add_argument("--split", help="one split only (default: all of them)")
    verb.add_argument("--gallery", type=Path, required=True, help="folder of the gallery")
    verb.set_defaults(run=run_index)

    verb = verbs.add_parser("search", help="find images by a sentence, or captions by an image")
    verb.add_argument("text", nargs="?", help="a sentence")
    verb.add_argument("--image", type=Path, help="an image, instead of a sentence")
    verb.add_argument("--gallery", type=Path, required=True, help="folder made by vse-demo index")
    add_model_flag(verb, required=False)
    verb.add_argument("-k", type=int, default=5, help="how many results (default: 5)")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run_search)
    return parser


def version() -> str:
    """Of the installed package."""
    try:
        return importlib.metadata.version("vse_demo")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def add_model_flag(verb: argparse.ArgumentParser, required: bool = True) -> None:
    """Add `--model`, which can be repeated."""
    text = "folder of a model; repeat for an ensemble" + ("" if required else " (default: the one that indexed)")
    verb.add_argument("--model", type=Path, action="append", required=required, help=text)


TRAIN_EXAMPLES = """\
presets:
  vse++, vse-infty, vse+2ad (default)    the methods, with the paper's sizes and schedule
  vse+2ad-paper                          VSE+2AD by the paper's equations; vse+2ad is by the authors' code
  region-bigru, grid-bigru, patch-bigru  VSE+2AD as published, for a GPU: precomputed regions,
  region-bert, grid-bert, patch-bert     a ResNet-101 at 512 px or a ViT-B/16; a BiGRU or BERT-base
  shipped-bigru, shipped-minilm          the models that come with the package, for two CPU cores

A BiGRU on the grid features of a frozen CNN, on a laptop:

  vse-demo train --data data/flickr30k --out runs/first --backbone-weights hub \\
      --dim 256 --captions-per-image 5 --epochs 10

Fine-tuning a backbone on a GPU:

  vse-demo train --data data/coco --out runs/grid --preset grid-bert --device cuda \\
      --workers 8 --precision bf16 --frozen-stages 2
"""


def add_train_flags(verb: argparse.ArgumentParser) -> None:
    """Add the flags of `train`: those of a run, and one for each setting of a model and its training."""
    from vse_demo.losses import OBJECTIVES
    from vse_demo.model import ModelConfig
    from vse_demo.pooling import POOLINGS
    from vse_demo.training import PRESETS, WORKERS, TrainConfig

    verb.add_argument("--data", type=Path, required=True, help="folder with train and val splits")
    verb.add_argument("--out", type=Path, required=True, help="folder of the run")
    verb.add_argument("--preset", help=f"{', '.join(PRESETS)}: see below")
    verb.add_argument("--resume", action="store_true", help="continue the run in --out with its own settings and data")
    verb.add_argument("--cache", type=Path, help="folder for features of frozen backbones (default: $VSE_DEMO_CACHE)")
    verb.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: cpu)")
    verb.add_argument(
        "--workers",
        type=int,
        default=WORKERS,
        help=f"processes that decode images where the backbone is trained too (default: {WORKERS})",
    )
    verb.add_argument("--compile", action="store_true", help="run the encoders through torch.compile")
    verb.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard")
    names = {"POOLINGS": list(POOLINGS), "OBJECTIVES": list(OBJECTIVES)}
    for title, config in (("model", ModelConfig), ("training", TrainConfig)):
        group = verb.add_argument_group(title)
        for entry in fields(config):
            text = entry.metadata.get("help")
            if text is not None:  # the rest is not for the command line
                for name, choices in names.items():
                    text = text.replace(f"any name of {name}", ", ".join(choices))
                add_setting(group, entry.name, entry.default, text.replace("%", "%%"))


def add_setting(group: Any, name: str, default: Any, text: str) -> None:
    """Add the flag of one setting, of the type of its default; without a default it is a mapping."""
    flag = f"--{name.replace('_', '-')}"
    if default is MISSING:
        group.add_argument(flag, nargs="+", type=key_value, metavar="KEY=VALUE", help=text)
    elif isinstance(default, bool):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        shown = f"{text} (default: {default})" if default != "" else text
        group.add_argument(flag, type=type(default), help=shown)


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
    """vse-demo download"""
    from vse_demo.data import download

    download(chosen.name, chosen.out)
    print(f"{chosen.name} is in {chosen.out}")


def run_train(chosen: argparse.Namespace) -> None:
    """vse-demo train"""
    from vse_demo.model import ModelConfig
    from vse_demo.training import TrainConfig, make_config, train

    names = [entry.name for config in (ModelConfig, TrainConfig) for entry in fields(config)]
    given = {name: value for name in names if (value := getattr(chosen, name, None)) is not None}
    overrides = {name: dict(value) if isinstance(value, list) else value for name, value in given.items()}
    if chosen.resume and (overrides or chosen.preset):
        flags = [f"--{name.replace('_', '-')}" for name in overrides] or ["--preset"]
        raise ValueError(f"--resume keeps the settings of the run; leave out {', '.join(flags)}")
    metrics = train(
        None if chosen.resume else make_config(chosen.preset or "vse+2ad", overrides),
        chosen.data,
        chosen.out,
        chosen.resume,
        chosen.cache,
        chosen.device,
        chosen.tensorboard,
        chosen.workers,
        chosen.compile,
    )
    print_metrics(metrics)
    print(f"the best model is in {chosen.out / 'best'}")


def run_evaluate(chosen: argparse.Namespace) -> None:
    """vse-demo evaluate"""
    import torch

    from vse_demo.data import merge_duplicates, open_dataset
    from vse_demo.evaluation import check_folds, evaluate
    from vse_demo.model import load_model

    model = load_model(chosen.model)
    data = merge_duplicates(open_dataset(chosen.data).split(chosen.split))
    if not data.captions:
        raise FileError(f"{chosen.data} has no captions: nothing to measure against")
    check_folds(len(data), chosen.folds)  # before the long part
    progress = not chosen.json
    images = model.encode_images(data.images, progress=progress)
    texts = model.encode_texts(data.captions, progress=progress)
    metrics = evaluate(images, texts, torch.from_numpy(data.image_ids), chosen.folds)
    print(json.dumps(metrics)) if chosen.json else print_metrics(metrics)


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """Metrics as a table for people."""
    print(f"{metrics['images']} images, {metrics['captions']} captions")
    print("                   R@1    R@5   R@10   median rank")
    for way, name in (("i2t", "image → text"), ("t2i", "text → image")):
        row = metrics[way]
        print(f"  {name:14} {row['r1']:6.1f} {row['r5']:6.1f} {row['r10']:6.1f} {row['medr']:9.1f}")
    print(f"  RSUM           {metrics['rsum']:6.1f}")


def run_index(chosen: argparse.Namespace) -> None:
    """vse-demo index"""
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
    print(f"{chosen.gallery}: {added} images added, {len(gallery)} images and {len(gallery.captions)} captions in all")


def run_search(chosen: argparse.Namespace) -> None:
    """vse-demo search"""
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
