"""Limits on what a request can make the server do.

Gradio alone would read a request of any length, decode an image of any size, and fetch from the
network what a request names instead of a file.
"""

import functools
import html
import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import processing_utils
from PIL import Image

from vse_demo.data.images import read_image
from vse_demo.utils.files import FileError

MAX_UPLOAD = 20_000_000  # bytes of an image
MAX_REQUEST = 2_000_000  # bytes of any other request: enough to tell that a sentence is too long
FETCH = "async_ssrf_protected_get"  # Gradio's function that fetches an address, in `processing_utils`
SHOWN = {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}  # files that browsers show
FUNCTIONS = ("find_images", "find_similar", "find_captions", "explain", "embed")  # for programs
PLAIN_HTTP = tuple(f"/{name}" for name in FUNCTIONS)
TAKE_FILES = PLAIN_HTTP[1:]
ROUTES = {  # of Gradio's API that the page, its API and MCP need
    "app_id", "call", "cancel", "file", "heartbeat", "info", "mcp", "openapi.json", "queue", "reset", "run",
    "startup-events", "theme.css", "upload", "upload_progress",
}  # fmt: skip
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TooLargeError(Exception):
    """A request is longer than its limit."""


class Guard:
    """ASGI middleware that refuses requests to routes that the page does not need, and requests that are too long."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if not is_known(scope["path"]):
            await answer(send, 404, "There is nothing here.")
            return
        if (name := called_function(scope["path"])) not in (None, *FUNCTIONS):
            await answer(send, 404, f"There is no function {name!r}; there are {', '.join(FUNCTIONS)} (see /docs).")
            return
        takes_files = scope["path"].endswith(("/upload", *TAKE_FILES))
        limit = MAX_UPLOAD + 10_000 if takes_files else MAX_REQUEST  # an upload has headers
        seen, started = 0, False

        async def counted() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise TooLargeError
            return message

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = True
            await send(message)

        too_large, in_json = f"More than {limit:,} bytes are not taken.", scope["path"] in PLAIN_HTTP
        if declared_length(scope) > limit:
            await answer(send, 413, too_large, in_json)
            return
        try:
            await self.app(scope, counted, watched)
        except TooLargeError:
            if not started:
                await answer(send, 413, too_large, in_json)
        except (TypeError, KeyError) as error:  # arguments that Gradio's API by names does not know
            if started or not scope["path"].startswith("/gradio_api/call/v2/"):
                raise
            await answer(send, 422, f"{error.args[0]} (see /docs)")


def is_known(path: str) -> bool:
    """Tell whether the page needs this route; none that would ask another server is known."""
    of_api = re.match(r"/gradio_api/([\w.-]*)(.*)", path, re.DOTALL)
    return of_api is None or (of_api[1] in ROUTES and "://" not in of_api[2])


def called_function(path: str) -> str | None:
    """The function that a request to Gradio's API calls by its name, if it does."""
    call = re.match(r"/gradio_api/(?:call(?:/v2)?|run)/([^/]*)", path)
    return call and call[1]


def declared_length(scope: Scope) -> int:
    """The length that a request declares, or 0."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(lengths[0]) if lengths and lengths[0].isdigit() else 0


async def answer(send: Send, status: int, sentence: str, in_json: bool = False) -> None:
    """Answer a request with a sentence, and close the connection."""
    kind, body = (b"application/json", json.dumps({"error": sentence})) if in_json else (b"text/plain", sentence)
    headers = [(b"content-type", kind + b"; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


def is_free(port: int) -> bool:
    """Tell whether this machine can serve at a port."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        return False
    return True


def check_original(owner: Any, name: str, danger: str) -> Any:
    """A function of Gradio's that the app replaces.

    Raises:
        RuntimeError: There is none, so that nothing would be replaced; `danger` says what could happen then.
    """
    function = vars(owner).get(name)
    if not callable(function):
        missing = f"{owner.__name__.removeprefix('gradio.')}.{name}"
        raise RuntimeError(
            f"Gradio {gr.__version__} has no {missing}, so {danger}: install a version that requirements.txt allows"
        )
    return function


def bounded(image: gr.Image) -> gr.Image:
    """Let `read_image` decode what is uploaded, with its limits and its messages.

    The class is changed, not this field alone: Gradio makes a field anew when an event updates it.

    Raises:
        RuntimeError: Gradio decodes uploads in another way.
    """
    check_original(gr.Image, "preprocess", "uploads would be decoded without limits")
    gr.Image.preprocess = _preprocess  # type: ignore[assignment, method-assign]
    return image


def _preprocess(self: gr.Image, upload: Any) -> Image.Image | FileError | None:
    return read_upload(upload)


def read_upload(upload: Any) -> Image.Image | FileError | None:
    """Decode an upload as Gradio describes it; what is wrong with it is told by the function that it is for."""
    if upload is None:
        return None
    try:
        if not upload.path:
            raise FileError("Upload the picture as a file")
        image = read_image(Path(upload.path))
    except FileError as error:
        return error
    image.info["shown"] = Path(upload.path).suffix.lower() in SHOWN
    return image


def as_sentence(error: Exception) -> str:
    """What an error says, for the page, which would take it for HTML: it may name a file."""
    return html.escape(str(error), quote=False)


def as_text(error: Exception) -> gr.Error:
    """Turn an error into a message for those who called a function of the API."""
    return gr.Error(as_sentence(error), duration=8, print_exception=False)


def block_url_fetch() -> None:
    """Refuse addresses that a request names instead of a file: the server would fetch them.

    Raises:
        RuntimeError: Gradio fetches in another way.
    """
    check_original(processing_utils, FETCH, "requests could make this server fetch addresses")

    async def refuse(url: str) -> Any:
        raise gr.Error("Give a file: nothing is fetched from other servers", duration=8, print_exception=False)

    setattr(processing_utils, FETCH, refuse)


def answer_mcp_in_json() -> None:
    """Give MCP clients JSON: Gradio would write lists and dicts as Python does.

    Raises:
        RuntimeError: Gradio answers in another way.
    """
    from gradio.mcp import GradioMCPServer

    original = check_original(GradioMCPServer, "postprocess_output_data", "MCP clients would get no JSON")
    if getattr(original, "in_json", False):
        return

    @functools.wraps(original)
    def postprocess_output_data(self: Any, data: Any, root_url: str) -> Any:
        texts = [json.dumps(each, ensure_ascii=False) if isinstance(each, list | dict) else each for each in data]
        return original(self, texts, root_url)

    postprocess_output_data.in_json = True  # type: ignore[attr-defined]
    GradioMCPServer.postprocess_output_data = postprocess_output_data  # type: ignore[method-assign]
