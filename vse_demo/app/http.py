"""The five functions over plain HTTP, `POST /find_images` and so on with JSON or a form, and `/docs`, which shows how.

curl -F image=@photo.jpg -F k=3 http://127.0.0.1:7860/find_captions
"""

import inspect
import json
import threading
from collections.abc import Callable
from typing import Any

import anyio
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from vse_demo.app.api import MAX_BATCH, Api, read_bytes
from vse_demo.app.guard import FUNCTIONS
from vse_demo.app.html.docs import docs_page
from vse_demo.app.html.results import MOST
from vse_demo.app.service import Service

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")  # all are answered, so that the answer is JSON
AT_A_TIME = 2  # requests that are computed
MAX_WAITING = 100  # requests that wait; more are refused


def api_routes(service: Service, example: str) -> list[Route]:
    """The routes of the five functions and of their page, whose examples search for this sentence."""
    api, room = Api(service), _Room()
    routes = [Route(f"/{name}", _endpoint(getattr(api, name), room), methods=METHODS) for name in FUNCTIONS]
    return [*routes, Route("/docs", _docs(api, example), methods=["GET"])]


class _Room:
    """Some requests are computed at a time, some wait; made when the server runs, since it belongs to its loop."""

    limiter: anyio.CapacityLimiter | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        self.limiter = self.limiter or anyio.CapacityLimiter(AT_A_TIME)
        if self.limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise BlockingIOError
        return await anyio.to_thread.run_sync(function, limiter=self.limiter)


def _endpoint(function: Callable[..., Any], room: _Room) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            if request.method != "POST":
                raise HTTPException(405, f"Use POST, not {request.method}: /docs shows how", {"Allow": "POST"})
            given = await read_arguments(request)
            call = bind(function, given, str(request.base_url))
            return JSONResponse(await room.run(call))
        except BlockingIOError:
            return JSONResponse({"error": f"{MAX_WAITING} requests are waiting: ask again later"}, 503)
        except HTTPException as error:  # starlette's own tell of a form that cannot be read
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        except (ValueError, FileNotFoundError) as error:
            return JSONResponse({"error": str(error)}, 422)

    return answer


def bind(function: Callable[..., Any], given: dict[str, Any], base: str) -> Callable[[], Any]:
    """Check the names of arguments: none may be missing, and none may be unknown.

    Raises:
        ValueError: One is.
    """
    known = inspect.signature(function).parameters
    names = [name for name in known if name != "base"]
    for name in given:
        if name not in names:
            raise ValueError(f"unknown argument {name!r}; this function takes {', '.join(names)}")
    for name in names:
        if known[name].default is inspect.Parameter.empty and name not in given:
            raise ValueError(f"the argument {name!r} is missing; this function takes {', '.join(names)}")
    more = {"base": base} if "base" in known else {}
    return lambda: function(**given, **more)


async def read_arguments(request: Request) -> dict[str, Any]:
    """The arguments of a request: a JSON object, or a form, in which a field that comes several times is a list.

    Raises:
        ValueError: It is neither.
    """
    kind = request.headers.get("content-type", "")
    if kind.startswith(("multipart/form-data", "application/x-www-form-urlencoded")):
        async with request.form(max_files=MAX_BATCH, max_fields=MAX_BATCH) as form:
            given: dict[str, Any] = {}
            for name in form:
                values = [await _form_value(name, value) for value in form.getlist(name)]
                given[name] = values[0] if len(values) == 1 else values
            return given
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise ValueError("send a JSON object or a form with the arguments") from error
    if not isinstance(body, dict):
        raise ValueError("send a JSON object with the arguments by name")
    return body


async def _form_value(name: str, value: UploadFile | str) -> Any:
    if isinstance(value, UploadFile):
        content = await value.read()
        return await anyio.to_thread.run_sync(read_bytes, content, value.filename or "the picture")
    if name == "k":
        if not value.isdecimal():
            raise ValueError(f"k must be a whole number from 1 to {MOST}, not {value!r}")
        return int(value)
    return value


def _docs(api: Api, example: str) -> Callable[[Request], Response]:
    """The page of the API; its examples are answers of this server, computed once."""
    lock, kept = threading.Lock(), dict[str, Any]()

    def answer(request: Request) -> Response:
        with lock:
            if not kept:
                kept.update(_examples(api, example, next(iter(api.service.samples()), "")))
        return HTMLResponse(docs_page(str(request.base_url), kept))

    return answer


def _examples(api: Api, sentence: str, image: str) -> dict[str, tuple[str, dict[str, Any], Any]]:
    """What each function is for, an example of its arguments, and what it answers."""
    arguments: dict[str, dict[str, Any]] = {
        "find_images": {"sentence": sentence, "k": 1},
        "find_similar": {"image": image, "sentence": "at night", "k": 1},
        "find_captions": {"image": image, "k": 1},
        "explain": {"image": image, "sentence": sentence},
        "embed": {"sentence": [sentence], "model": api.service.default},
    }
    possible = {"find_captions": bool(api.service.captions), "explain": api.service.gives_reasons()}
    return {
        name: (" ".join((getattr(Api, name).__doc__ or "").split()), given, getattr(api, name)(**given))
        for name, given in arguments.items()
        if possible.get(name, True) and given.get("image", image)
    }
