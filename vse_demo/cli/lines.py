"""Text files that verbs read."""

import sys
from pathlib import Path

from vse_demo.utils.files import FileError


def read_lines(file: Path) -> list[str]:
    """The lines of a file, or of standard input if it is `-`."""
    try:
        return (sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")).splitlines()
    except OSError as error:
        raise FileError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file} cannot be read as text: it is not UTF-8") from error
