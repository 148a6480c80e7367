"""`vse-demo app`: the demo in a browser, wherever the package is installed."""

import argparse
import importlib.util

from vse_demo.app.arguments import DESCRIPTION, add_arguments
from vse_demo.cli.flags import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("app", help="start the demo in the browser", description=DESCRIPTION)
    add_arguments(verb)
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Serve the page until it is interrupted."""
    if importlib.util.find_spec("gradio") is None:
        raise ValueError('the demo needs Gradio, which is not installed: pip install "vse_demo[app]"')
    from vse_demo.app.launch import serve

    serve(chosen)
