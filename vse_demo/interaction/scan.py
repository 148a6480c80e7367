"""SCAN: every word looks for its cells, or every cell for its words; how well they find them is the similarity."""

from torch import Tensor

from vse_demo.interaction.attention import (
    attended_cosines,
    focus,
    log_sum_exp,
    masked_average,
    products,
    unit_rows,
)
from vse_demo.interaction.base import FeatureSets, Interaction
from vse_demo.utils.checks import check_choice

DIRECTIONS = ("t2i", "i2t")
POOLS = ("lse", "avg")


class SCAN(Interaction):
    """Stacked cross attention.

    Lee et al., ECCV 2018, arXiv:1803.08024. Cosines of words and regions (eq. 1), cut at 0 and normalised (below
    eq. 1); attention over words (eq. 2 and 3) or over regions (eq. 7 and 8); cosine of a feature with what it attends
    to (eq. 4 and 9); LogSumExp (eq. 5 and 10) or average (eq. 6 and 11) of these.

    Here regions are whatever features an image has. As in the authors' code, features have length 1 before they are
    summed; that code lets a tenth of a negative cosine through (a leaky ReLU), and this is the paper's ReLU. Attended
    vectors are never formed (`attended_cosines`): the same numbers, with less memory.

    Args:
        direction: `t2i`, words attend to image features, or `i2t`, image features attend to words.
        pool: `lse` or `avg`.
        sharpness: λ1 of the attention; by default the paper's, 9 for `t2i` and 4 for `i2t`.
        lse: λ2 of LogSumExp; by default the paper's, 6 for `t2i` and 5 for `i2t`.
        attention: False for the ablation: every context feature gets the same weight.
    """

    def __init__(
        self,
        direction: str = "t2i",
        pool: str = "avg",
        sharpness: float | None = None,
        lse: float | None = None,
        attention: bool = True,
    ):
        super().__init__()
        self.direction = check_choice(direction, DIRECTIONS, "direction")
        self.pool = check_choice(pool, POOLS, "pool")
        self.sharpness = sharpness if sharpness is not None else {"t2i": 9.0, "i2t": 4.0}[direction]
        self.lse = lse if lse is not None else {"t2i": 6.0, "i2t": 5.0}[direction]
        self.attention = attention

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        queries, contexts = (texts, images) if self.direction == "t2i" else (images, texts)
        queries, contexts = unit_rows(queries), unit_rows(contexts)
        scores = products(queries.features, contexts.features)
        weights = focus(scores, contexts, self.sharpness if self.attention else 0.0)
        relevance = attended_cosines(weights, scores, contexts.features)
        if self.pool == "lse":
            similarities = log_sum_exp(relevance, queries.mask, self.lse)
        else:
            similarities = masked_average(relevance, queries.mask)
        return similarities if self.direction == "t2i" else similarities.T
