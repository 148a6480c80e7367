"""The triplet losses of VSE and VSE++."""

import torch
from torch import Tensor

from vse_demo.losses.base import Objective
from vse_demo.losses.terms import LossTerms


class HardTriplet(Objective):
    """Hinge on the single hardest negative of each pair, in both directions (VSE++, arXiv:1707.05612)."""

    def __init__(self, margin: float = 0.2):
        super().__init__()
        self.margin = margin

    def directions(self, similarities: Tensor, positive: Tensor, image_ids: Tensor) -> tuple[Tensor, Tensor, int]:
        true = similarities.gather(1, image_ids.unsqueeze(1)).squeeze(1)
        wrong = similarities.masked_fill(positive, -torch.inf)
        return (
            (self.margin - true + wrong.amax(1)).relu(),
            (self.margin - true + wrong.amax(0)[image_ids]).relu(),
            1,
        )


class SumOfViolations(Objective):
    """Hinge on every negative of each pair, summed: the classic ranking loss of VSE."""

    def __init__(self, margin: float = 0.2):
        super().__init__()
        self.margin = margin

    def directions(self, similarities: Tensor, positive: Tensor, image_ids: Tensor) -> tuple[Tensor, Tensor, int]:
        true = similarities.gather(1, image_ids.unsqueeze(1))
        wrong = similarities.masked_fill(positive, -torch.inf)
        return (
            (self.margin - true + wrong).relu().sum(1),
            (self.margin - true + wrong.T[image_ids]).relu().sum(1),  # (C, C): the texts of other images
            similarities.shape[1] - 1,
        )


class ScheduledTriplet(Objective):
    """The schedule of VSE++: every negative in the first epoch, the hardest one afterwards.

    Args:
        margin: by which a right pair must be ahead.
        sum_epochs: with every negative; more of them start the hardest from a space that it does not collapse.
    """

    def __init__(self, margin: float = 0.2, sum_epochs: int = 1):
        super().__init__()
        if sum_epochs < 0:
            raise ValueError(f"sum_epochs must be at least 0, got {sum_epochs}")
        self.phases = (SumOfViolations(margin), HardTriplet(margin))
        self.sum_epochs = sum_epochs
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        self.phase = int(epoch >= self.sum_epochs)

    def terms(self, similarities: Tensor, image_ids: Tensor) -> LossTerms:
        return self.phases[self.phase].terms(similarities, image_ids)
