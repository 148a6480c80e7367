"""What training learns from: a split in the form it needs, and which images and captions a batch has."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vse_demo.data.images import ImageFile, read_image
from vse_demo.data.layouts import CaptionedImages
from vse_demo.data.transforms import random_view, resize_images
from vse_demo.encoders.feature_cache import CachedFeatures, cached_features
from vse_demo.encoders.tokenizers import Token, Tokenizer, WordTokenizer
from vse_demo.encoders.vision import ImageEncoder


@dataclass(frozen=True)
class Batch:
    """Which images and captions a batch has, and the place in the batch of each caption's image."""

    images: list[int]
    captions: list[int]
    image_ids: Tensor


@dataclass(frozen=True)
class Share:
    """What one of several processes computes of each batch: a run of its images, and their captions.

    >>> Share(1, of=3).images(7), Share(1, of=3).captions(torch.tensor([2, 0, 3, 6]))
    (slice(2, 4, None), tensor([0, 2]))
    """

    rank: int = 0
    of: int = 1

    def images(self, count: int) -> slice:
        """Which of the `count` images of a batch."""
        return slice(self.rank * count // self.of, (self.rank + 1) * count // self.of)

    def captions(self, image_ids: Tensor) -> Tensor:
        """The places in the batch of the captions, given the image of each caption of the batch."""
        part = self.images(batch_images(image_ids))
        return ((image_ids >= part.start) & (image_ids < part.stop)).nonzero().squeeze(1)


def batch_images(image_ids: Tensor) -> int:
    """How many images a batch has: each has a caption there."""
    return int(image_ids.max()) + 1


WHOLE = Share()


@dataclass(frozen=True)
class PairDataset:
    """A split as training sees it: features or image files, token numbers, and which caption is of which image."""

    images: CachedFeatures | Sequence[ImageFile]  # files when the backbone is trained too
    sentences: list[list[Token]]
    image_ids: np.ndarray
    mirrored: CachedFeatures | None = None  # features of the mirror images
    captions: Sequence[str] = ()  # as they were written; needed only where typos are made

    @classmethod
    def make(
        cls,
        data: CaptionedImages,
        tokenizer: Tokenizer,
        encoder: ImageEncoder,
        live: bool = False,
        cache: Path | None = None,
        mirror: bool = False,
        progress: bool = True,
    ) -> "PairDataset":
        """Tokenize the captions of a split, and compute the features of its images where the backbone is frozen.

        Args:
            data: the split.
            tokenizer: of the model.
            encoder: of the model; its backbone computes the features.
            live: keep the image files, for a backbone that is trained too.
            cache: folder of cached features; without it, the user's own.
            mirror: also compute the features of the mirror images.
            progress: whether to show a bar while features are computed.
        """
        sentences = tokenizer.encode(data.captions)
        if isinstance(data.images, np.ndarray):
            regions = CachedFeatures(data.images, np.arange(len(data)))
            return cls(regions, sentences, data.image_ids, captions=data.captions)
        if live:
            return cls(data.images, sentences, data.image_ids, captions=data.captions)
        mirrored = cached_features(encoder, data.images, cache, mirrored=True, progress=progress) if mirror else None
        features = cached_features(encoder, data.images, cache, progress=progress)
        return cls(features, sentences, data.image_ids, mirrored, data.captions)

    @property
    def live(self) -> bool:
        """Whether images are decoded anew for each step."""
        return not isinstance(self.images, CachedFeatures)

    def features(
        self, images: Sequence[int], dropout: float, random: np.random.Generator, share: Share = WHOLE
    ) -> Tensor:
        """Some cached features of each image, of its mirror image every other time: (B, K, C).

        With a share, what is kept and mirrored is drawn for all images, and those of the share are read.
        """
        assert isinstance(self.images, CachedFeatures)
        generator = torch.Generator().manual_seed(int(random.integers(2**63)))
        part = share.images(len(images))
        kept = kept_features(len(images), self.images.shape[1], dropout, generator).numpy()[part]
        numbers = np.array(images)[part]
        features = self.images.pick(numbers, kept)
        if self.mirrored is not None:
            flipped = random.random(len(images))[part] < 0.5
            features[flipped] = self.mirrored.pick(numbers[flipped], kept[flipped])
        return features

    def pixels(self, images: Sequence[int], size: int, random: np.random.Generator, share: Share = WHOLE) -> Tensor:
        """A random view of each image, decoded now: (B, 3, size, size), uint8; of those of a share, if there is one."""
        assert not isinstance(self.images, CachedFeatures)
        part = share.images(len(images))
        generators = [torch.Generator().manual_seed(int(seed)) for seed in random.integers(2**63, size=len(images))]
        files = [self.images[image] for image in images[part]]
        views = zip(files, generators[part], strict=True)
        return resize_images([random_view(read_image(file), generator) for file, generator in views], size)

    def reopened(self) -> "PairDataset":
        """The same split with archives of its own: processes must not share the place in an open file."""
        if isinstance(self.images, CachedFeatures):
            return self
        opened: dict[str, zipfile.ZipFile] = {}
        images: list[ImageFile] = []
        for image in self.images:
            if isinstance(image, zipfile.Path):
                name = str(image.root.filename)
                opened[name] = opened.get(name) or zipfile.ZipFile(name)
                image = zipfile.Path(opened[name], image.at)
            images.append(image)
        return replace(self, images=images)


@dataclass(frozen=True)
class CaptionPairDataset:
    """Captions alone, image by image: two of one image are a pair."""

    sentences: list[list[Token]]
    image_ids: np.ndarray  # rising
    captions: Sequence[str] = ()  # as they were written

    @classmethod
    def make(cls, groups: Sequence[Sequence[str]], tokenizer: Tokenizer) -> "CaptionPairDataset":
        """Tokenize the captions of each image."""
        captions = [caption for group in groups for caption in group]
        image_ids = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        return cls(tokenizer.encode(captions), image_ids, captions)

    def partners(self, batch: Batch, random: np.random.Generator) -> list[int]:
        """For each image of a batch, a caption that the batch does not show, if there is one."""
        shown = set(batch.captions)
        chosen = []
        for image in batch.images:
            own = range(*np.searchsorted(self.image_ids, [image, image + 1]))
            others = [caption for caption in own if caption not in shown] or list(own)
            chosen.append(others[random.integers(len(others))])
        return chosen


def epoch_batches(
    image_ids: np.ndarray, batch_size: int, captions_per_image: int, random: np.random.Generator
) -> list[Batch]:
    """All captions once: random groups of one image's captions, in random batches of groups.

    Groups that do not fill a last batch are left out this time: K depends on the batch size.

    Args:
        image_ids: (C,) the index of each caption's image.
        batch_size: groups in a batch.
        captions_per_image: captions in a group, or fewer where an image has no more.
        random: decides the order.
    """
    captions = random.permutation(len(image_ids))
    captions = captions[np.argsort(image_ids[captions], kind="stable")]  # by image, each in random order
    position = np.arange(len(captions))
    first = np.r_[True, np.diff(image_ids[captions]) != 0]
    place = position - np.maximum.accumulate(np.where(first, position, 0))  # 0, 1, 2 … within an image
    groups = np.split(captions, np.flatnonzero(place % captions_per_image == 0)[1:])
    order = random.permutation(len(groups))
    steps = max(1, len(groups) // batch_size)
    batches = []
    for step in range(steps):
        chosen = np.concatenate([groups[index] for index in order[step * batch_size : (step + 1) * batch_size]])
        images, places = np.unique(image_ids[chosen], return_inverse=True)
        batches.append(Batch(images.tolist(), chosen.tolist(), torch.from_numpy(places)))
    return batches


def drop_words(
    sentence: Sequence[Token], rate: float, tokenizer: Tokenizer, random: np.random.Generator
) -> list[Token]:
    """Leave out or mask each word with probability `rate`, half and half; at least one is left, masked or not."""
    kept = []
    for token, fate in zip(sentence, random.random(len(sentence)), strict=True):
        if token in tokenizer.special or fate >= rate:
            kept.append(token)
        elif fate < rate / 2:
            kept.append(tokenizer.mask_token)
    return kept if any(token not in tokenizer.special for token in kept) else list(sentence)


def hide_words(
    sentence: Sequence[Token], rate: float, tokenizer: WordTokenizer, random: np.random.Generator
) -> list[Token]:
    """Take each word with probability `rate` as one that is not in the vocabulary: only its n-grams are left.

    So a model learns to read what is inside a word, which is all that it has of a typo or of a new word.
    """
    hidden = random.random(len(sentence)) < rate
    return [tokenizer.hide(token) if hide else token for token, hide in zip(sentence, hidden, strict=True)]


def drop_features(features: Tensor, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """Keep a random share of the features of each image: (B, N, C) -> (B, fewer, C)."""
    return keep_features(features, kept_features(features.shape[0], features.shape[1], rate, generator))


def keep_features(features: Tensor, kept: Tensor) -> Tensor:
    """Some features of each image, by their (B, K) numbers: (B, N, C) -> (B, K, C)."""
    return features.gather(1, kept.to(features.device).unsqueeze(-1).expand(-1, -1, features.shape[2]))


def kept_features(images: int, features: int, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """Which features of each image are kept: (images, fewer) numbers below `features`."""
    keep = max(1, round(features * (1 - rate)))
    if keep == features:
        return torch.arange(features).expand(images, features)
    return torch.rand(images, features, generator=generator).argsort(1)[:, :keep]
