"""From a decoded image to the pixels that a backbone sees."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def resize_images(images: Sequence[Image.Image], size: int) -> Tensor:
    """Squeeze whole RGB images to a square: (B, 3, size, size), uint8."""
    arrays = [np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)) for image in images]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)


def to_pixels(images: Sequence[Image.Image], size: int) -> Tensor:
    """Squeeze whole RGB images to a square: (B, 3, size, size) in [0, 1]."""
    return resize_images(images, size).float() / 255


def random_view(image: Image.Image, generator: torch.Generator) -> Image.Image:
    """Cut a training view out of an image: at least 70 % of each side, mirrored every other time."""
    share, left, top, mirror = torch.rand(4, generator=generator).tolist()
    width, height = (round(side * (0.7 + 0.3 * share)) for side in image.size)
    x, y = round(left * (image.width - width)), round(top * (image.height - height))
    view = image.crop((x, y, x + width, y + height))
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirror < 0.5 else view
