"""Pictures -> (B, N, D) features: grid cells of a CNN, patches of a ViT, or precomputed regions.

An `ImageEncoder` has two halves. The backbone turns pixels into cells (B, N, C); while it is frozen
its cells can be computed once and kept (see `features`). The projection turns cells into features of
the joint dimension and is always trained. Regions come from a detector that is not part of this
project: they enter after the backbone.
"""

import copy
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vse_demo.files import FileError
from vse_demo.layers import Projection, add_tensors, check_choice, round_to_half

VISIONS = ("grid", "patch", "region")


def to_pixels(images: Sequence[Image.Image], size: int) -> Tensor:
    """RGB pictures -> (B, 3, size, size) in [0, 1]: the whole picture, squeezed to a square."""
    arrays = [np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)) for image in images]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def random_view(image: Image.Image, generator: torch.Generator) -> Image.Image:
    """A training view: at least 70 % of each side, and a mirror image every other time."""
    share, left, top, mirror = torch.rand(4, generator=generator).tolist()
    width, height = (round(side * (0.7 + 0.3 * share)) for side in image.size)
    x, y = round(left * (image.width - width)), round(top * (image.height - height))
    view = image.crop((x, y, x + width, y + height))
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirror < 0.5 else view


@torch.inference_mode(False)
@torch.no_grad()
def fold_batch_norms(net: Any) -> Any:
    """A copy of a timm CNN with each batch norm inside the convolution before it: about a third less work.

    A batch norm belongs to the convolution that is defined before it; where a network is built in
    another way the copy would differ, and the network itself is returned.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in net.modules()):
        return net
    folded = copy.deepcopy(net).eval()
    for module in list(folded.modules()):
        for (name, layer), (next_name, following) in itertools.pairwise(list(module.named_children())):
            if isinstance(layer, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(layer, following))
                setattr(module, next_name, getattr(following, "act", nn.Identity()))  # timm's norms hold the activation
    folded.to(memory_format=torch.channels_last)
    sample = torch.linspace(-1, 1, 3 * 64 * 64, device=next(net.parameters()).device).view(1, 3, 64, 64)
    same = torch.allclose(folded.forward_features(sample), net.forward_features(sample), rtol=1e-3, atol=1e-3)
    return folded if same else net


class Backbone(nn.Module):
    """Any timm CNN (`grid`) or ViT (`patch`) without its classifier: pixels -> cells (B, N, C)."""

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, image_size: int, kind: str):
        super().__init__()
        import timm  # slow to import, and not needed for regions

        if not timm.is_model(name):
            near = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
            raise ValueError(f"timm has no model {name!r}; near it: {near or 'none, see timm.list_models()'}")
        self.name, self.image_size = name, image_size
        self.size = {"img_size": image_size} if kind == "patch" else {}  # a CNN takes any size
        try:
            self.net = timm.create_model(name, num_classes=0, **self.size)
        except (TypeError, AssertionError) as error:
            raise ValueError(f"{name} cannot be a {kind} backbone at {image_size} px: {error}") from error
        self.dim: int = self.net.num_features
        mean, std = self.net.pretrained_cfg["mean"], self.net.pretrained_cfg["std"]
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self._folded: tuple[object, tuple[nn.Module, ...]] = (None, ())  # in a tuple: not a part of this module

    def forward(self, pixels: Tensor) -> Tensor:
        net = self.net if self.training or torch.is_grad_enabled() else self.folded()
        maps = net.forward_features((pixels - self.mean) / self.std)
        if maps.dim() == 3:
            return maps[:, self.net.num_prefix_tokens :]  # patches; the class token is no place in the picture
        if getattr(self.net, "output_fmt", "NCHW") == "NHWC":
            return maps.flatten(1, 2)
        return maps.flatten(2).mT

    def folded(self) -> Any:
        """The same network for inference, with its batch norms folded away; made anew when a weight has changed."""
        tensors = list(self.net.state_dict(keep_vars=True).values())
        if any(tensor.is_inference() for tensor in tensors):  # nothing tells when such a tensor changes
            return self.net
        version = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
        if self._folded[0] != version:
            self._folded = (version, (fold_batch_norms(self.net),))
        return self._folded[1][0]

    def fingerprint(self) -> str:
        """Changes with the network, any of its weights, and the input size."""
        digest = hashlib.blake2b(f"{self.name} {self.image_size}".encode(), digest_size=8)
        add_tensors(digest, self.state_dict())
        return digest.hexdigest()

    def load_weights(self, source: str) -> None:
        """Take weights from a safetensors file in timm's naming, a saved model's folder, or the hub (`hub`)."""
        if source == "hub":
            import timm

            state = timm.create_model(self.name, pretrained=True, num_classes=0, **self.size).state_dict()
        else:
            state = _read_weights(Path(source))
        known = self.net.state_dict()
        wrong = [key for key, tensor in known.items() if key not in state or state[key].shape != tensor.shape]
        if wrong:
            what = "has another shape" if wrong[0] in state else "is missing"
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise FileError(f"{source} is not for {self.name} at {self.image_size} px: {wrong[0]} {what}{more}")
        self.net.load_state_dict({key: state[key] for key in known})

    def train(self, mode: bool = True) -> "Backbone":
        """Fine-tuning keeps the batch statistics of ImageNet: ours are too small to replace them."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def _read_weights(source: Path) -> dict[str, Tensor]:
    """A backbone's tensors in timm's naming, from a file of its own or out of a whole model."""
    path, prefix = (source / "model.safetensors", "image_encoder.backbone.net.") if source.is_dir() else (source, "")
    if path.suffix != ".safetensors":
        raise FileError(f"{path} is not a .safetensors file: other formats can run code when they are read")
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be read as safetensors: {error}") from error
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


class ImageEncoder(nn.Module):
    """Cells (B, N, C) -> features (B, N, dim), and the backbone that makes cells from pictures."""

    def __init__(
        self,
        dim: int,
        kind: str = "grid",
        backbone: str = "tf_efficientnet_lite0",
        image_size: int = 224,
        region_dim: int = 2048,
        projection: str = "mlp",
    ):
        super().__init__()
        check_choice(kind, VISIONS, "vision")
        self.backbone = None if kind == "region" else Backbone(backbone, image_size, kind)
        self.cell_dim = region_dim if self.backbone is None else self.backbone.dim
        self.projection = Projection(self.cell_dim, dim, projection)

    def forward(self, cells: Tensor, mask: Tensor) -> Tensor:
        if cells.shape[-1] != self.cell_dim:
            raise ValueError(f"cells have {cells.shape[-1]} channels, this encoder takes {self.cell_dim}")
        return self.projection(cells, mask)

    def cells(self, images: Sequence[Image.Image]) -> Tensor:
        """The backbone's view of RGB pictures: (B, N, C)."""
        if self.backbone is None:
            raise TypeError("this model takes precomputed regions (B, N, C), not pictures")
        pixels = to_pixels(images, self.backbone.image_size).to(self.backbone.mean.device)
        return self.backbone(pixels.contiguous(memory_format=torch.channels_last))

    def freeze_backbone(self) -> None:
        """Keep the backbone as it is, in the precision that it will be stored in."""
        if self.backbone is not None:
            self.backbone.requires_grad_(False)
            round_to_half(self.backbone)
