"""What all losses share: the checked batch, its similarities, and the terms that come out."""

import torch
from torch import Tensor, nn

from vse_demo.losses.statistics import alignment, uniformity
from vse_demo.losses.terms import LossTerms


class Objective(nn.Module):
    """A loss on the similarities of a batch.

    A new loss implements `directions`, and `reduce` if the sum of all pairs is not what it wants.
    """

    def start_epoch(self, epoch: int) -> None:
        """Called before each epoch, counted from 0, for losses with a schedule."""

    def forward(self, images: Tensor, texts: Tensor, image_ids: Tensor) -> LossTerms:
        """Compare every text with every image by dot product.

        Args:
            images: embeddings (B, D), of length 1.
            texts: embeddings (C, D), of length 1; one or more for each image.
            image_ids: (C,) the index of each text's image. On the CPU it is checked without waiting for a GPU.

        Returns:
            The loss and the terms behind it.

        Raises:
            ValueError: if the shapes do not fit, or no image has a negative.
            TypeError: if `image_ids` does not hold whole numbers (torch.int64).

        Example:
            >>> from vse_demo.losses import HardTriplet
            >>> HardTriplet(margin=0.2)(torch.eye(2), torch.eye(2), torch.tensor([0, 1])).loss
            tensor(0.)
        """
        image_ids = check_batch(images, texts, image_ids)
        return self.terms(texts @ images.T, image_ids)

    def from_similarities(self, similarities: Tensor, image_ids: Tensor) -> LossTerms:
        """The same loss on similarities (C, B) that were computed in another way, as with late interaction.

        Args:
            similarities: of C texts (rows) and B images (columns).
            image_ids: (C,) the index of each text's image.
        """
        if similarities.dim() != 2:
            raise ValueError(f"similarities are {tuple(similarities.shape)}, they must be (texts, images)")
        texts, images = similarities.shape
        _check_image_ids(texts, images, image_ids)
        return self.terms(similarities, image_ids.to(similarities.device))

    def terms(self, similarities: Tensor, image_ids: Tensor) -> LossTerms:
        """The loss of a checked batch."""
        positive = image_ids.unsqueeze(1) == torch.arange(similarities.shape[1], device=image_ids.device)  # (C, B)
        per_text, per_image, k = self.directions(similarities, positive, image_ids)
        known = similarities.detach()
        return LossTerms(
            loss=self.reduce(per_text, per_image),
            alignment=alignment(known, image_ids),
            uniformity=uniformity(known, image_ids, "paper"),
            loss_i2t=per_image.detach().mean(),
            loss_t2i=per_text.detach().mean(),
            k=k,
        )

    def directions(
        self, similarities: Tensor, positive: Tensor, image_ids: Tensor
    ) -> tuple[Tensor, Tensor, int | None]:
        """The loss of each true pair in both directions.

        Args:
            similarities: (C, B).
            positive: (C, B) bool, True where the text belongs to the image.
            image_ids: (C,) the index of each text's image.

        Returns:
            The loss of each pair when images are searched by text (C,), when texts are searched by image (C,),
            and the number of negative images K, or None if the loss has no such number.
        """
        raise NotImplementedError

    def reduce(self, per_text: Tensor, per_image: Tensor) -> Tensor:
        """One number; as in VSE++ and the paper's equation for the triplet loss, the sum."""
        return per_text.sum() + per_image.sum()


def check_batch(images: Tensor, texts: Tensor, image_ids: Tensor) -> Tensor:
    """Check the shapes of embeddings and their `image_ids`, which are returned on the device of the images."""
    if images.dim() != 2 or texts.dim() != 2 or images.shape[1] != texts.shape[1]:
        raise ValueError(f"images {tuple(images.shape)} and texts {tuple(texts.shape)} must be (B, D) and (C, D)")
    _check_image_ids(len(texts), len(images), image_ids)
    return image_ids.to(images.device)


def _check_image_ids(texts: int, images: int, image_ids: Tensor) -> None:
    if image_ids.shape != (texts,):
        raise ValueError(f"image_ids is {tuple(image_ids.shape)}, {texts} texts need ({texts},)")
    if image_ids.dtype != torch.int64:
        raise TypeError(f"image_ids is {image_ids.dtype}, it must be torch.int64: the index of each text's image")
    if len(image_ids) and (image_ids.min() < 0 or image_ids.max() >= images):
        raise ValueError(f"image_ids points outside the {images} images of the batch")
    if len(image_ids.unique()) < 2:
        raise ValueError("a batch needs texts of at least two images: a single one has no negatives")
