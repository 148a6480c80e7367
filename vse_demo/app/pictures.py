"""The pictures of the collection over HTTP: `pictures/NAME`, smaller with `?size=`, as it is with `?file`.

Nothing is looked up in the file system: a name that the service does not know is not found.
"""

import hashlib
import io
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from vse_demo.app.html.markup import unpack_text
from vse_demo.app.service import Service
from vse_demo.data.images import ImageFile, read_image
from vse_demo.utils.files import FileError

SIZES = (220, 480, 640, 1280)  # of the longer side, in pixels; those that the page asks for
KEPT = 1000  # small pictures in memory, about 30 kB each
AT_A_TIME = 2  # pictures that are decoded; each can take hundreds of megabytes for a moment
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}  # a picture is asked for anew, by its tag


def picture_routes(service: Service) -> list[Route]:
    """The routes of a collection's pictures, for the web server."""
    shrink = lru_cache(KEPT)(_shrink)
    turn = threading.BoundedSemaphore(AT_A_TIME)

    def answer(request: Request) -> Response:
        try:
            file = service.file(unpack_text(request.scope["raw_path"].split(b"/pictures/", 1)[1].decode("ascii")))
            tag = _tag(file, request.url.query)
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers={"ETag": tag})
            with turn:
                return _respond(request, file, shrink, {**HEADERS, "ETag": tag})
        except FileError as error:
            return PlainTextResponse(str(error), 404)
        except (ValueError, OSError):
            return PlainTextResponse("There is no such picture.", 404)

    return [Route("/pictures/{name:path}", answer, methods=["GET"])]


def _respond(request: Request, file: ImageFile, shrink: Callable[..., bytes], headers: dict[str, str]) -> Response:
    if "file" in request.query_params:
        headers["Content-Disposition"] = "attachment"  # never shown as a page, whatever it holds
        return Response(file.read_bytes(), media_type="application/octet-stream", headers=headers)
    size = request.query_params.get("size", str(SIZES[-1]))
    if size not in map(str, SIZES):
        return PlainTextResponse(f"size must be one of {', '.join(map(str, SIZES))}, not {size!r}", 400)
    return Response(shrink(file, headers["ETag"], int(size)), media_type="image/jpeg", headers=headers)


def _shrink(file: ImageFile, tag: str, size: int) -> bytes:
    """A picture as JPEG; `tag` changes when its file does."""
    image, stream = read_image(file), io.BytesIO()
    image.thumbnail((size, size))
    image.save(stream, "JPEG", quality=82)
    return stream.getvalue()


def _tag(file: Any, query: str) -> str:
    info = file.root.getinfo(file.at) if hasattr(file, "root") and hasattr(file, "at") else file.stat()
    state = (info.CRC, info.file_size) if hasattr(info, "CRC") else (info.st_mtime_ns, info.st_size)
    return f'"{hashlib.blake2b(repr((str(file), state, query)).encode(), digest_size=12).hexdigest()}"'
