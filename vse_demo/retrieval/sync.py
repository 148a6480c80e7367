"""Making stores equal to a folder: find what is new, changed or gone; encode only what is new.

Several stores, one for each model, are filled in one pass: each image is decoded once, and models with the same
backbone share its features. What is done is written every `SAVE_EVERY` images, so that a run that is killed goes on
where it was.
"""

import itertools
import os
import warnings
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm.auto import tqdm

from vse_demo.data.images import ImageFile, content_digest, read_image
from vse_demo.data.layouts import CaptionedImages, Dataset
from vse_demo.model.ensemble import Ensemble
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.entries import Entry, Value
from vse_demo.utils.files import FileError
from vse_demo.utils.text import sanitize_text

if TYPE_CHECKING:
    from vse_demo.retrieval.store import Store

BATCH = 32  # images that are decoded and encoded at a time
SAVE_EVERY = 256  # images after which what is done is written
SCAN = 1024  # images whose digests are computed at a time


class Report(Protocol):
    """Is told how many images are done, and of how many."""

    def __call__(self, done: int, total: int, /) -> object: ...


@dataclass
class SyncReport:
    """What `sync` has done to a store."""

    added: int = 0
    changed: int = 0  # another name or other captions, the same image
    removed: int = 0
    unchanged: int = 0
    unlisted: int = 0  # images that the folder's caption file does not name; they are in the store
    broken: dict[str, str] = field(default_factory=dict)  # images that are left out, by name, and why
    kept: dict[str, int] = field(default_factory=dict)  # images of other folders that are not in this one, by folder

    def __str__(self) -> str:
        parts = [f"{self.added} images added", f"{self.changed} changed", f"{self.removed} removed"]
        parts += [f"{self.unlisted} without captions, which the caption file does not name"] * bool(self.unlisted)
        parts += [f"{len(self.broken)} left out, which cannot be read"] * bool(self.broken)
        places = [sanitize_text(place) + " (gone)" * (not os.path.exists(place)) for place in self.kept]
        some = ", ".join(places[:3]) + " …" * (len(places) > 3)
        parts += [f"{sum(self.kept.values())} kept from {some}"] * bool(self.kept)
        return ", ".join(parts)


@dataclass
class Found:
    """Images of a folder by their digests: what a store should hold, and the file or regions of each."""

    entries: dict[str, Entry] = field(default_factory=dict)
    images: dict[str, ImageFile | np.ndarray] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)  # digests of images that the caption file does not name

    def scan(
        self, data: CaptionedImages, source: str = "", split: str = "", progress: bool = False,
        tell: Callable[[int], object] | None = None,
    ) -> None:  # fmt: skip
        """Take in some images. Of several with the same content the first counts, with the captions of all."""
        with (
            ThreadPoolExecutor(4) as pool,
            tqdm(total=len(data), unit=" images", desc="looking", disable=not progress, leave=False) as bar,
        ):
            for start in range(0, len(data), SCAN):
                digests = list(pool.map(_digest, data.images[start : start + SCAN]))
                for number, digest in enumerate(digests, start):
                    image, name, here = data.images[number], data.names[number], tuple(data.captions_by_image[number])
                    if isinstance(digest, FileError):
                        self.broken[name] = str(digest)
                    elif digest in self.entries:
                        self._add_captions(digest, here)
                    else:
                        path, metadata = path_and_date(image, source)
                        self.entries[digest] = Entry(digest, name, here, source, path, split, metadata)
                        self.images[digest] = image
                bar.update(len(digests))
                if tell is not None:
                    tell(len(digests))

    def _add_captions(self, digest: str, captions: tuple[str, ...]) -> None:
        entry = self.entries[digest]
        whole = tuple(dict.fromkeys([*entry.captions, *captions])) if captions else entry.captions
        self.entries[digest] = Entry(digest, entry.name, whole, entry.source, entry.path, entry.split, entry.metadata)


def sync_stores(
    stores: Sequence["Store"],
    dataset: Dataset,
    splits: Sequence[str] | None = None,
    progress: bool = True,
    report: Report | None = None,
    look: Report | None = None,
) -> list[SyncReport]:
    """Make stores equal to a folder, all in one pass; see `Store.sync`.

    Where the folder has moved, that is, an old one is gone and most of its images are in this one, the rest of the old
    one is forgotten; what else was read from other folders stays, and is told.

    Args:
        stores: One for each model.
        dataset: The folder.
        splits: Only these; without them, all splits and the images of none.
        progress: Whether to show bars in the terminal.
        report: Is told how many images are done, with their captions, and of how many.
        look: Is told before that how many files have been looked at, and of how many.
    """
    with ExitStack() as stack:
        for store in stores:
            stack.enter_context(store.writing())
        found = find_images(dataset, splits, progress, look)
        plans = [_Plan(store, found, os.path.abspath(dataset.folder), splits) for store in stores]
        for plan in plans:
            plan.store.discard(plan.gone)
        work = _Work(stores, found, progress, report)
        work.run([plan.changed for plan in plans], [plan.new for plan in plans])
    return [
        SyncReport(
            sum(digest not in work.failed for digest in plan.new), len(plan.changed), len(plan.gone),
            len(found.entries) - len(plan.changed) - len(plan.new), len(found.unlisted - work.failed), found.broken,
            plan.kept,
        )
        for plan in plans
    ]  # fmt: skip


class _Plan:
    """What a store lacks to be equal to a folder."""

    def __init__(self, store: "Store", found: Found, source: str, splits: Sequence[str] | None):
        self.store, self.gone, self.changed = store, list[str](), list[tuple[Entry, Entry]]()
        self.new, self.kept = dict.fromkeys(found.entries), dict[str, int]()
        lost: dict[str, list[str]] = defaultdict(list)  # by folder, the digests of images that are not here
        seen = Counter[str]()  # by folder, how many are
        for entry in store.entries():
            asked = splits is None or entry.split in splits
            wanted = found.entries.get(entry.digest)
            if wanted is None:
                if asked:
                    lost[entry.source].append(entry.digest)
                continue
            seen[entry.source] += asked
            del self.new[entry.digest]
            if wanted != entry:
                self.changed.append((entry, wanted))
        for place, digests in lost.items():
            if place in (source, "") or _has_moved(place, len(digests), seen[place]):
                self.gone += digests
            else:
                self.kept[place] = len(digests)


def _has_moved(folder: str, lost: int, seen: int) -> bool:
    """Whether this is the folder under another name: it is gone, and most of its images are here.

    That it is gone is not enough: it may be on a disk that is not plugged in, or on another machine.
    """
    return seen > lost and not os.path.exists(folder)


def add_images(store: "Store", data: CaptionedImages, progress: bool = True, report: Report | None = None) -> int:
    """Encode the images that a store does not have; see `Store.add`."""
    with store.writing():
        found = Found()
        found.scan(data, progress=progress)
        known = {entry.digest for entry in store.entries()}
        new = {digest: None for digest in found.entries if digest not in known}
        work = _Work([store], found, progress, report)
        work.run([[]], [new])
    for reason in found.broken.values():
        warnings.warn(f"left out: {reason}", stacklevel=3)
    return len(new) - len(work.failed)


def find_images(
    dataset: Dataset, splits: Sequence[str] | None = None, progress: bool = False, look: Report | None = None
) -> Found:
    """Look at every image of a folder: its digest, name and captions."""
    found, source = Found(), os.path.abspath(dataset.folder)
    parts = [(split, *dataset.present(split)) for split in (dataset.splits if splits is None else splits)]
    others = dataset.unlisted() if splits is None else None
    seen, total = 0, sum(len(data) for _, data, _ in parts) + (len(others) if others else 0)

    def tell(count: int) -> None:
        nonlocal seen
        seen += count
        if look is not None:
            look(seen, total)

    tell(0)
    for split, data, missing in parts:
        found.broken.update({name: f"{name} is missing" for name in missing})
        found.scan(data, source, split, progress, tell)
    if others is not None:
        listed = set(found.entries)
        found.scan(others, source, "", progress, tell)
        found.unlisted = found.entries.keys() - listed
    return found


class _Work:
    """Encoding what stores lack, and writing it down."""

    def __init__(self, stores: Sequence["Store"], found: Found, progress: bool, report: Report | None):
        self.stores, self.found, self.progress, self.report = stores, found, progress, report
        self.encoders = Encoders([store.model for store in stores])
        self.failed: set[str] = set()
        self.done = self.total = 0

    def run(self, changed: Sequence[Sequence[tuple[Entry, Entry]]], new: Sequence[Collection[str]]) -> None:
        """Write what has changed, as it was and as it is now, and encode what is new, by digest; for each store."""
        wanted = list(dict.fromkeys(itertools.chain(*new)))
        self.total = len(wanted) + sum(map(len, changed))
        with tqdm(total=self.total, unit=" images", disable=not self.progress or not self.total) as self.bar:
            for store, pairs in zip(self.stores, changed, strict=True):
                for start in range(0, len(pairs), SAVE_EVERY):
                    self.change(store, pairs[start : start + SAVE_EVERY])
            for start in range(0, len(wanted), SAVE_EVERY):
                self.encode(wanted[start : start + SAVE_EVERY], new)

    def change(self, store: "Store", pairs: Sequence[tuple[Entry, Entry]]) -> None:
        """Write images that are known under other names or with other captions; only new sentences are encoded."""
        image_vectors, caption_vectors = store.fetch([before.digest for before, _ in pairs])
        known = {
            caption: vector
            for (before, _), vectors in zip(pairs, caption_vectors, strict=True)
            for caption, vector in zip(before.captions, vectors, strict=True)
        }
        new = list({caption: None for _, entry in pairs for caption in entry.captions if caption not in known})
        known |= dict(zip(new, store.model.encode_texts(new) if new else [], strict=True))
        vectors = [known[caption] for _, entry in pairs for caption in entry.captions]
        empty = torch.empty(0, store.model.dim)
        store.put([entry for _, entry in pairs], image_vectors, torch.stack(vectors) if vectors else empty)
        self.tell(len(pairs))

    def encode(self, digests: Sequence[str], lacking: Sequence[Collection[str]]) -> None:
        """Encode new images and their captions, and write them to the stores that lack them."""
        rows: list[list[tuple[Entry, Tensor, Tensor]]] = [[] for _ in self.stores]
        for some, decoded in self.decoded(digests):
            entries = [self.found.entries[digest] for digest in some]
            by_store = zip(self.encoders.images(decoded), self.texts(entries), lacking, rows, strict=True)
            for images, texts, lacks, out in by_store:
                each = zip(entries, images, texts, strict=True)
                out += [(entry, image, text) for entry, image, text in each if entry.digest in lacks]
        for store, ready in zip(self.stores, rows, strict=True):
            if ready:
                of_images = torch.stack([image for _, image, _ in ready])
                of_captions = torch.cat([texts for *_, texts in ready])
                store.put([entry for entry, *_ in ready], of_images, of_captions)

    def texts(self, entries: Sequence[Entry]) -> list[list[Tensor]]:
        """The vectors of the captions of each image, for each store."""
        counts = [len(entry.captions) for entry in entries]
        sentences = [caption for entry in entries for caption in entry.captions]
        return [list(vectors.split(counts)) for vectors in self.encoders.texts(sentences)]

    def decoded(self, digests: Sequence[str]) -> Iterator[tuple[list[str], list[Image.Image | np.ndarray]]]:
        """Batches of images that can be read."""
        for good, broken in decode_batches({digest: self.found.images[digest] for digest in digests}):
            self.failed |= broken.keys()
            self.found.broken |= {self.found.entries[digest].name: str(error) for digest, error in broken.items()}
            if good:
                yield list(good), list(good.values())
            self.tell(len(good) + len(broken))

    def tell(self, count: int) -> None:
        self.done += count
        if count:
            self.bar.update(count)
            if self.report is not None:
                self.report(self.done, self.total)


def decode_batches(
    files: Mapping[str, ImageFile | np.ndarray],
) -> Iterator[tuple[dict[str, Image.Image | np.ndarray], dict[str, FileError]]]:
    """Batches of images, and why others cannot be read; the next batch is decoded while the last one is used."""
    names = list(files)
    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    with ThreadPoolExecutor(2) as pool:
        waiting: list[Future[Any]] = []
        for batch, following in itertools.pairwise([[], *batches, []]):
            read = dict(zip(batch, [future.result() for future in waiting], strict=True))
            waiting = [pool.submit(_decode, files[name]) for name in following]
            broken = {name: image for name, image in read.items() if isinstance(image, FileError)}
            if batch:
                yield {name: image for name, image in read.items() if name not in broken}, broken


class Encoders:
    """Several models at once: each member of any of them encodes once, and members share their backbones.

    Args:
        models: Of each store.
    """

    def __init__(self, models: Sequence[EmbeddingModel]):
        self.models = models
        self.members: dict[str, EmbeddingModel] = {}
        if len(models) > 1:
            self.parts = [[member.fingerprint() for member in _members(model)] for model in models]
            for model in models:
                self.members |= {member.fingerprint(): member for member in _members(model)}
            self.together = Ensemble(self.members.values())

    def images(self, images: Sequence[Any]) -> list[Tensor]:
        """The vectors (len, D) of images, for each model."""
        if len(self.models) == 1:
            return [self.models[0].encode_images(images)]
        return self._join(dict(zip(self.members, self.together.encode_by_member(images), strict=True)))

    def texts(self, texts: Sequence[str]) -> list[Tensor]:
        """The vectors (len, D) of sentences, for each model."""
        if not texts or len(self.models) == 1:
            return [model.encode_texts(texts) if texts else torch.empty(0, model.dim) for model in self.models]
        return self._join({name: member.encode_texts(texts) for name, member in self.members.items()})

    def _join(self, vectors: Mapping[str, Tensor]) -> list[Tensor]:
        return [Ensemble.join([vectors[part] for part in parts]) for parts in self.parts]


def _members(model: EmbeddingModel) -> Iterable[EmbeddingModel]:
    return model.members if isinstance(model, Ensemble) else [model]


def _digest(image: ImageFile | np.ndarray) -> str | FileError:
    try:
        return content_digest(image)
    except FileError as error:
        return error


def _decode(image: ImageFile | np.ndarray) -> Image.Image | np.ndarray | FileError:
    try:
        return image if isinstance(image, np.ndarray) else read_image(image)
    except FileError as error:
        return error


def path_and_date(image: ImageFile | np.ndarray, source: str) -> tuple[str, dict[str, Value]]:
    """The path of a file below its source, and the day it was last changed; nothing for regions."""
    if isinstance(image, np.ndarray):
        return "", {}
    path = os.path.abspath(str(image))
    if not source:
        return path, {}
    if isinstance(image, zipfile.Path):
        return os.path.relpath(path, source), {}
    day = datetime.fromtimestamp(image.stat().st_mtime, UTC).date()
    return os.path.relpath(path, source), {"date": day.isoformat()}
