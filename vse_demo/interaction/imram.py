"""IMRAM: SCAN's attention several times, with queries that remember what they have found."""

from torch import Tensor, nn
from torch.nn.functional import linear

from vse_demo.interaction.attention import (
    attend,
    attended_cosines,
    focus,
    masked_average,
    pair_products,
    products,
    unit_rows,
)
from vse_demo.interaction.base import FeatureSets, Interaction
from vse_demo.utils.checks import check_choice
from vse_demo.utils.tensors import l2_normalize

BRANCHES = {"full": ("t2i", "i2t"), "text": ("t2i",), "image": ("i2t",)}


class MemoryDistillation(nn.Module):
    """Mix a query feature with what it attended to, by a gate.

    Gate and candidate are linear in both, through a sigmoid and a tanh; the gate keeps the old feature.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.gate, self.candidate = nn.Linear(2 * dim, dim), nn.Linear(2 * dim, dim)

    def forward(self, features: Tensor, weights: Tensor, contexts: Tensor) -> Tensor:
        """Features (Q, K or 1, n, D) that looked at contexts (K, m, D) with weights (Q, K, n, m) -> (Q, K, n, D)."""
        gate = linear_of_both(self.gate, features, weights, contexts).sigmoid()
        return gate * features + (1 - gate) * linear_of_both(self.candidate, features, weights, contexts).tanh()


def linear_of_both(layer: nn.Linear, features: Tensor, weights: Tensor, contexts: Tensor) -> Tensor:
    """A linear layer on features beside what they attended to, without making either wide.

    The layer is applied to the contexts before the weighted sum, m rows for all pairs instead of n for each; and to the
    features while they are still the same for all pairs.
    """
    of_features, of_contexts = layer.weight.chunk(2, dim=1)
    return linear(features, of_features, layer.bias) + attend(weights, linear(contexts, of_contexts))


class IMRAM(Interaction):
    """Iterative matching with recurrent attention memory.

    Chen et al., CVPR 2020, arXiv:2003.03772. The cross-modal attention unit is SCAN's (section 3.2), the memory
    distillation unit a gate (section 3.3), and the similarity is the sum over steps of the mean cosine of each feature
    with what it attended to (section 3.4). `full` adds both directions.

    As in the authors' code, the cosine of every step is with the feature as it was at first, queries get length 1 after
    each update, and the sharpness is 9. Their leaky ReLU is the paper's ReLU here.

    Args:
        dim: D.
        steps: How often each side looks; 1 is SCAN with both directions.
        branches: `full`, `text` (words attend to image features) or `image`.
        sharpness: λ of the attention.
    """

    def __init__(self, dim: int, steps: int = 3, branches: str = "full", sharpness: float = 9.0):
        super().__init__()
        check_choice(branches, list(BRANCHES), "branches")
        self.steps, self.sharpness = steps, sharpness
        # a single step never updates a query
        self.memory = nn.ModuleDict({name: MemoryDistillation(dim) for name in BRANCHES[branches] if steps > 1})
        self.branches = BRANCHES[branches]

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        images, texts = unit_rows(images), unit_rows(texts)
        similarities = images.features.new_zeros(len(texts.features), len(images.features))
        for branch in self.branches:
            if branch == "t2i":
                similarities = similarities + self.match(texts, images, branch)
            else:
                similarities = similarities + self.match(images, texts, branch).T
        return similarities

    def match(self, queries: FeatureSets, contexts: FeatureSets, branch: str) -> Tensor:
        """The sum over steps of one direction: (Q, K)."""
        first = scores = products(queries.features, contexts.features)  # (Q, K, n, m)
        memory = queries.features.unsqueeze(1)  # (Q, 1, n, D), later a set for each pair
        total = first.new_zeros(first.shape[:2])
        for step in range(self.steps):
            weights = focus(scores, contexts, self.sharpness)
            total = total + masked_average(attended_cosines(weights, first, contexts.features), queries.mask)
            if step + 1 < self.steps:
                memory = l2_normalize(self.memory[branch](memory, weights, contexts.features))  # (Q, K, n, D)
                memory = memory * queries.mask[:, None, :, None]
                scores = pair_products(memory, contexts.features)
        return total

    def values_per_pair(self, words: int, cells: int, dim: int) -> int:
        return super().values_per_pair(words, cells, dim) + 8 * max(words, cells) * dim
