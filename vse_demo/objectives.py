"""What training minimises, on one batch of the joint space; no encoder in sight.

Every loss is called as `loss(images, texts, owner)`: image embeddings (B, D), text embeddings
(C, D), both of unit vectors, and `owner` (C,), the index of each text's image. Captions of one image
are never each other's negatives. After a call, `loss.statistics` holds K, alignment, uniformity and
the loss of each direction (mean per pair) for the log.
"""

import math

import torch
from torch import Tensor, nn

from vse_demo.layers import check_choice
from vse_demo.pooling import VARIANTS


def alignment(similarities: Tensor, owner: Tensor | None = None) -> Tensor:
    """Mean similarity of the true pairs in (C, B) similarities; without `owner`, of the diagonal."""
    owner = _owner(similarities, owner)
    return similarities.gather(1, owner.unsqueeze(1)).mean()


def uniformity(similarities: Tensor, owner: Tensor | None = None, variant: str = "paper") -> Tensor:
    """How evenly the space is filled, from (C, B) similarities.

    `paper`: log of the mean of exp(similarity) over all pairs; *lower* is more uniform.
    `official` (the authors' code): mean of exp(−similarity), with the true pairs set to 0 first.
    """
    check_choice(variant, VARIANTS, "uniformity variant")
    if variant == "paper":
        return similarities.flatten().logsumexp(0) - math.log(similarities.numel())
    owner = _owner(similarities, owner)
    return similarities.scatter(1, owner.unsqueeze(1), 0).neg().exp().mean()


def negative_count(alignment: float, uniformity: float, batch_size: int, variant: str = "paper") -> int:
    """K, the number of hardest negatives to learn from, between 1 and batch_size − 1.

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


class Objective(nn.Module):
    """What the losses share: the checked batch, its similarities, and the statistics for the log."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics: dict[str, float] = {}

    def start_epoch(self, epoch: int) -> None:
        """Called before each epoch, counted from 0, for objectives with a schedule."""

    def forward(self, images: Tensor, texts: Tensor, owner: Tensor) -> Tensor:
        _check_batch(images, texts, owner)
        similarities = texts @ images.T  # (C, B)
        positive = owner.unsqueeze(1) == torch.arange(len(images), device=owner.device)  # (C, B)
        self.statistics = {
            "alignment": alignment(similarities.detach(), owner).item(),
            "uniformity": uniformity(similarities.detach(), owner, self.uniformity_variant).item(),
        }
        per_text, per_image = self.directions(similarities, positive, owner)  # each (C,), one term per pair
        self.statistics |= {
            "loss_t2i": per_text.detach().mean().item(),
            "loss_i2t": per_image.detach().mean().item(),
        }
        return self.reduce(per_text, per_image)

    uniformity_variant = "paper"

    def directions(self, similarities: Tensor, positive: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each true pair, searching images by text and texts by image."""
        raise NotImplementedError

    def reduce(self, per_text: Tensor, per_image: Tensor) -> Tensor:
        """One number; as in VSE++ and the paper's equation for the triplet loss, the sum."""
        return per_text.sum() + per_image.sum()


class AdOpt(Objective):
    """InfoNCE over the K hardest negatives, K falling as the space gets aligned and uniform.

    Zhang et al., EACL 2023, arXiv:2210.02206, section 3.3. `paper` keeps to the equations: only
    negatives in the denominator, no margin, the two directions summed. `official` keeps to the
    authors' code: the positive in the denominator, a margin of 0.2 on the negatives, the directions
    averaged, and its own formula for K, the one that gives the falling curve of the paper's figure.
    Unlike that code, a pair's own positive can never be chosen as its negative.

    With C texts of B images the text side chooses K of B images, and the image side the same
    share of the C texts. `fixed_k` replaces the schedule by one number for both sides.
    """

    def __init__(
        self,
        variant: str = "official",
        temperature: float = 0.05,
        margin: float | None = None,  # None: 0 for the paper's variant, 0.2 for the official one
        fixed_k: int | None = None,
    ):
        super().__init__()
        self.variant = check_choice(variant, VARIANTS, "AdOpt variant")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if fixed_k is not None and fixed_k < 1:
            raise ValueError(f"fixed_k must be at least 1, got {fixed_k}")
        self.temperature = temperature
        self.margin = margin if margin is not None else {"paper": 0.0, "official": 0.2}[variant]
        self.fixed_k = fixed_k
        self.uniformity_variant = variant

    def directions(self, similarities: Tensor, positive: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        true = similarities.gather(1, owner.unsqueeze(1)).squeeze(1) / self.temperature  # (C,)
        texts, images = similarities.shape
        k_images, k_texts = self.count(images), self.count(texts)
        self.statistics["k"] = float(k_images)
        by_text = self.negatives(similarities, positive, k_images)  # (C,)
        by_image = self.negatives(similarities.T, positive.T, k_texts)[owner]  # (B,) -> (C,)
        return self.info_nce(true, by_text), self.info_nce(true, by_image)

    def count(self, candidates: int) -> int:
        if self.fixed_k is not None:
            return min(self.fixed_k, candidates - 1)
        return negative_count(self.statistics["alignment"], self.statistics["uniformity"], candidates, self.variant)

    def negatives(self, similarities: Tensor, positive: Tensor, k: int) -> Tensor:
        """log Σ exp over the k hardest negatives of each row, with margin and temperature."""
        hardest = similarities.masked_fill(positive, -torch.inf).topk(k, dim=1, sorted=False).values
        return ((hardest + self.margin) / self.temperature).logsumexp(1)

    def info_nce(self, true: Tensor, negatives: Tensor) -> Tensor:
        if self.variant == "paper":
            return negatives - true
        return nn.functional.softplus(negatives - true)  # −log(e^true / (e^true + e^negatives))

    def reduce(self, per_text: Tensor, per_image: Tensor) -> Tensor:
        total = per_text.mean() + per_image.mean()
        return total if self.variant == "paper" else total / 2


class HardTriplet(Objective):
    """Hinge on the single hardest negative of each pair, both ways (VSE++, arXiv:1707.05612)."""

    def __init__(self, margin: float = 0.2):
        super().__init__()
        self.margin = margin

    def directions(self, similarities: Tensor, positive: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        self.statistics["k"] = 1.0
        true = similarities.gather(1, owner.unsqueeze(1)).squeeze(1)
        wrong = similarities.masked_fill(positive, -torch.inf)
        return (
            (self.margin - true + wrong.amax(1)).relu(),
            (self.margin - true + wrong.amax(0)[owner]).relu(),
        )


class SumOfViolations(Objective):
    """Hinge on every negative of each pair, summed: the classic ranking loss of VSE."""

    def __init__(self, margin: float = 0.2):
        super().__init__()
        self.margin = margin

    def directions(self, similarities: Tensor, positive: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        self.statistics["k"] = float(similarities.shape[1] - 1)
        true = similarities.gather(1, owner.unsqueeze(1))
        wrong = similarities.masked_fill(positive, -torch.inf)
        return (
            (self.margin - true + wrong).relu().sum(1),
            (self.margin - true + wrong.T[owner]).relu().sum(1),  # (C, C): the texts of other images
        )


class ScheduledTriplet(Objective):
    """The VSE++ schedule: every negative in the first epoch, the hardest one afterwards."""

    def __init__(self, margin: float = 0.2):
        super().__init__()
        self.phases = (SumOfViolations(margin), HardTriplet(margin))
        self.phase = 0

    def start_epoch(self, epoch: int) -> None:
        self.phase = min(epoch, 1)

    def forward(self, images: Tensor, texts: Tensor, owner: Tensor) -> Tensor:
        objective = self.phases[self.phase]
        loss = objective(images, texts, owner)
        self.statistics = objective.statistics
        return loss


OBJECTIVES: dict[str, type[Objective]] = {
    "adopt": AdOpt,
    "hard": HardTriplet,
    "sum": SumOfViolations,
    "vse++": ScheduledTriplet,
}


def build_objective(name: str, **options: object) -> Objective:
    """Any objective by name; `options` go to its constructor."""
    check_choice(name, list(OBJECTIVES), "objective")
    return OBJECTIVES[name](**options)


def _owner(similarities: Tensor, owner: Tensor | None) -> Tensor:
    """The picture of each caption: as given, if there is one for each, or the diagonal."""
    if owner is not None and owner.shape != similarities.shape[:1]:
        raise ValueError(f"owner is {tuple(owner.shape)}, similarities need {tuple(similarities.shape[:1])}")
    return _diagonal(similarities) if owner is None else owner


def _diagonal(similarities: Tensor) -> Tensor:
    texts, images = similarities.shape
    if texts != images:
        raise ValueError(f"similarities are {texts} × {images}: say which image each text belongs to (owner)")
    return torch.arange(texts, device=similarities.device)


def _check_batch(images: Tensor, texts: Tensor, owner: Tensor) -> None:
    if images.dim() != 2 or texts.dim() != 2 or images.shape[1] != texts.shape[1]:
        raise ValueError(f"images {tuple(images.shape)} and texts {tuple(texts.shape)} must be (B, D) and (C, D)")
    if owner.shape != texts.shape[:1]:
        raise ValueError(f"owner is {tuple(owner.shape)}, {len(texts)} texts need ({len(texts)},)")
    if owner.dtype != torch.int64:
        raise TypeError(f"owner is {owner.dtype}, it must be torch.int64: the index of each text's image")
    if len(owner) and (owner.min() < 0 or owner.max() >= len(images)):
        raise ValueError(f"owner points outside the {len(images)} images of the batch")
    if len(owner.unique()) < 2:
        raise ValueError("a batch needs texts of at least two images: a single one has no negatives")
