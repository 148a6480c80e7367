"""A gallery: images and captions as unit vectors, searched exactly and both ways, in memory or in a folder."""

import contextlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from vse_demo.data.layouts import CaptionedImages
from vse_demo.model.names import lasting_name
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.entries import Entry, Hit, Where
from vse_demo.retrieval.exact import top_k_of_parts
from vse_demo.retrieval.format2 import FILES as OLD_FILES
from vse_demo.retrieval.format2 import FORMAT as OLD_FORMAT
from vse_demo.retrieval.format2 import read_format_2
from vse_demo.retrieval.shards import (
    FORMAT,
    MANIFEST,
    Changes,
    Manifest,
    MemoryPart,
    Part,
    Shard,
    gallery_format,
    tidy,
)
from vse_demo.retrieval.store import Store, check_k
from vse_demo.utils.files import NEW, FileError, read_json, recover_folder
from vse_demo.utils.tensors import l2_normalize

LOCK = "gallery.lock"
ROWS = 4096  # images that are copied at a time
MANY_PARTS = 64  # in memory; then they are made one
VIEWS = ("names", "digests", "captions", "image_ids", "image_vectors", "caption_vectors")


class Gallery(Store):
    """Images and captions that a model has encoded.

    `Gallery(model)` is empty and in memory. `Gallery.open` is one in a folder: every change is written at once, and
    vectors are mapped in half precision, so that millions need little memory. `Gallery.load` looks at such a folder
    without changing it, and `save` writes one.

    Args:
        model: What encoded the vectors, and encodes queries.
        names: Of the images.
        digests: Of their contents.
        captions: Sentences.
        image_ids: (C,), the image of each caption.
        image_vectors: (I, D).
        caption_vectors: (C, D).
        root: The folder where the images are files of their names, if there is one.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        names: Sequence[str] = (),
        digests: Sequence[str] = (),
        captions: Sequence[str] = (),
        image_ids: np.ndarray | None = None,
        image_vectors: Tensor | None = None,
        caption_vectors: Tensor | None = None,
        root: Path | None = None,
    ):
        self.model = model
        self.folder: Path | None = None  # where changes are written
        self._manifest = Manifest(model.fingerprint(), model.dim)
        self._parts: dict[int, Part] = {}
        if len(names) and image_ids is not None and image_vectors is not None and caption_vectors is not None:
            order = np.argsort(image_ids, kind="stable")
            of_image: list[list[str]] = [[] for _ in names]
            for number in order.tolist():
                of_image[image_ids[number]].append(captions[number])
            source = str(root) if root else ""
            entries = [
                Entry(digest, name, tuple(texts), source, name if root else "")
                for digest, name, texts in zip(digests, names, of_image, strict=True)
            ]
            self._parts[1] = MemoryPart(entries, image_vectors, caption_vectors[torch.from_numpy(order)])

    @classmethod
    def build(cls, model: EmbeddingModel, data: CaptionedImages, progress: bool = True) -> "Gallery":
        """Encode a whole split into a new gallery."""
        gallery = cls(model)
        gallery.add(data, progress)
        return gallery

    @classmethod
    def load(cls, folder: str | Path, model: EmbeddingModel, check: bool | None = None) -> "Gallery":
        """Read a gallery from its folder; the folder is not changed by what is done to the gallery afterwards.

        Args:
            folder: Of the gallery.
            model: The one that encoded it.
            check: Whether to compare all files with their checksums; by default small ones are.

        Raises:
            FileError: If the gallery is broken, not as it was saved, or of another model.
        """
        folder = recover_folder(Path(folder))
        about = read_json(folder / MANIFEST)
        form = about.get("format") if isinstance(about, dict) else None
        if form not in (OLD_FORMAT, FORMAT):
            raise FileError(f"{folder / MANIFEST} is not a gallery of format {FORMAT}, nor of format {OLD_FORMAT}")
        if about.get("model") != model.fingerprint():
            raise FileError(f"{folder} was encoded by another model: use that one, or another gallery")
        if form == OLD_FORMAT:
            tensors = read_format_2(folder, about, model.dim)
            return cls(
                model, about["names"], about["digests"], about["captions"], tensors["image_ids"].numpy(),
                _whole(tensors["image_vectors"]), _whole(tensors["caption_vectors"]),
            )  # fmt: skip
        gallery, manifest = cls(model), Manifest.read(folder)
        while True:
            try:
                gallery._adopt(folder, manifest, check)
                return gallery
            except FileError:
                newest = Manifest.read(folder)
                if newest == manifest:
                    raise
                manifest = newest  # somebody has just written these shards anew

    @classmethod
    def open(cls, folder: str | Path, model: EmbeddingModel, models: Sequence[str | Path] = ()) -> "Gallery":
        """Open the gallery of a folder to change it, or make one; each change is written at once.

        A gallery of format 2 is converted.

        Args:
            folder: Is made if it is not there. Whatever else is in it stays.
            model: The one that encodes.
            models: Names of the model, for `read_models` to find again.

        Raises:
            FileError: If the gallery is broken, of another model, or a file is in the way that is not of a gallery.
        """
        place = Path(folder)
        gallery_format(recover_folder(place))  # before anything is made
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / LOCK):  # two may open the same new gallery
            form = gallery_format(recover_folder(place))
            if form == 0:
                cls(model)._write(place, models)
            elif form == OLD_FORMAT:
                cls.load(place, model)._write(place, models or _old_models(recover_folder(place)))
        gallery = cls.load(folder, model)
        gallery.folder = Path(folder).resolve()
        return gallery

    def save(self, folder: str | Path, models: Sequence[str | Path] = ()) -> None:
        """Write the gallery, in place of one that was in `folder`; whatever else is there stays.

        Args:
            folder: Is made if it is not there.
            models: Names of the model, which is not included, for `read_models` to find again.

        Raises:
            FileError: If a file is in the way that is not of a gallery.
        """
        folder = Path(folder).resolve()
        if folder == self.folder:
            return  # everything is there
        gallery_format(recover_folder(folder))  # before anything is made
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK):
            self._write(folder, models)

    def _write(self, folder: Path, models: Sequence[str | Path]) -> None:
        """Write everything into a folder whose lock is held, in place of the gallery there, of whatever format."""
        old = gallery_format(recover_folder(folder))
        try:
            before = Manifest.read(folder)
        except FileError:  # none, a broken one, or an older format
            before = Manifest("", self.model.dim)
        with Changes(folder, before, self.model.dim) as changes:
            changes.shards = {}
            for entries, images, captions in self._blocks(self._parts.values()):
                changes.append(entries, images, captions)
            named = tuple(lasting_name(model) for model in models)
            changes.commit(model=self.model.fingerprint(), dim=self.model.dim, models=named)
        tidy(folder, changes.manifest)
        if old == OLD_FORMAT:
            for name in OLD_FILES:
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / NEW, ignore_errors=True)

    # What a store does

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def count_captions(self) -> int:
        """How many captions there are."""
        return sum(part.count_captions() for part in self._parts.values())

    def entries(self) -> Iterator[Entry]:
        """All images, without their vectors."""
        for part in self._parts.values():
            for _, entry in part.live_entries():
                yield entry

    def lookup(self, digests: Collection[str]) -> dict[str, Entry]:
        """Those of these images that are here, by their digests, without their vectors."""
        places = {digest: self._places[digest] for digest in digests if digest in self._places}
        return {digest: self._parts[number].entry(row) for digest, (number, row) in places.items()}

    def put(self, entries: Sequence[Entry], image_vectors: Tensor, caption_vectors: Tensor) -> None:
        """Write images, all of them or none; one that is there already is replaced."""
        if not (image_vectors.isfinite().all() and caption_vectors.isfinite().all()):
            raise ValueError("the model has made vectors that are not numbers")
        with self.writing():
            old = self._rows_of([entry.digest for entry in entries if entry.digest in self._places])
            if self.folder is None:
                self._discard(old)
                number = max(self._parts, default=0) + 1
                self._parts[number] = MemoryPart(list(entries), image_vectors, caption_vectors)
                self._places.update({entry.digest: (number, row) for row, entry in enumerate(entries)})
                if len(self._parts) > MANY_PARTS:
                    self._make_one_part()
                self._forget_views()
            else:
                with Changes(self.folder, self._manifest, self.model.dim) as changes:
                    for number, rows in old.items():
                        changes.delete(number, rows)
                    changes.append(entries, _halves(image_vectors), _halves(caption_vectors))
                    self._adopt(self.folder, changes.commit(), False)
                self._compact()

    def discard(self, digests: Collection[str]) -> int:
        """Forget the images of these digests, with their captions; return how many there were."""
        with self.writing():
            old = self._rows_of([digest for digest in digests if digest in self._places])
            if self.folder is None:
                self._discard(old)
            elif old:
                with Changes(self.folder, self._manifest, self.model.dim) as changes:
                    for number, rows in old.items():
                        changes.delete(number, rows)
                    self._adopt(self.folder, changes.commit(), False)
                self._compact()
            return sum(map(len, old.values()))

    def fetch(self, digests: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
        """The vectors of images that are here (I, D), and those of the captions of each."""
        images, captions = [torch.empty(0, self.model.dim)], []
        for digest in digests:
            number, row = self._places[digest]
            part = self._parts[number]
            images.append(_floats(part.images[row : row + 1]))
            captions.append(_floats(part.captions[slice(*part.caption_range(row))]))
        return torch.cat(images), captions

    def nearest_images(self, queries: Tensor, k: int = 5, where: Where | None = None) -> list[list[Hit]]:
        """The k images nearest to each query (Q, D), best first."""
        parts = list(self._parts.values())
        starts = np.cumsum([0, *map(len, parts)])
        found = top_k_of_parts(queries, [(part.images, part.hidden(where)) for part in parts], check_k(k))

        def hit(score: float, number: int, row: int) -> Hit:
            part = parts[number]
            entry, index = part.entry(row), int(starts[number] + row - np.searchsorted(part.deleted, row))
            return Hit(index, entry.name, score, entry.name, entry.file, entry.digest)

        return [[hit(*one) for one in results] for results in found]

    def nearest_captions(self, queries: Tensor, k: int = 5, where: Where | None = None) -> list[list[Hit]]:
        """The k captions nearest to each query (Q, D), best first."""
        parts = list(self._parts.values())
        starts = np.cumsum([0, *(part.count_captions() for part in parts)])
        hidden = [part.captions_of(part.hidden(where)) if where else part.deleted_captions for part in parts]
        vectors = [part.captions for part in parts]
        found = top_k_of_parts(queries, zip(vectors, hidden, strict=True), check_k(k))

        def hit(score: float, number: int, caption: int) -> Hit:
            part = parts[number]
            row = int(np.searchsorted(part.ends, caption, side="right"))
            entry, index = part.entry(row), caption - np.searchsorted(part.deleted_captions, caption)
            text = entry.captions[caption - part.caption_range(row)[0]]
            return Hit(int(starts[number] + index), text, score, entry.name, entry.file, entry.digest)

        return [[hit(*one) for one in results] for results in found]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Let nobody else change the folder while the block runs, and begin with its newest state."""
        if self.folder is None or self._lock.is_locked:
            yield
            return
        with self._lock:
            newest = Manifest.read(self.folder)
            if newest != self._manifest:
                self._adopt(self.folder, newest, None)
            tidy(self.folder, newest)
            yield

    # What is in it, as lists and tensors

    @cached_property
    def names(self) -> list[str]:
        """Of the images."""
        return [entry.name for entry in self.entries()]

    @cached_property
    def digests(self) -> list[str]:
        """Of the contents of the images."""
        return [entry.digest for entry in self.entries()]

    @cached_property
    def captions(self) -> list[str]:
        """Of all images, one after another."""
        return [caption for entry in self.entries() for caption in entry.captions]

    @cached_property
    def image_ids(self) -> np.ndarray:
        """The image of each caption: (C,)."""
        counts = [np.diff(part.ends, prepend=0)[part.live] for part in self._parts.values()]
        return np.repeat(np.arange(len(self)), np.concatenate(counts) if counts else 0)

    @cached_property
    def image_vectors(self) -> Tensor:
        """Unit float32 vectors of all images (I, D); a copy in memory, if the gallery is in a folder."""
        parts = [_rows(part, "images") for part in self._parts.values()]
        return torch.cat([torch.empty(0, self.model.dim), *parts])

    @cached_property
    def caption_vectors(self) -> Tensor:
        """Unit float32 vectors of all captions (C, D); a copy in memory, if the gallery is in a folder."""
        parts = [_rows(part, "captions") for part in self._parts.values()]
        return torch.cat([torch.empty(0, self.model.dim), *parts])

    def moved(self, root: Path | None) -> "Gallery":
        """The same in memory, with images that are files of their names below another folder, or nowhere."""
        return Gallery(
            self.model, self.names, self.digests, self.captions, self.image_ids, self.image_vectors,
            self.caption_vectors, root,
        )  # fmt: skip

    def keep(self, names: Collection[str]) -> int:
        """Forget the images of all other names, with their captions; return how many there were."""
        return self.discard([entry.digest for entry in self.entries() if entry.name not in names])

    # How it is kept

    @cached_property
    def _lock(self) -> FileLock:
        assert self.folder is not None
        return FileLock(self.folder / LOCK)

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """The part and the row of each digest."""
        return {
            entry.digest: (number, row) for number, part in self._parts.items() for row, entry in part.live_entries()
        }

    def _rows_of(self, digests: Sequence[str]) -> dict[int, np.ndarray]:
        """The rows of images that are here, by part."""
        rows: dict[int, list[int]] = {}
        for digest in digests:
            number, row = self._places[digest]
            rows.setdefault(number, []).append(row)
        return {number: np.array(some, np.int64) for number, some in rows.items()}

    def _discard(self, old: dict[int, np.ndarray]) -> None:
        for number, rows in old.items():
            for row in rows.tolist():
                del self._places[self._parts[number].entry(row).digest]
            self._parts[number] = self._parts[number].without(rows)
        self._forget_views()

    def _adopt(self, folder: Path, manifest: Manifest, check: bool | None) -> None:
        """Map the shards of a folder as they are now; those that have not changed stay mapped."""
        before = {number: part for number, part in self._parts.items() if isinstance(part, Shard)}
        self._parts = {}
        for info in manifest.shards:
            old = before.get(info.number)
            same = old is not None and old.info == info
            self._parts[info.number] = old if same else Shard(folder, info, manifest.dim, check)  # type: ignore[assignment]
        self._manifest = manifest
        self._forget_views()
        if before.keys() - self._parts.keys():
            self.__dict__.pop("_places", None)  # it is made anew when it is needed
        elif "_places" in self.__dict__:
            self._update_places(before)

    def _update_places(self, before: Mapping[int, Part]) -> None:
        """Take in what has been deleted from shards and appended to them."""
        for number, part in self._parts.items():
            if number in before:
                for row in np.setdiff1d(part.deleted, before[number].deleted).tolist():
                    self._places.pop(part.entry(row).digest, None)
        for number, part in self._parts.items():
            appended = np.arange(len(before[number].ends) if number in before else 0, len(part.ends))
            for row in np.setdiff1d(appended, part.deleted).tolist():
                self._places[part.entry(row).digest] = (number, row)

    def _compact(self) -> None:
        """Write anew the shards of which most does not count."""
        assert self.folder is not None
        for number, part in list(self._parts.items()):
            if 2 * len(part.deleted) > len(part.ends):
                with Changes(self.folder, self._manifest, self.model.dim) as changes:
                    del changes.shards[number]
                    changes.begin_shard()
                    for entries, images, captions in self._blocks([part]):
                        changes.append(entries, images, captions)
                    self._adopt(self.folder, changes.commit(), False)

    def _blocks(self, parts: Iterable[Part]) -> Iterator[tuple[list[Entry], np.ndarray, np.ndarray]]:
        """Images with their vectors and those of their captions, in half precision, a few thousand at a time."""
        for part in parts:
            for start in range(0, len(part), ROWS):
                rows = part.live[start : start + ROWS]
                entries = [part.entry(row) for row in rows.tolist()]
                yield entries, _halves(part.images[rows]), _halves(part.captions[part.captions_of(rows)])

    def _make_one_part(self) -> None:
        """Put the parts in memory together."""
        parts = {number: part for number, part in self._parts.items() if isinstance(part, MemoryPart)}
        entries = [entry for part in parts.values() for _, entry in part.live_entries()]
        vectors = [torch.cat([_rows(part, side) for part in parts.values()]) for side in ("images", "captions")]
        self._parts = {number: part for number, part in self._parts.items() if number not in parts}
        self._parts[min(parts)] = MemoryPart(entries, *vectors)
        self.__dict__.pop("_places", None)

    def _forget_views(self) -> None:
        for name in VIEWS:
            self.__dict__.pop(name, None)


def read_models(folder: Path) -> list[str]:
    """The names of the model that encoded a gallery, as far as `save` was told."""
    folder = recover_folder(folder)
    if not folder.is_dir() or not (form := gallery_format(folder)):
        raise FileError(f"{folder} is not a gallery: make one with vse-demo index")
    models = list(Manifest.read(folder).models) if form == FORMAT else _old_models(folder)
    if not models or not all(isinstance(model, str) for model in models):
        raise FileError(f"{folder} does not say which model encoded it: name it with --model")
    return models


def _old_models(folder: Path) -> list[str]:
    """What a gallery of format 2 says of its model."""
    if not (folder / "models.json").exists():
        return []
    models = read_json(folder / "models.json")
    return models if isinstance(models, list) else []


def _rows(part: Part, side: str) -> Tensor:
    """The unit float32 vectors of a part that count, of its images or of its captions."""
    stored = getattr(part, side)
    if len(part.deleted):
        stored = stored[part.live if side == "images" else part.captions_of(part.live)]
    return _whole(stored)


def _whole(stored: Any) -> Tensor:
    """Unit float32 vectors again, if they were stored in half precision."""
    return stored if _dtype(stored) == "float32" else l2_normalize(_floats(stored))


def _floats(stored: Any) -> Tensor:
    """Vectors as they were stored, as a float32 tensor."""
    return torch.from_numpy(stored.astype(np.float32)) if isinstance(stored, np.ndarray) else stored.float()


def _halves(vectors: Any) -> np.ndarray:
    """Vectors as they will be stored."""
    return vectors if isinstance(vectors, np.ndarray) else vectors.half().numpy()


def _dtype(stored: Any) -> str:
    return str(stored.dtype).removeprefix("torch.")
