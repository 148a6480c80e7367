"""Images -> (B, N, D) features: a CNN's feature map, patches of a ViT, or precomputed regions.

An `ImageEncoder` has two halves. The backbone turns pixels into features (B, N, C); while it is frozen
they can be computed once and kept (see `feature_cache`). The projection turns them into features of
the joint dimension and is always trained. Regions come from a detector that is not part of this
project: they enter after the backbone.
"""

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from vse_demo.data.transforms import to_pixels
from vse_demo.encoders.backbone import Backbone
from vse_demo.encoders.projection import Projection
from vse_demo.utils.checks import check_choice
from vse_demo.utils.tensors import round_to_half

VISIONS = ("grid", "patch", "region")


class ImageEncoder(nn.Module):
    """Features (B, N, C) -> features of the joint dimension (B, N, dim), and the backbone that sees images.

    Args:
        dim: The joint dimension.
        kind: `grid`, `patch` or `region`; regions need no backbone.
        backbone: A timm name.
        image_size: Pixels of both sides.
        region_dim: Channels of precomputed regions.
        projection: `mlp` or `linear`.
        image_mean: Of pixels in [0, 1], as the backbone expects them; by default timm's.
        image_std: The same for their standard deviation.
    """

    def __init__(
        self,
        dim: int,
        kind: str = "grid",
        backbone: str = "tf_efficientnet_lite0",
        image_size: int = 224,
        region_dim: int = 2048,
        projection: str = "mlp",
        image_mean: Sequence[float] | None = None,
        image_std: Sequence[float] | None = None,
    ):
        super().__init__()
        check_choice(kind, VISIONS, "vision")
        self.backbone = None if kind == "region" else Backbone(backbone, image_size, kind, image_mean, image_std)
        self.feature_dim = region_dim if self.backbone is None else self.backbone.dim
        self.projection = Projection(self.feature_dim, dim, projection)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Project features (B, N, C), of which the mask (B, N) says which are real."""
        if features.shape[-1] != self.feature_dim:
            raise ValueError(f"features have {features.shape[-1]} channels, this encoder takes {self.feature_dim}")
        return self.projection(features, mask)

    def extract(self, images: Sequence[Image.Image]) -> Tensor:
        """The backbone's features of RGB images: (B, N, C)."""
        if self.backbone is None:
            raise TypeError("this model takes precomputed regions (B, N, C), not images")
        pixels = to_pixels(images, self.backbone.image_size).to(self.backbone.mean)  # its device and precision
        return self.backbone(pixels.contiguous(memory_format=torch.channels_last))

    def freeze_backbone(self) -> None:
        """Keep the backbone as it is, in the precision that it will be stored in."""
        if self.backbone is not None:
            self.backbone.requires_grad_(False)
            round_to_half(self.backbone)
