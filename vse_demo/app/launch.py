"""The command line of the demo: read the arguments, open the service, serve the page."""

import argparse
from collections.abc import Sequence

from starlette.middleware import Middleware

from vse_demo.app.arguments import DESCRIPTION, add_arguments
from vse_demo.app.collection import open_service
from vse_demo.app.guard import MAX_UPLOAD, Guard, answer_mcp_in_json, block_url_fetch, is_free
from vse_demo.app.http import api_routes
from vse_demo.app.page import EXAMPLES, STYLE, THEME, make_page
from vse_demo.app.pictures import picture_routes

MAX_WAITING = 100  # requests in the queue; more are refused
MAX_SESSIONS = 1000  # visitors whose state is kept


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line of `app.py`, or these arguments."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    add_arguments(parser)
    return parser.parse_args(arguments)


def main() -> None:
    """Serve the demo until it is interrupted."""
    try:
        serve(read_arguments())
    except (ValueError, RuntimeError) as error:
        raise SystemExit(f"app.py: {error}") from error


def serve(chosen: argparse.Namespace) -> None:
    """Serve the demo as these arguments say, until it is interrupted.

    Raises:
        ValueError: The port is in use, or the data or a model cannot be read.
        RuntimeError: Gradio is of a version that the guard does not know.
    """
    if chosen.port is not None and not is_free(chosen.port):
        raise ValueError(f"port {chosen.port} cannot be used: choose another one with --port")
    block_url_fetch()
    answer_mcp_in_json()
    service = open_service(chosen.data, chosen.model, chosen.gallery)
    service.start()  # while the page is made
    examples = EXAMPLES if chosen.data is None else service.examples() or EXAMPLES
    routes = [*picture_routes(service), *api_routes(service, examples[0])]
    page = make_page(service, examples)
    page.queue(max_size=MAX_WAITING, default_concurrency_limit=2).launch(
        server_name=chosen.host, server_port=chosen.port, share=chosen.share, footer_links=["api"],
        theme=THEME, css=STYLE, max_file_size=MAX_UPLOAD, run_history=False,
        app_kwargs={"middleware": [Middleware(Guard)], "routes": routes},
        state_session_capacity=MAX_SESSIONS, enable_monitoring=False,
        _frontend=False,  # else Gradio asks for the page, and gives up if a busy machine needs more than 3 seconds
    )  # fmt: skip
