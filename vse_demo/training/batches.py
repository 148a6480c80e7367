"""What one training step sees: which pictures, which captions, which cells and words of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vse_demo.data.images import ImageFile
from vse_demo.data.layouts import CaptionedImages
from vse_demo.encoders.feature_cache import CachedFeatures, cached_features
from vse_demo.encoders.tokenizers import Tokenizer
from vse_demo.model.vse import VSE


@dataclass(frozen=True)
class PairDataset:
    """A split as training sees it: cells or pictures, token numbers, and who belongs to whom."""

    images: CachedFeatures | Sequence[ImageFile]  # pictures when the backbone is trained too
    sentences: list[list[int]]
    image_ids: np.ndarray
    mirrored: CachedFeatures | None = None  # cells of the mirror images

    @classmethod
    def make(
        cls, data: CaptionedImages, model: VSE, live: bool, cache: Path | None, mirror: bool = False
    ) -> "PairDataset":
        sentences = model.tokenizer.encode(data.captions)
        if isinstance(data.images, np.ndarray):
            return cls(CachedFeatures(data.images, np.arange(len(data))), sentences, data.image_ids)
        if live:
            return cls(data.images, sentences, data.image_ids)
        encoder = model.image_encoder
        mirrored = cached_features(encoder, data.images, cache, mirrored=True) if mirror else None
        return cls(cached_features(encoder, data.images, cache), sentences, data.image_ids, mirrored)


@dataclass(frozen=True)
class CaptionPairDataset:
    """Captions alone, picture by picture: two of one picture are a pair."""

    sentences: list[list[int]]
    image_ids: np.ndarray  # rising

    @classmethod
    def make(cls, groups: Sequence[Sequence[str]], tokenizer: Tokenizer) -> "CaptionPairDataset":
        captions = [caption for group in groups for caption in group]
        return cls(tokenizer.encode(captions), np.repeat(np.arange(len(groups)), [len(group) for group in groups]))

    def partners(self, batch: "Batch", random: np.random.Generator) -> list[int]:
        """For each picture of a batch, a caption that the batch does not show, if there is one."""
        shown = set(batch.captions)
        chosen = []
        for image in batch.images:
            own = range(*np.searchsorted(self.image_ids, [image, image + 1]))
            others = [caption for caption in own if caption not in shown] or list(own)
            chosen.append(others[random.integers(len(others))])
        return chosen


@dataclass(frozen=True)
class Batch:
    """The pictures of one step, their captions, and the place in the batch of each caption's picture."""

    images: list[int]
    captions: list[int]
    image_ids: Tensor


def epoch_batches(
    image_ids: np.ndarray, batch_size: int, captions_per_image: int, random: np.random.Generator
) -> list[Batch]:
    """All captions once: random groups of one picture's captions, in random batches of groups.

    Groups that do not fill a last batch are left out this time: K depends on the batch size.
    """
    captions = random.permutation(len(image_ids))
    captions = captions[np.argsort(image_ids[captions], kind="stable")]  # by picture, each in random order
    position = np.arange(len(captions))
    first = np.r_[True, np.diff(image_ids[captions]) != 0]
    place = position - np.maximum.accumulate(np.where(first, position, 0))  # 0, 1, 2 … within a picture
    groups = np.split(captions, np.flatnonzero(place % captions_per_image == 0)[1:])
    order = random.permutation(len(groups))
    steps = max(1, len(groups) // batch_size)
    batches = []
    for step in range(steps):
        chosen = np.concatenate([groups[index] for index in order[step * batch_size : (step + 1) * batch_size]])
        images, places = np.unique(image_ids[chosen], return_inverse=True)
        batches.append(Batch(images.tolist(), chosen.tolist(), torch.from_numpy(places)))
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


def drop_features(cells: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Keep a random share of the cells of each picture: (B, N, C) -> (B, fewer, C)."""
    kept = kept_features(cells.shape[0], cells.shape[1], rate, generator).to(cells.device)
    return cells.gather(1, kept.unsqueeze(-1).expand(-1, -1, cells.shape[2]))


def kept_features(images: int, cells: int, rate: float, generator: torch.Generator) -> Tensor:
    """Which cells of each picture are kept: (pictures, fewer) numbers below `cells`."""
    keep = max(1, round(cells * (1 - rate)))
    if keep == cells:
        return torch.arange(cells).expand(images, cells)
    return torch.rand(images, cells, generator=generator).argsort(1)[:, :keep]
