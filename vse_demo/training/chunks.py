"""Gradient caching: batches larger than memory, with the gradients of the whole batch.

A loss on the similarities of a batch needs all embeddings at once, but not all that was computed on the way to them.
A batch is embedded in chunks, of which only the embeddings are kept; the loss is that of the whole batch; and on the
way back each chunk is computed again for its own gradients (Gao et al. 2021, arXiv:2101.06983). Memory is that of one
chunk, the price is a second forward pass.

The batch norm of a projection must take the statistics of the whole batch, not of a chunk. So they are computed
first, in chunks as well, and gradients go back through them too.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vse_demo.encoders.projection import Projection
from vse_demo.encoders.text import TransformerText
from vse_demo.layers import RowNorm, RowStatistics, all_real, row_statistics
from vse_demo.model.vse import VSE
from vse_demo.utils.tensors import l2_normalize

Embed = Callable[[Tensor, Tensor], Tensor]  # features (B, N, ·) and mask -> embeddings (B, D)


class ChunkedModel:
    """A model that embeds a batch chunk by chunk, and forgets what it computed until gradients need it.

    Args:
        model: whose weights are used.
        size: images, or captions, in a chunk.

    Raises:
        ValueError: if the model has a batch norm that cannot be computed in chunks.
    """

    def __init__(self, model: VSE, size: int):
        norms = sum(isinstance(module, RowNorm) for module in model.modules())
        projections = sum(isinstance(module, Projection) and module.norm is not None for module in model.modules())
        if norms > projections:
            raise ValueError(
                f"pooling {model.config.pooling!r} normalises over the whole batch again and again: "
                "it cannot be computed in chunks; leave out --chunk"
            )
        self.model, self.size = model, size

    def backbone(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] -> features (B, N, C)."""
        return self._in_chunks(self.model.image_encoder.backbone, pixels)

    def embed_image_features(self, features: Tensor) -> Tensor:
        """Features (B, N, C) -> unit vectors (B, dim)."""
        mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        return self._embed(self.model.image_encoder.projection, self.model.embed_image_features, features, mask)

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Padded token numbers (C, N) and their mask -> unit vectors (C, dim)."""
        encoder, pooling = self.model.text_encoder, self.model.text_pooling
        if not isinstance(encoder, TransformerText):
            return self._in_chunks(self.model.embed_tokens, tokens, mask)
        projection = encoder.projection

        def embed(states: Tensor, mask: Tensor) -> Tensor:
            return l2_normalize(pooling(projection(states, mask), mask))

        return self._embed(projection, embed, self._in_chunks(encoder.states, tokens, mask), mask)

    def _embed(self, projection: Projection, embed: Embed, features: Tensor, mask: Tensor) -> Tensor:
        """Embed features, whose projection must see the whole batch, in chunks."""
        hidden, norm = projection.hidden, projection.norm
        if hidden is None or norm is None:
            return self._in_chunks(embed, features, mask)

        def measure(features: Tensor, mask: Tensor) -> RowStatistics:
            real = features if all_real(mask) else features.masked_fill(~mask.unsqueeze(-1), 0)
            return row_statistics(hidden(real), mask)

        parts = [_recomputed(measure, *part) for part in self._split(features, mask)]
        mean, variance = norm.batch_statistics(parts)

        def embed_part(features: Tensor, mask: Tensor) -> Tensor:
            with norm.given(mean, variance):
                return embed(features, mask)

        return self._in_chunks(embed_part, features, mask)

    def _in_chunks(self, compute: Any, *tensors: Tensor) -> Tensor:
        return torch.cat([_recomputed(compute, *part) for part in self._split(*tensors)])

    def _split(self, *tensors: Tensor) -> Any:
        return zip(*(tensor.split(self.size) for tensor in tensors), strict=True)


def _recomputed(compute: Any, *tensors: Tensor) -> Any:
    """The same as `compute(*tensors)`, but computed again, instead of remembered, when gradients need it."""
    return checkpoint(compute, *tensors, use_reentrant=False)
