"""Features of a frozen backbone, computed once and kept: images -> rows of a memory-mapped file.

A cache folder belongs to one backbone with its weights and input size; its name is their
fingerprint. Mirror images have a folder of their own. Inside, `rows.f16` holds one fixed-size row per
image, and `rows.txt` names the content (not the file name) of the image in each row, with a
checksum of the row. Both only grow: rows first, then their names. A run that is killed loses at most
its last batch, a changed image simply is another image, and nothing can be stale. A row that is not
what was written is computed again.
"""

import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import Image, ImageOps
from torch import Tensor
from tqdm.auto import tqdm

from vse_demo.data.images import ImageFile, content_digest, read_image
from vse_demo.encoders.vision import ImageEncoder
from vse_demo.utils.paths import default_cache
from vse_demo.utils.tensors import evaluation_mode

NAME_BYTES = 42  # 32 hexadecimal digits, a blank, 8 of the checksum, and a line end
NAME = re.compile(rb"([0-9a-f]{32}) ([0-9a-f]{8})\n")


class CachedFeatures:
    """Features by image number: `features[[3, 1]]` is a float32 tensor (2, N, C).

    Args:
        rows: (rows, N, C), mapped rather than read.
        numbers: The row of each image.
    """

    def __init__(self, rows: np.ndarray, numbers: np.ndarray):
        self.rows, self.numbers = rows, numbers

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, features of each, channels."""
        return len(self.numbers), self.rows.shape[1], self.rows.shape[2]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, images: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.rows[self.numbers[np.asarray(images)]]).float()

    def pick(self, images: np.ndarray, places: np.ndarray) -> Tensor:
        """Some features of each image, by their (B, K) places -> (B, K, C); only these are read."""
        return torch.from_numpy(self.rows[self.numbers[images][:, None], places]).float()


class RowFile:
    """The two growing files of a cache folder."""

    def __init__(self, folder: Path, shape: tuple[int, int]):
        self.shape = shape
        self.row_bytes = 2 * shape[0] * shape[1]
        self.rows_file, self.index_file = folder / "rows.f16", folder / "rows.txt"
        folder.mkdir(parents=True, exist_ok=True)
        for file in (self.rows_file, self.index_file):
            file.touch()

    def __len__(self) -> int:
        """Rows whose features and name are whole."""
        return min(self.rows_file.stat().st_size // self.row_bytes, self.index_file.stat().st_size // NAME_BYTES)

    def names(self) -> dict[str, tuple[int, int]]:
        """The row and the checksum of each image content; a broken name is that of no image."""
        with self.index_file.open("rb") as file:
            lines = [file.read(NAME_BYTES) for _ in range(len(self))]
        found = [(row, name) for row, line in enumerate(lines) if (name := NAME.fullmatch(line))]
        return {name[1].decode(): (row, int(name[2], 16)) for row, name in found}

    def sound(self, wanted: Iterable[str]) -> dict[str, int]:
        """The rows of these images, as far as they are here and what was written."""
        names, rows = self.names(), self.map()
        here = [(name, *names[name]) for name in set(wanted) if name in names]
        with ThreadPoolExecutor(4) as pool:
            sums = pool.map(lambda item: zlib.crc32(rows[item[1]]), here)
        return {name: row for (name, row, checksum), now in zip(here, sums, strict=True) if now == checksum}

    def drop_partial_rows(self) -> None:
        """Cut off what a killed process left half-written; only the holder of the lock may do it."""
        whole = len(self)
        os.truncate(self.rows_file, whole * self.row_bytes)
        os.truncate(self.index_file, whole * NAME_BYTES)

    def append(self, names: Sequence[str], features: Tensor) -> None:
        """Add the features (B, N, C) of images; each name is a digest of 32 hexadecimal digits."""
        rows = features.half().contiguous().numpy()
        lines = [f"{name} {zlib.crc32(row):08x}\n" for name, row in zip(names, rows, strict=True)]
        for file, content in ((self.rows_file, rows.tobytes()), (self.index_file, "".join(lines).encode("ascii"))):
            with file.open("ab") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())

    def map(self) -> np.ndarray:
        """All whole rows (rows, N, C), read when they are used."""
        rows = self.rows_file.stat().st_size // self.row_bytes
        if rows == 0:  # an empty file cannot be mapped
            return np.empty((0, *self.shape), np.float16)
        return np.memmap(self.rows_file, np.float16, "r", shape=(rows, *self.shape))


@torch.inference_mode()
def cached_features(
    encoder: ImageEncoder,
    images: Sequence[ImageFile],
    root: Path | None = None,
    batch_size: int = 32,
    mirrored: bool = False,
    progress: bool = True,
) -> CachedFeatures:
    """The features of all images, or of their mirror images.

    They come from the cache where it has them; the others are computed and added.

    Args:
        encoder: Its backbone computes the features.
        images: The files.
        root: Folder of the cache; by default `default_cache()`.
        batch_size: How many images are computed together.
        mirrored: Take the mirror image of each.
        progress: Whether to show a bar.

    Raises:
        FileError: If an image cannot be read.
        ValueError: If the encoder has no backbone.
    """
    if encoder.backbone is None:
        raise ValueError("vision = region takes precomputed regions (*_ims.npy), and these data are images")
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(content_digest, images))
    with evaluation_mode(encoder):
        return _extract_missing(encoder, images, names, root or default_cache(), batch_size, mirrored, progress)


def _extract_missing(
    encoder: ImageEncoder,
    images: Sequence[ImageFile],
    names: list[str],
    root: Path,
    batch_size: int,
    mirrored: bool,
    progress: bool,
) -> CachedFeatures:
    assert encoder.backbone is not None
    shape = encoder.extract([Image.new("RGB", (8, 8))]).shape[1:]
    folder = root / f"cells-{encoder.backbone.fingerprint()}{'-mirrored' * mirrored}"
    rows = RowFile(folder, (shape[0], shape[1]))
    with FileLock(folder / "lock"):
        rows.drop_partial_rows()
        known = rows.sound(names)
        wanted = {name: image for name, image in zip(names, images, strict=True) if name not in known}
        hidden = not (wanted and progress)
        with tqdm(total=len(wanted), unit=" images", desc="extracting features", disable=hidden) as bar:
            for some, decoded in _decoded(list(wanted.items()), batch_size):
                views = [ImageOps.mirror(image) for image in decoded] if mirrored else decoded
                rows.append(some, encoder.extract(views).cpu())
                bar.update(len(some))
        known |= {name: row for name, (row, _) in rows.names().items() if name in wanted}
    return CachedFeatures(rows.map(), np.array([known[name] for name in names], dtype=np.int64))


def _decoded(items: list[tuple[str, ImageFile]], batch_size: int) -> Iterator[tuple[list[str], list[Image.Image]]]:
    """Batches of decoded images, the next one decoded while the last one is used."""
    batches = [items[start : start + batch_size] for start in range(0, len(items), batch_size)]
    with ThreadPoolExecutor(2) as pool:
        waiting: list[Future[Image.Image]] = []
        for batch, following in itertools.pairwise([[], *batches, []]):
            decoded = [future.result() for future in waiting]
            waiting = [pool.submit(read_image, image) for _, image in following]
            if decoded:
                yield [name for name, _ in batch], decoded
