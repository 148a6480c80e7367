"""Two encoders and what any model made of them shares: reading items, and a folder on disk."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from vse_demo.calibration import Calibration, read_calibrations
from vse_demo.data.images import Images, as_image
from vse_demo.encoders.characters import LIWE
from vse_demo.encoders.text import TEXTS, BiGRU, TransformerText
from vse_demo.encoders.tokenizers import Tokenizer
from vse_demo.encoders.vision import ImageEncoder
from vse_demo.evaluation import Metrics
from vse_demo.losses.base import Objective
from vse_demo.losses.terms import LossTerms
from vse_demo.model.card import model_card
from vse_demo.model.config import ModelConfig, read_config, write_config
from vse_demo.model.encoding import text_batches
from vse_demo.model.hub import send_model
from vse_demo.model.names import find_model
from vse_demo.model.storage import WEIGHTS, fingerprint_of, load_tokenizer, load_weights, model_files
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import (
    FileError,
    recover_folder,
    verify_checksums,
    write_atomic,
    write_checksums,
    write_folder,
)
from vse_demo.utils.objects import call_with, import_object, is_reference
from vse_demo.utils.tensors import check_device


class DualEncoder(nn.Module):
    """An image encoder and a text encoder; a subclass says what becomes of their features, and how it is compared.

    Args:
        config: What the model is made of. What it leaves to timm, the mean and deviation of pixels, is added.
        tokenizer: Of the captions.
    """

    interacts: ClassVar[bool] = False  # whether similarities need the features of both sides

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer):
        super().__init__()
        self.calibrations: Mapping[str, Calibration] = {}  # that lay in its folder, by fingerprint
        check_text(config)
        self.tokenizer = tokenizer
        self.image_encoder = ImageEncoder(
            config.dim, config.vision, config.backbone, config.image_size, config.region_dim, config.projection,
            config.image_mean, config.image_std,
        )  # fmt: skip
        backbone = self.image_encoder.backbone
        if backbone is not None:
            config = replace(config, image_mean=backbone.image_mean, image_std=backbone.image_std)
        self.config = config
        self.text_encoder = new_text_encoder(config, len(tokenizer))

    def embed_image_features(self, features: Tensor, mask: Tensor | None = None) -> Any:
        """Features or regions (B, N, C) -> what is compared; without a mask all N are real."""
        raise NotImplementedError

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Any:
        """Padded token numbers (C, N) -> what is compared."""
        raise NotImplementedError

    def loss_terms(self, objective: Objective, images: Any, texts: Any, image_ids: Tensor) -> LossTerms:
        """The loss of a batch, given what `embed_image_features` and `embed_tokens` made of it."""
        raise NotImplementedError

    def measure(self, images: Sequence[Any], texts: Sequence[Any], image_ids: Tensor) -> Metrics:
        """Recalls of a split, given what `embed_image_features` and `embed_tokens` made of its batches."""
        raise NotImplementedError

    @torch.inference_mode()
    def read_image_features(self, images: Images) -> Tensor:
        """What the projection is given for images or regions: (B, N, C)."""
        if self.image_encoder.backbone is None:
            return read_regions(images)
        with ThreadPoolExecutor(4) as pool:  # decoding releases the interpreter lock
            return self.image_encoder.extract(list(pool.map(as_image, images)))

    def text_batches(
        self, texts: Sequence[str] | str, batch_size: int, progress: bool
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """As `encoding.text_batches`, where the model is."""
        for numbers, tokens, mask in text_batches(self.tokenizer, texts, batch_size, progress):
            yield numbers, tokens.to(self.device), mask.to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dim(self) -> int:
        """Of the joint space."""
        return self.config.dim

    def backbone_name(self) -> str:
        """Equal for models that see images alike, and so can share features."""
        backbone = self.image_encoder.backbone
        return "regions" if backbone is None else backbone.fingerprint()

    @property
    def calibration(self) -> Calibration | None:
        """What its scores mean, if that was measured for these very weights (`vse-demo calibrate`)."""
        return self.calibrations.get(self.fingerprint()) if self.calibrations else None

    def fingerprint(self) -> str:
        """Names this very model: changes with any weight or setting."""
        return fingerprint_of(self.config, self.state_dict())

    def save_pretrained(
        self, folder: str | Path, half: bool = False, metrics: Mapping[str, Any] | None = None, card: str = ""
    ) -> None:
        """Write the whole model, in place of a model that was in `folder`; whatever else is there stays.

        Args:
            folder: Is made if it is not there.
            half: Store all matrices as fp16, not only the frozen ones; vectors are always fp32.
            metrics: Figures for the model card.
            card: More text for the model card.

        Raises:
            FileError: If a file is in the way that is not of a model.
        """
        with write_folder(Path(folder), model_files) as fresh:
            write_config(self.config, fresh)
            self.tokenizer.save(fresh)
            write_atomic(fresh / WEIGHTS, save(self.stored_state(half), {"format": "pt"}))
            write_atomic(fresh / "README.md", model_card(self.config, metrics, card))
            write_checksums(fresh)

    def stored_state(self, half: bool = False) -> dict[str, Tensor]:
        """The tensors of a saved model, in the precision that they are stored in."""
        frozen = {name for name, parameter in self.named_parameters() if not parameter.requires_grad}
        return {
            name: tensor.half().contiguous() if tensor.dim() >= 2 and (half or name in frozen) else tensor.contiguous()
            for name, tensor in self.state_dict().items()
        }

    def push_to_hub(self, name: str, private: bool = False, token: str | None = None, **saving: Any) -> str:
        """Save the model on the Hugging Face hub, where `from_pretrained(name)` finds it.

        Args:
            name: `user/repository`; it is made if it is not there.
            private: Whether a new repository is hidden from others.
            token: Of the user; by default the one that is logged in.
            **saving: More arguments of `save_pretrained`, such as `metrics` and `card`.

        Returns:
            The address of the commit.

        Raises:
            FileError: If the hub does not take it.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder) / "model", **saving)
            return send_model(Path(folder) / "model", name, private, token)

    @classmethod
    def from_pretrained(cls, name: str | Path, device: str | torch.device = "cpu") -> Self:
        """Load a model, in float32, in evaluation mode.

        Args:
            name: A folder that `save_pretrained` wrote, a name of `list_models()`, or a repository of the Hugging Face
                hub, as in `user/repository` or `user/repository@revision`.
            device: Where to put it.

        Raises:
            FileError: If there is no such model, or a file of it is broken or not as it was saved.
            ValueError: If PyTorch cannot use that device here.
        """
        check_device(device)
        folder = recover_folder(find_model(name))
        config = read_config(folder)
        if bool(config.interaction) != cls.interacts:
            kind, use = ("one that compares features", "InteractionModel") if config.interaction else ("a VSE", "VSE")
            raise FileError(f"{folder} holds {kind}, not a {cls.__name__}: load it with {use}.from_pretrained")
        tokenizer = load_tokenizer(config, folder)
        try:
            model = cls(config, tokenizer)
        except Exception as error:  # timm and transformers fail in many ways on odd settings: all mean the same here
            raise FileError(f"{folder / 'config.json'} describes no model: {error}") from error
        load_weights(model, folder / WEIGHTS)
        verify_checksums(folder)
        model.calibrations = read_calibrations(folder)
        return model.to(device).eval()


def check_text(config: ModelConfig) -> None:
    """Raise a ValueError if there is no such text encoder."""
    if not is_reference(config.text):
        check_choice(config.text, TEXTS, "text encoder")
    if config.text == "bert" and config.text_config is None:
        raise ValueError("a bert text encoder needs text_config, the settings of its transformer")


def new_text_encoder(config: ModelConfig, vocabulary: int) -> nn.Module:
    """The text encoder that a config describes, for a tokenizer of so many tokens."""
    check_text(config)
    if is_reference(config.text):
        sizes = {"vocabulary": vocabulary, "dim": config.dim, "word_dim": config.word_dim}
        return call_with(import_object(config.text), sizes, {})
    if config.text == "bigru":
        return BiGRU(vocabulary, config.dim, config.word_dim, config.ngram_buckets)
    if config.text == "liwe":
        return LIWE(config.dim, config.word_dim)
    assert config.text_config is not None
    return TransformerText(config.text_config, config.dim, config.projection)


def read_regions(items: Images) -> Tensor:
    """Precomputed regions, arrays or .npy files, as a batch (B, N, C)."""
    arrays = []
    for item in items:
        if isinstance(item, str | Path) and str(item).endswith(".npy"):
            item = np.load(item, allow_pickle=False)
        if not isinstance(item, np.ndarray):
            raise TypeError(f"this model takes precomputed regions (arrays or .npy files), not {type(item).__name__}")
        arrays.append(item.astype(np.float32))
    return torch.from_numpy(np.stack(arrays))
