"""What the app asks for, without a page in sight: searches with ticks and crosses, reasons, places on the map.

A `Service` knows some models by name and one collection of pictures. A gallery is loaded, or encoded
and kept in the cache, when it is first asked for, in a thread of its own: everyone who waits for it
can see how far it is.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from filelock import FileLock
from PIL import Image

from vse_demo.app.map import centred, compute_map
from vse_demo.data.images import ImageFile, ImageLike, as_image, read_image
from vse_demo.data.layouts import Dataset, open_dataset
from vse_demo.encoders.tokenizers import MAX_TOKENS
from vse_demo.explanation import Explanation, explain
from vse_demo.model.ensemble import Ensemble, load_model
from vse_demo.model.vse import VSE
from vse_demo.retrieval.exact import top_k
from vse_demo.retrieval.gallery import Gallery, Report
from vse_demo.shipped import MODELS, load_shipped, read_map
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import FileError
from vse_demo.utils.paths import default_cache
from vse_demo.utils.tensors import l2_normalize
from vse_demo.utils.text import sanitize_text

SAME_IMAGE = 6.0  # mean difference of 16 × 16 pixels, of 255: a photo and its copy in another format
MAX_CHARACTERS = 2000  # of a sentence; a model reads its first 64 words at most


@dataclass(frozen=True)
class SearchResult:
    """One result. `right` is None where nobody knows: a sentence or picture that is not of the collection."""

    item: str  # name of the picture, or caption
    index: int  # in the gallery
    score: float
    right: bool | None


@dataclass(frozen=True)
class Attribution:
    """A score, split over the picture and over the sentence; of an ensemble, the mean of its members' parts."""

    score: float
    cells: np.ndarray  # (N, N) over the picture; they add up to the score
    words: list[str]  # as they were typed
    parts: np.ndarray  # one per word; with `rest` they add up to the score
    rest: float  # of what a model puts around a sentence, such as [CLS]
    members: dict[str, Explanation]  # how each model pooled


@dataclass
class Job:
    """A gallery in the making."""

    gallery: Future[Gallery] = field(default_factory=Future)
    done: int = 0
    total: int = 0  # 0 as long as nobody knows

    def report(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def run(self, source: Callable[[Report], Gallery]) -> None:
        try:
            self.gallery.set_result(source(self.report))
        except BaseException as error:
            self.gallery.set_exception(error)


class Service:
    """Models by name over one collection of pictures."""

    def __init__(
        self,
        sources: Mapping[str, Callable[[Report], Gallery]],
        files: Mapping[str, ImageFile],
        captions: Mapping[str, str],
        maps: Callable[[str, Gallery], np.ndarray],
    ):
        self.sources, self.files, self.maps = sources, files, maps
        self.captions = captions  # the first one of each picture that has any
        self.default = next(iter(sources))
        self._jobs: dict[str, Job] = {}
        self._maps: dict[str, np.ndarray] = {}
        self._jobs_lock, self._maps_lock = threading.Lock(), threading.Lock()

    def gallery(self, model: str = "") -> Gallery:
        """The collection as a model sees it; the default model if none is named."""
        return self.start(model).gallery.result()

    def start(self, model: str = "") -> Job:
        """Begin to make a gallery, unless someone has; one that failed is tried again."""
        model = check_choice(model or self.default, list(self.sources), "model")
        with self._jobs_lock:
            job = self._jobs.get(model)
            if job is None or (job.gallery.done() and job.gallery.exception()):
                job = self._jobs[model] = Job()
                threading.Thread(target=job.run, args=[self.sources[model]], daemon=True).start()
            return job

    def progress(self, model: str = "", every: float = 0.3) -> Iterator[tuple[int, int]]:
        """How far a gallery is, again and again until it is there: pictures that are done, and all of them."""
        job = self.start(model)
        while not wait([job.gallery], every).done:
            yield job.done, job.total
        job.gallery.result()  # which raises what went wrong

    def find_images(self, sentence: str, model: str = "", k: int = 5) -> list[SearchResult]:
        """The pictures nearest to a sentence; ticked and crossed if it is a caption of the collection."""
        sentence, gallery = check_sentence(sentence), self.gallery(model)
        own = {int(gallery.image_ids[number]) for number, text in enumerate(gallery.captions) if text == sentence}
        hits = gallery.search_images(sentence, k)
        return [SearchResult(hit.item, hit.index, hit.score, hit.index in own if own else None) for hit in hits]

    def find_captions(self, image: ImageLike, model: str = "", k: int = 5) -> list[SearchResult]:
        """The captions nearest to a picture; ticked and crossed if it is of the collection and has captions."""
        gallery = self.gallery(model)
        own = self.recognise(image, model)
        known = own is not None and bool((gallery.image_ids == own).any())
        hits = gallery.search_captions(image, k)
        return [
            SearchResult(hit.item, hit.index, hit.score, bool(gallery.image_ids[hit.index] == own) if known else None)
            for hit in hits
        ]

    def recognise(self, image: ImageLike, model: str = "") -> int | None:
        """Which picture of the collection this is, if it is one: the nearest, if it looks the same."""
        gallery = self.gallery(model)
        if not len(gallery):
            return None
        _, [[nearest]] = top_k(gallery.model.encode_images([image]), gallery.image_vectors, 1)
        given, known = (_tiny(each) for each in (image, self.file(gallery.names[nearest])))
        return int(nearest) if np.abs(given - known).mean() < SAME_IMAGE else None

    def explain(self, image: ImageLike, sentence: str, model: str = "") -> Attribution:
        """Why they match."""
        sentence, chosen = check_sentence(sentence), self.gallery(model).model
        members = chosen.members if isinstance(chosen, Ensemble) else [chosen]
        names = MODELS.get(model or self.default, ())
        if len(names) != len(members):
            names = tuple(f"model {number}" for number in range(1, len(members) + 1))
        image = as_image(image)  # is read once
        explanations = [explain(member, image, sentence) for member in members]
        words = [by_word(member, sentence, each) for member, each in zip(members, explanations, strict=True)]
        rest, *parts = np.mean(words, axis=0)
        return Attribution(
            score=float(np.mean([each.score for each in explanations])),
            cells=mean_grid([each.heat_map.numpy() for each in explanations]),
            words=sentence.split(),
            parts=np.array(parts),
            rest=float(rest),
            members=dict(zip(names, explanations, strict=True)),
        )

    def file(self, name: str) -> ImageFile:
        """The file of a picture of the collection; no other file is ever given."""
        if name not in self.files:
            raise FileError(f"there is no picture {name!r} in this collection")
        return self.files[name]

    def map(self, model: str = "") -> np.ndarray:
        """Places (P + C, 2) of the `charted` pictures and captions on a map, near ones near each other."""
        model, gallery = model or self.default, self.gallery(model)
        with self._maps_lock:
            if model not in self._maps:
                self._maps[model] = self.maps(model, gallery)
            return self._maps[model]

    def samples(self, count: int = 12) -> list[str]:
        """Names of some pictures of the collection that can be shown, evenly spread."""
        names = sorted(self.files)
        spread = names[:: max(1, len(names) // count)][:count]
        return [name for name in spread if _readable(self.files[name])]

    def examples(self, count: int = 5) -> list[str]:
        """Some captions of the collection to search for, short ones, evenly spread."""
        short = [text for text in self.captions.values() if len(text) <= 60]
        return short[:: max(1, len(short) // count)][:count]

    def describe(self, name: str) -> str:
        """A picture in words: its first caption, or its name."""
        return self.captions.get(name, name)

    def usual_score(self, model: str = "") -> float | None:
        """What a picture and a caption of its own have (the median), to compare a score with."""
        gallery = self.gallery(model)
        if not gallery.captions:
            return None
        some = np.random.default_rng(0).permutation(len(gallery.captions))[:2000]
        scores = (gallery.caption_vectors[some] * gallery.image_vectors[gallery.image_ids[some]]).sum(1)
        return float(scores.median())

    def place(self, query: str | ImageLike, model: str = "", neighbours: int = 5) -> np.ndarray:
        """Where a sentence or a picture belongs on the map: among its neighbours, the nearest counting most."""
        gallery, places = self.gallery(model), self.map(model)
        if isinstance(query, str):
            known = gallery.caption_vectors if gallery.captions else gallery.image_vectors
            vector = gallery.model.encode_texts([query]) - known.mean(0)
        else:
            vector = gallery.model.encode_images([query]) - gallery.image_vectors.mean(0)
        scores, numbers = top_k(l2_normalize(vector), centred(gallery), neighbours)
        weights = (scores[0] / 0.05).softmax(0).numpy()
        return weights @ places[numbers[0].numpy()]


def _readable(file: ImageFile) -> bool:
    try:
        return bool(read_image(file))
    except FileError:
        return False


def _tiny(image: ImageLike) -> np.ndarray:
    return np.asarray(as_image(image).resize((16, 16), Image.Resampling.BOX), dtype=float)


def check_sentence(sentence: str) -> str:
    """A sentence that can be searched for, without blanks around it."""
    if not isinstance(sentence, str) or not (sentence := sanitize_text(sentence).strip()):
        raise ValueError("Type a sentence first, for example: a dog on the beach")
    if len(sentence) > MAX_CHARACTERS:
        raise ValueError(
            f"That is {len(sentence):,} characters; give one sentence, of {MAX_CHARACTERS:,} characters at most "
            f"(the models read {MAX_TOKENS} words)"
        )
    return sentence


def by_word(model: VSE, sentence: str, explanations: Explanation) -> np.ndarray:
    """The parts of a sentence: first of what stands for no word, then of each word as it was typed."""
    numbers = np.array(model.tokenizer.word_numbers(sentence)) + 1  # of the tokens; 0 for no word
    return np.bincount(numbers, explanations.text.parts.numpy(), len(sentence.split()) + 1)


def mean_grid(grids: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of square grids, on cells so small that each grid is made of whole ones; sums stay as they are."""
    side = math.lcm(*(len(grid) for grid in grids))
    fine = [np.kron(grid, np.ones((side // len(grid),) * 2)) * (len(grid) / side) ** 2 for grid in grids]
    return np.mean(fine, axis=0)


def open_service(data: Path | None = None, models: Sequence[Path] = ()) -> Service:
    """The shipped models or given ones, over the shipped gallery or a folder of pictures."""
    dataset = open_dataset(data)
    splits = [dataset.split(name) for name in dataset.splits]
    if any(isinstance(split.images, np.ndarray) for split in splits):
        raise FileError(f"{dataset.folder} holds precomputed regions, which cannot be shown: give a folder of pictures")
    files = {name: file for split in splits for name, file in zip(split.names, split.images, strict=True)}
    captions: dict[str, str] = {}
    for split in splits:
        for text, image in zip(split.captions, split.image_ids, strict=True):
            captions.setdefault(split.names[image], text)

    def shipped_source(name: str) -> Callable[[Report], Gallery]:
        if data is None:
            return lambda _: load_shipped(name)
        return lambda report: cached_gallery(load_shipped(name).model, dataset, report)

    if models:
        model = load_model(list(models))  # now: what is wrong with it should be said at once
        given = {"given": lambda report: cached_gallery(model, dataset, report)}
        return Service(given, files, captions, lambda _, gallery: compute_map(gallery))
    shipped = {name: shipped_source(name) for name in MODELS}
    return Service(shipped, files, captions, lambda name, gallery: compute_map(gallery) if data else read_map(name))


def cached_gallery(
    model: VSE | Ensemble, dataset: Dataset, report: Report | None = None, root: Path | None = None
) -> Gallery:
    """All pictures of a data set, encoded once: what is new since the last time is added, and kept."""
    place = hashlib.blake2b(f"{dataset.folder.resolve()} {model.fingerprint()}".encode(), digest_size=8).hexdigest()
    folder = (root or default_cache()) / "galleries" / place
    splits = [dataset.split(name) for name in dataset.splits]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            try:
                gallery = Gallery.load(folder, model)
            except (FileError, FileNotFoundError):  # none yet, or a broken one: encode everything
                gallery = Gallery(model)
            changed = gallery.keep({name for split in splits for name in split.names})
            if changed + sum(gallery.add(split, report=report) for split in splits):
                gallery.save(folder)
    except OSError as error:
        raise FileError(f"{folder.parent} cannot be a cache ({error.strerror}): set VSE_DEMO_CACHE") from error
    if not len(gallery):
        raise FileError(f"none of the pictures in {dataset.folder} can be read")
    return gallery
