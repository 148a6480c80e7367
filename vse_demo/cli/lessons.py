"""`vse-demo lessons`: the notebooks as students get them, copied to where they can be changed.

With solutions and figures they are in `notebooks/` of the repository.
"""

import argparse
import shutil
from pathlib import Path

from vse_demo.cli.flags import Verbs
from vse_demo.utils.files import FileError, write_folder
from vse_demo.utils.paths import lessons_folder


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("lessons", help="copy the lessons, which are notebooks, into a folder of yours")
    verb.add_argument("--out", type=Path, default=Path("lessons"), help="a new folder (default: lessons)")
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Copy them and say how to open them."""
    if chosen.out.exists():
        raise FileError(f"{chosen.out} is there already, perhaps with work in it: choose another folder with --out")
    source = lessons_folder()
    with write_folder(chosen.out) as fresh:
        for path in sorted(source.glob("*.ipynb")):
            shutil.copyfile(path, fresh / path.name)
    lessons = sorted(chosen.out.glob("*.ipynb"))
    print(f"{len(lessons)} lessons are in {chosen.out}; to read and run them:")
    print('  pip install "vse_demo[notebooks]"')
    print(f"  jupyter lab {lessons[0]}")
