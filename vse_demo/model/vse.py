"""The joint space: two encoders, two poolings, unit vectors. How a model lies on disk is in `storage`."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from vse_demo.data.images import ImageLike, Images, as_image, as_images
from vse_demo.encoders.text import TEXTS, BiGRU, TransformerText
from vse_demo.encoders.tokenizers import Tokenizer, pad_tokens
from vse_demo.encoders.vision import ImageEncoder
from vse_demo.model.card import model_card
from vse_demo.model.config import ModelConfig, read_config, write_config
from vse_demo.model.storage import WEIGHTS, load_tokenizer, load_weights, model_files
from vse_demo.pooling.aggregators import build_pooling
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import (
    FileError,
    recover_folder,
    verify_checksums,
    write_atomic,
    write_checksums,
    write_folder,
)
from vse_demo.utils.progress import in_batches
from vse_demo.utils.tensors import evaluation_mode, l2_normalize, update_digest


class VSE(nn.Module):
    """Images and sentences in one space of unit vectors, compared by dot product.

    Args:
        config: What the model is made of. What it leaves to timm, the mean and deviation of pixels, is added.
        tokenizer: Of the captions.

    Example:
        >>> from vse_demo.encoders import WordTokenizer
        >>> config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4)
        >>> model = VSE(config, WordTokenizer(["a", "dog"]))
        >>> model.encode_texts(["a dog", "a cat"]).shape
        torch.Size([2, 8])
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer):
        super().__init__()
        check_choice(config.text, TEXTS, "text encoder")
        self.tokenizer = tokenizer
        self.image_encoder = ImageEncoder(
            config.dim, config.vision, config.backbone, config.image_size, config.region_dim, config.projection,
            config.image_mean, config.image_std,
        )  # fmt: skip
        backbone = self.image_encoder.backbone
        if backbone is not None:
            config = replace(config, image_mean=backbone.image_mean, image_std=backbone.image_std)
        self.config = config
        self.text_encoder: BiGRU | TransformerText
        if config.text == "bigru":
            self.text_encoder = BiGRU(len(tokenizer), config.dim, config.word_dim)
        elif config.text_config is None:
            raise ValueError("a bert text encoder needs text_config, the settings of its transformer")
        else:
            self.text_encoder = TransformerText(config.text_config, config.dim, config.projection)
        self.image_pooling = build_pooling(config.pooling, config.dim, "image", **config.pooling_options)
        self.text_pooling = build_pooling(config.pooling, config.dim, "text", **config.pooling_options)

    def embed_image_features(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features or regions (B, N, C) -> unit vectors (B, dim); without a mask all N are real."""
        if mask is None:
            mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        return l2_normalize(self.image_pooling(self.image_encoder(features, mask), mask))

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Padded token numbers (B, N) -> unit vectors (B, dim)."""
        return l2_normalize(self.text_pooling(self.text_encoder(tokens, mask), mask))

    @torch.inference_mode()
    def encode_images(self, images: Images | ImageLike, batch_size: int = 32, progress: bool = False) -> Tensor:
        """Encode images, or precomputed regions, as in evaluation mode.

        Args:
            images: PIL images or paths; for a model of regions arrays (N, C) or paths of .npy files. One or a list.
            batch_size: How many are encoded together.
            progress: Whether to show a bar.

        Returns:
            Unit float32 vectors (len, dim), on the CPU.

        Raises:
            FileError: If a file cannot be read as an image.
            TypeError: If an item is not an image or a path.
        """
        with evaluation_mode(self):
            parts = [torch.empty(0, self.dim)]
            for batch in in_batches(as_images(images), batch_size, "images", progress):
                features = self.read_image_features(batch).to(self.image_encoder.projection.linear.weight)
                parts.append(self.embed_image_features(features).float().cpu())
            return torch.cat(parts)

    @torch.inference_mode()
    def read_image_features(self, images: Images) -> Tensor:
        """What the projection is given for images or regions: (B, N, C)."""
        if self.image_encoder.backbone is None:
            return _read_regions(images)
        with ThreadPoolExecutor(4) as pool:  # decoding releases the interpreter lock
            return self.image_encoder.extract(list(pool.map(as_image, images)))

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str] | str, batch_size: int = 128, progress: bool = False) -> Tensor:
        """Encode sentences, as in evaluation mode.

        Args:
            texts: One sentence or a list.
            batch_size: How many are encoded together.
            progress: Whether to show a bar.

        Returns:
            Unit float32 vectors (len, dim), on the CPU.

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
        sentences = self.tokenizer.encode(texts)
        order = sorted(range(len(texts)), key=lambda index: len(sentences[index]))  # less padding
        vectors = torch.empty(len(texts), self.config.dim)
        with evaluation_mode(self):
            for batch in in_batches(order, batch_size, "sentences", progress):
                tokens, mask = pad_tokens([sentences[index] for index in batch])
                vectors[batch] = self.embed_tokens(tokens.to(self.device), mask.to(self.device)).float().cpu()
        return vectors

    def similarity(self, images: Images | ImageLike, texts: Sequence[str] | str) -> Tensor:
        """Cosine of every image with every sentence: (images, sentences)."""
        return self.encode_images(images) @ self.encode_texts(texts).T

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dim(self) -> int:
        """Of the joint space."""
        return self.config.dim

    def fingerprint(self) -> str:
        """Names this very model: changes with any weight or setting."""
        digest = hashlib.blake2b(json.dumps(asdict(self.config), sort_keys=True).encode(), digest_size=16)
        update_digest(digest, self.state_dict())
        return digest.hexdigest()

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

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "VSE":
        """Load what `save_pretrained` wrote, in float32, in evaluation mode.

        Raises:
            FileError: If the folder holds no model, or one with a file that is broken or not as it was saved.
        """
        folder = recover_folder(Path(folder))
        if not folder.is_dir():
            raise FileError(f"{folder} is not a folder with a model")
        config = read_config(folder)
        tokenizer = load_tokenizer(config, folder)
        try:
            model = cls(config, tokenizer)
        except Exception as error:  # timm and transformers fail in many ways on odd settings: all mean the same here
            raise FileError(f"{folder / 'config.json'} describes no model: {error}") from error
        load_weights(model, folder / WEIGHTS)
        verify_checksums(folder)
        return model.eval()


def _read_regions(items: Images) -> Tensor:
    arrays = []
    for item in items:
        if isinstance(item, str | Path) and str(item).endswith(".npy"):
            item = np.load(item, allow_pickle=False)
        if not isinstance(item, np.ndarray):
            raise TypeError(f"this model takes precomputed regions (arrays or .npy files), not {type(item).__name__}")
        arrays.append(item.astype(np.float32))
    return torch.from_numpy(np.stack(arrays))
