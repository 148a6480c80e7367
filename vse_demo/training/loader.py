"""From numbered batches to tensors, in worker processes where images must be decoded.

Everything that is random in a batch follows from the seed and the number of the batch. So it does not
matter which process prepares it, or whether the run was interrupted before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vse_demo.data.typos import with_typo
from vse_demo.encoders.tokenizers import Token, Tokenizer, WordTokenizer, pad_tokens
from vse_demo.training.batches import WHOLE, Batch, CaptionPairDataset, PairDataset, Share, drop_words, hide_words
from vse_demo.utils.files import FileError


class BatchInputs(NamedTuple):
    """What the model is given for one batch, or for a process's share of it; `image_ids` is that of the whole batch.

    One of features, pixels and partners is there.
    """

    tokens: Tensor  # (C, N), or (C, N, 1 + G) with n-grams
    mask: Tensor  # (C, N)
    image_ids: Tensor  # the place in the batch of each caption's image
    seed: int  # of what is dropped inside the model
    features: Tensor | None = None  # (B, N, C) of a frozen backbone, or precomputed regions
    pixels: Tensor | None = None  # (B, 3, size, size) uint8, when the backbone is trained too
    partners: tuple[Tensor, Tensor] | None = None  # another caption of each image: tokens and mask

    def to(self, device: torch.device) -> "BatchInputs":
        """On a device, but for `image_ids`, which the loss checks on the CPU."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        return self._replace(
            tokens=move(self.tokens),
            mask=move(self.mask),
            features=None if self.features is None else move(self.features),
            pixels=None if self.pixels is None else move(self.pixels),
            partners=None if self.partners is None else (move(self.partners[0]), move(self.partners[1])),
        )


@dataclass(frozen=True)
class InputMaker:
    """Turns a `Batch` of numbers into the tensors that a model takes, with random parts left out or misspelt.

    Whatever is random is drawn for the whole batch: it does not depend on how many processes share it.
    """

    tokenizer: Tokenizer
    word_dropout: float
    feature_dropout: float
    image_size: int
    seed: int
    typos: float = 0.0
    unknown_words: float = 0.0
    share: Share = WHOLE  # of each batch, that this process computes

    def make(self, data: PairDataset | CaptionPairDataset, batch: Batch, number: int) -> BatchInputs:
        """The inputs of a batch; `number` counts the batches of the whole run and decides what is left out."""
        random = np.random.default_rng([self.seed, 1, number])
        seed = int(random.integers(2**63))
        features = pixels = partners = None
        if isinstance(data, CaptionPairDataset):
            chosen = self.sentences(data, data.partners(batch, random), random)
            partners = pad_tokens(chosen[self.share.images(len(chosen))])
        elif data.live:
            pixels = data.pixels(batch.images, self.image_size, random, self.share)
        else:
            features = data.features(batch.images, self.feature_dropout, random, self.share)
        sentences = self.sentences(data, batch.captions, random)
        tokens, mask = pad_tokens([sentences[place] for place in self.share.captions(batch.image_ids).tolist()])
        return BatchInputs(tokens, mask, batch.image_ids, seed, features, pixels, partners)

    def sentences(
        self, data: PairDataset | CaptionPairDataset, captions: Sequence[int], random: np.random.Generator
    ) -> list[list[Token]]:
        """The tokens of these captions as this step shows them."""
        return [self.sentence(data, index, random) for index in captions]

    def sentence(self, data: PairDataset | CaptionPairDataset, index: int, random: np.random.Generator) -> list[Token]:
        """The tokens of one caption as this step shows it."""
        tokens = data.sentences[index]
        if self.typos and random.random() < self.typos:
            [tokens] = self.tokenizer.encode([with_typo(data.captions[index], random)])
        if self.unknown_words and isinstance(self.tokenizer, WordTokenizer):
            tokens = hide_words(tokens, self.unknown_words, self.tokenizer, random)
        return drop_words(tokens, self.word_dropout, self.tokenizer, random)


class StepDataset(Dataset[list[BatchInputs] | FileError]):
    """The steps of an epoch for a `DataLoader`: item i is the inputs of step i, one for each batch of the step.

    If an image cannot be read, the item is the error: raised in a worker process, it would come back as a traceback.
    """

    def __init__(
        self, data: PairDataset | CaptionPairDataset, steps: Sequence[Sequence[Batch]], first: int, maker: InputMaker
    ):
        self.data, self.steps, self.maker = data, steps, maker
        self.first = first  # number in the whole run of the first batch of the first step

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> list[BatchInputs] | FileError:
        first = self.first + sum(len(batches) for batches in self.steps[:step])
        try:
            return [self.maker.make(self.data, batch, first + place) for place, batch in enumerate(self.steps[step])]
        except FileError as error:
            return error


def load_steps(steps: StepDataset, workers: int = 0, pin_memory: bool = False) -> Iterator[list[BatchInputs]]:
    """The inputs of one step after another, prepared ahead by worker processes where images must be decoded.

    Args:
        steps: of an epoch, or of the rest of one.
        workers: number of processes; 0 prepares each step when it is asked for. Cached features and captions are
            always read that way: it takes less time than passing them between processes.
        pin_memory: put the tensors where a GPU can copy them from while it computes.

    Raises:
        FileError: if an image cannot be read.
    """
    decoding = isinstance(steps.data, PairDataset) and steps.data.live
    loader = DataLoader(
        steps,
        batch_size=None,  # an item is a whole step already
        num_workers=min(workers, len(steps)) if decoding else 0,
        worker_init_fn=_reopen_archives,
        pin_memory=pin_memory,
    )
    for inputs in loader:
        if isinstance(inputs, FileError):
            raise inputs
        yield inputs


def _reopen_archives(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    steps = info.dataset
    if isinstance(steps, StepDataset) and isinstance(steps.data, PairDataset):
        steps.data = steps.data.reopened()
