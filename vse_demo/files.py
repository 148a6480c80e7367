"""Files that are written whole or not at all, and read with errors that say what is wrong."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class FileError(ValueError):
    """A file or folder that is missing, broken or not what it should be; the message says which and why."""


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that readers, and a crash, see the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Fill a new folder in the block; when the block succeeds, it takes the place of `folder`.

    Two renames make the swap. A crash between them leaves the old folder beside its place, where
    `whole_folder` finds it.
    """
    folder = folder.resolve()  # a link stays a link
    folder.parent.mkdir(parents=True, exist_ok=True)
    old, fresh = _old(folder), folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    fresh.mkdir()
    try:
        yield fresh
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(folder, old)
        os.rename(fresh, folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def whole_folder(folder: Path) -> Path:
    """The folder, or its old content if a crash cut the swap in two."""
    folder = folder.resolve()
    return _old(folder) if _old(folder).is_dir() and not folder.exists() else folder


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
