"""How aligned and how uniform a space is, and the number of negatives K that follows from it."""

import math

import torch
from torch import Tensor

from vse_demo.utils.checks import VARIANTS, check_choice

K_VARIANTS = (*VARIANTS, "contrast")  # the last is this project's own


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
            *higher* is more uniform. `contrast` uses the paper's.
    """
    check_choice(variant, K_VARIANTS, "uniformity variant")
    if variant != "official":
        return similarities.flatten().logsumexp(0) - math.log(similarities.numel())
    image_ids = checked_image_ids(similarities, image_ids)
    return similarities.scatter(1, image_ids.unsqueeze(1), 0).neg().exp().mean()


def negative_count(alignment: float, uniformity: float, batch_size: int, variant: str = "paper") -> int:
    """K, the number of hardest negatives to learn from, between 1 and batch_size − 1.

    With a for alignment, u for uniformity and B for the batch size:

    - `paper`: ⌊B · cos((a + u) · π/4)⌋. Low u is good, yet it is added: K cannot fall as the paper's text says.
    - `official`, the authors' code: ⌊B · cos((a + u)^1.25)⌋ + 1, with its own u. It falls, but a collapsed space, where
      a is 1, counts as a mature one.
    - `contrast`, this project's own: ⌊B · cos(min(c, 1) · π)⌋ with the contrast c = a − u, and u the paper's: how much
      more alike true pairs are than any pair. It is 0 at the start *and* in a collapse, so K is all there, and it is
      about ½ in a trained space, where K comes down to a few.

    B = 128, the negatives' similarities spread by 0.08:

    | mean similarity of true / other pairs | `paper` | `official` | `contrast` |
    |---|---|---|---|
    | 0 / 0 (random start) | 127 | 69 | 127 |
    | 0.2 / 0 | 126 | 40 | 104 |
    | 0.4 / 0 | 121 | 6 | 42 |
    | 0.5 / 0 | 117 | 1 | 3 |
    | 1 / 0 (ideal) | 89 | 1 | 1 |
    | 0.99 / 0.99 (collapsed) | 4 | 11 | 127 |

    Args:
        alignment: of the batch.
        uniformity: of the batch, by the definition of the same variant.
        batch_size: number of candidates, the right one included.
        variant: `paper`, `official` or `contrast`, whose formula to use.

    Raises:
        FloatingPointError: if alignment or uniformity is not finite.

    >>> [negative_count(1.0, 1.0, 128, variant) for variant in ("paper", "contrast")]  # everything on one point
    [1, 127]
    """
    check_choice(variant, K_VARIANTS, "K variant")
    aligned, uniform = float(alignment), float(uniformity)
    if not (math.isfinite(aligned) and math.isfinite(uniform)):
        raise FloatingPointError(f"alignment {alignment} and uniformity {uniformity} are not finite: training diverged")
    if variant == "paper":
        k = math.floor(batch_size * math.cos((aligned + uniform) * math.pi / 4))
    elif variant == "official":  # a negative base has no real 1.25th power: such a space is as immature as can be
        k = int(batch_size * math.cos(max(aligned + uniform, 0.0) ** 1.25)) + 1
    else:
        k = math.floor(batch_size * math.cos(min(max(aligned - uniform, 0.0), 1.0) * math.pi))
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
