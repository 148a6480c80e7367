"""`vse-demo download`: a data set from the Hugging Face hub."""

import argparse
from pathlib import Path

from vse_demo.cli.flags import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("download", help="fetch a data set from the Hugging Face hub")
    verb.add_argument("name", help="flickr30k (4.4 GB)")
    verb.add_argument("--out", type=Path, required=True, help="folder for its files")
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Fetch the data set and say where it is."""
    from vse_demo.data import download

    download(chosen.name, chosen.out)
    print(f"{chosen.name} is in {chosen.out}")
