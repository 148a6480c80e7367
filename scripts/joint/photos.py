"""The photos of both data sets, and their maps after the frozen stages, computed once and kept on disk."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from vse_demo.data import open_dataset
from vse_demo.data.images import ImageFile, read_image
from vse_demo.data.transforms import resize_images
from vse_demo.encoders.backbone import Backbone, fold_batch_norms

SPLITS = (("coco", "train"), ("flickr", "train"), ("coco", "val"), ("flickr", "val"))
BATCH = 32


@dataclass(frozen=True)
class Photos:
    """All photos, those for training first."""

    files: list[ImageFile]
    captions: list[list[str]]  # of each photo
    parts: dict[tuple[str, str], np.ndarray]  # numbers of the photos of a data set and split

    @property
    def training(self) -> int:
        """How many are for training."""
        return sum(len(numbers) for (_, split), numbers in self.parts.items() if split == "train")


def read_photos(coco: Path, flickr: Path) -> Photos:
    """Both data sets, in Karpathy's layout."""
    datasets = {"coco": open_dataset(coco), "flickr": open_dataset(flickr)}
    files: list[ImageFile] = []
    captions: list[list[str]] = []
    parts = {}
    for name, split in SPLITS:
        data = datasets[name].split(split)
        parts[name, split] = np.arange(len(files), len(files) + len(data))
        files += data.images
        captions += [data.captions_of(number) for number in range(len(data))]
    return Photos(files, captions, parts)


def frozen_maps(
    backbone: Backbone, stages: int, photos: Sequence[ImageFile], path: Path, mirrored: bool = False
) -> np.ndarray:
    """Maps (photos, H, W, C) after the first `stages`, as float16; read from `path` if they were made before."""
    if path.exists():
        return np.load(path, mmap_mode="r")
    net = fold_batch_norms(backbone.net, backbone.image_size)
    with torch.inference_mode():
        shape = _frozen(net, stages, torch.zeros(1, 3, backbone.image_size, backbone.image_size)).shape[1:]
    part = path.with_suffix(".part")
    maps = np.lib.format.open_memmap(part, mode="w+", dtype=np.float16, shape=(len(photos), *shape))
    with torch.inference_mode(), ThreadPoolExecutor(2) as pool, tqdm(total=len(photos), unit=" photos") as bar:
        for start in range(0, len(photos), BATCH):
            images = list(pool.map(read_image, photos[start : start + BATCH]))
            pixels = resize_images(images, backbone.image_size)
            pixels = pixels.flip(3) if mirrored else pixels
            maps[start : start + len(images)] = _frozen(net, stages, (pixels / 255 - backbone.mean) / backbone.std)
            bar.update(len(images))
    maps.flush()
    part.rename(path)
    return np.load(path, mmap_mode="r")


def _frozen(net: Any, stages: int, pixels: torch.Tensor) -> np.ndarray:
    x = net.bn1(net.conv_stem(pixels.contiguous(memory_format=torch.channels_last)))
    for stage in net.blocks[:stages]:
        x = stage(x)
    return x.permute(0, 2, 3, 1).half().numpy()
