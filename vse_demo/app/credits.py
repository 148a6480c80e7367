"""Who made a picture, under which licence, and where it came from: `ATTRIBUTION.csv` beside the pictures."""

import csv
from dataclasses import dataclass
from pathlib import Path

from vse_demo.utils.files import FileError
from vse_demo.utils.text import sanitize_text

FILE = "ATTRIBUTION.csv"


@dataclass(frozen=True)
class Credit:
    """What a picture's author asks to be told with it."""

    title: str
    author: str
    licence: str
    source: str  # an address, or where it was found
    changes: str

    @property
    def link(self) -> str:
        """The source, if a browser can follow it; other addresses (`javascript:`) are shown as text only."""
        return self.source if self.source.startswith(("https://", "http://")) else ""


def read_credits(folder: Path) -> dict[str, Credit]:
    """Read `ATTRIBUTION.csv` (file, title, author, licence, source, changes); nothing if the folder has none.

    Raises:
        FileError: It is there and is no such table.
    """
    path = folder / FILE
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
        return {
            row["file"]: Credit(
                *(sanitize_text(row[key] or "") for key in ("title", "author", "licence", "source", "changes"))
            )
            for row in rows
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise FileError(f"{path} is no table of file, title, author, licence, source and changes: {error!r}") from error
