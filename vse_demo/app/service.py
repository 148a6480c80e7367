"""What the app computes: searches with ticks and crosses, explanations, places on the map.

A `Service` has models by name and one collection of images. A gallery is loaded, or encoded and kept
in the cache, when it is first needed, in a thread of its own, so that everyone who waits for it can
see how far it is. It is any `Store`: in memory, in a folder, in a database. A sentence or an image is
encoded once, as a `Query`, which all methods take.
"""

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image

from vse_demo.app.attribution import Attribution, attribute, attribute_image, gives_reasons
from vse_demo.app.credits import Credit
from vse_demo.app.map import Sample
from vse_demo.app.queries import (
    ImageQuery,
    MixedQuery,
    Query,
    TextQuery,
    check_sentence,
    encode_image,
    encode_text,
    mix,
    split_minus,
    words_read,
)
from vse_demo.app.spelling import Lexicon
from vse_demo.data.images import ImageFile, ImageLike, as_image, read_image
from vse_demo.retrieval.entries import Hit, Where
from vse_demo.retrieval.store import Store
from vse_demo.retrieval.sync import Report, SyncReport
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import FileError
from vse_demo.utils.text import sanitize_text

MEASURED = {"t2i": TextQuery, "i2t": ImageQuery}  # what is asked, by the way that a calibration measures
LOOKED_AT = 3  # of the nearest images, when a given one is to be recognised
SAME_IMAGE = 6.0  # mean difference of 16 × 16 pixels, of 255: a photo and its copy in another format
ENOUGH = 50_000  # captions that are read for their words


@dataclass(frozen=True)
class SearchResult:
    """One result of a search."""

    item: str  # name of the image, or caption
    picture: str  # name of the image, or of the caption's image
    score: float
    right: bool | None  # None where it is not known: the query is not of the collection


@dataclass(frozen=True)
class Photo:
    """An image of the collection, as people and programs are told of it."""

    name: str
    path: str  # where it lies, if that may be told (the folder as it was named at the start), or its name
    captions: Sequence[str]
    credit: Credit | None


@dataclass
class Job:
    """A gallery that is being loaded or encoded, and how far it is."""

    gallery: Future[Store] = field(default_factory=Future)
    done: int = 0
    total: int = 0  # 0 as long as it is not known

    def report(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def run(self, source: Callable[[Report], Store]) -> None:
        try:
            self.gallery.set_result(source(self.report))
        except BaseException as error:
            self.gallery.set_exception(error)


class Service:
    """Models by name over one collection of images.

    Args:
        sources: How to make the gallery of each model; the first one is the default.
        files: The images by name.
        captions: Those of each image that has any, by the image's name.
        maps: How to make the map of a model from a sample of its gallery.
        credits: Author, licence and source of images, by name, as far as they are known.
        real_words: Tells words that exist, so that they are not taken for others that are written alike.
        found: Tells what was found in the folder of the images: which files cannot be read, and why.
        show_paths: Whether people are told where an image lies on this machine, or its name only.
        where: Which images of a gallery are of the collection, if it holds others too.
    """

    def __init__(
        self,
        sources: Mapping[str, Callable[[Report], Store]],
        files: Mapping[str, ImageFile],
        captions: Mapping[str, Sequence[str]],
        maps: Callable[[str, Sample], np.ndarray],
        credits: Mapping[str, Credit] | None = None,
        show_paths: bool = False,
        real_words: Callable[[], Collection[str]] = frozenset,
        found: Callable[[], SyncReport] = SyncReport,
        where: Where | None = None,
    ):
        self.sources, self.files, self.captions, self.maps = sources, files, captions, maps
        self.credits, self.show_paths = credits or {}, show_paths
        self.default = next(iter(sources))
        self.real_words, self.found, self.where = real_words, found, where
        self._facts: dict[tuple[str, str], Any] = {}
        self._jobs: dict[str, Job] = {}
        self._samples: dict[str, Sample] = {}
        self._maps: dict[str, np.ndarray] = {}
        self._jobs_lock, self._maps_lock = threading.Lock(), threading.Lock()

    def gallery(self, model: str = "") -> Store:
        """Wait for the collection as a model sees it (the default model if none is named)."""
        return self.start(model).gallery.result()

    def count(self, model: str = "") -> int:
        """How many images there are, counted once: a database takes its time."""
        gallery = self.gallery(model)
        return int(self._fact("count", model, lambda: gallery.count(self.where)))

    def start(self, model: str = "") -> Job:
        """Begin to make a gallery, unless that has begun; one that failed is tried again."""
        model = check_choice(model or self.default, list(self.sources), "model")
        with self._jobs_lock:
            job = self._jobs.get(model)
            if job is None or (job.gallery.done() and job.gallery.exception()):
                job = self._jobs[model] = Job()
                threading.Thread(target=job.run, args=[self.sources[model]], daemon=True).start()
            return job

    def progress(self, model: str = "", every: float = 0.3) -> Iterator[tuple[int, int]]:
        """Tell again and again, until a gallery is there, how many images are done, and of how many.

        Raises:
            Exception: What went wrong, if making it failed.
        """
        job = self.start(model)
        while not wait([job.gallery], every).done:
            yield job.done, job.total
        job.gallery.result()

    def encode_text(self, sentence: str, model: str = "") -> TextQuery:
        """Encode a sentence, once for all that is asked about it."""
        return encode_text(self.gallery(model).model, model or self.default, sentence)

    def encode_image(self, image: ImageLike, model: str = "") -> ImageQuery:
        """Encode an image, once for all that is asked about it."""
        return encode_image(self.gallery(model).model, model or self.default, image)

    def ask(self, sentence: str = "", image: ImageLike | None = None, model: str = "") -> Query:
        """Encode what images are searched by: a sentence, an image, or both together; `-word` takes something away.

        Raises:
            ValueError: There is neither, only what is to be taken away, or the sentence is too long.
        """
        wanted, minus = split_minus(sentence if image is not None else check_sentence(sentence))
        if image is None and not minus:
            return self.encode_text(sentence, model)
        picture = None if image is None else self.encode_image(image, model)
        if picture is not None and not sentence.strip():
            return picture
        text = self.encode_text(wanted, model) if wanted else None
        return mix(model or self.default, picture, text, [self.encode_text(each, model) for each in minus])

    def find_images(self, query: Query, k: int = 5) -> list[SearchResult]:
        """Find the images nearest to a query.

        By a sentence they are ticked and crossed if it is a caption of the collection; by an image of the collection,
        that image itself is left out.
        """
        if isinstance(query, TextQuery):
            hits = self._nearest_images(query, k)
            right: list[bool | None] = [None] * len(hits)
            if query.sentence in self._sentences:
                entries = self.gallery(query.model).lookup([hit.digest for hit in hits])
                right = [hit.digest in entries and query.sentence in entries[hit.digest].captions for hit in hits]
            return [SearchResult(hit.name, hit.name, hit.score, own) for hit, own in zip(hits, right, strict=True)]
        itself = self.recognise(query) if isinstance(query, ImageQuery | MixedQuery) else None
        found = [hit for hit in self._nearest_images(query, k + 1) if itself is None or hit.digest != itself.digest]
        return [SearchResult(hit.name, hit.name, hit.score, None) for hit in found[:k]]

    def find_captions(self, query: ImageQuery, k: int = 5) -> list[SearchResult]:
        """Find the captions nearest to an image; ticked and crossed if it is of the collection and has captions."""
        gallery, own = self.gallery(query.model), self.recognise(query)
        known = own is not None and any(entry.captions for entry in gallery.lookup([own.digest]).values())
        return [
            SearchResult(hit.item, hit.name, hit.score, hit.digest == own.digest if own and known else None)
            for hit in self._known(gallery.nearest_captions(query.vector, k, self.where)[0])
        ]

    def _nearest_images(self, query: Query, k: int) -> list[Hit]:
        return self._known(self.gallery(query.model).nearest_images(query.vector, k, self.where)[0])

    def _known(self, hits: Sequence[Hit]) -> list[Hit]:
        """Those of images that can be shown: a gallery may hold others too."""
        return [hit for hit in hits if hit.name in self.files]

    @cached_property
    def _sentences(self) -> frozenset[str]:
        """All captions of the collection."""
        return frozenset(itertools.chain.from_iterable(self.captions.values()))

    def recognise(self, query: ImageQuery | MixedQuery) -> Hit | None:
        """Find the image of the collection that this is: one of the nearest, if it looks the same.

        Vectors are stored in half precision, so of images that a model hardly tells apart another may come first.
        """
        if query.image is None:
            return None
        given = _tiny(query.image)
        for hit in self._nearest_images(query, LOOKED_AT):
            if np.abs(given - _tiny(self.file(hit.name))).mean() < SAME_IMAGE:
                return hit
        return None

    def is_far(self, query: Query, found: Sequence[SearchResult], way: str = "t2i") -> bool | None:
        """Whether nothing of the collection is close to a query, by what was measured of its model.

        Args:
            query: What was asked.
            found: What was found by it, best first.
            way: How: `t2i` images by a sentence, `i2t` captions by an image.

        Returns:
            None if that is not known: the model has no calibration, or what was asked is no sentence or image alone.
        """
        gallery = self.gallery(query.model)
        calibration = self._fact("calibration", query.model, lambda: getattr(gallery.model, "calibration", None))
        if calibration is None or not isinstance(query, MEASURED[way]) or not found:
            return None
        return calibration.table(way, self.count(query.model)).nothing_is_close(found[0].score)

    def lexicon(self, model: str = "") -> Lexicon | None:
        """The words that a model knows; None if that cannot be told."""
        gallery = self.gallery(model)
        captions = itertools.islice(itertools.chain.from_iterable(self.captions.values()), ENOUGH)
        return self._fact("lexicon", model, lambda: Lexicon.of(gallery.model, list(captions), self.real_words()))

    def words_read(self, sentence: str, model: str = "") -> int | None:
        """How many words of a sentence a model reads; None if it reads all of them, or if that cannot be told."""
        return words_read(self.gallery(model).model, sentence)

    def _fact(self, what: str, model: str, find: Callable[[], Any]) -> Any:
        """What is asked of a model for every search and costs more than the search, such as a hash of its weights."""
        key = what, model or self.default
        if key not in self._facts:
            self._facts[key] = find()
        return self._facts[key]

    def gives_reasons(self, model: str = "") -> bool:
        """Whether a score of this model can be split over its parts."""
        return gives_reasons(self.gallery(model).model)

    def explain(self, image: ImageQuery, query: Query) -> Attribution:
        """Split the score of an image and a query, both encoded by the same model, over their parts."""
        model = self.gallery(query.model).model
        if isinstance(query, TextQuery):
            return attribute(model, image, query)
        return attribute_image(model, image, query.vector)

    def file(self, name: str) -> ImageFile:
        """Look up the file of an image of the collection; no other file is ever given."""
        if name not in self.files:
            raise FileError(f"there is no picture {name!r} in this collection")
        return self.files[name]

    def sample(self, model: str = "") -> Sample:
        """The images that stand for the collection where all are too many, with their captions."""
        model, gallery = model or self.default, self.gallery(model)
        with self._maps_lock:
            if model not in self._samples:
                self._samples[model] = Sample.of(gallery, self.where)
            return self._samples[model]

    def map(self, model: str = "") -> np.ndarray:
        """Place the images and captions of `sample` on a map (I + C, 2), near ones near each other."""
        model, sample = model or self.default, self.sample(model)
        with self._maps_lock:
            if model not in self._maps:
                self._maps[model] = self.maps(model, sample)
            return self._maps[model]

    def samples(self, count: int = 12) -> list[str]:
        """Name some images of the collection that can be shown, evenly spread."""
        names = sorted(self.files)
        spread = names[:: max(1, len(names) // count)][:count]
        return [name for name in spread if _readable(self.files[name])]

    def examples(self, count: int = 5) -> list[str]:
        """Choose some short captions of the collection to search for, evenly spread."""
        short = [texts[0] for texts in self.captions.values() if texts and len(texts[0]) <= 60]
        return short[:: max(1, len(short) // count)][:count]

    def describe(self, name: str) -> str:
        """Describe an image in words: by its first caption, or by its name."""
        return self.captions[name][0] if self.captions.get(name) else sanitize_text(name)

    def photo(self, name: str) -> Photo:
        """Tell what is known of an image of the collection."""
        file = self.file(name)
        path = str(file) if self.show_paths else name
        return Photo(name, sanitize_text(path), self.captions.get(name, ()), self.credits.get(name))

    def usual_score(self, model: str = "") -> float | None:
        """The median score of an image and a caption written for it, to compare a score with."""
        sample = self.sample(model)
        if not len(sample.captions):
            return None
        counts = torch.tensor([len(entry.captions) for entry in sample.entries])
        return float((sample.captions * sample.images.repeat_interleave(counts, 0)).sum(1).median())

    def place(self, query: Query, neighbours: int = 5) -> np.ndarray:
        """Find where a query belongs on the map: among its nearest neighbours."""
        sample, places = self.sample(query.model), self.map(query.model)
        return sample.place(places, query.vector, isinstance(query, TextQuery), neighbours)


def _readable(file: ImageFile) -> bool:
    try:
        return bool(read_image(file))
    except FileError:
        return False


def _tiny(image: ImageLike) -> np.ndarray:
    return np.asarray(as_image(image).resize((16, 16), Image.Resampling.BOX), dtype=float)
