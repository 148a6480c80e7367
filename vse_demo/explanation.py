"""Why an image and a sentence match: the similarity, split exactly over image features and over words.

AdPool's output is a sum over rows, p = Σₙ wₙ ⊙ fₙ, with weights that the trace tells. The embedding is
v = p / ‖p‖, and the similarity with a unit vector t is

    v · t = Σₙ (wₙ ⊙ fₙ) · t / ‖p‖,

one part per row, and the parts add up to the score: no gradient, no approximation. The same holds
with the sides exchanged. (What a row holds has already seen its neighbours, through the
convolutions or the GRU: a part is that of a feature, not of the pixels beneath it alone.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vse_demo.data.images import ImageLike
from vse_demo.encoders.tokenizers import pad_tokens
from vse_demo.model.vse import VSE
from vse_demo.pooling.adpool import AdPool, PoolTrace
from vse_demo.utils.tensors import evaluation_mode


@dataclass(frozen=True)
class Side:
    """One side of a match: what each row adds to the score, and how it was pooled."""

    parts: Tensor  # (N,) sums to the score
    rank_weights: Tensor | None  # (N,) token-level weight by rank, averaged over dimensions
    balance: tuple[float, float]  # token level, embedding level


@dataclass(frozen=True)
class Explanation:
    """A similarity with its parts."""

    score: float
    image: Side
    text: Side
    words: list[str]  # one per row of the text side

    @property
    def heat_map(self) -> Tensor:
        """The image's parts as the square grid that its features are."""
        side = round(len(self.image.parts) ** 0.5)
        if side * side != len(self.image.parts):
            raise ValueError(f"{len(self.image.parts)} regions are no square grid")
        return self.image.parts.view(side, side)


@torch.inference_mode()
def explain(model: VSE, image: ImageLike, text: str) -> Explanation:
    """Split the similarity of an image and a sentence over image features and over words.

    Args:
        model: Both its poolings are AdPool. It is used as in evaluation mode.
        image: A PIL image, a path, or regions (N, C) for a model that takes them.
        text: The sentence.

    Raises:
        ValueError: If the sentence is empty, or the model pools in another way.
    """
    if not text.strip():
        raise ValueError("the sentence is empty")
    with evaluation_mode(model):
        features = model.read_image_features([image]).to(model.device)
        tokens, mask = (tensor.to(model.device) for tensor in pad_tokens(model.tokenizer.encode([text])))
        image_features = model.image_encoder(features, _everywhere(features))
        return explain_features(model, image_features, model.text_encoder(tokens, mask), text)


@torch.inference_mode()
def explain_features(model: VSE, image_features: Tensor, text_features: Tensor, text: str) -> Explanation:
    """The same for one image and one sentence that the model has encoded already.

    Args:
        model: The model that encoded them; both its poolings are AdPool.
        image_features: What `model.image_encoder` made of the image: (1, N, D).
        text_features: What `model.text_encoder` made of the sentence: (1, M, D).
        text: The sentence.
    """
    if not isinstance(model.image_pooling, AdPool) or not isinstance(model.text_pooling, AdPool):
        raise ValueError(f"only AdPool's sums can be split exactly; this model pools by {model.config.pooling}")
    image_pooled, image_trace = model.image_pooling(image_features, _everywhere(image_features), return_trace=True)
    text_pooled, text_trace = model.text_pooling(text_features, _everywhere(text_features), return_trace=True)
    image_vector, text_vector = image_pooled / image_pooled.norm(), text_pooled / text_pooled.norm()
    return Explanation(
        score=float((image_vector * text_vector).sum()),
        image=_side(image_features, image_trace, text_vector / image_pooled.norm()),
        text=_side(text_features, text_trace, image_vector / text_pooled.norm()),
        words=model.tokenizer.tokens(text),
    )


@torch.inference_mode()
def explain_direction(model: VSE, image_features: Tensor, direction: Tensor) -> Tensor:
    """Split the dot product of an image's embedding with any vector over the grid of its features.

    Args:
        model: The model that encoded the image; its image pooling is AdPool.
        image_features: What `model.image_encoder` made of the image: (1, N, D), N a square.
        direction: The vector (D,), for example the embedding of another image.

    Returns:
        The parts (√N, √N), which add up to the dot product.
    """
    if not isinstance(model.image_pooling, AdPool):
        raise ValueError(f"only AdPool's sums can be split exactly; this model pools by {model.config.pooling}")
    pooled, trace = model.image_pooling(image_features, _everywhere(image_features), return_trace=True)
    parts = _side(image_features, trace, direction.to(pooled)[None] / pooled.norm()).parts
    side = round(len(parts) ** 0.5)
    return parts.view(side, side)


def _everywhere(features: Tensor) -> Tensor:
    """The mask (1, N) of a single item, which has no padding."""
    return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)


def _side(features: Tensor, trace: PoolTrace, direction: Tensor) -> Side:
    """The parts of the rows along a direction (1, D)."""
    weights = trace.token_weights
    if weights is not None and weights.dim() == 3:
        weights = weights.mean(-1)
    token, embedding = trace.balance[0].tolist()
    return Side(
        parts=((trace.input_weights() * features) @ direction[0])[0].cpu(),
        rank_weights=None if weights is None else weights[0].cpu(),
        balance=(token, embedding),
    )
