"""What the app asks for, without a page in sight: searches with ticks and crosses, reasons, places on the map.

A `Service` knows some models by name and one collection of pictures. A gallery is loaded, or encoded
and kept in the cache, when it is first asked for.
"""

import hashlib
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor

from vse_demo.data import Dataset, ImageFile, clean, open_dataset, read_image
from vse_demo.explanation import Explanation, explain
from vse_demo.features import default_cache
from vse_demo.files import FileError
from vse_demo.layers import check_choice
from vse_demo.model import VSE, Ensemble, ImageLike, as_image, load_model, unit
from vse_demo.retrieval import Gallery, top_k
from vse_demo.shipped import MODELS, load_shipped, read_map
from vse_demo.text import MAX_TOKENS

SAME_PICTURE = 6.0  # mean difference of 16 × 16 pixels, of 255: a photo and its copy in another format
MAX_CHARACTERS = 2000  # of a sentence; a model reads its first 64 words at most


@dataclass(frozen=True)
class Found:
    """One result. `right` is None where nobody knows: a sentence or picture that is not of the collection."""

    item: str  # name of the picture, or caption
    index: int  # in the gallery
    score: float
    right: bool | None


class Service:
    """Models by name over one collection of pictures."""

    def __init__(
        self,
        sources: Mapping[str, Callable[[], Gallery]],
        files: Mapping[str, ImageFile],
        maps: Callable[[str, Gallery], np.ndarray],
        quick: bool = False,
    ):
        self.sources, self.files, self.maps = sources, files, maps
        self.quick = quick  # all is shipped: nothing has to be encoded or drawn first
        self.default = next(iter(sources))
        self._galleries: dict[str, Gallery] = {}
        self._maps: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def gallery(self, model: str = "") -> Gallery:
        """The collection as a model sees it; the default model if none is named."""
        model = check_choice(model or self.default, list(self.sources), "model")
        with self._lock:
            if model not in self._galleries:
                self._galleries[model] = self.sources[model]()
            return self._galleries[model]

    def find_images(self, sentence: str, model: str = "", k: int = 5) -> list[Found]:
        """The pictures nearest to a sentence; ticked and crossed if it is a caption of the collection."""
        sentence, gallery = check_sentence(sentence), self.gallery(model)
        own = {int(gallery.owner[number]) for number, text in enumerate(gallery.captions) if text == sentence}
        hits = gallery.search_images(sentence, k)
        return [Found(hit.item, hit.index, hit.score, hit.index in own if own else None) for hit in hits]

    def find_captions(self, picture: ImageLike, model: str = "", k: int = 5) -> list[Found]:
        """The captions nearest to a picture; ticked and crossed if it is of the collection and has captions."""
        gallery = self.gallery(model)
        own = self.recognise(picture, model)
        known = own is not None and bool((gallery.owner == own).any())
        hits = gallery.search_captions(picture, k)
        return [
            Found(hit.item, hit.index, hit.score, bool(gallery.owner[hit.index] == own) if known else None)
            for hit in hits
        ]

    def recognise(self, picture: ImageLike, model: str = "") -> int | None:
        """Which picture of the collection this is, if it is one: the nearest, if it looks the same."""
        gallery = self.gallery(model)
        if not len(gallery):
            return None
        _, [[nearest]] = top_k(gallery.model.encode_images([picture]), gallery.image_vectors, 1)
        given, known = (_tiny(each) for each in (picture, self.file(gallery.names[nearest])))
        return int(nearest) if np.abs(given - known).mean() < SAME_PICTURE else None

    def explain(self, picture: ImageLike, sentence: str, model: str = "") -> Explanation:
        """Why they match, by the first member if the model is an ensemble."""
        chosen = self.gallery(model).model
        return explain(chosen.members[0] if isinstance(chosen, Ensemble) else chosen, picture, check_sentence(sentence))

    def file(self, name: str) -> ImageFile:
        """The file of a picture of the collection; no other file is ever given."""
        if name not in self.files:
            raise FileError(f"there is no picture {name!r} in this collection")
        return self.files[name]

    def map(self, model: str = "") -> np.ndarray:
        """Places (I + C, 2) of all pictures and captions on a map, near ones near each other."""
        model, gallery = model or self.default, self.gallery(model)
        with self._lock:
            if model not in self._maps:
                self._maps[model] = self.maps(model, gallery)
            return self._maps[model]

    def drawn(self, model: str = "") -> bool:
        """Whether the map is there already: drawing one of many pictures takes a while."""
        return (model or self.default) in self._maps

    def samples(self, count: int = 12) -> list[str]:
        """Names of some pictures of the collection that can be shown, evenly spread."""
        names = sorted(self.files)
        spread = names[:: max(1, len(names) // count)][:count]
        return [name for name in spread if self.quick or _readable(self.files[name])]

    def place(self, query: str | ImageLike, model: str = "", neighbours: int = 5) -> np.ndarray:
        """Where a sentence or a picture belongs on the map: among its neighbours, the nearest counting most."""
        gallery, places = self.gallery(model), self.map(model)
        if isinstance(query, str):
            vector = gallery.model.encode_texts([query]) - gallery.caption_vectors.mean(0)
        else:
            vector = gallery.model.encode_images([query]) - gallery.image_vectors.mean(0)
        scores, numbers = top_k(unit(vector), centred(gallery), neighbours)
        weights = (scores[0] / 0.05).softmax(0).numpy()
        return weights @ places[numbers[0].numpy()]


def _readable(file: ImageFile) -> bool:
    try:
        return bool(read_image(file))
    except FileError:
        return False


def _tiny(picture: ImageLike) -> np.ndarray:
    return np.asarray(as_image(picture).resize((16, 16), Image.Resampling.BOX), dtype=float)


def check_sentence(sentence: str) -> str:
    """A sentence that can be searched for, without blanks around it."""
    if not isinstance(sentence, str) or not (sentence := clean(sentence).strip()):
        raise ValueError("Type a sentence first, for example: a dog on the beach")
    if len(sentence) > MAX_CHARACTERS:
        raise ValueError(
            f"That is {len(sentence):,} characters; give one sentence, of {MAX_CHARACTERS:,} characters at most "
            f"(the models read {MAX_TOKENS} words)"
        )
    return sentence


def centred(gallery: Gallery) -> Tensor:
    """Pictures and captions (I + C, D), each side moved to a common centre.

    Pictures are all a little nearer to each other than to any caption, and the other way round (the
    "modality gap"); without this step a map would show two islands and nothing else.
    """
    sides = [side for side in (gallery.image_vectors, gallery.caption_vectors) if len(side)]
    return torch.cat([unit(side - side.mean(0)) for side in sides])


def draw_map(gallery: Gallery) -> np.ndarray:
    """UMAP of pictures and captions together, the same every time."""
    vectors = centred(gallery).numpy()
    if len(vectors) < 5:  # too few for UMAP; a line will do
        return np.stack([np.linspace(0, 1, len(vectors)), np.zeros(len(vectors))], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TensorFlow is missing, and that a fixed seed means one thread
        from umap import UMAP

        places = UMAP(n_neighbors=min(15, len(vectors) - 1), metric="cosine", random_state=0).fit_transform(vectors)
    return np.asarray(places, dtype=np.float32)


def open_service(data: Path | None = None, models: Sequence[Path] = ()) -> Service:
    """The shipped models or given ones, over the shipped gallery or a folder of pictures."""
    dataset = open_dataset(data)
    splits = [dataset.split(name) for name in dataset.splits]
    if any(isinstance(split.images, np.ndarray) for split in splits):
        raise FileError(f"{dataset.folder} holds precomputed regions, which cannot be shown: give a folder of pictures")
    files = {name: file for split in splits for name, file in zip(split.names, split.images, strict=True)}
    if models:
        given = {"given": lambda: cached_gallery(load_model(list(models)), dataset)}
        return Service(given, files, lambda _, gallery: draw_map(gallery))
    if data is None:
        return Service(
            {name: partial(load_shipped, name) for name in MODELS}, files, lambda name, _: read_map(name), True
        )
    shipped = {name: lambda name=name: cached_gallery(load_shipped(name).model, dataset) for name in MODELS}
    return Service(shipped, files, lambda _, gallery: draw_map(gallery))


def cached_gallery(model: VSE | Ensemble, dataset: Dataset, root: Path | None = None) -> Gallery:
    """All pictures of a data set, encoded once: what is new since the last time is added, and kept."""
    place = hashlib.blake2b(f"{dataset.folder.resolve()} {model.fingerprint()}".encode(), digest_size=8).hexdigest()
    folder = (root or default_cache()) / "galleries" / place
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        try:
            gallery = Gallery.load(folder, model)
        except (FileError, FileNotFoundError):  # none yet, or a broken one: encode everything
            gallery = Gallery(model)
        names = {name for split in dataset.splits for name in dataset.split(split).names}
        gone = gallery.keep(names)
        if gone + sum(gallery.add(dataset.split(name)) for name in dataset.splits):
            gallery.save(folder)
    if not len(gallery):
        raise FileError(f"none of the pictures in {dataset.folder} can be read")
    return gallery
