"""What every interaction shares: two batches of feature sets -> the similarity of every text with every image."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from vse_demo.losses.base import Objective
from vse_demo.losses.terms import LossTerms

BLOCK_VALUES = 2**23  # numbers that live at once while a block of pairs is compared: 32 MB in float32


class FeatureSets(NamedTuple):
    """The features of several items: (B, N, D), and which of them are real (B, N)."""

    features: Tensor
    mask: Tensor
    local: Tensor | None = None  # what only the penalty of a training step looks at

    def items(self) -> list[Tensor]:
        """The real features of each item: (N, D) each, on the CPU."""
        features = self.features.float().cpu()
        return [rows[mask] for rows, mask in zip(features, self.mask.cpu(), strict=True)]

    def to(self, device: torch.device | str) -> "FeatureSets":
        """Features and mask on a device."""
        return FeatureSets(self.features.to(device), self.mask.to(device))

    @classmethod
    def pad(cls, items: Sequence[Tensor]) -> "FeatureSets":
        """One batch of items with different numbers of features, padded with 0."""
        lengths = torch.tensor([len(item) for item in items])
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        return cls(nn.utils.rnn.pad_sequence(list(items), batch_first=True), mask)


class Interaction(nn.Module):
    """A similarity that needs the features of both sides. A new one implements `forward`."""

    needs_words = False  # whether `prepare` must be called before the training

    def prepare(self, sentences: Sequence[Sequence[str]], words: Sequence[str], vectors: Tensor) -> None:
        """Look at the training captions, once, before the training; by default nothing is done.

        Args:
            sentences: The words of each caption.
            words: The vocabulary, the most frequent first.
            vectors: Of these words, (len, E), as the text encoder has them now.
        """

    def image_sets(self, images: FeatureSets) -> FeatureSets:
        """What can be done with images before a text is known; by default nothing."""
        return images

    def text_sets(self, texts: FeatureSets) -> FeatureSets:
        """What can be done with texts before an image is known; by default nothing."""
        return texts

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        """Compare every text with every image.

        Args:
            images: B sets of N features of D dimensions.
            texts: C sets of M features of D dimensions.

        Returns:
            Similarities (C, B). Padding never changes one, nor does what else is in the batch.
        """
        raise NotImplementedError

    def loss_terms(self, objective: Objective, images: FeatureSets, texts: FeatureSets, image_ids: Tensor) -> LossTerms:
        """The loss of a batch: that of the similarities of all its pairs, and the penalty."""
        terms = objective.from_similarities(self(images, texts), image_ids)
        return replace(terms, loss=terms.loss + self.penalty(images, texts))

    def penalty(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        """What the training adds to the loss of a batch besides that of its similarities; by default 0."""
        return images.features.new_zeros(())

    def values_per_pair(self, words: int, cells: int, dim: int) -> int:
        """How many numbers a pair takes at most while it is compared, all intermediate ones included.

        It bounds the size of a block. By default a few arrays with a number for each word and each cell live at once.
        """
        return 6 * words * cells


@torch.inference_mode()
def all_similarities(
    interaction: Interaction,
    images: Sequence[Tensor],
    texts: Sequence[Tensor],
    progress: bool = False,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Compare every text with every image in blocks of bounded memory.

    Args:
        interaction: In evaluation mode.
        images: The features of each image (N, D), after `image_sets`.
        texts: The features of each text (M, D), after `text_sets`.
        progress: Whether to show a bar.
        device: Where the interaction is; blocks are moved there.

    Returns:
        Similarities (C, B), on the CPU.
    """
    result = torch.empty(len(texts), len(images))
    if not result.numel():
        return result
    (cells, dim), words = (max(image.shape[0] for image in images), images[0].shape[1]), max(map(len, texts))
    pairs = max(1, BLOCK_VALUES // interaction.values_per_pair(words, cells, dim))
    height = min(len(texts), math.isqrt(pairs))  # blocks are square, or wide where there are few texts
    width = pairs // height
    columns = [FeatureSets.pad(images[first : first + width]) for first in range(0, len(images), width)]
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))  # less padding
    with tqdm(total=result.numel(), unit=" pairs", unit_scale=True, disable=not progress, leave=False) as bar:
        for first in range(0, len(order), height):
            rows = order[first : first + height]
            some_texts = FeatureSets.pad([texts[row] for row in rows]).to(device)
            for number, column in enumerate(columns):
                block = interaction(column.to(device), some_texts).float().cpu()
                result[rows, number * width : number * width + block.shape[1]] = block
                bar.update(block.numel())
    return result
