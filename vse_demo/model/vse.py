"""The joint space: two encoders, two poolings, unit vectors. What all models share is in `dual`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vse_demo.data.images import Images
from vse_demo.encoders.tokenizers import Tokenizer
from vse_demo.evaluation import Metrics, evaluate
from vse_demo.losses.base import Objective
from vse_demo.losses.terms import LossTerms
from vse_demo.model.config import ModelConfig
from vse_demo.model.dual import DualEncoder
from vse_demo.model.encoding import Encoder, text_batches
from vse_demo.pooling.aggregators import build_pooling
from vse_demo.utils.progress import in_batches
from vse_demo.utils.tensors import evaluation_mode, full_precision, l2_normalize, refuse_tracing


class SentenceVectors(nn.Module):
    """Sentences -> unit vectors: what a `VSE` does with its text encoder and text pooling."""

    config: ModelConfig
    tokenizer: Tokenizer
    text_encoder: nn.Module
    text_pooling: nn.Module

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Padded token numbers (B, N) -> unit vectors (B, dim)."""
        refuse_tracing()
        return l2_normalize(self.text_pooling(self.text_encoder(tokens, mask), mask))

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of sentences (len, dim)."""
        vectors, device = torch.empty(len(texts), self.config.dim), next(self.parameters()).device
        with evaluation_mode(self):
            for numbers, tokens, mask in text_batches(self.tokenizer, texts, batch_size, progress):
                vectors[numbers] = self.embed_tokens(tokens.to(device), mask.to(device)).float().cpu()
        return vectors


class VSE(SentenceVectors, DualEncoder, Encoder):
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
        super().__init__(config, tokenizer)
        self.image_pooling = build_pooling(config.pooling, config.dim, "image", **config.pooling_options)
        self.text_pooling = build_pooling(config.pooling, config.dim, "text", **config.pooling_options)

    def forward(self, images: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What comes of prepared items, for programs that train or export a model by themselves.

        Args:
            images: Pixels (B, 3, size, size) in [0, 1]; regions (B, N, C) for a model that takes them.
            tokens: Token numbers (C, M), padded with 0 (`encoders.pad_tokens`).
            mask: (C, M) bool, True where a token is real.

        Returns:
            The unit vectors of the images (B, dim) and of the sentences (C, dim).
        """
        backbone = self.image_encoder.backbone
        features = images if backbone is None else backbone(images)
        return self.embed_image_features(features), self.embed_tokens(tokens, mask)

    def embed_image_features(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features or regions (B, N, C) -> unit vectors (B, dim); without a mask all N are real."""
        refuse_tracing()
        if mask is None:
            mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        return l2_normalize(self.image_pooling(self.image_encoder(features, mask), mask))

    def loss_terms(self, objective: Objective, images: Tensor, texts: Tensor, image_ids: Tensor) -> LossTerms:
        """The loss of a batch, given its unit vectors (B, dim) and (C, dim)."""
        return objective(full_precision(images), full_precision(texts), image_ids)

    def measure(self, images: Sequence[Tensor], texts: Sequence[Tensor], image_ids: Tensor) -> Metrics:
        """Recalls of a split, given the unit vectors of its batches."""
        return evaluate(torch.cat(list(images)).cpu(), torch.cat(list(texts)).cpu(), image_ids)

    @torch.inference_mode()
    def embed_images(self, images: Images, batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of images (len, dim)."""
        with evaluation_mode(self):
            parts = [torch.empty(0, self.dim)]
            for batch in in_batches(images, batch_size, "images", progress):
                features = self.read_image_features(batch).to(self.image_encoder.projection.linear.weight)
                parts.append(self.embed_image_features(features).float().cpu())
            return torch.cat(parts)
