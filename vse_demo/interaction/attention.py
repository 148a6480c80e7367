"""Cross-attention between all texts and all images of a batch, written once for the methods that use it.

`queries` are the sets that look, `contexts` those that are looked at: words look at cells, or cells at words. All
products of pairs are (Q, K, n, m): Q query sets, K context sets, n features of a query set, m of a context set.
"""

import torch
from torch import Tensor

from vse_demo.interaction.base import FeatureSets
from vse_demo.utils.tensors import l2_normalize

TINY = 1e-8  # keeps the square root of 0 differentiable


def unit_rows(sets: FeatureSets) -> FeatureSets:
    """Features of length 1; padding is 0."""
    features = sets.features.masked_fill(~sets.mask.unsqueeze(-1), 0)
    return FeatureSets(l2_normalize(features), sets.mask)


def products(queries: Tensor, contexts: Tensor) -> Tensor:
    """Dot products of all features of all pairs: (Q, n, D) and (K, m, D) -> (Q, K, n, m), in one matrix product."""
    (q, n, dim), (k, m, _) = queries.shape, contexts.shape
    flat = queries.reshape(q * n, dim) @ contexts.reshape(k * m, dim).T
    return flat.view(q, n, k, m).transpose(1, 2)


def pair_products(queries: Tensor, contexts: Tensor) -> Tensor:
    """The same where a query's features differ from pair to pair: (Q, K, n, D) and (K, m, D) -> (Q, K, n, m)."""
    return queries @ contexts.mT


def focus(scores: Tensor, contexts: FeatureSets, sharpness: float) -> Tensor:
    """SCAN's attention of each query feature over the features of a context.

    Scores below 0 count as 0, and those of one context feature are divided by their length along the query's
    features; then comes a softmax over the context's features.

    Args:
        scores: (Q, K, n, m), 0 for padding.
        contexts: Of the K contexts.
        sharpness: λ1, the inverse temperature.

    Returns:
        Weights (Q, K, n, m) that sum to 1 along m; 0 for padding.
    """
    positive = scores.relu()
    normed = positive / (positive.square().sum(2, keepdim=True) + TINY).sqrt()
    hidden = ~contexts.mask[None, :, None, :]
    return (sharpness * normed).masked_fill(hidden, -torch.inf).softmax(-1)


def attended_cosines(weights: Tensor, scores: Tensor, contexts: Tensor) -> Tensor:
    """The cosine of each query feature with the weighted sum of context features that it attends to.

    The sums (Q, K, n, D) are never made: with unit features, q · Σ w c = Σ w (q · c), and the squared length of the
    sum is wᵀ G w with the context's own products G. That takes m numbers a feature instead of D.

    Args:
        weights: (Q, K, n, m), 0 for padding.
        scores: Cosines of the features (Q, K, n, m).
        contexts: Unit features (K, m, D).

    Returns:
        (Q, K, n).
    """
    gram = contexts @ contexts.mT  # (K, m, m)
    by_context = weights.transpose(0, 1)  # (K, Q, n, m)
    reached = (by_context.flatten(1, 2) @ gram).view_as(by_context).transpose(0, 1)
    squared = (reached * weights).sum(-1)
    return (weights * scores).sum(-1) / (squared.clamp(min=0) + TINY).sqrt()


def attend(weights: Tensor, contexts: Tensor) -> Tensor:
    """The weighted sums themselves: (Q, K, n, m) and (K, m, D) -> (Q, K, n, D)."""
    return weights @ contexts


def masked_average(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of (Q, K, n) over the real features of the Q query sets, by their mask (Q, n): (Q, K)."""
    return values.masked_fill(~mask.unsqueeze(1), 0).sum(-1) / mask.sum(1, keepdim=True)


def log_sum_exp(values: Tensor, mask: Tensor, sharpness: float) -> Tensor:
    """A smooth maximum of (Q, K, n) over real features, log(Σ exp(λ x)) / λ: (Q, K)."""
    return (sharpness * values).masked_fill(~mask.unsqueeze(1), -torch.inf).logsumexp(-1) / sharpness
