"""Images and their captions, from every layout that people have on disk.

`open_dataset(folder)` recognises
- Karpathy's layout (Flickr8k, Flickr30K, MS-COCO): `dataset_*.json` beside `images/`;
- Flickr30K as its Hugging Face copy: `flickr_annotations_30k.csv` beside `flickr30k-images.zip`,
  read in place, never unpacked;
- precomputed regions: `{split}_ims.npy` beside `{split}_caps.txt` or `{split}_precaps_stan.txt`, whose words are
  separated by commas; in the folder itself, or in `precomp/` inside it;
- any folder of images, with a `captions.json` (Karpathy's layout, or file name → captions) or without.

No model is known here: images come out as files, captions as strings.
"""

import csv
import functools
import json
import os
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from vse_demo.data.images import IMAGE_SUFFIXES, ImageFile, content_digest
from vse_demo.utils.files import FileError, read_json
from vse_demo.utils.objects import import_object
from vse_demo.utils.paths import shipped
from vse_demo.utils.text import sanitize_text


@dataclass(frozen=True)
class CaptionedImages:
    """One split: images, captions, and which image each caption describes."""

    images: Sequence[ImageFile] | np.ndarray  # files, or regions (I, N, C)
    names: list[str]  # of the images
    captions: list[str]
    image_ids: np.ndarray  # (C,) int64: the index of each caption's image

    def __len__(self) -> int:
        return len(self.names)

    def captions_of(self, image: int) -> list[str]:
        """The captions of the image of this index."""
        return list(self.captions_by_image[image])

    @functools.cached_property
    def captions_by_image(self) -> list[list[str]]:
        """The captions of every image, in one pass over them."""
        groups: list[list[str]] = [[] for _ in self.names]
        for caption, image in zip(self.captions, self.image_ids.tolist(), strict=True):
            groups[image].append(caption)
        return groups


class Dataset:
    """The splits of one folder. `restval`, COCO's spare validation images, counts as `train`.

    Args:
        folder: Where it is.
        splits: How to read each split.
        present: How to read what is there of each split; it is given a list, for the names of images that are not.
        unlisted: How to read the images of the folder that belong to no split, if there may be any.
    """

    def __init__(
        self,
        folder: Path,
        splits: dict[str, Callable[[], CaptionedImages]],
        present: dict[str, Callable[[list[str]], CaptionedImages]] | None = None,
        unlisted: Callable[[], CaptionedImages] | None = None,
    ):
        self.folder = folder
        self._splits, self._present, self._unlisted = splits, present or {}, unlisted

    @property
    def splits(self) -> list[str]:
        """The names of the splits."""
        return list(self._splits)

    def split(self, name: str) -> CaptionedImages:
        """Read one split and check that every image that it names is there.

        Raises:
            FileError: If there is no such split, or if an image is missing or outside the folder.
        """
        if name not in self._splits:
            raise FileError(f"{self.folder} has no split {name!r}; it has {', '.join(self.splits)}")
        return self._splits[name]()

    def present(self, name: str) -> tuple[CaptionedImages, list[str]]:
        """Read what is there of a split: images with their captions, and the names of images that are missing."""
        if name not in self._present:
            return self.split(name), []
        missing: list[str] = []
        return self._present[name](missing), missing

    def unlisted(self) -> CaptionedImages:
        """The images of the folder that its caption file does not name."""
        return self._unlisted() if self._unlisted else CaptionedImages([], [], [], np.empty(0, np.int64))


def open_dataset(folder: str | Path | None = None, layout: str | Callable[[Path], "Dataset"] | None = None) -> Dataset:
    """Recognise the layout of a folder and read its caption files; images are not opened yet.

    Args:
        folder: Of the data set; without it, the photographs that come with the package.
        layout: A function of your own that reads the folder, or its place, `package.module:name`; by default the layout
            is recognised.

    Raises:
        FileError: If the folder holds no data set, or its caption file is broken.
    """
    folder = shipped("gallery") if folder is None else Path(folder)
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder")
    if layout is not None:
        return (import_object(layout) if isinstance(layout, str) else layout)(folder)
    karpathy = sorted(folder.glob("dataset_*.json"))
    if len(karpathy) > 1:
        raise FileError(f"{folder} holds several caption files: {', '.join(path.name for path in karpathy)}; keep one")
    if karpathy:
        return _open_karpathy(folder, karpathy[0])
    if (folder / "flickr_annotations_30k.csv").exists():
        return _open_hub_copy(folder)
    for place in (folder, folder / "precomp"):
        if any(place.glob("*_ims.npy")):
            return _open_precomputed(place)
    if (folder / "captions.json").exists():
        return _open_captions_json(folder)
    return _open_image_folder(folder)


def first_images(data: CaptionedImages, count: int) -> CaptionedImages:
    """The first images of a split, with their captions."""
    kept = np.flatnonzero(data.image_ids < count)
    captions = [data.captions[number] for number in kept]
    return CaptionedImages(data.images[:count], data.names[:count], captions, data.image_ids[kept])


def merge_duplicates(data: CaptionedImages) -> CaptionedImages:
    """Count images of the same content once, with the captions of all: none can outrank its own copy."""
    first: dict[str, int] = {}
    kept: list[int] = []
    new_index = np.empty(len(data), dtype=np.int64)
    for index in range(len(data)):
        digest = content_digest(data.images[index])
        if digest not in first:
            first[digest] = len(kept)
            kept.append(index)
        new_index[index] = first[digest]
    images = data.images[kept] if isinstance(data.images, np.ndarray) else [data.images[index] for index in kept]
    return CaptionedImages(images, [data.names[index] for index in kept], data.captions, new_index[data.image_ids])


def read_captions(json_file: Path) -> list[list[str]]:
    """The captions of each training image of a file in Karpathy's layout, whether the images are there or not."""
    return [captions for _, captions in _karpathy_records(json_file)["train"]]


def _open_karpathy(folder: Path, json_file: Path) -> Dataset:
    return _captioned_folder(folder, json_file, _karpathy_records(json_file))


def _captioned_folder(folder: Path, json_file: Path, splits: dict[str, list[tuple[str, list[str]]]]) -> Dataset:
    """Images below `folder`, or its folder `images`, and a file that names them."""
    root = folder / "images" if (folder / "images").is_dir() else folder

    def unlisted() -> CaptionedImages:
        listed = {_composed(str(PurePosixPath(name))) for records in splits.values() for name, _ in records}
        names = [name for name in _image_names(root) if _composed(name) not in listed]
        paths = _find_files(folder, root, names, folder)
        return CaptionedImages(paths, [sanitize_text(name) for name in names], [], np.empty(0, np.int64))

    return _dataset(
        folder,
        splits,
        lambda names: _find_files(folder, root, names, json_file),
        lambda name: os.path.isfile(_file_on_disk(root, name)),
        unlisted,
    )


def _karpathy_records(json_file: Path) -> dict[str, list[tuple[str, list[str]]]]:
    """Name and captions of each image, by split."""
    content = read_json(json_file)
    records = content.get("images") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise FileError(f'{json_file} is not in Karpathy\'s layout: no list under "images"')
    splits: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for number, record in enumerate(records):
        try:
            name = str(PurePosixPath(record.get("filepath", "")) / record["filename"])
            captions = _captions([sentence["raw"] for sentence in record["sentences"]])
            splits[record.get("split", "all").replace("restval", "train")].append((name, captions))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FileError(f"{json_file}: record {number} is broken: {error!r}") from error
    return splits


def _open_hub_copy(folder: Path) -> Dataset:
    table = folder / "flickr_annotations_30k.csv"
    archive = folder / "flickr30k-images.zip"
    splits: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    try:
        with table.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["split"] is None or row["filename"] is None:
                    raise ValueError("its last row is cut off")
                splits[row["split"]].append((row["filename"], _captions(json.loads(row["raw"]))))
    except (OSError, KeyError, TypeError, ValueError, RecursionError, csv.Error) as error:
        raise FileError(f"{table} is not the caption table of the Hugging Face copy: {error!r}") from error
    return _dataset(folder, splits, lambda names: _find_in_archive(archive, names))


def _open_captions_json(folder: Path) -> Dataset:
    json_file = folder / "captions.json"
    content = read_json(json_file)
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        return _open_karpathy(folder, json_file)
    try:
        records = [(str(name), _captions(captions)) for name, captions in content.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise FileError(f"{json_file} must map file names to lists of captions: {error}") from error
    return _captioned_folder(folder, json_file, {"all": records})


def _image_names(root: Path) -> list[str]:
    """The images below a folder, as paths from there; hidden ones are left out."""
    inside = (path.relative_to(root) for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    return sorted(path.as_posix() for path in inside if not any(part.startswith(".") for part in path.parts))


def _open_image_folder(folder: Path) -> Dataset:
    names = _image_names(folder)
    if not names:
        raise FileError(f"{folder} holds no images and no caption file that this program knows")
    return _dataset(
        folder, {"all": [(name, []) for name in names]}, lambda found: _find_files(folder, folder, found, folder)
    )


def _open_precomputed(folder: Path) -> Dataset:
    names = sorted(path.name.removesuffix("_ims.npy") for path in folder.glob("*_ims.npy"))
    return Dataset(folder, {name: lambda name=name: _read_precomputed(folder, name) for name in names})  # type: ignore[misc]


def _read_precomputed(folder: Path, split: str) -> CaptionedImages:
    """Regions (I, N, C), mapped rather than read, with a whole number of captions for each."""
    regions_file, captions_file = folder / f"{split}_ims.npy", folder / f"{split}_caps.txt"
    words_file = folder / f"{split}_precaps_stan.txt"  # of GSMN and others: split into words already
    of_words = words_file.exists() and not captions_file.exists()
    captions_file = words_file if of_words else captions_file
    try:
        regions: np.ndarray = np.lib.format.open_memmap(regions_file, mode="r")  # neither pickles nor archives
        lines = captions_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        captions = _captions([" ".join(line.replace(",", " ").split()) for line in lines] if of_words else lines)
        if regions.dtype.kind not in "fiu":
            raise ValueError(f"{regions_file.name} holds no numbers but {regions.dtype}")
    except Exception as error:  # NumPy fails in many ways on broken headers
        raise FileError(f"cannot read {split!r} of {folder}: {error}") from error
    if regions.ndim == 2:  # one vector per image, as in the first VSE data
        regions = regions[:, None]
    if regions.ndim != 3 or len(regions) == 0 or len(captions) % len(regions):
        raise FileError(
            f"{regions_file.name} is {regions.shape} and {captions_file.name} has {len(captions)} lines: "
            "the captions must be a whole multiple of the images"
        )
    image_ids = np.arange(len(captions), dtype=np.int64) // (len(captions) // len(regions))
    return CaptionedImages(regions, [f"{split} {index}" for index in range(len(regions))], captions, image_ids)


def _dataset(
    folder: Path,
    splits: dict[str, list[tuple[str, list[str]]]],
    find: Callable[[list[str]], Sequence[ImageFile]],
    is_there: Callable[[str], bool] = lambda _: True,
    unlisted: Callable[[], CaptionedImages] | None = None,
) -> Dataset:
    if not splits:
        raise FileError(f"the caption file of {folder} names no images")

    def load(records: list[tuple[str, list[str]]]) -> CaptionedImages:
        names = [name for name, _ in records]
        captions = [caption for _, of_image in records for caption in of_image]
        image_ids = np.repeat(np.arange(len(records)), [len(of_image) for _, of_image in records]).astype(np.int64)
        return CaptionedImages(find(names), [sanitize_text(name) for name in names], captions, image_ids)

    def load_present(records: list[tuple[str, list[str]]], missing: list[str]) -> CaptionedImages:
        there = [is_there(name) for name, _ in records]
        missing += [name for (name, _), here in zip(records, there, strict=True) if not here]
        return load([record for record, here in zip(records, there, strict=True) if here])

    return Dataset(
        folder,
        {name: functools.partial(load, records) for name, records in splits.items()},
        {name: functools.partial(load_present, records) for name, records in splits.items()},
        unlisted,
    )


def _find_files(folder: Path, root: Path, names: list[str], listed_in: Path) -> list[Path]:
    """The files of these names below `root`, which is `folder` or its folder of images."""
    inside = {folder.resolve(), root.resolve()}
    paths = [_file_on_disk(root, name) for name in names]
    for path, name in zip(paths, names, strict=True):
        try:
            target = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a name that no file can have
            raise FileError(
                f"{listed_in}: {name[:200]!r} is no name of a file, or a link that leads nowhere"
            ) from error
        if not any(target.is_relative_to(place) for place in inside):
            how = "is a link to a file" if path.is_symlink() else "lies"
            raise FileError(f"{listed_in}: {name!r} {how} outside {folder}; images must be inside the folder")
    missing = [name for name, path in zip(names, paths, strict=True) if not os.path.isfile(path)]
    _refuse_missing(missing, len(names), root)
    return paths


def _file_on_disk(root: Path, name: str) -> Path:
    """The path of a name, however its accents are written: macOS decomposes them in names of files."""
    forms = (name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")))
    return next((root / form for form in forms if os.path.isfile(root / form)), root / name)


def _find_in_archive(archive: Path, names: list[str]) -> list[zipfile.Path]:
    try:
        opened = zipfile.ZipFile(archive)
    except Exception as error:  # see content_digest
        raise FileError(f"{archive} cannot be read: {error}") from error
    for member in opened.namelist():  # nothing is unpacked, but an honest archive has no such names
        parts = member.replace("\\", "/").removesuffix("/").split("/")
        if "" in parts or ".." in parts:  # and names with // make zipfile.Path search forever (CVE-2024-8088)
            raise FileError(f"{archive} holds {member!r}, which would lie outside it: get it again")
    members = {
        _composed(PurePosixPath(member).name): member for member in opened.namelist() if "__MACOSX" not in member
    }
    _refuse_missing([name for name in names if _composed(name) not in members], len(names), archive)
    return [zipfile.Path(opened, members[_composed(name)]) for name in names]


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _refuse_missing(missing: list[str], total: int, place: Path) -> None:
    if missing:
        some = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        raise FileError(f"{len(missing)} of {total} images are not in {place}: {some}")


def _captions(values: Any) -> list[str]:
    if not isinstance(values, list):
        raise ValueError(f"captions must be a list of sentences, not {values!r}")
    captions = [sanitize_text(value).strip() if isinstance(value, str) else "" for value in values]
    if not all(captions):
        raise ValueError(f"a caption must be a sentence, not {values[captions.index('')]!r}")
    return captions
