"""`vse-demo index`: images and captions, encoded for search."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from vse_demo.cli.flags import Verbs, add_backend_flag, add_layout_flag, add_model_flags, data_folder


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("index", help="make a gallery equal to a folder: encode what is new, forget what is gone")
    add_model_flags(verb)
    add_backend_flag(verb)
    verb.add_argument("--data", type=data_folder, required=True, help="folder with images, with or without captions")
    add_layout_flag(verb)
    verb.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="add what is new, with Ray, on all cores of this machine or of the cluster at host:port; --data may also "
        "be a text file that lists images, or tar shards in WebDataset layout",
    )
    verb.add_argument("--report", type=Path, help="write what was done, and which files are broken and why, as JSON")
    verb.add_argument("--split", help="one split only (default: all of them)")
    verb.add_argument("--gallery", required=True, help="folder of the gallery, or postgresql://user@host/database")
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Make the gallery equal to the folder; mistakes in what to read are found before there is a gallery."""
    from vse_demo.data import open_dataset
    from vse_demo.model import load_model
    from vse_demo.retrieval import is_database, open_store
    from vse_demo.retrieval.cluster import LOCAL, index_on_cluster
    from vse_demo.retrieval.sources import find_units
    from vse_demo.utils.files import write_json
    from vse_demo.utils.text import sanitize_text

    splits = [chosen.split] if chosen.split else None
    if chosen.ray:
        if chosen.layout:
            raise ValueError("--ray does not take --layout: index without it, or give it a list of files")
        if chosen.backend == "onnx" and chosen.ray != LOCAL:
            raise ValueError(
                "--backend onnx has its programs on this machine, and other nodes lack them: leave it out, or use "
                "--ray without an address"
            )
        find_units(chosen.data, splits)
    else:
        dataset = open_dataset(chosen.data, chosen.layout)
        for split in splits or ():
            dataset.present(split)
    model = load_model(chosen.model, chosen.device, chosen.backend)
    gallery = open_store(chosen.gallery, model, chosen.model)
    done = index_on_cluster(gallery, chosen.data, splits, chosen.ray) if chosen.ray else gallery.sync(dataset, splits)
    done.broken = {sanitize_text(name): sanitize_text(reason) for name, reason in done.broken.items()}
    if chosen.report:
        kept = {sanitize_text(place): count for place, count in done.kept.items()}
        write_json(chosen.report, {**asdict(done), "kept": kept})
    for reason in [] if chosen.report else done.broken.values():
        print(f"left out: {reason}", file=sys.stderr)
    place = "the database" if is_database(chosen.gallery) else chosen.gallery  # an address may hold a password
    print(f"{place}: {done}; {len(gallery)} images and {gallery.count_captions()} captions in all")
