"""The joint space: two encoders, two poolings, unit vectors; and how a model is stored.

A folder made by `save_pretrained` is self-contained, the frozen backbone included:
`config.json`, `model.safetensors`, the tokenizer's file and a model card.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm.auto import tqdm

from vse_demo.data.images import Images, as_image
from vse_demo.encoders.text import TEXTS, BiGRU, TransformerText
from vse_demo.encoders.tokenizers import SubwordTokenizer, Tokenizer, WordTokenizer, pad_tokens
from vse_demo.encoders.vision import ImageEncoder
from vse_demo.model.card import model_card
from vse_demo.model.config import FORMAT, ModelConfig, read_config
from vse_demo.pooling.aggregators import build_pooling
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import (
    FileError,
    recover_folder,
    replace_folder,
    verify_checksums,
    write_atomic,
    write_checksums,
    write_json,
)
from vse_demo.utils.tensors import l2_normalize, update_digest


class VSE(nn.Module):
    """Pictures and sentences in one space of unit vectors, compared by dot product."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer):
        super().__init__()
        check_choice(config.text, TEXTS, "text encoder")
        self.config, self.tokenizer = config, tokenizer
        self.image_encoder = ImageEncoder(
            config.dim, config.vision, config.backbone, config.image_size, config.region_dim, config.projection
        )
        self.text_encoder: BiGRU | TransformerText
        if config.text == "bigru":
            self.text_encoder = BiGRU(len(tokenizer), config.dim, config.word_dim)
        elif config.text_config is None:
            raise ValueError("a bert text encoder needs text_config, the settings of its transformer")
        else:
            self.text_encoder = TransformerText(config.text_config, config.dim, config.projection)
        self.image_pooling = build_pooling(config.pooling, config.dim, "image", **config.pooling_options)
        self.text_pooling = build_pooling(config.pooling, config.dim, "text", **config.pooling_options)

    def embed_image_features(self, cells: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cells or regions (B, N, C) -> unit vectors (B, dim)."""
        if mask is None:
            mask = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        return l2_normalize(self.image_pooling(self.image_encoder(cells, mask), mask))

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Padded token numbers (B, N) -> unit vectors (B, dim)."""
        return l2_normalize(self.text_pooling(self.text_encoder(tokens, mask), mask))

    @torch.inference_mode()
    def encode_images(self, images: Images, batch_size: int = 32, progress: bool = False) -> Tensor:
        """Pictures (PIL, paths) or regions (arrays, .npy paths) -> unit float32 vectors (len, dim)."""
        _refuse_single(images, "pictures")
        device, parts = self.device, []
        for batch in _batches(images, batch_size, progress, "pictures"):
            parts.append(self.embed_image_features(self.read_image_features(batch).to(device)).float().cpu())
        return torch.cat(parts) if parts else torch.empty(0, self.config.dim)

    @torch.inference_mode()
    def read_image_features(self, images: Images) -> Tensor:
        """What the projection sees of pictures or regions: (B, N, C)."""
        if self.image_encoder.backbone is None:
            return _read_regions(images)
        with ThreadPoolExecutor(4) as pool:  # decoding releases the interpreter lock
            return self.image_encoder.cells(list(pool.map(as_image, images)))

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> Tensor:
        """Sentences -> unit float32 vectors (len, dim)."""
        _refuse_single(texts, "sentences")
        for number, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"sentence {number} is empty: {text!r}")
        sentences = self.tokenizer.encode(texts)
        order = sorted(range(len(texts)), key=lambda index: len(sentences[index]))  # less padding
        vectors = torch.empty(len(texts), self.config.dim)
        for batch in _batches(order, batch_size, progress, "sentences"):
            tokens, mask = pad_tokens([sentences[index] for index in batch])
            vectors[batch] = self.embed_tokens(tokens.to(self.device), mask.to(self.device)).float().cpu()
        return vectors

    def similarity(self, images: Images, texts: Sequence[str]) -> Tensor:
        """Cosine of every picture with every sentence: (pictures, sentences)."""
        return self.encode_images(images) @ self.encode_texts(texts).T

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dim(self) -> int:
        return self.config.dim

    def fingerprint(self) -> str:
        """Names this very model: changes with any weight or setting."""
        digest = hashlib.blake2b(json.dumps(asdict(self.config), sort_keys=True).encode(), digest_size=16)
        update_digest(digest, self.state_dict())
        return digest.hexdigest()

    def save_pretrained(
        self, folder: str | Path, half: bool = False, metrics: Mapping[str, Any] | None = None, card: str = ""
    ) -> None:
        """Write the whole model, in place of what was in `folder`.

        Frozen matrices are stored as fp16, all matrices if `half`; the rest as fp32. `metrics` go
        into the card, and `card` is text for it.
        """
        with replace_folder(Path(folder)) as fresh:
            write_json(fresh / "config.json", {"model_type": "vse_demo", "format": FORMAT, **asdict(self.config)})
            self.tokenizer.save(fresh)
            write_atomic(fresh / "model.safetensors", save(self.stored_state(half), {"format": "pt"}))
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
        """Load what `save_pretrained` wrote, in float32, ready for inference."""
        folder = recover_folder(Path(folder))
        if not folder.is_dir():
            raise FileError(f"{folder} is not a folder with a model")
        config = read_config(folder)
        tokenizer = load_tokenizer(config, folder)
        try:
            model = cls(config, tokenizer)
        except Exception as error:  # timm and transformers fail in many ways on odd settings: all mean the same here
            raise FileError(f"{folder / 'config.json'} describes no model: {error}") from error
        load_weights(model, folder / "model.safetensors")
        verify_checksums(folder)
        return model.eval()


def load_tokenizer(config: ModelConfig, folder: Path) -> Tokenizer:
    """The tokenizer that was saved with a model of this config."""
    return (WordTokenizer if config.text == "bigru" else SubwordTokenizer).load(folder)


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from a safetensors file that fits it exactly, casting to the model's precision."""
    try:
        with safe_open(path, "pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be read as safetensors: {error}") from error
    expected = model.state_dict()
    wrong = [
        f"{name} is missing"
        if name not in stored
        else f"{name} is {tuple(stored[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name not in stored or stored[name].shape != tensor.shape
    ] + [f"{name} is not part of the model" for name in stored if name not in expected]
    if wrong:
        raise FileError(
            f"{path} does not fit its config.json: {wrong[0]}" + f" (and {len(wrong) - 1} more)" * (len(wrong) > 1)
        )
    model.load_state_dict(stored)


def _read_regions(items: Images) -> Tensor:
    arrays = []
    for item in items:
        if isinstance(item, (str, Path)) and str(item).endswith(".npy"):
            item = np.load(item, allow_pickle=False)
        if not isinstance(item, np.ndarray):
            raise TypeError(f"this model takes precomputed regions (arrays or .npy files), not {item!r}")
        arrays.append(item.astype(np.float32))
    return torch.from_numpy(np.stack(arrays))


def _batches(items: Any, size: int, progress: bool, unit: str) -> Iterator[Any]:
    with tqdm(total=len(items), unit=f" {unit}", disable=not progress, leave=False) as bar:
        for start in range(0, len(items), size):
            batch = items[start : start + size]
            yield batch
            bar.update(len(batch))


def _refuse_single(items: object, what: str) -> None:
    if isinstance(items, (str, Path, Image.Image)):
        raise TypeError(f"give a list of {what}, not a single one")
