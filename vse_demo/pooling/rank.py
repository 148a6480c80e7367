"""Mean, max and k-max as one idea: sort, then a weighted sum."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from vse_demo.layers import all_real
from vse_demo.pooling.functional import real_rows, sort_rows, weighted_sum

SMALLEST = 1e-30  # share of the largest weight that the first may have: less would be 0 in single precision


class RankPool(nn.Module):
    """Sort → weighted sum with fixed weights, the first for the largest value of each dimension.

    `[1]` is max pooling, `[1] * k` the mean of the k largest, `None` (equal weights for all rows)
    the mean. Ranks past the end of `weights` count nothing. The weights are scaled to sum to 1 over
    the real rows of each item, so 5-max of a set of three is the mean of the three.

    Args:
        weights: By rank, at least 0, the first above 0, none infinite; None for the mean.

    Raises:
        ValueError: If the weights are not such.

    >>> import torch
    >>> RankPool([1, 1])(torch.tensor([[[1.], [5.], [3.]]]))
    tensor([[4.]])
    """

    def __init__(self, weights: Sequence[float] | None = None):
        super().__init__()
        self.weights = None if weights is None else _scaled(weights)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool each item.

        Args:
            features: (B, N, D).
            mask: (B, N) bool, True where a row is real; all of them if None.

        Returns:
            (B, D).
        """
        mask = real_rows(features, mask)
        if self.weights is None:  # every rank counts the same: there is nothing to sort
            real = features if all_real(mask) else features.masked_fill(~mask.unsqueeze(-1), 0)
            return real.sum(1) / mask.sum(1, keepdim=True)
        values, ranks = sort_rows(features, mask)
        given = features.new_tensor(self.weights[: features.shape[1]])
        weights = nn.functional.pad(given, (0, features.shape[1] - len(given))) * ranks  # (B, N)
        return weighted_sum(weights / weights.sum(1, keepdim=True), values)


def _scaled(weights: Sequence[float]) -> tuple[float, ...]:
    """The weights as parts of the largest one, so that their sum fits any precision."""
    largest = max(weights, default=0)
    if not (0 < largest < math.inf and min(weights) >= 0 and weights[0] / largest > SMALLEST):
        raise ValueError(f"rank weights must be at least 0, the first above 0 and none infinite; got {list(weights)}")
    return tuple(weight / largest for weight in weights)
