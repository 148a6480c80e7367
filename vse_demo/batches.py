"""What one training step sees: which pictures, which captions, which cells and words of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vse_demo.data import CaptionedImages, ImageFile
from vse_demo.features import CachedCells, cached_cells
from vse_demo.model import VSE
from vse_demo.text import Tokenizer


@dataclass(frozen=True)
class Pairs:
    """A split as training sees it: cells or pictures, token numbers, and who belongs to whom."""

    images: CachedCells | Sequence[ImageFile]  # pictures when the backbone is trained too
    sentences: list[list[int]]
    owner: np.ndarray
    mirrored: CachedCells | None = None  # cells of the mirror images

    @classmethod
    def make(cls, data: CaptionedImages, model: VSE, live: bool, cache: Path | None, mirror: bool = False) -> "Pairs":
        sentences = model.tokenizer.encode(data.captions)
        if isinstance(data.images, np.ndarray):
            return cls(CachedCells(data.images, np.arange(len(data))), sentences, data.owner)
        if live:
            return cls(data.images, sentences, data.owner)
        encoder = model.image_encoder
        mirrored = cached_cells(encoder, data.images, cache, mirrored=True) if mirror else None
        return cls(cached_cells(encoder, data.images, cache), sentences, data.owner, mirrored)


@dataclass(frozen=True)
class CaptionGroups:
    """Captions alone, picture by picture: two of one picture are a pair."""

    sentences: list[list[int]]
    owner: np.ndarray  # rising

    @classmethod
    def make(cls, groups: Sequence[Sequence[str]], tokenizer: Tokenizer) -> "CaptionGroups":
        captions = [caption for group in groups for caption in group]
        return cls(tokenizer.encode(captions), np.repeat(np.arange(len(groups)), [len(group) for group in groups]))

    def partners(self, batch: "Batch", random: np.random.Generator) -> list[int]:
        """For each picture of a batch, a caption that the batch does not show, if there is one."""
        shown = set(batch.captions)
        chosen = []
        for picture in batch.pictures:
            own = range(*np.searchsorted(self.owner, [picture, picture + 1]))
            others = [caption for caption in own if caption not in shown] or list(own)
            chosen.append(others[random.integers(len(others))])
        return chosen


@dataclass(frozen=True)
class Batch:
    """The pictures of one step, their captions, and the place in the batch of each caption's picture."""

    pictures: list[int]
    captions: list[int]
    owner: Tensor


def epoch_batches(
    owner: np.ndarray, batch_size: int, captions_per_image: int, random: np.random.Generator
) -> list[Batch]:
    """All captions once: random groups of one picture's captions, in random batches of groups.

    Groups that do not fill a last batch are left out this time: K depends on the batch size.
    """
    captions = random.permutation(len(owner))
    captions = captions[np.argsort(owner[captions], kind="stable")]  # by picture, each in random order
    position = np.arange(len(captions))
    first = np.r_[True, np.diff(owner[captions]) != 0]
    place = position - np.maximum.accumulate(np.where(first, position, 0))  # 0, 1, 2 … within a picture
    groups = np.split(captions, np.flatnonzero(place % captions_per_image == 0)[1:])
    order = random.permutation(len(groups))
    steps = max(1, len(groups) // batch_size)
    batches = []
    for step in range(steps):
        chosen = np.concatenate([groups[index] for index in order[step * batch_size : (step + 1) * batch_size]])
        pictures, places = np.unique(owner[chosen], return_inverse=True)
        batches.append(Batch(pictures.tolist(), chosen.tolist(), torch.from_numpy(places)))
    return batches


def drop_words(sentence: list[int], rate: float, tokenizer: Tokenizer, random: np.random.Generator) -> list[int]:
    """Leave out or mask each word with probability `rate`, half and half; at least one is left, masked or not."""
    kept = []
    for token, fate in zip(sentence, random.random(len(sentence)), strict=True):
        if token in tokenizer.special or fate >= rate:
            kept.append(token)
        elif fate < rate / 2:
            kept.append(tokenizer.mask_token)
    return kept if any(token not in tokenizer.special for token in kept) else sentence


def drop_cells(cells: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Keep a random share of the cells of each picture: (B, N, C) -> (B, fewer, C)."""
    kept = kept_cells(cells.shape[0], cells.shape[1], rate, generator).to(cells.device)
    return cells.gather(1, kept.unsqueeze(-1).expand(-1, -1, cells.shape[2]))


def kept_cells(pictures: int, cells: int, rate: float, generator: torch.Generator) -> Tensor:
    """Which cells of each picture are kept: (pictures, fewer) numbers below `cells`."""
    keep = max(1, round(cells * (1 - rate)))
    if keep == cells:
        return torch.arange(cells).expand(pictures, cells)
    return torch.rand(pictures, cells, generator=generator).argsort(1)[:, :keep]
