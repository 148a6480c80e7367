"""What the app computes: searches with ticks and crosses, explanations, places on the map.

A `Service` has models by name and one collection of images. A gallery is loaded, or encoded and kept
in the cache, when it is first needed, in a thread of its own, so that everyone who waits for it can
see how far it is. A sentence or an image is encoded once, as a `Query`, which all methods take.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor, nn

from vse_demo.app.map import centred_vectors, compute_map
from vse_demo.data.images import ImageFile, ImageLike, as_image, read_image
from vse_demo.data.layouts import Dataset, open_dataset
from vse_demo.encoders.tokenizers import MAX_TOKENS, pad_tokens
from vse_demo.explanation import Explanation, explain_features
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
TEMPERATURE = 0.05  # of the weights of a query's neighbours on the map


@dataclass(frozen=True)
class Query:
    """What a model makes of a sentence or an image, encoded once for all that is asked about it."""

    model: str
    vector: Tensor  # (1, D), a unit vector
    features: list[Tensor]  # (1, N, D) before pooling, one of each member of the model


@dataclass(frozen=True)
class TextQuery(Query):
    """A sentence, encoded."""

    sentence: str


@dataclass(frozen=True)
class ImageQuery(Query):
    """An image, encoded."""

    image: Image.Image


@dataclass(frozen=True)
class SearchResult:
    """One result of a search."""

    item: str  # name of the image, or caption
    index: int  # in the gallery
    score: float
    right: bool | None  # None where it is not known: the query is not of the collection


@dataclass(frozen=True)
class Attribution:
    """A score, split over the image and over the sentence; of an ensemble, the mean of its members' parts."""

    score: float
    heat_map: np.ndarray  # (N, N) over the image; adds up to the score
    words: list[str]  # as they were typed
    parts: np.ndarray  # one per word; with `rest` they add up to the score
    rest: float  # of what a model puts around a sentence, such as [CLS]
    explanations: dict[str, Explanation]  # of each model by name: how it pooled


@dataclass
class Job:
    """A gallery that is being loaded or encoded, and how far it is."""

    gallery: Future[Gallery] = field(default_factory=Future)
    done: int = 0
    total: int = 0  # 0 as long as it is not known

    def report(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def run(self, source: Callable[[Report], Gallery]) -> None:
        try:
            self.gallery.set_result(source(self.report))
        except BaseException as error:
            self.gallery.set_exception(error)


class Service:
    """Models by name over one collection of images.

    Args:
        sources: How to make the gallery of each model; the first one is the default.
        files: The images by name.
        captions: The first caption of each image that has any, by the image's name.
        maps: How to make the map of a model's gallery.
    """

    def __init__(
        self,
        sources: Mapping[str, Callable[[Report], Gallery]],
        files: Mapping[str, ImageFile],
        captions: Mapping[str, str],
        maps: Callable[[str, Gallery], np.ndarray],
    ):
        self.sources, self.files, self.captions, self.maps = sources, files, captions, maps
        self.default = next(iter(sources))
        self._jobs: dict[str, Job] = {}
        self._maps: dict[str, np.ndarray] = {}
        self._jobs_lock, self._maps_lock = threading.Lock(), threading.Lock()

    def gallery(self, model: str = "") -> Gallery:
        """Wait for the collection as a model sees it (the default model if none is named)."""
        return self.start(model).gallery.result()

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
        """Encode a sentence.

        Raises:
            ValueError: It is empty, or too long.
        """
        sentence, members = check_sentence(sentence), self._members(model)
        with torch.inference_mode():
            tokens = [pad_tokens(member.tokenizer.encode([sentence])) for member in members]
            features = [
                member.text_encoder(numbers.to(member.device), mask.to(member.device))
                for member, (numbers, mask) in zip(members, tokens, strict=True)
            ]
            vector = _pool([member.text_pooling for member in members], features)
        return TextQuery(model or self.default, vector, features, sentence)

    def encode_image(self, image: ImageLike, model: str = "") -> ImageQuery:
        """Encode an image; members of an ensemble that have the same backbone share its features."""
        image, members, chosen = as_image(image), self._members(model), self.gallery(model).model
        backbones = chosen.eyes if isinstance(chosen, Ensemble) else [""]
        seen: dict[str, Tensor] = {}
        features = []
        with torch.inference_mode():
            for member, backbone in zip(members, backbones, strict=True):
                if backbone not in seen:
                    seen[backbone] = member.read_image_features([image]).to(member.device)
                features.append(member.image_encoder(seen[backbone], _no_padding(seen[backbone])))
            vector = _pool([member.image_pooling for member in members], features)
        return ImageQuery(model or self.default, vector, features, image)

    def _members(self, model: str) -> list[VSE]:
        chosen = self.gallery(model).model
        return chosen.members if isinstance(chosen, Ensemble) else [chosen]

    def find_images(self, query: TextQuery, k: int = 5) -> list[SearchResult]:
        """Find the images nearest to a sentence; ticked and crossed if it is a caption of the collection."""
        gallery = self.gallery(query.model)
        own = {int(gallery.image_ids[number]) for number, text in enumerate(gallery.captions) if text == query.sentence}
        return [
            SearchResult(gallery.names[index], index, score, index in own if own else None)
            for index, score in _nearest(query, gallery.image_vectors, k)
        ]

    def find_captions(self, query: ImageQuery, k: int = 5) -> list[SearchResult]:
        """Find the captions nearest to an image; ticked and crossed if it is of the collection and has captions."""
        gallery, own = self.gallery(query.model), self.recognise(query)
        known = own is not None and bool((gallery.image_ids == own).any())
        return [
            SearchResult(
                gallery.captions[index], index, score, bool(gallery.image_ids[index] == own) if known else None
            )
            for index, score in _nearest(query, gallery.caption_vectors, k)
        ]

    def recognise(self, query: ImageQuery) -> int | None:
        """Tell which image of the collection this is: the nearest one, if it looks the same."""
        gallery = self.gallery(query.model)
        for nearest, _ in _nearest(query, gallery.image_vectors, 1):
            given, known = (_tiny(each) for each in (query.image, self.file(gallery.names[nearest])))
            if np.abs(given - known).mean() < SAME_IMAGE:
                return nearest
        return None

    def explain(self, image: ImageQuery, text: TextQuery) -> Attribution:
        """Split the score of an image and a sentence, both encoded by the same model, over their parts."""
        members = self._members(text.model)
        names = MODELS.get(text.model, ())
        if len(names) != len(members):
            names = tuple(f"model {number}" for number in range(1, len(members) + 1))
        explanations = [
            explain_features(member, image_features, text_features, text.sentence)
            for member, image_features, text_features in zip(members, image.features, text.features, strict=True)
        ]
        words = [by_word(member, text.sentence, each) for member, each in zip(members, explanations, strict=True)]
        rest, *parts = np.mean(words, axis=0)
        return Attribution(
            score=float(np.mean([each.score for each in explanations])),
            heat_map=mean_grid([each.heat_map.numpy() for each in explanations]),
            words=text.sentence.split(),
            parts=np.array(parts),
            rest=float(rest),
            explanations=dict(zip(names, explanations, strict=True)),
        )

    def file(self, name: str) -> ImageFile:
        """Look up the file of an image of the collection; no other file is ever given."""
        if name not in self.files:
            raise FileError(f"there is no picture {name!r} in this collection")
        return self.files[name]

    def map(self, model: str = "") -> np.ndarray:
        """Place the images and captions of `items_on_map` on a map (I + C, 2), near ones near each other."""
        model, gallery = model or self.default, self.gallery(model)
        with self._maps_lock:
            if model not in self._maps:
                self._maps[model] = self.maps(model, gallery)
            return self._maps[model]

    def samples(self, count: int = 12) -> list[str]:
        """Name some images of the collection that can be shown, evenly spread."""
        names = sorted(self.files)
        spread = names[:: max(1, len(names) // count)][:count]
        return [name for name in spread if _readable(self.files[name])]

    def examples(self, count: int = 5) -> list[str]:
        """Choose some short captions of the collection to search for, evenly spread."""
        short = [text for text in self.captions.values() if len(text) <= 60]
        return short[:: max(1, len(short) // count)][:count]

    def describe(self, name: str) -> str:
        """Describe an image in words: by its first caption, or by its name."""
        return self.captions.get(name, name)

    def usual_score(self, model: str = "") -> float | None:
        """The median score of an image and a caption written for it, to compare a score with."""
        gallery = self.gallery(model)
        if not gallery.captions:
            return None
        some = np.random.default_rng(0).permutation(len(gallery.captions))[:2000]
        scores = (gallery.caption_vectors[some] * gallery.image_vectors[gallery.image_ids[some]]).sum(1)
        return float(scores.median())

    def place(self, query: Query, neighbours: int = 5) -> np.ndarray:
        """Find where a query belongs on the map: among its nearest neighbours, the nearest counting most."""
        gallery, places = self.gallery(query.model), self.map(query.model)
        as_caption = isinstance(query, TextQuery) and bool(gallery.captions)
        side = gallery.caption_vectors if as_caption else gallery.image_vectors
        scores, numbers = top_k(l2_normalize(query.vector - side.mean(0)), centred_vectors(gallery), neighbours)
        weights = (scores[0] / TEMPERATURE).softmax(0).numpy()
        return weights @ places[numbers[0].numpy()]


def _pool(poolings: Sequence[nn.Module], features: Sequence[Tensor]) -> Tensor:
    """The unit vector (1, D) of one item, from its features (1, N, D) in each member of a model."""
    pooled = [pooling(each, _no_padding(each)) for pooling, each in zip(poolings, features, strict=True)]
    return Ensemble.join([l2_normalize(each).float().cpu() for each in pooled])


def _no_padding(features: Tensor) -> Tensor:
    """The mask (1, N) of a single item."""
    return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)


def _nearest(query: Query, vectors: Tensor, k: int) -> list[tuple[int, float]]:
    """Numbers and scores of the k vectors nearest to a query, best first."""
    scores, numbers = top_k(query.vector, vectors, k)
    return list(zip(numbers[0].tolist(), scores[0].tolist(), strict=True))


def _readable(file: ImageFile) -> bool:
    try:
        return bool(read_image(file))
    except FileError:
        return False


def _tiny(image: ImageLike) -> np.ndarray:
    return np.asarray(as_image(image).resize((16, 16), Image.Resampling.BOX), dtype=float)


def check_sentence(sentence: str) -> str:
    """Return a sentence without control characters and without blanks around it.

    Raises:
        ValueError: Nothing is left of it, or it has more than `MAX_CHARACTERS`.
    """
    if not isinstance(sentence, str) or not (sentence := sanitize_text(sentence).strip()):
        raise ValueError("Type a sentence first, for example: a dog on the beach")
    if len(sentence) > MAX_CHARACTERS:
        raise ValueError(
            f"That is {len(sentence):,} characters; give one sentence, of {MAX_CHARACTERS:,} characters at most "
            f"(the models read {MAX_TOKENS} words)"
        )
    return sentence


def by_word(model: VSE, sentence: str, explanation: Explanation) -> np.ndarray:
    """Add up the parts of a sentence's tokens: first of those of no word, then of each word as it was typed."""
    numbers = np.array(model.tokenizer.word_numbers(sentence)) + 1  # of the tokens; 0 for no word
    return np.bincount(numbers, explanation.text.parts.numpy(), len(sentence.split()) + 1)


def mean_grid(grids: Sequence[np.ndarray]) -> np.ndarray:
    """Average square grids of different sizes on their smallest common grid; a grid keeps its sum."""
    side = math.lcm(*(len(grid) for grid in grids))
    fine = [np.kron(grid, np.ones((side // len(grid),) * 2)) * (len(grid) / side) ** 2 for grid in grids]
    return np.mean(fine, axis=0)


def open_service(data: Path | None = None, models: Sequence[Path] = ()) -> Service:
    """Make the service of the shipped models or of given ones.

    Args:
        data: A folder of images; without it, the shipped gallery.
        models: Folders of a model; several are an ensemble.

    Raises:
        FileError: The data or a model cannot be read, or the data are no images.
    """
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
    """Encode all images of a data set; those that the cache has already are not encoded again.

    Args:
        model: What encodes them.
        dataset: All its splits go into the gallery.
        report: Is told how many images are done, and of how many.
        root: Where the cache is; by default that of the user.

    Raises:
        FileError: The cache cannot be written, or no image can be read.
    """
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
