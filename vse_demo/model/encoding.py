"""What all models share: one item or many in, tensors or arrays out; sentences in batches."""

from collections.abc import Iterator, Sequence
from typing import Literal, overload

import numpy as np
from torch import Tensor

from vse_demo.data.images import ImageLike, Images, as_images
from vse_demo.encoders.tokenizers import Tokenizer, pad_tokens
from vse_demo.utils.progress import in_batches


class Encoder:
    """Encodes what it is given by `embed_images` and `embed_texts` of the class that inherits."""

    @overload
    def encode_images(self, images: Images | ImageLike, batch_size: int = 32, progress: bool = False) -> Tensor: ...

    @overload
    def encode_images(
        self,
        images: Images | ImageLike,
        batch_size: int = 32,
        progress: bool = False,
        *,
        convert_to_numpy: Literal[True],
    ) -> np.ndarray: ...

    def encode_images(
        self,
        images: Images | ImageLike,
        batch_size: int = 32,
        progress: bool = False,
        convert_to_numpy: bool = False,
    ) -> Tensor | np.ndarray:
        """Encode images, or precomputed regions, as in evaluation mode.

        Args:
            images: PIL images, paths, bytes of files or uint8 tensors; for a model of regions arrays (N, C) or paths
                of .npy files. One or a list.
            batch_size: How many are encoded together.
            progress: Whether to show a bar.
            convert_to_numpy: Whether to return an array instead of a tensor.

        Returns:
            Unit float32 vectors (len, dim), on the CPU.

        Raises:
            FileError: If a file cannot be read as an image.
            TypeError: If an item is not an image or a path.
        """
        vectors = self.embed_images(as_images(images), batch_size, progress)
        return vectors.numpy() if convert_to_numpy else vectors

    @overload
    def encode_texts(self, texts: Sequence[str] | str, batch_size: int = 128, progress: bool = False) -> Tensor: ...

    @overload
    def encode_texts(
        self,
        texts: Sequence[str] | str,
        batch_size: int = 128,
        progress: bool = False,
        *,
        convert_to_numpy: Literal[True],
    ) -> np.ndarray: ...

    def encode_texts(
        self,
        texts: Sequence[str] | str,
        batch_size: int = 128,
        progress: bool = False,
        convert_to_numpy: bool = False,
    ) -> Tensor | np.ndarray:
        """Encode sentences, as in evaluation mode.

        Args:
            texts: One sentence or a list.
            batch_size: How many are encoded together.
            progress: Whether to show a bar.
            convert_to_numpy: Whether to return an array instead of a tensor.

        Returns:
            Unit float32 vectors (len, dim), on the CPU.

        Raises:
            TypeError: If an item is not a string.
            ValueError: If a sentence is empty.
        """
        texts = [texts] if isinstance(texts, str | bytes) else texts
        vectors = self.embed_texts(texts, batch_size, progress)
        return vectors.numpy() if convert_to_numpy else vectors

    def similarity(self, images: Images | ImageLike, texts: Sequence[str] | str) -> Tensor:
        """Cosine of every image with every sentence: (images, sentences)."""
        return self.encode_images(images) @ self.encode_texts(texts).T

    def embed_images(self, images: Images, batch_size: int, progress: bool) -> Tensor:
        """The vectors of a list of images."""
        raise NotImplementedError

    def embed_texts(self, texts: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """The vectors of a list of sentences."""
        raise NotImplementedError


def text_batches(
    tokenizer: Tokenizer, texts: Sequence[str] | str, batch_size: int, progress: bool
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Sentences of like length together: their numbers, padded tokens and mask.

    Raises:
        TypeError: If an item is not a string.
        ValueError: If a sentence is empty.
    """
    texts = [texts] if isinstance(texts, str | bytes) else texts
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"sentence {number} must be a string, not {type(text).__name__}")
        if not text.strip():
            raise ValueError(f"sentence {number} is empty: {text!r}")
    sentences = tokenizer.encode(texts)
    order = sorted(range(len(texts)), key=lambda index: len(sentences[index]))  # less padding
    for batch in in_batches(order, batch_size, "sentences", progress):
        yield batch, *pad_tokens([sentences[index] for index in batch])
