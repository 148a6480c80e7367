"""CVSE: what captions say together, a graph of concepts, helps to embed each item."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vse_demo.interaction.base import FeatureSets, Interaction
from vse_demo.losses.base import Objective
from vse_demo.losses.terms import LossTerms
from vse_demo.utils.tensors import l2_normalize

FUNCTION_WORDS = """
a an the and or but of in on at to by for from with into onto over under near next up down out off while as is are was
be being has have it its his her their there that this these those he she they who which some one two three other
another each all both very
"""


class CVSE(Interaction):
    """Consensus-aware visual-semantic embedding: one vector for each item, so pairs are compared by a dot product.

    Wang et al., ECCV 2020, arXiv:2007.08883. Concepts are frequent words of the training captions; a graph joins those
    that occur together (section 3.1), and two graph convolutions over it give concept vectors (section 3.2). An item's
    instance vector is pooled by attention guided by its mean; its consensus vector is a softmax over concepts; the two
    are added with weights β and 1 − β (section 3.3). All three kinds are trained by the same loss.

    Scores, the scale 10 of the softmax and β = 0.75 are those of the authors' code, which trains with a larger β. Ours:
    concepts are the most frequent words without function words (they tag parts of speech); their vectors begin as those
    of the words, by a random projection to D; all edges weigh the same (theirs less than a concept's own), and both
    graph convolutions end in a leaky ReLU (theirs the first); the three losses have the same weight; the concept labels
    that a caption adds to its own softmax, and the divergence of both sides' softmaxes, are left out.

    Args:
        dim: D.
        concepts: How many.
        consensus: False for the ablation: instance vectors alone.
    """

    beta, sharpness = 0.75, 10.0
    needs_words = True
    graph: Tensor

    def __init__(self, dim: int, concepts: int = 300, consensus: bool = True):
        super().__init__()
        self.image, self.text = GuidedPool(dim), GuidedPool(dim)
        self.consensus = consensus
        if consensus:
            self.register_buffer(
                "graph", torch.eye(concepts)
            )  # by `prepare`; 0 on the diagonal where there is no concept
            self.concepts = nn.Parameter(0.1 * torch.randn(concepts, dim))
            self.convolutions = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(2))
            self.image_score, self.text_score = ConceptScore(dim), ConceptScore(dim)

    @torch.no_grad()
    def prepare(self, sentences: Sequence[Sequence[str]], words: Sequence[str], vectors: Tensor) -> None:
        if not self.consensus:
            return
        place, function_words = {word: number for number, word in enumerate(words)}, FUNCTION_WORDS.split()
        chosen = [word for word in words if word not in function_words and len(word) > 2][: len(self.concepts)]
        self.graph.zero_()
        self.graph[: len(chosen), : len(chosen)] = concept_graph(sentences, chosen)
        projection = torch.randn(vectors.shape[1], self.concepts.shape[1]) / vectors.shape[1] ** 0.5
        self.concepts[: len(chosen)] = vectors[[place[word] for word in chosen]].float() @ projection

    def concept_vectors(self) -> Tensor:
        """Unit vectors of the concepts after the graph convolutions: (q, D)."""
        states: Tensor = self.concepts
        for layer in self.convolutions:
            states = nn.functional.leaky_relu(self.graph.to(states) @ layer(states), 0.2)
        return l2_normalize(states)

    def image_sets(self, images: FeatureSets) -> FeatureSets:
        return self.embed(images, self.image, self.image_score if self.consensus else None)

    def text_sets(self, texts: FeatureSets) -> FeatureSets:
        return self.embed(texts, self.text, self.text_score if self.consensus else None)

    def embed(self, sets: FeatureSets, pool: "GuidedPool", score: "ConceptScore | None") -> FeatureSets:
        """A set of one vector for each item; instance and consensus vectors beside it, for the loss."""
        instance = pool(sets)
        one = torch.ones(len(instance), 1, dtype=torch.bool, device=instance.device)
        if score is None:
            return FeatureSets(instance.unsqueeze(1), one)
        concepts = self.concept_vectors()
        scores = self.sharpness * score(concepts, instance)
        weights = scores.masked_fill(self.graph.diagonal() == 0, -torch.inf).softmax(1)  # (B, q)
        consensus = l2_normalize(weights @ concepts)
        fused = l2_normalize(self.beta * instance + (1 - self.beta) * consensus)
        return FeatureSets(fused.unsqueeze(1), one, torch.stack([instance, consensus], dim=1))

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        return texts.features[:, 0] @ images.features[:, 0].T

    def loss_terms(self, objective: Objective, images: FeatureSets, texts: FeatureSets, image_ids: Tensor) -> LossTerms:
        terms = objective.from_similarities(self(images, texts), image_ids)
        if images.local is None or texts.local is None:
            return terms
        levels = [texts.local[:, level] @ images.local[:, level].T for level in range(2)]
        more = [objective.from_similarities(similarities, image_ids).loss for similarities in levels]
        return replace(terms, loss=terms.loss + more[0] + more[1])

    def values_per_pair(self, words: int, cells: int, dim: int) -> int:
        return 1


class GuidedPool(nn.Module):
    """Attention over features, guided by their mean -> a unit vector: (B, N, D) -> (B, D)."""

    def __init__(self, dim: int):
        super().__init__()
        self.own, self.mean, self.score = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1, bias=False)

    def forward(self, sets: FeatureSets) -> Tensor:
        hidden = ~sets.mask.unsqueeze(-1)
        features = l2_normalize(sets.features.masked_fill(hidden, 0))
        mean = features.sum(1, keepdim=True) / sets.mask.sum(1)[:, None, None]
        scores = self.score(self.own(features).tanh() * self.mean(mean).tanh()).masked_fill(hidden, -torch.inf)
        return l2_normalize((scores.softmax(1) * features).sum(1))


class ConceptScore(nn.Module):
    """How much of each concept is in an item: concepts (q, D) and items (B, D) -> (B, q)."""

    def __init__(self, dim: int):
        super().__init__()
        self.concept, self.item, self.score = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1, bias=False)

    def forward(self, concepts: Tensor, items: Tensor) -> Tensor:
        return (self.item(items).tanh() * self.score.weight[0]) @ self.concept(concepts).tanh().T


def concept_graph(
    sentences: Sequence[Sequence[str]], concepts: Sequence[str], scale: float = 5.0, shift: float = 0.02,
    threshold: float = 0.3,
) -> Tensor:  # fmt: skip
    """Which concepts go together: (q, q), normalised for graph convolutions.

    P(j | i) is the share of the sentences with concept i that have concept j. It is rescaled, s^(P − u) − s^(−u), so
    that rare pairs count less; what is below a threshold is no edge. Each concept is joined with itself, and edges are
    divided by the roots of the degrees of both ends.

    Args:
        sentences: Words of each caption.
        concepts: The words that are concepts.
        scale: s.
        shift: u.
        threshold: Of the rescaled confidence.
    """
    place = {word: number for number, word in enumerate(concepts)}
    together = torch.zeros(len(concepts), len(concepts))
    for sentence in sentences:
        present = torch.tensor(sorted({place[word] for word in sentence if word in place}), dtype=torch.int64)
        together[present.unsqueeze(1), present] += 1
    share = together / together.diagonal().clamp(min=1).unsqueeze(1)
    edges = ((scale ** (share - shift) - scale**-shift) >= threshold).float().fill_diagonal_(1)
    degrees = edges.sum(1).rsqrt()
    return degrees.unsqueeze(1) * edges * degrees
