"""How a gallery lies in a folder: shards that only grow, and `gallery.json`, which says how much of them counts.

A shard is five files. `images.f16` and `captions.f16` hold one vector a row, in half precision; `entries.jsonl` has a
line of JSON for each image, with its name, digest and captions; `ends.i64` says for each image where its line and its
captions end, so that one can be read without the others; `deleted.i64` lists the rows that no longer count. All of
them are mapped rather than read, and written at their ends only: first the files, then `gallery.json` in one step,
with the new lengths and checksums. A process that is killed in between has changed nothing: what lies beyond the
lengths is cut off by the next one that writes. Readers keep what they have opened.
"""

import contextlib
import copy
import hashlib
import json
import mmap
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vse_demo.retrieval.entries import Entry, Where, matches
from vse_demo.utils.files import FileError, read_json, write_atomic

FORMAT = 3
MANIFEST = "gallery.json"
KINDS = ("images.f16", "captions.f16", "entries.jsonl", "ends.i64", "deleted.i64")
SHARD_IMAGES = 2**18  # after so many a new shard is begun: 256 MB of vectors at 512 dimensions
CHECKED_BYTES = 2**26  # a shard up to this size is checked whenever it is opened, a larger one only when asked


@dataclass(frozen=True)
class ShardInfo:
    """What `gallery.json` says of a shard."""

    number: int
    images: int = 0
    captions: int = 0
    text: int = 0  # bytes of the entries
    deleted: int = 0
    checksums: dict[str, int] = field(default_factory=dict)  # CRC-32 of each file, as far as it counts

    def file(self, folder: Path, kind: str) -> Path:
        return folder / f"shard-{self.number:04}.{kind}"

    def sizes(self, dim: int) -> dict[str, int]:
        """How many bytes of each file count."""
        sizes = (2 * dim * self.images, 2 * dim * self.captions, self.text, 16 * self.images, 8 * self.deleted)
        return dict(zip(KINDS, sizes, strict=True))


class Part:
    """Some images of a gallery with their captions; rows are counted from 0, deleted ones included.

    Args:
        images: Vectors (I, D).
        captions: Vectors (C, D).
        ends: (I,), where the captions of each image end.
        deleted: Rows of images that do not count, ascending.
    """

    def __init__(self, images: Any, captions: Any, ends: np.ndarray, deleted: np.ndarray):
        self.images, self.captions, self.ends, self.deleted = images, captions, ends, deleted

    def entry(self, row: int) -> Entry:
        """The image of a row."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.ends) - len(self.deleted)

    @cached_property
    def live(self) -> np.ndarray:
        """The rows that count."""
        return np.delete(np.arange(len(self.ends)), self.deleted)

    @cached_property
    def deleted_captions(self) -> np.ndarray:
        """The captions that do not count, ascending."""
        return self.captions_of(self.deleted)

    def captions_of(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of the captions of images."""
        if not len(rows):
            return np.empty(0, np.int64)
        begins = np.where(rows > 0, self.ends[rows - 1], 0)
        counts = self.ends[rows] - begins
        before = np.cumsum(counts) - counts  # captions of the images before each
        return np.repeat(begins - before, counts) + np.arange(counts.sum())

    def caption_range(self, row: int) -> tuple[int, int]:
        """The numbers of the first caption of an image, and of the one after its last."""
        return int(self.ends[row - 1]) if row else 0, int(self.ends[row])

    def count_captions(self) -> int:
        return (int(self.ends[-1]) if len(self.ends) else 0) - len(self.deleted_captions)

    def live_entries(self) -> Iterator[tuple[int, Entry]]:
        """The rows that count, with their images."""
        for row in self.live.tolist():
            yield row, self.entry(row)

    def without(self, rows: np.ndarray) -> "Part":
        """The same with more rows deleted, here and nowhere else."""
        other = copy.copy(self)
        other.deleted = np.union1d(self.deleted, rows)
        for name in ("live", "deleted_captions"):
            other.__dict__.pop(name, None)
        return other

    def hidden(self, where: Where | None) -> np.ndarray:
        """The rows that a search may not find."""
        if not where:
            return self.deleted
        shown = [row for row, entry in self.live_entries() if matches(entry, where)]
        return np.delete(np.arange(len(self.ends)), np.array(shown, np.int64))


class MemoryPart(Part):
    """A part in memory: tensors, in any precision, and a list of images."""

    def __init__(self, entries: Sequence[Entry], images: Any, captions: Any):
        ends = np.cumsum([len(entry.captions) for entry in entries], dtype=np.int64)
        super().__init__(images, captions, ends, np.empty(0, np.int64))
        self._entries = entries

    def entry(self, row: int) -> Entry:
        return self._entries[row]


class Shard(Part):
    """A part in the files of a folder, mapped.

    Args:
        folder: Of the gallery.
        info: How much of the files counts.
        dim: Dimensions of the vectors.
        check: Whether to compare the files with their checksums; by default small ones are.

    Raises:
        FileError: If a file is missing, too short or not as it was saved.
    """

    def __init__(self, folder: Path, info: ShardInfo, dim: int, check: bool | None = None):
        self.info = info
        maps = {kind: _map_file(info.file(folder, kind), size) for kind, size in info.sizes(dim).items()}
        if check or (check is None and sum(info.sizes(dim).values()) <= CHECKED_BYTES):
            for kind, content in maps.items():
                if zlib.crc32(content) != info.checksums.get(kind, 0):
                    raise FileError(f"{info.file(folder, kind)} is not as it was saved: index it again")
        images, captions, self._text, ends, deleted = maps.values()
        self._ends = np.frombuffer(ends, np.int64).reshape(-1, 2)
        of_images, of_captions = (np.frombuffer(each, np.float16).reshape(-1, dim) for each in (images, captions))
        super().__init__(of_images, of_captions, self._ends[:, 1], np.unique(np.frombuffer(deleted, np.int64)))
        if info.images and tuple(self._ends[-1]) != (info.text, info.captions):
            raise FileError(f"{info.file(folder, 'ends.i64')} does not fit gallery.json: index it again")

    def entry(self, row: int) -> Entry:
        start = int(self._ends[row - 1, 0]) if row else 0
        try:
            return Entry.from_dict(json.loads(bytes(self._text[start : int(self._ends[row, 0])])))
        except (ValueError, TypeError) as error:
            raise FileError(f"line {row} of the entries of a gallery cannot be read: {error}") from error


def _map_file(path: Path, size: int) -> Any:
    """The first bytes of a file, mapped; nothing if none count."""
    if size == 0:  # the file may not even be there
        return b""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < size:
                raise FileError(f"{path} is shorter than it was saved: index it again")
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise FileError(f"{path} is missing: index it again") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Manifest:
    """The content of `gallery.json`: whose vectors these are, and how much of the shards counts."""

    model: str  # its fingerprint
    dim: int
    models: tuple[str, ...] = ()  # names or folders of the model, for those who only know the gallery
    shards: tuple[ShardInfo, ...] = ()
    last: int = 0  # the highest number that a shard has had: none is used twice

    def write(self, folder: Path) -> None:
        """Make this the state of a folder, in one step."""
        content = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        write_atomic(folder / MANIFEST, json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The state of a folder.

        Raises:
            FileError: If there is none, or it is broken, or of another version.
        """
        path = folder / MANIFEST
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise FileError(f"{path} is not a gallery of format {FORMAT}: index it again with this version")
        if content.pop("checksum", None) != _checksum({"format": FORMAT, **content}):
            raise FileError(f"{path} is not as it was saved: index it again")
        try:
            shards = tuple(ShardInfo(**shard) for shard in content.pop("shards"))
            return cls(**{**content, "models": tuple(content["models"])}, shards=shards)
        except (TypeError, KeyError) as error:
            raise FileError(f"{path} is not a gallery: {error!r}") from error


def gallery_format(folder: Path) -> int:
    """The format of the gallery in a folder, which may be broken; 0 if there is none.

    Raises:
        FileError: If there is a `gallery.json` that is not of a gallery.
    """
    path = folder / MANIFEST
    if not path.exists():
        return 0
    try:
        content = read_json(path)
    except FileError:
        content = None
    form = content.get("format") if isinstance(content, dict) else None
    if form is None and any(map(_is_shard, folder.iterdir())):
        form = FORMAT  # a broken one
    if form not in (2, FORMAT):
        raise FileError(f"{path} was not saved by this program: choose another folder, or move it away")
    return int(form)


def _is_shard(path: Path) -> bool:
    return bool(re.fullmatch(rf"shard-\d{{4,}}\.({'|'.join(map(re.escape, KINDS))})", path.name))


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Changes:
    """Changes to the shards of a folder, which count when `commit` is called; else nothing has happened.

    Only the holder of the gallery's lock may make them.

    Args:
        folder: Of the gallery.
        manifest: Its state.
        dim: Dimensions of the vectors that are added.
    """

    def __init__(self, folder: Path, manifest: Manifest, dim: int):
        self.folder, self.manifest, self.dim, self.last = folder, manifest, dim, manifest.last
        self.shards = {info.number: info for info in manifest.shards}

    def __enter__(self) -> "Changes":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:  # what was appended is cut off again, as far as that is possible
            with contextlib.suppress(OSError):
                tidy(self.folder, self.manifest)

    def append(self, entries: Sequence[Entry], images: np.ndarray, captions: np.ndarray) -> None:
        """Add images, with their vectors and those of their captions."""
        start, first_caption = 0, 0
        while start < len(entries):
            info = self._open_shard()
            stop = min(len(entries), start + SHARD_IMAGES - info.images)
            some = entries[start:stop]
            last_caption = first_caption + sum(len(entry.captions) for entry in some)
            self._append(info, some, images[start:stop], captions[first_caption:last_caption])
            start, first_caption = stop, last_caption

    def delete(self, number: int, rows: np.ndarray) -> None:
        """Let rows of a shard count no longer."""
        info = self.shards[number]
        sums = self._extend(info, {"deleted.i64": rows.astype(np.int64).tobytes()})
        self.shards[number] = replace(info, deleted=info.deleted + len(rows), checksums=sums)

    def drop(self, number: int) -> None:
        """Let a whole shard count no longer."""
        del self.shards[number]

    def begin_shard(self) -> None:
        """What is appended from now on goes into a new shard."""
        self.last += 1
        self.shards[self.last] = ShardInfo(self.last)

    def commit(self, **more: Any) -> Manifest:
        """Make the changes count, and others of the manifest with them."""
        shards = tuple(info for info in self.shards.values() if info.images > info.deleted)
        dropped = {info.number for info in self.manifest.shards} - {info.number for info in shards}
        manifest = replace(self.manifest, shards=shards, last=self.last, **more)
        manifest.write(self.folder)
        self.manifest = manifest
        if dropped:
            tidy(self.folder, manifest)
        return manifest

    def _open_shard(self) -> ShardInfo:
        last = max(self.shards, default=None)
        if last is None or self.shards[last].images >= SHARD_IMAGES:
            self.begin_shard()
            last = max(self.shards)
        return self.shards[last]

    def _append(self, info: ShardInfo, entries: Sequence[Entry], images: np.ndarray, captions: np.ndarray) -> None:
        lines = [json.dumps(entry.as_dict()).encode() + b"\n" for entry in entries]
        ends = np.stack(
            [
                info.text + np.cumsum([len(line) for line in lines], dtype=np.int64),
                info.captions + np.cumsum([len(entry.captions) for entry in entries], dtype=np.int64),
            ],
            axis=1,
        )
        sums = self._extend(
            info,
            {
                "images.f16": images.tobytes(), "captions.f16": captions.tobytes(),
                "entries.jsonl": b"".join(lines), "ends.i64": ends.tobytes(),
            },
        )  # fmt: skip
        self.shards[info.number] = replace(
            info, images=info.images + len(entries), captions=int(ends[-1, 1]), text=int(ends[-1, 0]), checksums=sums
        )

    def _extend(self, info: ShardInfo, contents: dict[str, bytes]) -> dict[str, int]:
        """Write at the ends of files, where they count; return the new checksums."""
        sizes, sums = info.sizes(self.dim), dict(info.checksums)
        for kind, content in contents.items():
            if not content:
                continue
            path = info.file(self.folder, kind)
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.truncate(sizes[kind])
                file.seek(sizes[kind])
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sums[kind] = zlib.crc32(content, sums.get(kind, 0))
        return sums


def tidy(folder: Path, manifest: Manifest) -> None:
    """Remove from a gallery's folder what killed processes and dropped shards have left."""
    sizes = {
        info.file(folder, kind): size for info in manifest.shards for kind, size in info.sizes(manifest.dim).items()
    }
    for path in filter(_is_shard, folder.iterdir()):
        if sizes.get(path, 0) == 0:
            path.unlink(missing_ok=True)
        elif path.stat().st_size > sizes[path]:
            os.truncate(path, sizes[path])
