"""Results as programs and downloads get them: plain rows, each picture with its address and its credit."""

import dataclasses
from typing import Any

from vse_demo.app.credits import Credit
from vse_demo.app.html.markup import picture_url
from vse_demo.app.service import Photo, SearchResult, Service

FIELDS = [field.name for field in dataclasses.fields(Credit)]


def image_row(service: Service, result: SearchResult, base: str = "") -> dict[str, Any]:
    """A picture that was found: name, score, whether it is the right one, path, address, captions, credit.

    Args:
        service: That found it.
        result: What it found.
        base: Address of the app, with a slash at its end; without it, addresses are relative.
    """
    photo = service.photo(result.item)
    return {
        **_scored(result),
        "file": photo.path,  # not "path": Gradio's clients would take the row for a file and fetch it
        "url": base + picture_url(result.item),
        "captions": list(photo.captions),
        **_credit(photo),
    }


def caption_row(service: Service, result: SearchResult, base: str = "") -> dict[str, Any]:
    """A caption that was found: its text, score, whether it is a right one, the picture it was written for, credit."""
    return {**_scored(result), **picture_row(service, result.picture, base)}


def picture_row(service: Service, name: str, base: str = "") -> dict[str, Any]:
    """The picture that something is about: name, address, credit."""
    return {"picture": name, "url": base + picture_url(name), **_credit(service.photo(name))}


def _scored(result: SearchResult) -> dict[str, Any]:
    return {"item": result.item, "score": round(result.score, 4), "right": result.right}


def _credit(photo: Photo) -> dict[str, Any]:
    return {field: getattr(photo.credit, field, None) for field in FIELDS}
