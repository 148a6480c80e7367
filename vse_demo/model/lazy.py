"""A saved model of which nothing is built before it is needed: a search by a sentence needs no image encoder."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vse_demo.data.images import Images
from vse_demo.encoders.tokenizers import Tokenizer
from vse_demo.model.config import ModelConfig, read_config
from vse_demo.model.dual import new_text_encoder
from vse_demo.model.encoding import Encoder
from vse_demo.model.storage import WEIGHTS, fill_weights, fingerprint_of, load_tokenizer, read_weights
from vse_demo.model.vse import VSE, SentenceVectors
from vse_demo.pooling.aggregators import build_pooling
from vse_demo.utils.files import FileError, recover_folder, verify_checksums
from vse_demo.utils.tensors import check_device


class StoredModel(Encoder):
    """What is known of a model by reading its folder: its settings, its tokenizer, its name.

    Args:
        folder: That `VSE.save_pretrained` wrote.

    Raises:
        FileError: If it holds no such model, or a file of it is broken or not as it was saved.
    """

    def __init__(self, folder: str | Path):
        self.folder = recover_folder(Path(folder))
        self.config = read_config(self.folder)
        if self.config.interaction:
            raise FileError(f"{self.folder} holds a model that compares features, which has no vectors to search by")
        self.tokenizer = load_tokenizer(self.config, self.folder)
        self.weights = read_weights(self.folder / WEIGHTS)
        verify_checksums(self.folder)

    @property
    def dim(self) -> int:
        """Of the joint space."""
        return self.config.dim

    def fingerprint(self) -> str:
        """That of the model: galleries do not tell how it was loaded."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        floats = {
            name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in self.weights.items()
        }
        return fingerprint_of(self.config, floats)


class LazyModel(StoredModel):
    """A saved `VSE` that builds its text side for the first sentence, and all of itself for the first image.

    Args:
        folder: That `VSE.save_pretrained` wrote.
        device: Where it computes.
    """

    def __init__(self, folder: str | Path, device: str | torch.device = "cpu"):
        check_device(device)
        super().__init__(folder)
        self.device = device

    def embed_images(self, images: Images, batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of images (len, dim)."""
        return self.whole.embed_images(images, batch_size, progress)

    def embed_texts(self, texts: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of sentences (len, dim)."""
        return self.text_side.embed_texts(texts, batch_size, progress)

    @cached_property
    def whole(self) -> VSE:
        """The model."""
        return VSE.from_pretrained(self.folder, self.device)

    @cached_property
    def text_side(self) -> SentenceVectors:
        """What sentences need of it."""
        path = self.folder / WEIGHTS
        try:
            side = TextSide(self.config, self.tokenizer)
        except Exception as error:  # transformers fails in many ways on odd settings: all mean the same here
            raise FileError(f"{self.folder / 'config.json'} describes no model: {error}") from error
        fill_weights(side, {name: self.weights[name] for name in self.weights if name.startswith("text_")}, path)
        return side.to(self.device).eval()


class TextSide(SentenceVectors):
    """The text encoder and the text pooling of a `VSE`."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer):
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.text_encoder = new_text_encoder(config, len(tokenizer))
        self.text_pooling = build_pooling(config.pooling, config.dim, "text", **config.pooling_options)


def _as_loaded(tensor: Tensor) -> Tensor:
    """What a stored tensor becomes in a model: matrices may be stored in half precision."""
    return tensor.float() if tensor.is_floating_point() else tensor
