"""How aligned and how uniform a space is, and the number of negatives K that follows from it."""

import math

import torch
from torch import Tensor

from vse_demo.utils.checks import VARIANTS, check_choice


def alignment(similarities: Tensor, image_ids: Tensor | None = None) -> Tensor:
    """Mean similarity of the true pairs.

    Args:
        similarities: (C, B) of C texts and B images.
        image_ids: (C,) the index of each text's image; without it, the diagonal.
    """
    image_ids = checked_image_ids(similarities, image_ids)
    return similarities.gather(1, image_ids.unsqueeze(1)).mean()


def uniformity(similarities: Tensor, image_ids: Tensor | None = None, variant: str = "paper") -> Tensor:
    """How evenly the space is filled.

    Args:
        similarities: (C, B) of C texts and B images.
        image_ids: (C,) the index of each text's image; without it, the diagonal.
        variant: `paper` is the log of the mean of exp(similarity) over all pairs; *lower* is more uniform.
            `official`, as in the authors' code, is the mean of exp(−similarity), with the true pairs set to 0 first;
            *higher* is more uniform.
    """
    check_choice(variant, VARIANTS, "uniformity variant")
    if variant == "paper":
        return similarities.flatten().logsumexp(0) - math.log(similarities.numel())
    image_ids = checked_image_ids(similarities, image_ids)
    return similarities.scatter(1, image_ids.unsqueeze(1), 0).neg().exp().mean()


def negative_count(alignment: float, uniformity: float, batch_size: int, variant: str = "paper") -> int:
    """K, the number of hardest negatives to learn from, between 1 and batch_size − 1.

    Args:
        alignment: of the batch.
        uniformity: of the batch, by the definition of the same variant.
        batch_size: number of candidates, the right one included.
        variant: `paper` or `official`, whose formula to use.

    Raises:
        FloatingPointError: if alignment or uniformity is not finite.

    >>> negative_count(0.0, 0.0, 128), negative_count(1.0, 1.0, 128)
    (127, 1)
    """
    check_choice(variant, VARIANTS, "K variant")
    maturity = float(alignment) + float(uniformity)
    if not math.isfinite(maturity):
        raise FloatingPointError(f"alignment {alignment} and uniformity {uniformity} are not finite: training diverged")
    if variant == "paper":
        k = math.floor(batch_size * math.cos(maturity * math.pi / 4))
    else:  # a negative base has no real 1.25th power: such a space is as immature as can be
        k = int(batch_size * math.cos(max(maturity, 0.0) ** 1.25)) + 1
    return max(1, min(k, batch_size - 1))


def checked_image_ids(similarities: Tensor, image_ids: Tensor | None) -> Tensor:
    """The image of each text: as given, if there is one for each, or the diagonal."""
    if image_ids is not None and image_ids.shape != similarities.shape[:1]:
        raise ValueError(f"image_ids is {tuple(image_ids.shape)}, similarities need {tuple(similarities.shape[:1])}")
    return _diagonal(similarities) if image_ids is None else image_ids


def _diagonal(similarities: Tensor) -> Tensor:
    texts, images = similarities.shape
    if texts != images:
        raise ValueError(f"similarities are {texts} × {images}: say which image each text belongs to (image_ids)")
    return torch.arange(texts, device=similarities.device)
