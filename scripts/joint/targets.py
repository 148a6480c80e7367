"""What a batch should look like: true pairs, softened by how alike a teacher finds the captions.

In a batch of everyday photos a caption often fits a second photo too. A sentence encoder that never saw a photo can
tell: where two captions mean nearly the same, the second photo is not treated as entirely wrong.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.05  # of similarities, the teacher's included
OWN = 0.7  # similarity that counts as certain for the teacher: about that of two captions of one photo


def soft_targets(teacher: Tensor, image_ids: Tensor, images: int, softness: float) -> tuple[Tensor, Tensor]:
    """Where the probability of each caption (C, B) and of each image (B, C) should lie.

    Args:
        teacher: unit vectors (C, E) of the captions.
        image_ids: (C,) the image of each caption; every image has at least one.
        images: B.
        softness: share of the teacher; the rest is spread over the true pairs.
    """
    alike = teacher @ teacher.T
    own = image_ids.unsqueeze(1) == torch.arange(images)  # (C, B)
    counts = torch.bincount(image_ids, minlength=images)
    of_image = torch.zeros(len(image_ids), images).index_add_(1, image_ids, alike) / counts  # mean over its captions
    of_caption = of_image.T
    to_images = F.softmax(of_image.masked_fill(own, OWN) / TEMPERATURE, 1)
    to_captions = F.softmax(of_caption.masked_fill(own.T, OWN) / TEMPERATURE, 1)
    true_captions = own.T / counts.unsqueeze(1)
    return (1 - softness) * own + softness * to_images, (1 - softness) * true_captions + softness * to_captions


def target_loss(similarities: Tensor, to_images: Tensor, to_captions: Tensor) -> Tensor:
    """Cross-entropy of similarities (C, B) against targets, the mean of both directions."""
    scores = similarities / TEMPERATURE
    per_caption = -(to_images * F.log_softmax(scores, 1)).sum(1)
    per_image = -(to_captions * F.log_softmax(scores.T, 1)).sum(1)
    return (per_caption.mean() + per_image.mean()) / 2


def ensemble_targets(similarities: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What several models say together, as targets for each of them."""
    scores = torch.stack([each.detach() for each in similarities]).mean(0) / TEMPERATURE
    return F.softmax(scores, 1), F.softmax(scores.T, 1)
