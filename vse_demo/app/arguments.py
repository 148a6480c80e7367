"""The flags of the demo, for `python app.py` and `vse-demo app`; nothing else, so that both list them at once."""

import argparse
from pathlib import Path

DESCRIPTION = "The demo: type a sentence and get pictures, give a picture and get captions, and see why."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    parser.add_argument(
        "--model", action="append", default=[], help="a folder, a name or package.module:Name; repeat for an ensemble"
    )
    parser.add_argument("--data", type=Path, help="folder with pictures (default: the gallery that comes along)")
    parser.add_argument(
        "--gallery",
        default="",
        help="folder or postgresql://… with the vectors of these pictures, made by vse-demo index: nothing is encoded",
    )
    parser.add_argument(
        "--host", help="0.0.0.0 to serve other machines (default: GRADIO_SERVER_NAME, or this one only)"
    )
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    parser.add_argument("--share", action="store_true", help="make a public link through Gradio's servers")
