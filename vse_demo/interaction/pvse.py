"""PVSE: several embeddings for each item, of which the best pair counts."""

import torch
from torch import Tensor, nn

from vse_demo.interaction.base import FeatureSets, Interaction
from vse_demo.utils.tensors import l2_normalize


class PVSE(Interaction):
    """Polysemous visual-semantic embedding.

    Song and Soleymani, CVPR 2019, arXiv:1906.04402. Attention with K heads over the features gives K local vectors
    (eq. 1); each goes through a linear layer and a sigmoid, is added to the global feature and normalised (eq. 3). Two
    items are as similar as their most similar embeddings: multiple-instance learning (eq. 5). The training adds a
    diversity term, the length of the off-diagonal products of the K local parts (eq. 6), and a domain term, the maximum
    mean discrepancy of all embeddings of both sides under a Gaussian kernel (eq. 7).

    Ours: the global feature is the mean of the features (theirs is the average-pooled map, and a GRU's last state);
    attention sees features after the projection; no dropout; the kernel takes the squared distance (their code the
    distance). Terms are scaled with the batch, since our triplet losses are sums.

    Args:
        dim: D.
        k: Embeddings of each item; 1 is the ablation, without the two terms.
        diversity: Weight of that term.
        discrepancy: Weight of that term.
    """

    gamma = 0.5  # of the Gaussian kernel

    def __init__(self, dim: int, k: int = 2, diversity: float = 0.1, discrepancy: float = 0.01):
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        self.k, self.diversity, self.discrepancy = k, diversity, discrepancy
        self.image, self.text = PolysemousEmbedding(dim, k), PolysemousEmbedding(dim, k)

    def image_sets(self, images: FeatureSets) -> FeatureSets:
        return self.image(images)

    def text_sets(self, texts: FeatureSets) -> FeatureSets:
        return self.text(texts)

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        cosines = texts.features.flatten(0, 1) @ images.features.flatten(0, 1).T  # (C · K, B · K)
        return cosines.view(len(texts.features), self.k, len(images.features), self.k).amax((1, 3))

    def penalty(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        if self.k == 1:
            return images.features.new_zeros(())
        assert images.local is not None
        assert texts.local is not None
        diversity = off_diagonal(images.local) + off_diagonal(texts.local)
        apart = discrepancy(images.features.flatten(0, 1), texts.features.flatten(0, 1), self.gamma)
        return len(texts.features) * (self.diversity * diversity + self.discrepancy * apart)

    def values_per_pair(self, words: int, cells: int, dim: int) -> int:
        return self.k**2 + 1


class PolysemousEmbedding(nn.Module):
    """Features -> K unit embeddings; the local part of each is kept beside it."""

    def __init__(self, dim: int, k: int):
        super().__init__()
        self.hidden, self.heads = (
            nn.Linear(dim, max(1, dim // 2), bias=False),
            nn.Linear(max(1, dim // 2), k, bias=False),
        )
        self.out, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, sets: FeatureSets) -> FeatureSets:
        hidden = ~sets.mask.unsqueeze(-1)
        features = sets.features.masked_fill(hidden, 0)
        scores = self.heads(self.hidden(features).tanh()).masked_fill(hidden, -torch.inf)  # (B, N, K)
        local = self.out(scores.softmax(1).mT @ features).sigmoid()  # (B, K, D)
        whole = features.sum(1, keepdim=True) / sets.mask.sum(1)[:, None, None]
        everywhere = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device)
        return FeatureSets(l2_normalize(self.norm(whole + local)), everywhere, local)


def off_diagonal(local: Tensor) -> Tensor:
    """Mean over items of the length of the products of different unit vectors (B, K, D), divided by K²."""
    k = local.shape[1]
    gram = l2_normalize(local) @ l2_normalize(local).mT
    others = gram * (1 - torch.eye(k, dtype=gram.dtype, device=gram.device))
    return ((others.square().sum((1, 2)) + 1e-12).sqrt() / k**2).mean()


def discrepancy(left: Tensor, right: Tensor, gamma: float) -> Tensor:
    """Maximum mean discrepancy of two sets of vectors under the kernel exp(−γ |x − y|²): squared, biased estimate."""

    def kernel(some: Tensor, others: Tensor) -> Tensor:
        squared = some.square().sum(1, keepdim=True) + others.square().sum(1) - 2 * some @ others.T
        return (-gamma * squared).exp().mean()

    return kernel(left, left) - 2 * kernel(left, right) + kernel(right, right)
