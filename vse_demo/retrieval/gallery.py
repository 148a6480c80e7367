"""A gallery: images and captions as unit vectors, searched both ways, kept on disk between runs."""

import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm.auto import tqdm

from vse_demo.data.images import ImageFile, ImageLike, content_digest, read_image
from vse_demo.data.layouts import CaptionedImages
from vse_demo.model.ensemble import Ensemble
from vse_demo.model.vse import VSE
from vse_demo.retrieval.exact import top_k
from vse_demo.utils.files import (
    CHECKSUMS,
    FileError,
    read_json,
    recover_folder,
    saved_files,
    verify_checksums,
    write_atomic,
    write_checksums,
    write_folder,
    write_json,
)
from vse_demo.utils.tensors import l2_normalize

FORMAT = 2
FILES = ("gallery.json", "gallery.safetensors", "models.json", CHECKSUMS)
BATCH = 32  # images that are decoded and encoded at a time
Report = Callable[[int, int], object]  # images that are done, and all of them


@dataclass(frozen=True)
class Hit:
    """One result: its number in the gallery, the image's name or the caption, and the cosine."""

    index: int
    item: str
    score: float


@dataclass
class Gallery:
    """Images and captions that a model has encoded, ready to be searched both ways."""

    model: VSE | Ensemble
    names: list[str] = field(default_factory=list)  # of the images
    digests: list[str] = field(default_factory=list)  # of their contents
    captions: list[str] = field(default_factory=list)
    image_ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # image of each caption
    image_vectors: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # (I, D)
    caption_vectors: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # (C, D)

    def __post_init__(self) -> None:
        if not self.names:
            self.image_vectors = torch.empty(0, self.model.dim)
            self.caption_vectors = torch.empty(0, self.model.dim)

    @classmethod
    def build(cls, model: VSE | Ensemble, data: CaptionedImages, progress: bool = True) -> "Gallery":
        """Encode a whole split into a new gallery."""
        gallery = cls(model)
        gallery.add(data, progress)
        return gallery

    def add(self, data: CaptionedImages, progress: bool = True, report: Report | None = None) -> int:
        """Encode the images that are not here yet, and their captions.

        An image is known by its content, so a copy under another name is not a new one. One that
        cannot be read is left out, with its captions and with a warning: it does not stop the others.

        Args:
            data: Images and captions.
            progress: Whether to show a bar in the terminal.
            report: Is told how many images are done, and of how many.

        Returns:
            How many images were added.
        """
        digests = [_attempt(content_digest, image) for image in data.images]
        known = set(self.digests)
        first: dict[str, int] = {}
        for index, digest in enumerate(digests):
            if digest is not None and digest not in known:
                first.setdefault(digest, index)
        new, image_vectors = _encode_readable(self.model, data.images, list(first.values()), progress, report)
        place = {digests[index]: len(self) + position for position, index in enumerate(new)}
        captions = [number for number, image in enumerate(data.image_ids.tolist()) if digests[image] in place]
        sentences = [data.captions[number] for number in captions]
        caption_vectors = self.model.encode_texts(sentences, progress=progress)
        self.names += [data.names[index] for index in new]
        self.digests += [digests[index] for index in new]
        self.captions += sentences
        self.image_ids = np.r_[
            self.image_ids, np.array([place[digests[data.image_ids[number]]] for number in captions], np.int64)
        ]
        self.image_vectors = torch.cat([self.image_vectors, image_vectors])
        self.caption_vectors = torch.cat([self.caption_vectors, caption_vectors])
        return len(new)

    def keep(self, names: Collection[str]) -> int:
        """Forget the images of all other names, with their captions; return how many there were."""
        kept = [index for index, name in enumerate(self.names) if name in names]
        forgotten = len(self) - len(kept)
        if forgotten:
            place = np.full(len(self), -1)
            place[kept] = np.arange(len(kept))
            captions = np.flatnonzero(place[self.image_ids] >= 0)
            self.names, self.digests = [self.names[index] for index in kept], [self.digests[index] for index in kept]
            self.captions = [self.captions[number] for number in captions]
            self.image_ids = place[self.image_ids[captions]]
            self.image_vectors, self.caption_vectors = self.image_vectors[kept], self.caption_vectors[captions]
        return forgotten

    def __len__(self) -> int:
        return len(self.names)

    def search_images(self, text: str, k: int = 5) -> list[Hit]:
        """The images nearest to a sentence, best first."""
        return _hits(self.model.encode_texts([text]), self.image_vectors, self.names, k)

    def search_captions(self, image: ImageLike, k: int = 5) -> list[Hit]:
        """The captions nearest to an image, best first."""
        return _hits(self.model.encode_images([image]), self.caption_vectors, self.captions, k)

    def save(self, folder: str | Path, half: bool = False, models: Sequence[Path] = ()) -> None:
        """Write vectors and names, in place of a gallery that was in `folder`; whatever else is there stays.

        Args:
            folder: Is made if it is not there.
            half: Store the vectors in half the space; scores change in the fourth digit.
            models: Folders of the model, which is not included, for `read_models` to find again.

        Raises:
            FileError: If a file is in the way that is not of a gallery.
        """
        vectors = {"image_vectors": self.image_vectors, "caption_vectors": self.caption_vectors}
        tensors = {name: tensor.half() if half else tensor for name, tensor in vectors.items()}
        tensors["image_ids"] = torch.from_numpy(self.image_ids)
        with write_folder(Path(folder), gallery_files) as fresh:
            write_atomic(fresh / "gallery.safetensors", save(tensors))
            names = {"names": self.names, "digests": self.digests, "captions": self.captions}
            write_json(fresh / "gallery.json", {"format": FORMAT, "model": self.model.fingerprint(), **names})
            if models:
                write_json(fresh / "models.json", [str(model.resolve()) for model in models])
            write_checksums(fresh)

    @classmethod
    def load(cls, folder: str | Path, model: VSE | Ensemble) -> "Gallery":
        """Read what `save` wrote.

        Args:
            folder: Of the gallery.
            model: The one that encoded it.

        Raises:
            FileError: If the gallery is broken, not as it was saved, or of another model.
        """
        folder = recover_folder(Path(folder))
        about = read_json(folder / "gallery.json")
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise FileError(f"{folder / 'gallery.json'} is not a gallery of format {FORMAT}")
        if about.get("model") != model.fingerprint():
            raise FileError(f"{folder} was encoded by another model: index it again with this one")
        try:
            tensors = load_file(folder / "gallery.safetensors")
        except (OSError, SafetensorError) as error:
            raise FileError(f"{folder / 'gallery.safetensors'} cannot be read: {error}") from error
        _check_parts(folder, about, tensors, model.dim)
        verify_checksums(folder)
        return cls(
            model, about["names"], about["digests"], about["captions"],
            tensors["image_ids"].numpy(), _whole(tensors["image_vectors"]), _whole(tensors["caption_vectors"]),
        )  # fmt: skip


def gallery_files(folder: Path) -> set[str]:
    """The names in a folder that an earlier save of a gallery may have written; none if it holds no gallery."""
    return saved_files(folder, FILES, _holds_gallery)


def _holds_gallery(folder: Path) -> bool:
    try:
        about = read_json(folder / "gallery.json")
    except FileError:
        return False
    return isinstance(about, dict) and {"format", "model", "digests"} <= set(about)


def read_models(folder: Path) -> list[Path]:
    """The folders of the model that encoded a gallery, as far as `save` was told."""
    if not recover_folder(folder).is_dir():
        raise FileError(f"{folder} is not a gallery: make one with vse-demo index")
    path = recover_folder(folder) / "models.json"
    models = read_json(path)
    if not isinstance(models, list) or not models or not all(isinstance(model, str) for model in models):
        raise FileError(f"{path} must be a list of folders; name the model's with --model")
    return [Path(model) for model in models]


def _encode_readable(
    model: VSE | Ensemble,
    images: Sequence[ImageFile] | np.ndarray,
    numbers: list[int],
    progress: bool,
    report: Report | None,
) -> tuple[list[int], Tensor]:
    """Which of these images can be read, and their vectors."""
    readable: list[int] = []
    parts = [torch.empty(0, model.dim)]
    with ThreadPoolExecutor(4) as pool, tqdm(total=len(numbers), unit=" images", disable=not progress) as bar:
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start : start + BATCH]
            read = pool.map(lambda number: _attempt(_decode, images[number]), batch)
            decoded = {number: image for number, image in zip(batch, read, strict=True) if image is not None}
            readable += decoded
            parts.append(model.encode_images(list(decoded.values())))
            bar.update(len(batch))
            if report is not None:
                report(len(batch) + start, len(numbers))
    return readable, torch.cat(parts)


def _attempt(read: Callable[[Any], Any], image: ImageFile | np.ndarray) -> Any:
    """What `read` makes of an image; None, and a warning, if the image cannot be read."""
    try:
        return read(image)
    except FileError as error:
        warnings.warn(f"left out: {error}", stacklevel=2)
        return None


def _decode(image: ImageFile | np.ndarray) -> Image.Image | np.ndarray:
    return image if isinstance(image, np.ndarray) else read_image(image)


def _whole(vectors: Tensor) -> Tensor:
    """Unit float32 vectors again, if they were stored in half precision."""
    return l2_normalize(vectors.float()) if vectors.dtype == torch.float16 else vectors


def _hits(query: Tensor, vectors: Tensor, items: Sequence[str], k: int) -> list[Hit]:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    scores, numbers = top_k(query, vectors, k)
    found = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
    return [Hit(number, items[number], score) for number, score in found]


def _check_parts(folder: Path, about: dict[str, list[str]], tensors: dict[str, Tensor], dim: int) -> None:
    """The two files of a gallery must speak of the same things."""
    for key in ("names", "digests", "captions"):
        if not isinstance(about.get(key), list) or not all(isinstance(item, str) for item in about[key]):
            raise FileError(f"{folder / 'gallery.json'}: {key!r} must be a list of strings")
    images, captions = len(about["names"]), len(about["captions"])
    expected = {"image_vectors": (images, dim), "caption_vectors": (captions, dim), "image_ids": (captions,)}
    for key, shape in expected.items():
        if key not in tensors or tuple(tensors[key].shape) != shape:
            raise FileError(f"{folder}: {key!r} in gallery.safetensors does not fit gallery.json, which needs {shape}")
        floats = tensors[key].dtype in (torch.float16, torch.float32) and bool(tensors[key].isfinite().all())
        if key != "image_ids" and not floats:
            raise FileError(f"{folder}: {key!r} in gallery.safetensors are not all numbers")
    image_ids = tensors["image_ids"]
    if (
        len(about["digests"]) != images
        or image_ids.dtype != torch.int64
        or ((image_ids < 0) | (image_ids >= images)).any()
    ):
        raise FileError(f"{folder}: a caption or a digest belongs to no image")
