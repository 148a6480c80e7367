"""CLIP, ALIGN and SigLIP of transformers as models: any folder or hub name that holds one of them."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vse_demo.data.images import Images, as_image
from vse_demo.model.encoding import Encoder
from vse_demo.utils.files import FileError, read_json
from vse_demo.utils.progress import in_batches
from vse_demo.utils.tensors import l2_normalize, update_digest

# What of transformers has an image and a text side, and how many tokens each was trained to see (None: as many as the
# sentence has). SigLIP has no attention mask: it has always seen its padding.
PADDING: dict[str, int | None] = {"clip": None, "align": None, "siglip": 64, "siglip2": 64}
IMAGE_INPUTS = ("pixel_values", "pixel_attention_mask", "spatial_shapes")  # SigLIP 2 takes images of any shape
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


class PretrainedModel(Encoder, nn.Module):
    """A vision-language model of transformers with one vector per item; it can do whatever `EmbeddingModel` can.

    Radford et al., 2021 (CLIP); Jia et al., 2021 (ALIGN); Zhai et al., 2023 (SigLIP). Images are decoded by this
    package, with its limits, and prepared as the model's own settings say. Weights come from safetensors only.

    Args:
        model: A `CLIPModel`, `AlignModel`, `SiglipModel` or `Siglip2Model`.
        image_processor: Of the model.
        tokenizer: Of the model.
    """

    def __init__(self, model: Any, image_processor: Any, tokenizer: Any):
        super().__init__()
        self.net, self.image_processor, self.tokenizer = model.eval(), image_processor, tokenizer
        self.padding = PADDING[model.config.model_type]
        self.dim: int = getattr(model.config, "projection_dim", None) or model.config.text_config.projection_size

    @torch.inference_mode()
    def embed_images(self, images: Images, batch_size: int, progress: bool) -> Tensor:
        """The vectors of a list of images."""
        parts = [torch.empty(0, self.dim)]
        for batch in in_batches(images, batch_size, "images", progress):
            inputs = self.image_processor([as_image(image) for image in batch], return_tensors="pt")
            known = {name: inputs[name].to(self.device) for name in IMAGE_INPUTS if name in inputs}
            parts.append(_vectors(self.net.get_image_features(**known)))
        return torch.cat(parts)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """The vectors of a list of sentences."""
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"sentence {number} must be a string, not {type(text).__name__}")
            if not text.strip():
                raise ValueError(f"sentence {number} is empty: {text!r}")
        longest = self.padding or self.net.config.text_config.max_position_embeddings
        how = "max_length" if self.padding else True
        parts = [torch.empty(0, self.dim)]
        for batch in in_batches(list(texts), batch_size, "sentences", progress):
            tokens = self.tokenizer(batch, padding=how, truncation=True, max_length=longest, return_tensors="pt")
            known = {name: tokens[name].to(self.device) for name in ("input_ids", "attention_mask") if name in tokens}
            if self.padding:
                known.pop("attention_mask", None)
            parts.append(_vectors(self.net.get_text_features(**known)))
        return torch.cat(parts)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def fingerprint(self) -> str:
        """Names this very model: changes with any weight or setting."""
        settings = {"model": self.net.config.to_dict(), "images": self.image_processor.to_dict()}
        digest = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=16)
        update_digest(digest, self.state_dict())
        return digest.hexdigest()

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path) -> "PretrainedModel":
        """Load a folder as transformers saves it, or a hub name, in float32, in evaluation mode.

        Raises:
            FileError: If there is no such model, or one of its files is missing or broken.
        """
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        name = str(name_or_folder)
        if _model_type(name) not in PADDING:
            raise FileError(f"{name} is none of {', '.join(PADDING)} as transformers saves them")
        try:
            model, report = AutoModel.from_pretrained(
                name, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
            parts = AutoImageProcessor.from_pretrained(name), AutoTokenizer.from_pretrained(name)
        except Exception as error:  # transformers fails in many ways on broken files: all mean the same here
            raise FileError(f"{name} cannot be loaded by transformers: {error}") from error
        if report["missing_keys"]:
            raise FileError(f"the weights in {name} are not for its config: {min(report['missing_keys'])} is missing")
        return cls(model, *parts)


def is_pretrained(name_or_folder: str | Path) -> bool:
    """Whether a folder, or a repository of the hub, holds a model of the kinds that `PretrainedModel` loads."""
    return _model_type(str(name_or_folder)) in PADDING


def _model_type(name: str) -> str:
    """The kind of a transformers model; empty if there is none."""
    path = Path(name) / "config.json"
    if not Path(name).is_dir() and HUB_NAME.fullmatch(name):
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

        try:
            path = Path(hf_hub_download(name, "config.json"))
        except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError, ValueError):
            return ""
    try:
        content = read_json(path)
    except FileError:
        return ""
    return str(content.get("model_type", "")) if isinstance(content, dict) else ""


def _vectors(output: Any) -> Tensor:
    """Unit vectors of what transformers returns: since version 5 an object, before that a tensor."""
    features = output if isinstance(output, Tensor) else output.pooler_output
    return l2_normalize(features.float()).cpu()
