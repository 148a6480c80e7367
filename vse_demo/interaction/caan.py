"""CAAN: which features of an image count depends on the words, and the other way round."""

import torch
from torch import Tensor, nn

from vse_demo.interaction.base import FeatureSets, Interaction
from vse_demo.utils.tensors import l2_normalize


class CAAN(Interaction):
    """Context-aware attention: a vector for each side, pooled in view of the other.

    Zhang et al., CVPR 2020 (the open-access version; it has no arXiv number). A learned bilinear affinity of image
    features and words goes through a tanh. Inter-modal context of a feature is what the affinity gathers from the other
    side. Intra-modal context is what the second-order affinity, the affinity times its transpose, gathers from its own
    side: two image features are related if they match the same words. Both decide a softmax over the features of an
    image, whose weighted sum is its vector; texts alike. The similarity is the cosine of the two vectors.

    Our reading of the idea, written without the paper's equations at hand, so no numbers of them are given: how the
    contexts enter the attention may differ there. Affinities are divided by the number of features they gather from,
    so padding and length do not matter; the hidden layer has D units.

    Args:
        dim: D.
        inter: Use the inter-modal context.
        intra: Use the intra-modal context.
    """

    def __init__(self, dim: int, inter: bool = True, intra: bool = True):
        super().__init__()
        self.inter, self.intra = inter, intra
        self.affinity = nn.Linear(dim, dim, bias=False)
        nn.init.orthogonal_(self.affinity.weight)
        self.image, self.text = ContextAttention(dim, inter, intra), ContextAttention(dim, inter, intra)

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        cells = images.features.masked_fill(~images.mask.unsqueeze(-1), 0)  # (B, N, D)
        words = texts.features.masked_fill(~texts.mask.unsqueeze(-1), 0)  # (C, M, D)
        affinity = torch.einsum("cmd,bnd->cbmn", self.affinity(words), cells).tanh()  # (C, B, M, N), 0 for padding
        of_texts = self.text(words, texts.mask, affinity, cells, images.mask.sum(1))  # (C, B, D)
        of_images = self.image(cells, images.mask, affinity.transpose(0, 1).mT, words, texts.mask.sum(1))  # (B, C, D)
        return (of_texts * of_images.transpose(0, 1)).sum(-1)

    def values_per_pair(self, words: int, cells: int, dim: int) -> int:
        return 2 * words * cells + 4 * max(words, cells) * dim


class ContextAttention(nn.Module):
    """One side's features, and what the affinity gathers for them -> a unit vector for each pair."""

    def __init__(self, dim: int, inter: bool, intra: bool):
        super().__init__()
        self.own = nn.Linear(dim, dim)
        self.other = nn.Linear(dim, dim, bias=False) if inter else None
        self.related = nn.Linear(dim, dim, bias=False) if intra else None
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, features: Tensor, mask: Tensor, affinity: Tensor, others: Tensor, count: Tensor) -> Tensor:
        """Pool P sets of features in view of Q others.

        Args:
            features: (P, n, D), 0 for padding.
            mask: (P, n).
            affinity: (P, Q, n, m), 0 for padding.
            others: (Q, m, D), 0 for padding.
            count: (Q,) real features of each of the others.

        Returns:
            (P, Q, D).
        """
        hidden = self.own(features).unsqueeze(1)  # (P, 1, n, D)
        towards = affinity / count[None, :, None, None]
        if self.other is not None:
            hidden = hidden + towards @ self.other(others)  # (P, Q, n, D)
        if self.related is not None:
            own = self.related(features) / mask.sum(1)[:, None, None]
            hidden = hidden + towards @ (affinity.mT @ own.unsqueeze(1))  # (P, Q, n, n) is never made
        scores = self.score(hidden.tanh()).squeeze(-1).masked_fill(~mask.unsqueeze(1), -torch.inf)
        weights = scores.softmax(-1).unsqueeze(-2)  # (P, Q, 1, n)
        return l2_normalize((weights @ features.unsqueeze(1)).squeeze(-2)).expand(-1, len(others), -1)
