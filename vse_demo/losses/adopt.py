"""AdOpt: InfoNCE over the K hardest negatives of a batch."""

import torch
from torch import Tensor, nn

from vse_demo.losses.base import Objective
from vse_demo.losses.statistics import K_VARIANTS, alignment, negative_count, uniformity
from vse_demo.utils.checks import check_choice


class AdOpt(Objective):
    """InfoNCE over the K hardest negatives, K falling as the space gets aligned and uniform.

    Zhang et al., EACL 2023, arXiv:2210.02206, section 3.3. `paper` keeps to the equations: only
    negatives in the denominator, no margin, the two directions summed. `official` keeps to the
    authors' code: the positive in the denominator, a margin of 0.2 on the negatives, the directions
    averaged, and its own formulas for uniformity and K, which give the falling curve of the paper's
    figure. Unlike that code, a pair's own positive can never be chosen as its negative. `contrast` is not of the paper:
    it is `official` with a K of our own, which is large whenever true pairs are no more alike than others, at the start
    as in a collapse (`negative_count` has the three formulas).

    With C texts of B images the text side chooses K of B images, and the image side the same
    share of the C texts.

    Args:
        variant: `official`, `paper` or `contrast`.
        temperature: divides the similarities; colder (smaller) lets the hardest negatives dominate.
        margin: added to the negatives; None is 0 for `paper` and 0.2 for the others.
        fixed_k: one K for both sides, in place of the schedule.
    """

    def __init__(
        self,
        variant: str = "official",
        temperature: float = 0.05,
        margin: float | None = None,
        fixed_k: int | None = None,
    ):
        super().__init__()
        self.variant = check_choice(variant, K_VARIANTS, "AdOpt variant")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if fixed_k is not None and fixed_k < 1:
            raise ValueError(f"fixed_k must be at least 1, got {fixed_k}")
        self.temperature = temperature
        self.margin = margin if margin is not None else 0.0 if variant == "paper" else 0.2
        self.fixed_k = fixed_k

    def directions(self, similarities: Tensor, positive: Tensor, image_ids: Tensor) -> tuple[Tensor, Tensor, int]:
        true = similarities.gather(1, image_ids.unsqueeze(1)).squeeze(1) / self.temperature  # (C,)
        k_texts, k_images = self.counts(similarities.detach(), image_ids)
        by_text = self.negatives(similarities, positive, k_images)  # (C,)
        by_image = self.negatives(similarities.T, positive.T, k_texts)[image_ids]  # (B,) -> (C,)
        return self.info_nce(true, by_text), self.info_nce(true, by_image), k_images

    def counts(self, similarities: Tensor, image_ids: Tensor) -> tuple[int, int]:
        """K of the texts and K of the images, from similarities (C, B)."""
        texts, images = similarities.shape
        if self.fixed_k is not None:
            return min(self.fixed_k, texts - 1), min(self.fixed_k, images - 1)
        measures = [alignment(similarities, image_ids), uniformity(similarities, image_ids, self.variant)]
        aligned, uniform = torch.stack(measures).tolist()  # together: a GPU is waited for once
        return (
            negative_count(aligned, uniform, texts, self.variant),
            negative_count(aligned, uniform, images, self.variant),
        )

    def negatives(self, similarities: Tensor, positive: Tensor, k: int) -> Tensor:
        """log Σ exp over the k hardest negatives of each row, with margin and temperature."""
        hardest = similarities.masked_fill(positive, -torch.inf).topk(k, dim=1, sorted=False).values
        return ((hardest + self.margin) / self.temperature).logsumexp(1)

    def info_nce(self, true: Tensor, negatives: Tensor) -> Tensor:
        """The loss of each pair from its scaled similarity and the log-sum of its negatives."""
        if self.variant == "paper":
            return negatives - true
        return nn.functional.softplus(negatives - true)  # −log(e^true / (e^true + e^negatives))

    def reduce(self, per_text: Tensor, per_image: Tensor) -> Tensor:
        """The directions summed for the paper's variant, averaged for the others."""
        total = per_text.mean() + per_image.mean()
        return total if self.variant == "paper" else total / 2
