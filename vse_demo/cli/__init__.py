"""The `vse-demo` command: one verb per task and module, `vse-demo VERB --help` for each.

A module has `add`, which adds its verb and flags to the parser, and `run`. PyTorch is loaded inside `run`, by the verbs
that need it, so help and mistakes are answered at once.
"""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from vse_demo.cli import app, calibrate, download, embed, evaluate, export, index, lessons, search, train
from vse_demo.cli.flags import VerbParser
from vse_demo.utils.objects import import_module
from vse_demo.utils.runtime import tune_process

VERBS = (app, search, index, lessons, download, train, evaluate, calibrate, embed, export)  # in the order of the help

INTRODUCTION = """\
Visual-semantic embedding: images and sentences in one space.

  vse-demo app                                          the demo in your browser
  vse-demo search "a dog on the beach"                  find photographs of the gallery that comes along
  vse-demo index --model grid-minilm --data DIR --gallery G    encode your own images for search
  vse-demo search "a dog on the beach" --gallery G      find images by a sentence
  vse-demo search --image photo.jpg --gallery G         find captions by an image
  vse-demo lessons                                      copy the lessons, to read and run
  vse-demo download flickr30k --out data/flickr30k      fetch a data set
  vse-demo train --data DIR --preset vse+2ad --out RUN  train a model; RUN/best is the result
  vse-demo evaluate --model RUN/best --data DIR         Recall@1/5/10 both ways, RSUM
  vse-demo calibrate --model RUN/best --data DIR        what its scores mean, kept with it
  vse-demo embed --model ensemble --data DIR --out vectors.npy   vectors for other programs
  vse-demo export --model RUN/best --out DIR            its encoders as ONNX files, or for torch.export
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 after an error, 130 after Ctrl-C, 141 if nobody reads on.

    Args:
        arguments: of the command line; without them, those of this process.
    """
    tune_process()
    chosen = make_parser().parse_args(arguments)
    try:
        for module in getattr(chosen, "modules", None) or ():
            import_module(module)
        chosen.run(chosen)
        print(end="", flush=True)
    except BrokenPipeError:  # who reads the output has enough, as head has; what is left of it goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
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
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(
        "vse-demo", description=INTRODUCTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    parser.add_argument("--version", action="version", version=f"vse-demo {version()}")
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=VerbParser)
    for verb in VERBS:
        verb.add(verbs)
    return parser


def version() -> str:
    """Of the installed package."""
    try:
        return importlib.metadata.version("vse_demo")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
