"""Files that are written whole or not at all, and read with errors that say what is wrong."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKSUMS = "SHA256SUMS"  # of the files of a saved folder, as `sha256sum --check` reads it
STALE = 600  # seconds after which a temporary file is one that a killed process has left


class FileError(ValueError):
    """A file or folder that is missing, broken or not what it should be; the message says which and why."""


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that readers, and a crash, see the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
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
    old, fresh = _old(folder), _temporary(folder)
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


def recover_folder(folder: Path) -> Path:
    """The folder, or its old content if a crash cut the swap in two."""
    folder = folder.resolve()
    return _old(folder) if _old(folder).is_dir() and not folder.exists() else folder


def write_checksums(folder: Path) -> None:
    """Write down what the files of a folder are like; a text for people may change."""
    files = sorted(path for path in folder.iterdir() if path.suffix != ".md")
    write_atomic(folder / CHECKSUMS, "".join(f"{_digest(path)}  {path.name}\n" for path in files))


def verify_checksums(folder: Path) -> None:
    """Refuse a folder with a file that is not as it was saved; one that was never sealed passes."""
    if not (folder / CHECKSUMS).exists():
        return
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
        changed = [name for digest, name in (line.split("  ", 1) for line in lines) if _digest(folder / name) != digest]
    except (OSError, ValueError) as error:
        raise FileError(f"{folder / CHECKSUMS} cannot be checked: {error}") from error
    if changed:
        raise FileError(
            f"{folder / changed[0]} is not as it was saved: get or make it again (or, if you changed it, delete {CHECKSUMS})"
        )


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, a number without end
        raise FileError(f"{path} cannot be read as JSON: {error}") from error


def write_json(path: Path, content: Any) -> None:
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _temporary(path: Path) -> Path:
    """A new name beside `path`, and none of those that killed processes have left there."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}"):
        with contextlib.suppress(OSError):  # somebody else may be clearing up, too
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
