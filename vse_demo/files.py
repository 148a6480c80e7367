"""Files that are written whole or not at all, and read with errors that say what is wrong."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class FileError(ValueError):
    """A file or folder that is missing, broken or not what it should be; the message says which and why."""


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that readers, and a crash, see the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes private files; these are ordinary ones
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Fill a new folder in the block; when the block succeeds, it takes the place of `folder`.

    Two renames make the swap. A crash between them leaves the old folder beside its place, and
    `recover_folder` puts it back.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(folder)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.new-"))
    fresh.chmod(0o755)
    try:
        yield fresh
        if folder.exists():
            os.rename(folder, _old(folder))
        os.rename(fresh, folder)
        shutil.rmtree(_old(folder), ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Undo a swap that was cut off half-way."""
    old = _old(folder)
    if old.exists() and not folder.exists():
        os.rename(old, folder)
    shutil.rmtree(old, ignore_errors=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FileError(f"{path} cannot be read as JSON: {error}") from error


def write_json(path: Path, content: Any) -> None:
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")
