"""What all losses share: the checked batch, its similarities, and the terms for the log."""

import torch
from torch import Tensor, nn

from vse_demo.losses.statistics import alignment, uniformity


class Objective(nn.Module):
    """What the losses share: the checked batch, its similarities, and the statistics for the log."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics: dict[str, float] = {}

    def start_epoch(self, epoch: int) -> None:
        """Called before each epoch, counted from 0, for objectives with a schedule."""

    def forward(self, images: Tensor, texts: Tensor, image_ids: Tensor) -> Tensor:
        _check_batch(images, texts, image_ids)
        similarities = texts @ images.T  # (C, B)
        positive = image_ids.unsqueeze(1) == torch.arange(len(images), device=image_ids.device)  # (C, B)
        self.statistics = {
            "alignment": alignment(similarities.detach(), image_ids).item(),
            "uniformity": uniformity(similarities.detach(), image_ids, self.uniformity_variant).item(),
        }
        per_text, per_image = self.directions(similarities, positive, image_ids)  # each (C,), one term per pair
        self.statistics |= {
            "loss_t2i": per_text.detach().mean().item(),
            "loss_i2t": per_image.detach().mean().item(),
        }
        return self.reduce(per_text, per_image)

    uniformity_variant = "paper"

    def directions(self, similarities: Tensor, positive: Tensor, image_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each true pair, searching images by text and texts by image."""
        raise NotImplementedError

    def reduce(self, per_text: Tensor, per_image: Tensor) -> Tensor:
        """One number; as in VSE++ and the paper's equation for the triplet loss, the sum."""
        return per_text.sum() + per_image.sum()


def _check_batch(images: Tensor, texts: Tensor, image_ids: Tensor) -> None:
    if images.dim() != 2 or texts.dim() != 2 or images.shape[1] != texts.shape[1]:
        raise ValueError(f"images {tuple(images.shape)} and texts {tuple(texts.shape)} must be (B, D) and (C, D)")
    if image_ids.shape != texts.shape[:1]:
        raise ValueError(f"image_ids is {tuple(image_ids.shape)}, {len(texts)} texts need ({len(texts)},)")
    if image_ids.dtype != torch.int64:
        raise TypeError(f"image_ids is {image_ids.dtype}, it must be torch.int64: the index of each text's image")
    if len(image_ids) and (image_ids.min() < 0 or image_ids.max() >= len(images)):
        raise ValueError(f"image_ids points outside the {len(images)} images of the batch")
    if len(image_ids.unique()) < 2:
        raise ValueError("a batch needs texts of at least two images: a single one has no negatives")
