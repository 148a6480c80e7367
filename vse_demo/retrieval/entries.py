"""What a store keeps of an image besides its vectors, what a search finds, and filters."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Value = str | int | float | bool
Where = Mapping[str, Value | tuple[Value | None, Value | None]]
"""A filter: what a search may find. `{"split": "test", "folder": "holidays", "date": ("2024-01-01", None)}` is all
images of one split, of one folder and its subfolders, and of a range of dates, both ends included. Besides `split`,
`folder`, `source` and `name` any key of an entry's metadata can be given; an image without it is not found."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An image of a store, known by the digest of its content, with its captions."""

    digest: str
    name: str
    captions: tuple[str, ...] = ()
    source: str = ""  # the folder that it was read from
    path: str = ""  # of its file, below the source
    split: str = ""
    metadata: Mapping[str, Value] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Where its file is, as far as it is known; else its name."""
        return os.path.join(self.source, self.path) if self.path else self.name

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold; empty fields are left out."""
        content = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in content.items() if value}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Entry":
        """The reverse of `as_dict`."""
        return cls(**{**content, "captions": tuple(content.get("captions", ()))})


@dataclass(frozen=True)
class Hit:
    """One result of a search."""

    index: int  # its number in the store, among images or among captions
    item: str  # the image's name, or the caption
    score: float  # the cosine
    name: str = ""  # of the image, or of the caption's image
    file: str = ""  # of that image, or its name where the file is not known
    digest: str = ""  # of that image


def matches(entry: Entry, where: Where) -> bool:
    """Whether a filter lets an image through.

    >>> matches(Entry("0", "zoo/cat.jpg", split="test"), {"folder": "zoo", "split": "test"})
    True
    >>> matches(Entry("0", "zoo/cat.jpg", metadata={"date": "2024-05-01"}), {"date": ("2024-06-01", None)})
    False
    """
    return all(_matches(entry, key, wanted) for key, wanted in where.items())


def _matches(entry: Entry, key: str, wanted: Any) -> bool:
    if key == "folder":
        return Path(entry.name).is_relative_to(wanted)
    fields = {"split": entry.split, "name": entry.name, "source": entry.source}
    value = fields.get(key, entry.metadata.get(key))
    if not isinstance(wanted, tuple):
        return bool(value == wanted)
    low, high = wanted
    try:
        return value is not None and (low is None or value >= low) and (high is None or value <= high)
    except TypeError:  # a number and a word have no order
        return False


def escape_path(path: str) -> str:
    r"""A path as text in UTF-8: bytes of a file's name that are none are spelt out; see `unescape_path`.

    >>> escape_path("caf\udce9.jpg") == r"caf\udce9.jpg"
    True
    """
    return re.sub(r"\\(?=u[0-9a-f]{4})|[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", path)


def unescape_path(text: str) -> str:
    """The reverse of `escape_path`."""
    return re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)
