"""Cells of a frozen backbone, computed once and kept: pictures -> rows of a memory-mapped file.

A cache folder belongs to one backbone with its weights and input size; its name is their
fingerprint. Mirror images have a folder of their own. Inside, `cells.f16` holds one fixed-size row per
picture, and `index.txt` names the content (not the file name) of the picture in each row. Both only
grow: rows first, then their names. A run that is killed loses at most its last batch, a changed
picture simply is another picture, and nothing can be stale.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import Image, ImageOps
from torch import Tensor
from tqdm.auto import tqdm

from vse_demo.data import ImageFile, content_digest, read_image
from vse_demo.vision import ImageEncoder

NAME_BYTES = 33  # 32 hexadecimal digits and a line end


def default_cache() -> Path:
    """`$VSE_DEMO_CACHE`, or a folder in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VSE_DEMO_CACHE") or Path(home) / "vse_demo")


class CachedCells:
    """Rows of cells by picture number: `cells[[3, 1]]` is a float32 tensor (2, N, C)."""

    def __init__(self, rows: np.ndarray, numbers: np.ndarray):
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, pictures: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.rows[self.numbers[np.asarray(pictures)]]).float()

    def pick(self, pictures: np.ndarray, cells: np.ndarray) -> Tensor:
        """Some cells of each picture, (B, K) numbers -> (B, K, C); only these are read."""
        return torch.from_numpy(self.rows[self.numbers[pictures][:, None], cells]).float()


class RowFile:
    """The two growing files of a cache folder."""

    def __init__(self, folder: Path, shape: tuple[int, int]):
        self.shape = shape
        self.row_bytes = 2 * shape[0] * shape[1]
        self.cells_file, self.index_file = folder / "cells.f16", folder / "index.txt"
        folder.mkdir(parents=True, exist_ok=True)
        for file in (self.cells_file, self.index_file):
            file.touch()

    def names(self) -> dict[str, int]:
        """The row of each picture content; a row counts only when its cells and its name are whole."""
        whole = min(self.cells_file.stat().st_size // self.row_bytes, self.index_file.stat().st_size // NAME_BYTES)
        with self.index_file.open("rb") as file:
            lines = file.read(whole * NAME_BYTES).decode("ascii").split()
        return {name: row for row, name in enumerate(lines)}

    def drop_partial_rows(self) -> None:
        """Cut off what a killed process left half-written; only the holder of the lock may do it."""
        whole = len(self.names())
        os.truncate(self.cells_file, whole * self.row_bytes)
        os.truncate(self.index_file, whole * NAME_BYTES)

    def append(self, names: Sequence[str], cells: Tensor) -> None:
        for file, content in (
            (self.cells_file, cells.half().contiguous().numpy().tobytes()),
            (self.index_file, "".join(f"{name}\n" for name in names).encode("ascii")),
        ):
            with file.open("ab") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())

    def map(self) -> np.ndarray:
        rows = self.cells_file.stat().st_size // self.row_bytes
        if rows == 0:  # an empty file cannot be mapped
            return np.empty((0, *self.shape), np.float16)
        return np.memmap(self.cells_file, np.float16, "r", shape=(rows, *self.shape))


@torch.inference_mode()
def cached_cells(
    encoder: ImageEncoder,
    images: Sequence[ImageFile],
    root: Path | None = None,
    batch_size: int = 32,
    mirrored: bool = False,
) -> CachedCells:
    """The cells of all pictures, or of their mirror images.

    They come from the cache where it has them; the others are computed and added.
    """
    if encoder.backbone is None:
        raise ValueError("vision = region takes precomputed regions (*_ims.npy), and these data are pictures")
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(content_digest, images))
    encoder.eval()
    shape = encoder.cells([Image.new("RGB", (8, 8))]).shape[1:]
    folder = (root or default_cache()) / f"cells-{encoder.backbone.fingerprint()}{'-mirrored' * mirrored}"
    rows = RowFile(folder, (shape[0], shape[1]))
    with FileLock(folder / "lock"):
        rows.drop_partial_rows()
        known = rows.names()
        wanted = {name: image for name, image in zip(names, images, strict=True) if name not in known}
        with tqdm(total=len(wanted), unit=" pictures", desc="extracting cells", disable=not wanted) as bar:
            for some, pictures in _decoded(list(wanted.items()), batch_size):
                views = [ImageOps.mirror(picture) for picture in pictures] if mirrored else pictures
                rows.append(some, encoder.cells(views).cpu())
                bar.update(len(some))
        known = rows.names()
    return CachedCells(rows.map(), np.array([known[name] for name in names], dtype=np.int64))


def _decoded(items: list[tuple[str, ImageFile]], batch_size: int) -> Iterator[tuple[list[str], list[Image.Image]]]:
    """Batches of decoded pictures, the next one decoded while the last one is used."""
    batches = [items[start : start + batch_size] for start in range(0, len(items), batch_size)]
    with ThreadPoolExecutor(2) as pool:
        waiting: list[Future[Image.Image]] = []
        for batch, following in itertools.pairwise([[], *batches, []]):
            pictures = [future.result() for future in waiting]
            waiting = [pool.submit(read_image, image) for _, image in following]
            if pictures:
                yield [name for name, _ in batch], pictures
