"""What a loss returns: the number to minimise, and what the log shows of how it came about."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TERMS = ("loss", "alignment", "uniformity", "loss_i2t", "loss_t2i")


@dataclass(frozen=True)
class LossTerms:
    """The loss of one batch with the figures behind it; all but `loss` are detached.

    `uniformity` is always the paper's definition, log of the mean of exp(similarity) over all pairs, whatever
    formula a loss uses for K. So the logs of different losses can be compared.
    """

    loss: Tensor  # call backward() on this
    alignment: Tensor  # mean similarity of the true pairs
    uniformity: Tensor  # by the paper's definition; lower is more uniform
    loss_i2t: Tensor | None = None  # mean loss of a pair, texts searched by image, for losses that tell
    loss_t2i: Tensor | None = None  # mean loss of a pair, images searched by text
    k: int | None = None  # number of negative images that each text learned from, for losses that choose one

    def as_floats(self) -> dict[str, float]:
        """The terms as numbers for a log, without what the loss does not tell.

        >>> LossTerms(*torch.tensor([3.0, 0.5, 0.25, 1.0, 2.0]), k=7).as_floats()
        {'loss': 3.0, 'alignment': 0.5, 'uniformity': 0.25, 'loss_i2t': 1.0, 'loss_t2i': 2.0, 'k': 7.0}
        """
        return mean_terms([self])


def mean_terms(terms: Sequence[LossTerms]) -> dict[str, float]:
    """The means of several batches' terms, as numbers for a log.

    All tensors are copied from their device together: a GPU is waited for once.

    Args:
        terms: of one batch or more, all of the same loss.

    Returns:
        The mean of each term by its name, without those that the loss does not tell.
    """
    names = [name for name in TERMS if getattr(terms[0], name) is not None]
    rows = [torch.stack([getattr(each, name).detach() for name in names]) for each in terms]
    means = dict(zip(names, torch.stack(rows).mean(0).tolist(), strict=True))
    counts = [each.k for each in terms if each.k is not None]
    return {**means, "k": sum(counts) / len(counts)} if counts else means
