"""`vse-demo evaluate`: Recall@K both ways, RSUM and median rank of a model."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from vse_demo.cli.flags import Verbs, add_layout_flag, add_model_flags, data_folder
from vse_demo.cli.output import print_metrics
from vse_demo.utils.files import FileError


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("evaluate", help="measure a model: Recall@K both ways, RSUM, median rank")
    add_model_flags(verb)
    verb.add_argument("--data", type=data_folder, required=True, help="folder with images and captions, or default")
    add_layout_flag(verb)
    verb.add_argument("--split", default="test", help="any split that the folder has (default: test)")
    verb.add_argument("--folds", type=int, default=1, help="average over so many parts; 5 for COCO 1K (default: 1)")
    verb.add_argument(
        "--fold-size", type=int, metavar="N", help="or over parts of N images; what is left over is named"
    )
    verb.add_argument(
        "--typos", type=int, default=0, metavar="N", help="also measure with N typos in each caption (default: 0)"
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Encode a split and print its metrics."""
    from vse_demo.data import first_images, merge_duplicates, open_dataset, with_typos
    from vse_demo.model import load_any, measure_versions

    if chosen.typos < 0:
        raise ValueError(f"--typos must be at least 0, not {chosen.typos}")
    model = load_any(chosen.model, chosen.device)
    data = merge_duplicates(open_dataset(chosen.data, chosen.layout).split(chosen.split))
    if not data.captions:
        raise FileError(f"{chosen.data} has no captions: nothing to measure against")
    folds, left_out = chosen.folds, data.names[:0]
    if chosen.fold_size is not None:
        folds, left_out = _folds_of(len(data), chosen), data.names[len(data) // chosen.fold_size * chosen.fold_size :]
        data = first_images(data, len(data) - len(left_out))
    elif 1 < folds <= len(data) and len(data) % folds:
        size = len(data) // folds
        raise ValueError(f"{len(data)} images do not split into {folds} equal folds: try --fold-size {size}")
    versions = [data.captions, *([with_typos(data.captions, chosen.typos)] if chosen.typos else [])]
    found = measure_versions(model, data, versions, folds, progress=not chosen.json)
    metrics: dict[str, Any] = dict(found[0])
    if chosen.typos:
        metrics["misspelt"] = found[1]
    if left_out:
        metrics["left_out"] = left_out
    print(json.dumps(metrics)) if chosen.json else _print(metrics, chosen.typos)


def _folds_of(images: int, chosen: argparse.Namespace) -> int:
    """How many folds of the size that was asked for there are."""
    if chosen.folds != 1:
        raise ValueError("give --folds or --fold-size, not both")
    if not 1 <= chosen.fold_size <= images:
        raise ValueError(f"--fold-size must be from 1 to {images}, the images of this split, not {chosen.fold_size}")
    return images // chosen.fold_size


def _print(metrics: Mapping[str, Any], typos: int) -> None:
    """For people."""
    print_metrics(metrics)
    if typos:
        misspelt = metrics["misspelt"]
        print(f"\nwith {typos} typo{'s' * (typos > 1)} in each caption:")
        print_metrics(misspelt)
        if metrics["rsum"]:
            print(f"  kept           {misspelt['rsum'] / metrics['rsum']:6.1%} of the RSUM")
    if "left_out" in metrics:
        print(f"\nleft out, since they fill no fold: {', '.join(metrics['left_out'])}")
