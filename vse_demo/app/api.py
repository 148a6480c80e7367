"""For programs: five functions with plain arguments and JSON answers, for Gradio's API, for MCP and over plain HTTP.

Arguments are checked here, once for all ways: whoever calls gets an answer or a sentence that says what is wrong.
"""

import base64
import binascii
import functools
import inspect
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import Image

from vse_demo.app.guard import as_text, check_original
from vse_demo.app.html.results import MOST
from vse_demo.app.queries import Query
from vse_demo.app.rows import caption_row, image_row, picture_row
from vse_demo.app.service import SearchResult, Service
from vse_demo.data.images import read_image
from vse_demo.utils.files import FileError

MAX_BATCH = 64  # sentences or images in one request
Sentences = str | list[str]
Pictures = str | dict[str, Any] | list[str] | list[dict[str, Any]]  # Gradio describes an upload by a dict


class Api:
    """The five functions over one service. `base` is the address of the app, with which those of pictures begin.

    What a search is given first, and both sentences and images of `embed`, can be lists: a list of answers comes back.
    """

    def __init__(self, service: Service):
        self.service = service

    def find_images(self, sentence: Sentences, model: str = "", k: int = 5, base: str = "") -> list[Any]:
        """Find the k pictures nearest to an English sentence: name, cosine, whether it is the right one, path, address,
        captions, author, licence and source, and whether anything is close."""
        k, model = self.check_k(k), self.check_model(model)
        return _each(sentence, lambda each: self.images(self.service.ask(_text(each), None, model), k, base))

    def find_similar(
        self, image: Pictures, sentence: str = "", model: str = "", k: int = 5, base: str = ""
    ) -> list[Any]:
        """Find the k pictures nearest to a picture, or to a picture and a sentence together ("at night")."""
        k, model, text = self.check_k(k), self.check_model(model), _text(sentence)
        return _each(image, lambda each: self.images(self.service.ask(text, self.picture(each), model), k, base))

    def find_captions(self, image: Pictures, model: str = "", k: int = 5, base: str = "") -> list[Any]:
        """Find the k captions nearest to a picture: caption, cosine, whether it is a right one, its picture with
        author, licence and source."""
        k, model = self.check_k(k), self.check_model(model)

        def captions(each: Any) -> list[dict[str, Any]]:
            query = self.service.encode_image(self.picture(each), model)
            found = self.service.find_captions(query, k)
            close = self.is_close(query, found, "i2t")
            return [{**caption_row(self.service, result, base), "close": close} for result in found]

        return _each(image, captions)

    def explain(self, image: str | dict[str, Any], sentence: str, model: str = "", base: str = "") -> dict[str, Any]:
        """Split the cosine of a picture and a sentence over words and over the picture's grid of cells; of a picture of
        the collection also name, author, licence and source."""
        model = self.check_model(model)
        text = self.service.encode_text(_text(sentence), model)
        why = self.service.explain(self.service.encode_image(self.picture(image), model), text)
        words = [{"word": word, "part": part} for word, part in zip(why.words, why.parts.tolist(), strict=True)]
        known = isinstance(image, str) and image in self.service.files
        about = picture_row(self.service, str(image), base) if known else {}
        return {"score": why.score, **about, "words": words, "rest": why.rest, "cells": why.heat_map.tolist()}

    def embed(self, sentence: Sentences = "", image: Pictures = "", model: str = "") -> dict[str, Any]:
        """Encode sentences, pictures or both as unit vectors of one space: their dot products are cosines."""
        model = self.check_model(model)
        if _is_left_out(sentence) and _is_left_out(image):
            raise ValueError("Give a sentence, an image, or both")

        def text(each: Any) -> list[float]:
            return self.service.encode_text(_text(each), model).vector[0].tolist()

        def picture(each: Any) -> list[float]:
            return self.service.encode_image(self.picture(each), model).vector[0].tolist()

        answer: dict[str, Any] = {"model": model, "dim": self.service.gallery(model).model.dim}
        if not _is_left_out(sentence):
            answer["sentence"] = _each(sentence, text)
        if not _is_left_out(image):
            answer["image"] = _each(image, picture)
        return answer

    def images(self, query: Any, k: int, base: str) -> list[dict[str, Any]]:
        found = self.service.find_images(query, k)
        close = self.is_close(query, found)
        return [{**image_row(self.service, result, base), "close": close} for result in found]

    def is_close(self, query: Query, found: Sequence[SearchResult], way: str = "t2i") -> bool | None:
        far = self.service.is_far(query, found, way)
        return None if far is None else not far

    def check_model(self, model: Any) -> str:
        names = list(self.service.sources)
        if _is_left_out(model):
            return self.service.default
        if not isinstance(model, str):
            raise ValueError(f"model must be text, not {_kind(model)}")
        if model not in names:
            raise ValueError(f"unknown model {model!r}; choose one of {', '.join(names)}")
        return model

    def check_k(self, k: int) -> int:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MOST:
            raise ValueError(f"k must be a whole number from 1 to {MOST}, not {k!r}")
        return k

    def picture(self, given: Any) -> Image.Image:
        """An image: the name of one of the collection, `data:image/…;base64,…`, or an upload."""
        if isinstance(given, Image.Image):
            return given
        if isinstance(given, str) and given.startswith("data:"):
            return _decode_url(given)
        if isinstance(given, str) and given:
            return read_image(self.service.file(given))
        if isinstance(given, dict):
            return _read_upload(given)
        if _is_left_out(given):
            raise ValueError("Give a picture first")
        raise ValueError(f"image must be the name of a picture, a data: address or a file, not {_kind(given)}")


def _each(given: Any, function: Callable[[Any], Any]) -> Any:
    """The answer for one item, or a list of answers for a list of them."""
    if not isinstance(given, list):
        return function(given)
    if not 1 <= len(given) <= MAX_BATCH:
        raise ValueError(f"a list must have 1 to {MAX_BATCH} items, not {len(given)}")
    return [function(each) for each in given]


def _is_left_out(given: Any) -> bool:
    """Whether an argument is not given; other values that are empty, such as a list of nothing, are mistakes."""
    return given is None or given == ""


def _text(given: Any) -> str:
    if _is_left_out(given):
        return ""
    if not isinstance(given, str):
        raise ValueError(f"sentence must be text, not {_kind(given)}")
    return given


def _kind(value: Any) -> str:
    names = {"list": "a list", "dict": "an object", "bool": "true or false", "Image": "a picture"}
    return names.get(type(value).__name__, "a number")


def _read_upload(upload: dict[str, Any]) -> Image.Image:
    path = upload.get("path")
    file = Path(path) if isinstance(path, str) else Path()
    try:
        known = file.resolve().is_relative_to(Path(get_upload_folder()).resolve())
    except ValueError:  # it has a null byte, or half a sign
        known = False
    if not known:
        raise FileError("Upload the picture as a file")
    return read_image(file)


def _decode_url(address: str) -> Image.Image:
    head, _, data = address.partition(",")
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        content = b""
    if not content or not head.endswith(";base64"):
        raise FileError("a data: address must be data:image/…;base64,… with the bytes of a picture")
    return read_bytes(content, "the picture")


def read_bytes(content: bytes, name: str) -> Image.Image:
    """Decode an image with all limits of `read_image`; `name` is what errors call it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "picture"
        file.write_bytes(content)
        try:
            return read_image(file)
        except FileError as error:
            raise FileError(str(error).replace(file.name, name, 1)) from error


def add_endpoints(service: Service) -> None:
    """Give the five functions to Gradio's API and to MCP.

    Raises:
        RuntimeError: Gradio checks arguments in another way than `StrictBlocks` expects.
    """
    check_original(gr.Blocks, "validate_inputs", "wrong arguments would be taken without a word")
    api = Api(service)
    for name, function in endpoints(api).items():
        gr.api(function, api_name=name)


def endpoints(api: Api) -> dict[str, Callable[..., Any]]:
    """The functions by name, as Gradio calls them: with a request, which tells the address of the app."""

    def find_images(request: gr.Request, sentence: Sentences, model: str = "", k: int = 5) -> list[Any]:
        return api.find_images(sentence, model, k, base_of(request))

    def find_similar(
        request: gr.Request, image: Pictures, sentence: str = "", model: str = "", k: int = 5
    ) -> list[Any]:
        return api.find_similar(image, sentence, model, k, base_of(request))

    def find_captions(request: gr.Request, image: Pictures, model: str = "", k: int = 5) -> list[Any]:
        return api.find_captions(image, model, k, base_of(request))

    def explain(request: gr.Request, image: str | dict[str, Any], sentence: str, model: str = "") -> dict[str, Any]:
        return api.explain(image, sentence, model, base_of(request))

    def embed(sentence: Sentences = "", image: Pictures = "", model: str = "") -> dict[str, Any]:
        return api.embed(sentence, image, model)

    functions = (find_images, find_similar, find_captions, explain, embed)
    for function in functions:
        function.__doc__ = " ".join((getattr(Api, function.__name__).__doc__ or "").split())
    return {function.__name__: user_errors(function) for function in functions}


def base_of(request: gr.Request) -> str:
    """The address of the app, as the caller knows it."""
    address = getattr(request.request, "base_url", None) if request and request.request else None
    return str(address) if address else ""


class StrictBlocks(gr.Blocks):
    """A page whose functions for programs take what they say: what has a default can be left out, no more is taken."""

    def validate_inputs(self, block_fn: Any, inputs: list[Any]) -> None:
        """Check the arguments of a call and add those that are left out."""
        if block_fn.fn is not None and getattr(block_fn.fn, "for_programs", False):
            parameters = inspect.signature(block_fn.fn).parameters.values()
            known = [each for each in parameters if each.name != "request"]
            names = ", ".join(each.name for each in known)
            if len(inputs) > len(known):
                raise as_text(ValueError(f"this takes {len(known)} arguments ({names}), not {len(inputs)}"))
            for missing in known[len(inputs) :]:
                if missing.default is inspect.Parameter.empty:
                    raise as_text(ValueError(f"the argument '{missing.name}' is missing; this takes {names}"))
                inputs.append(missing.default)
        super().validate_inputs(block_fn, inputs)


def user_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tell callers what is wrong with their arguments; other errors are bugs, and are not told."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ValueError, FileNotFoundError) as error:  # FileError is a ValueError
            raise as_text(error) from error

    call.for_programs = True  # type: ignore[attr-defined]
    return call
