"""The joint space: two encoders, two poolings, unit vectors; and how a model is stored.

A folder made by `save_pretrained` is self-contained, the frozen backbone included:
`config.json`, `model.safetensors`, the tokenizer's file and a model card.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm.auto import tqdm

from vse_demo.aggregators import build_pooling
from vse_demo.data import ImageFile, read_image, to_rgb
from vse_demo.files import (
    FileError,
    check_seal,
    read_json,
    replace_folder,
    seal,
    whole_folder,
    write_atomic,
    write_json,
)
from vse_demo.layers import add_tensors, check_choice
from vse_demo.text import TEXTS, BiGRU, SubwordTokenizer, Tokenizer, TransformerText, WordTokenizer, pad_tokens
from vse_demo.vision import ImageEncoder

FORMAT = 1  # of the saved folder; raised when an older program could not read it
MAX_SIZE = 16384  # of any part of a stored model: more would fill the memory before it is found not to fit
ImageLike = Image.Image | ImageFile | str | np.ndarray  # an array is the regions (N, C) of one picture
Images = Sequence[ImageLike] | np.ndarray


@dataclass(frozen=True)
class ModelConfig:
    """What a model is made of; the defaults are the paper's sizes."""

    dim: int = 1024  # of the joint space
    vision: str = "grid"  # grid (timm CNN), patch (timm ViT) or region (precomputed vectors)
    backbone: str = "tf_efficientnet_lite0"  # timm name, for grid and patch
    image_size: int = 224  # pixels, both sides
    region_dim: int = 2048  # channels of precomputed regions
    text: str = "bigru"  # bigru or bert
    word_dim: int = 300  # of the BiGRU's word vectors
    projection: str = "mlp"  # of cells and of transformer states to the joint space: mlp or linear
    pooling: str = "adpool"  # any name of POOLINGS
    pooling_options: Mapping[str, Any] = field(default_factory=dict)  # e.g. {"variant": "official"}
    text_config: Mapping[str, Any] | None = None  # transformers settings of a bert


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

    def embed_cells(self, cells: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cells or regions (B, N, C) -> unit vectors (B, dim)."""
        if mask is None:
            mask = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        return unit(self.image_pooling(self.image_encoder(cells, mask), mask))

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Padded token numbers (B, N) -> unit vectors (B, dim)."""
        return unit(self.text_pooling(self.text_encoder(tokens, mask), mask))

    @torch.inference_mode()
    def encode_images(self, images: Images, batch_size: int = 32, progress: bool = False) -> Tensor:
        """Pictures (PIL, paths) or regions (arrays, .npy paths) -> unit float32 vectors (len, dim)."""
        _refuse_single(images, "pictures")
        device, parts = self.device, []
        for batch in _batches(images, batch_size, progress, "pictures"):
            parts.append(self.embed_cells(self.read_cells(batch).to(device)).float().cpu())
        return torch.cat(parts) if parts else torch.empty(0, self.config.dim)

    @torch.inference_mode()
    def read_cells(self, images: Images) -> Tensor:
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
        add_tensors(digest, self.state_dict())
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
            write_atomic(fresh / "README.md", model_card(self, metrics, card))
            seal(fresh)

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
        folder = whole_folder(Path(folder))
        if not folder.is_dir():
            raise FileError(f"{folder} is not a folder with a model")
        config = read_config(folder)
        tokenizer = load_tokenizer(config, folder)
        try:
            model = cls(config, tokenizer)
        except Exception as error:  # timm and transformers fail in many ways on odd settings: all mean the same here
            raise FileError(f"{folder / 'config.json'} describes no model: {error}") from error
        load_weights(model, folder / "model.safetensors")
        check_seal(folder)
        return model.eval()


class Ensemble:
    """Several models as one: its similarities are the mean of the members'.

    The members' unit vectors side by side, divided by the root of their number, are a unit vector
    again, and dot products of such vectors are that mean. So an ensemble is searched like any model.
    """

    def __init__(self, members: Iterable[VSE]):
        self.members = list(members)
        if not self.members:
            raise ValueError("an ensemble needs at least one model")
        backbones = [member.image_encoder.backbone for member in self.members]
        self.eyes = ["regions" if backbone is None else backbone.fingerprint() for backbone in backbones]

    @torch.inference_mode()
    def encode_images(self, images: Images, batch_size: int = 32, progress: bool = False) -> Tensor:
        """As for one model. Members with the same backbone share its cells, the dearest part by far."""
        _refuse_single(images, "pictures")
        parts = []
        for batch in _batches(images, batch_size, progress, "pictures"):
            cells: dict[str, Tensor] = {}
            for member, eye in zip(self.members, self.eyes, strict=True):
                if eye not in cells:
                    cells[eye] = member.read_cells(batch)
            vectors = [
                member.embed_cells(cells[eye].to(member.device)).float().cpu()
                for member, eye in zip(self.members, self.eyes, strict=True)
            ]
            parts.append(self.join(vectors))
        return torch.cat(parts) if parts else torch.empty(0, self.dim)

    def encode_texts(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> Tensor:
        return self.join([member.encode_texts(texts, batch_size, progress) for member in self.members])

    def similarity(self, images: Images, texts: Sequence[str]) -> Tensor:
        return self.encode_images(images) @ self.encode_texts(texts).T

    @property
    def dim(self) -> int:
        return sum(member.dim for member in self.members)

    def fingerprint(self) -> str:
        return hashlib.blake2b("".join(m.fingerprint() for m in self.members).encode(), digest_size=16).hexdigest()

    @staticmethod
    def join(vectors: list[Tensor]) -> Tensor:
        """The members' unit vectors (n, D) each -> unit vectors (n, sum of D)."""
        return torch.cat(vectors, dim=1) / len(vectors) ** 0.5


def load_model(folders: Sequence[str | Path]) -> VSE | Ensemble:
    """One model, or the ensemble of several."""
    models = [VSE.from_pretrained(folder) for folder in folders]
    return models[0] if len(models) == 1 else Ensemble(models)


def unit(vectors: Tensor) -> Tensor:
    return nn.functional.normalize(vectors, dim=-1)


def as_image(image: ImageLike) -> Image.Image:
    """A picture as RGB, from PIL or from a file."""
    if isinstance(image, Image.Image):
        return to_rgb(image)
    if isinstance(image, np.ndarray):
        raise TypeError("this model takes pictures or paths of pictures, not arrays")
    return read_image(Path(image) if isinstance(image, str) else image)


def read_config(folder: Path) -> ModelConfig:
    """The checked settings of a saved model."""
    path = folder / "config.json"
    content = read_json(path)
    if not isinstance(content, dict) or content.get("model_type") != "vse_demo":
        raise FileError(f'{path} is not of this project: "model_type" must be "vse_demo"')
    if content.get("format") != FORMAT:
        raise FileError(f"{path} has format {content.get('format')!r}; this version reads format {FORMAT}")
    settings = {key: value for key, value in content.items() if key not in ("model_type", "format")}
    unknown = sorted(set(settings) - {entry.name for entry in fields(ModelConfig)})
    if unknown:
        raise FileError(f"{path} has settings that this version does not know: {', '.join(unknown)}")
    for name in ("dim", "image_size", "region_dim", "word_dim"):
        value = settings.get(name, 1)
        if not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise FileError(f"{path}: {name} must be a whole number from 1 to {MAX_SIZE}, not {value!r}")
    return ModelConfig(**settings)


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


def model_card(model: VSE, metrics: Mapping[str, Any] | None, text: str) -> str:
    """A README for a saved model, with the front matter of the Hugging Face convention."""
    config = model.config
    vision = "precomputed regions" if config.vision == "region" else f"{config.vision}, {config.backbone}"
    size = "" if config.vision == "region" else f" at {config.image_size} px"
    lines = [
        "---", "library_name: vse_demo", "pipeline_tag: feature-extraction", "tags: [image-text-retrieval, vse]", "---",
        "# Visual-semantic embedding", "",
        f"- pictures: {vision}{size}", f"- captions: {config.text}",
        f"- pooling: {config.pooling} {dict(config.pooling_options) or ''}".rstrip(),
        f"- joint space: {config.dim} dimensions", "",
        "```python", "from vse_demo import VSE", "", 'model = VSE.from_pretrained("this folder")',
        'model.similarity(["photo.jpg"], ["a dog on the beach"])', "```",
    ]  # fmt: skip
    if metrics:
        lines += ["", "## Measured", "", "```json", json.dumps(metrics, indent=2), "```"]
    if text:
        lines += ["", text.strip()]
    return "\n".join(lines) + "\n"


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
