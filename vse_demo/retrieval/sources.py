"""What can be indexed: a folder, a list of files, or tar shards in WebDataset layout -> units of work.

A unit is what one task reads: an image file, or a whole shard. Nothing is opened before its unit is read, which may
happen on another machine; all of them must see the same files under the same paths.
"""

import json
import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from vse_demo.data.images import IMAGE_SUFFIXES, MAX_BYTES, ImageFile
from vse_demo.data.layouts import CaptionedImages, open_dataset
from vse_demo.utils.files import FileError
from vse_demo.utils.text import sanitize_text

LISTS = (".txt", ".lst", ".list")


@dataclass(frozen=True)
class Unit:
    """What one task reads.

    Args:
        path: Of a file; a name that ends in .tar is a shard of images.
        name: Of the image, or of the shard.
        captions: Of the image.
        source: The folder that it belongs to.
        split: Of the image.
        member: The image's name in the archive `path`, if that is a zip file.
    """

    path: str
    name: str
    captions: tuple[str, ...] = ()
    source: str = ""
    split: str = ""
    member: str = ""

    @property
    def is_shard(self) -> bool:
        """Whether it holds many images."""
        return self.path.endswith(".tar")

    def image(self) -> ImageFile:
        """The file of the image."""
        return zipfile.Path(_open_archive(self.path), self.member) if self.member else Path(self.path)


@lru_cache(4)
def _open_archive(path: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)  # its list of files is read once in each process


@dataclass(frozen=True)
class Picture:
    """An image as it was read: its bytes, or the reason why there are none."""

    name: str
    content: bytes
    captions: tuple[str, ...] = ()
    error: str = ""


def find_units(data: Path, splits: Sequence[str] | None = None) -> list[Unit]:
    """The units of a source.

    Args:
        data: A tar file or a folder of tar files; a text file with the path of an image on each line; or the folder
            of a data set, with its captions.
        splits: Of a data set, only these.

    Raises:
        FileError: If there is nothing to index.
    """
    shards = [data] if data.suffix == ".tar" else sorted(data.glob("*.tar")) if data.is_dir() else []
    if shards:
        return [
            Unit(str(shard.resolve()), sanitize_text(shard.name), source=str(shard.resolve().parent))
            for shard in shards
        ]
    if data.suffix in LISTS:
        return _listed(data)
    return _of_dataset(data, splits)


def count_images(units: Sequence[Unit]) -> int:
    """How many images units hold; of a shard only the headers are read."""
    shards = [unit for unit in units if unit.is_shard]
    with ThreadPoolExecutor(8) as pool:
        return len(units) - len(shards) + sum(pool.map(_images_of_shard, shards))


def read_unit(unit: Unit) -> Iterator[Picture]:
    """The images of a unit; what cannot be read comes as a `Picture` with an error."""
    if unit.is_shard:
        yield from _read_shard(unit)
        return
    try:
        with unit.image().open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        error = _too_large(unit.name) if len(content) > MAX_BYTES else ""
        yield Picture(unit.name, b"" if error else content, unit.captions, error)
    except Exception as error:  # of the disk, or of an archive, which can be broken in many ways
        yield Picture(unit.name, b"", (), f"{unit.name} cannot be read: {getattr(error, 'strerror', None) or error}")


def _listed(file: Path) -> list[Unit]:
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()  # names need not be UTF-8
        paths = [(file.parent / line.strip()).resolve() for line in lines if line.strip()]
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise FileError(f"{file} cannot be read as a list of files: {error}") from error
    if not paths:
        raise FileError(f"{file} lists no file: it should hold the path of an image on each line")
    parent = file.parent.resolve()
    return [Unit(str(path), sanitize_text(os.path.relpath(path, parent)), source=str(parent)) for path in paths]


def _of_dataset(folder: Path, splits: Sequence[str] | None) -> list[Unit]:
    """The images of a data set; a missing one is a unit that cannot be read."""
    dataset, units = open_dataset(folder), list[Unit]()
    source = os.path.abspath(dataset.folder)
    for split in dataset.splits if splits is None else splits:
        data, missing = dataset.present(split)
        units += _of_images(data, source, split)
        units += [Unit(os.path.join(source, name), sanitize_text(name), (), source, split) for name in missing]
    return units + (_of_images(dataset.unlisted(), source, "") if splits is None else [])


def _of_images(data: CaptionedImages, source: str, split: str) -> list[Unit]:
    units, captions = [], [list[str]() for _ in range(len(data))]
    for caption, number in zip(data.captions, data.image_ids.tolist(), strict=True):
        captions[number].append(caption)
    for image, name, texts in zip(data.images, data.names, captions, strict=True):
        if isinstance(image, zipfile.Path):
            path, member = str(image.root.filename), image.at
        elif isinstance(image, Path):
            path, member = str(image), ""
        else:
            raise FileError(f"{source} holds precomputed regions: there are no images to decode on a cluster")
        units.append(Unit(os.path.abspath(path), name, tuple(texts), source, split, member))
    return units


def _images_of_shard(shard: Unit) -> int:
    try:
        with tarfile.open(shard.path) as archive:
            return sum(_is_image(member) for member in archive)
    except (OSError, tarfile.TarError):
        return 1  # the error that reading it will give


def _read_shard(shard: Unit) -> Iterator[Picture]:
    """The samples of a shard: files that follow each other, of one name with different suffixes."""
    sample, pictures, captions, error = "", list[Picture](), list[str](), ""
    try:
        with tarfile.open(shard.path) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if sample != (sample := str(path.parent / path.name.split(".")[0])):
                    yield from _captioned(pictures, captions)
                    pictures, captions = [], []
                if _is_image(member):
                    pictures.append(_read_member(archive, member, f"{shard.name}/{sanitize_text(member.name)}"))
                elif member.isfile() and path.suffix in (".txt", ".caption", ".json"):
                    captions += _captions(path.suffix, _content(archive, member))
            _check_end(archive)
    except (OSError, tarfile.TarError, EOFError) as problem:
        after = sanitize_text(sample) or "its start"
        error = f"{shard.name} is broken, what follows {after} is lost: {problem}"
    yield from _captioned(pictures, captions)
    if error:
        yield Picture(shard.name, b"", (), error)


def _check_end(archive: tarfile.TarFile) -> None:
    """Refuse an archive that ends with a broken header: tarfile takes that for a good end."""
    if archive.fileobj is not None:
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError("a header is cut off or broken")


def _captioned(pictures: Sequence[Picture], captions: Sequence[str]) -> Iterator[Picture]:
    """The pictures of a sample, of which there may be several, each with all of its captions."""
    for picture in pictures:
        yield replace(picture, captions=tuple(captions))


def _is_image(member: tarfile.TarInfo) -> bool:
    return member.isfile() and PurePosixPath(member.name).suffix.lower() in IMAGE_SUFFIXES


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Picture:
    if member.size > MAX_BYTES:
        return Picture(name, b"", (), _too_large(name))
    return Picture(name, _content(archive, member))


def _too_large(name: str) -> str:
    return f"{name}: its bytes are more than this program reads"


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) < member.size:
        raise tarfile.ReadError("it ends too early")
    return content


def _captions(suffix: str, content: bytes) -> list[str]:
    """The lines of a text file; of a JSON object its `caption` or `captions`."""
    text = content.decode("utf-8", errors="replace")
    if suffix != ".json":
        return [line for line in map(sanitize_text, text.splitlines()) if line.strip()]
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = about.get("captions", about.get("caption", [])) if isinstance(about, dict) else []
    found = [found] if isinstance(found, str) else found or []
    return [sanitize_text(caption) for caption in found if isinstance(caption, str) and caption.strip()]
