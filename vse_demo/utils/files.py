"""Files that are written whole or not at all, and read with errors that say what is wrong."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

INSIDE = "vse_demo"  # begins the name of every temporary folder inside a folder
NEW = f".{INSIDE}.new"  # inside a folder: files that are all written and not all in their places yet
CHECKSUMS = "SHA256SUMS"  # of the files of a saved folder, as `sha256sum --check` reads it
STALE = 600  # seconds after which a temporary file is one that a killed process has left


class FileError(ValueError):
    """A file or folder that is missing, broken or not what it should be; the message says which and why."""


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that readers, and a crash, see the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_stale(path)
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
def write_folder(folder: Path, own: Callable[[Path], Collection[str]] = lambda _: ()) -> Iterator[Path]:
    """Write files in a temporary folder; when the block succeeds, they appear in `folder` all together.

    Whatever else is in `folder` stays as it is. A crash leaves the old files or the new ones: the temporary folder is
    finished first, then renamed to `NEW` inside `folder`, where `recover_folder` finds it, and only then do its files
    take their places.

    Args:
        folder: Where the files belong; it is made if it is not there.
        own: Says which names in `folder` are of an earlier save. These are replaced, and those that the checksums
            list and that are not written again are removed.

    Raises:
        FileError: If a file is in the way that is not of an earlier save.
    """
    folder = folder.resolve()  # a link stays a link
    folder.parent.mkdir(parents=True, exist_ok=True)
    for place in (folder, folder / INSIDE):
        _clear_stale(place)
    fresh = _temporary(folder / INSIDE if folder.exists() else folder)
    fresh.mkdir()
    try:
        yield fresh
        if folder.exists():
            _move_in(folder)  # what a crash has left
            old, written = set(own(folder)), {path.name for path in fresh.iterdir()}
            outdated = (old & _listed(folder)) - written
            _refuse_to_overwrite([folder / name for name in sorted(written)], old)
            os.rename(fresh, folder / NEW)
            _move_in(folder)
            for name in outdated:
                (folder / name).unlink(missing_ok=True)
        else:
            os.rename(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def recover_folder(folder: Path) -> Path:
    """The folder to read: `folder` itself, or new files inside it if a crash kept them from their places."""
    folder = folder.resolve()
    return folder / NEW if (folder / NEW).is_dir() else folder


def saved_files(folder: Path, names: Collection[str], is_ours: Callable[[Path], bool]) -> set[str]:
    """Which names in a folder are files of an earlier save: all of them, or none.

    Args:
        folder: Any folder.
        names: Of the files that such a save writes.
        is_ours: Tells a saved folder by its content. One with a broken file is still known by its checksums.
    """
    listed = _listed(folder)
    return set(names) if (listed and listed <= set(names)) or is_ours(folder) else set()


def write_checksums(folder: Path) -> None:
    """Write down what the files of a folder are like; a text for people may change."""
    files = sorted(path for path in folder.iterdir() if path.suffix != ".md")
    write_atomic(folder / CHECKSUMS, "".join(f"{_digest(path)}  {path.name}\n" for path in files))


def verify_checksums(folder: Path) -> None:
    """Refuse a folder with a file that is not as it was saved; one without checksums passes."""
    if not (folder / CHECKSUMS).exists():
        return
    try:
        changed = [name for name, digest in _read_checksums(folder).items() if _digest(folder / name) != digest]
    except (OSError, ValueError) as error:
        raise FileError(f"{folder / CHECKSUMS} cannot be checked: {error}") from error
    if changed:
        raise FileError(
            f"{folder / changed[0]} is not as it was saved: get or make it again "
            f"(or, if you changed it, delete {CHECKSUMS})"
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


def _move_in(folder: Path) -> None:
    """Put the files in `NEW` into their places. They stay in `NEW` until all are there."""
    new = folder / NEW
    if not new.is_dir():
        return
    for path in sorted(new.iterdir()):
        _clear_stale(folder / path.name)
        copy = _temporary(folder / path.name)
        try:
            try:
                os.link(path, copy)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, copy)
            os.replace(copy, folder / path.name)
        finally:
            copy.unlink(missing_ok=True)  # a name is left over if the file was in its place already
    done = _temporary(folder / INSIDE)
    os.rename(new, done)
    shutil.rmtree(done, ignore_errors=True)


def _refuse_to_overwrite(paths: Iterable[Path], own: Collection[str]) -> None:
    for path in paths:
        if os.path.lexists(path) and (path.name not in own or (path.is_dir() and not path.is_symlink())):
            raise FileError(f"{path} was not saved by this program: choose another folder, or move it away")


def _read_checksums(folder: Path) -> dict[str, str]:
    """The digest of each file that the checksums list."""
    lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _listed(folder: Path) -> set[str]:
    """The files that the checksums list; none if they cannot be read."""
    try:
        return set(_read_checksums(folder))
    except (OSError, ValueError):
        return set()


def _temporary(path: Path) -> Path:
    """A new name beside `path`."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _clear_stale(path: Path) -> None:
    """Remove the temporary names beside `path` that killed processes have left."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}"):
        with contextlib.suppress(OSError):  # somebody else may be clearing up, too
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
