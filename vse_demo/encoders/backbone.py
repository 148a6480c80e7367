"""Any timm network without its classifier: pixels -> features (B, N, C)."""

import copy
import hashlib
import itertools
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vse_demo.utils.files import FileError
from vse_demo.utils.tensors import update_digest


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
        update_digest(digest, self.state_dict())
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
