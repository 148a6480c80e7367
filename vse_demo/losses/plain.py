"""A loss of somebody's own, which knows nothing of K, of epochs or of our terms."""

from collections.abc import Callable

from torch import Tensor

from vse_demo.losses.base import Objective, check_batch
from vse_demo.losses.statistics import alignment, uniformity
from vse_demo.losses.terms import LossTerms


class PlainLoss(Objective):
    """Any function of a batch's embeddings as an objective.

    Args:
        loss: takes images (B, D) and texts (C, D), unit vectors, and image_ids (C,), and returns one number, or
            `LossTerms`. A module that has `start_epoch` is told of each epoch. Parameters of a loss are not trained.

    Example:
        >>> import torch
        >>> loss = PlainLoss(lambda images, texts, image_ids: (images[image_ids] - texts).square().sum())
        >>> loss(torch.eye(2), torch.eye(2), torch.tensor([0, 1])).loss
        tensor(0.)
    """

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor | LossTerms]):
        super().__init__()
        self.loss = loss

    def start_epoch(self, epoch: int) -> None:
        """Pass it on to a loss that wants to know."""
        if hasattr(self.loss, "start_epoch"):
            self.loss.start_epoch(epoch)

    def forward(self, images: Tensor, texts: Tensor, image_ids: Tensor) -> LossTerms:
        """The loss of a batch, with what the log shows of any loss."""
        image_ids = check_batch(images, texts, image_ids)
        value = self.loss(images, texts, image_ids)
        if isinstance(value, LossTerms):
            return value
        similarities = (texts @ images.T).detach()
        return LossTerms(value, alignment(similarities, image_ids), uniformity(similarities, image_ids, "paper"))

    def from_similarities(self, similarities: Tensor, image_ids: Tensor) -> LossTerms:
        """A loss of embeddings cannot be computed from similarities alone."""
        raise ValueError("this loss takes embeddings; a model that compares features needs a subclass of Objective")
