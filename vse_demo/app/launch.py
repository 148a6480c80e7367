"""The command line of the demo: read the arguments, open the service, serve the page."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from starlette.middleware import Middleware

from vse_demo.app.guard import MAX_UPLOAD, Guard, block_url_fetch, is_free
from vse_demo.app.page import EXAMPLES, STYLE, THEME, make_page
from vse_demo.app.service import open_service
from vse_demo.utils.files import FileError

DESCRIPTION = "The demo: type a sentence and get pictures, give a picture and get captions, and see why."
MAX_WAITING = 100  # requests in the queue; more are refused
MAX_SESSIONS = 1000  # visitors whose state is kept


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or these arguments."""
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[], help="folder of a model; repeat: ensemble")
    parser.add_argument("--data", type=Path, help="folder with pictures (default: the gallery that comes along)")
    parser.add_argument(
        "--host", help="0.0.0.0 to serve other machines (default: GRADIO_SERVER_NAME, or this one only)"
    )
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    parser.add_argument("--share", action="store_true", help="make a public link through Gradio's servers")
    return parser.parse_args(arguments)


def main() -> None:
    """Serve the demo until it is interrupted."""
    chosen = read_arguments()
    if chosen.port is not None and not is_free(chosen.port):
        raise SystemExit(f"app.py: port {chosen.port} cannot be used: choose another one with --port")
    try:
        block_url_fetch()
        service = open_service(chosen.data, chosen.model)
        service.start()  # while the page is made
        page = make_page(service, EXAMPLES if chosen.data is None else service.examples() or EXAMPLES)
    except (FileError, RuntimeError) as error:
        raise SystemExit(f"app.py: {error}") from error
    page.queue(max_size=MAX_WAITING, default_concurrency_limit=2).launch(
        server_name=chosen.host, server_port=chosen.port, share=chosen.share, footer_links=["api"],
        theme=THEME, css=STYLE, max_file_size=MAX_UPLOAD, run_history=False,
        app_kwargs={"middleware": [Middleware(Guard)]}, state_session_capacity=MAX_SESSIONS, enable_monitoring=False,
    )  # fmt: skip
