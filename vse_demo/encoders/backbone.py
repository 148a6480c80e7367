"""Any timm network that gives a feature map or tokens, without its classifier: pixels -> features (B, N, C)."""

import copy
import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vse_demo.ops.dispatch import is_exporting
from vse_demo.utils.files import FileError, recover_folder
from vse_demo.utils.objects import import_object, is_reference
from vse_demo.utils.tensors import evaluation_mode, update_digest

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as most networks expect of pixels


@torch.inference_mode(False)
@torch.no_grad()
def fold_batch_norms(net: Any, size: int = 64) -> Any:
    """A copy of a timm CNN with each batch norm inside the convolution before it: about a third less work.

    A batch norm belongs to the convolution that is defined before it; where a network is built in
    another way the copy would differ, and the network itself is returned.

    Args:
        net: The network.
        size: Pixels of both sides of the image on which both are compared; some networks take a single size.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in net.modules()):
        return net
    folded = copy.deepcopy(net).eval()
    try:
        for module in list(folded.modules()):
            for (name, layer), (next_name, following) in itertools.pairwise(list(module.named_children())):
                if isinstance(layer, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
                    setattr(module, name, fuse_conv_bn_eval(layer, following))
                    act = getattr(following, "act", nn.Identity())  # timm's norms hold the activation
                    setattr(module, next_name, act)
        folded.to(memory_format=torch.channels_last)
        sample = torch.linspace(-1, 1, 3 * size * size, device=next(net.parameters()).device).view(1, 3, size, size)
        same = torch.allclose(feature_rows(folded, sample), feature_rows(net, sample), rtol=1e-3, atol=1e-3)
    except RuntimeError:  # a norm of another width: it is not of the convolution before it
        return net
    return folded if same else net


class Backbone(nn.Module):
    """A timm network without its classifier: pixels -> features (B, N, C), in reading order.

    Args:
        name: Of the network in timm; or `package.module:Name` of one of your own, a module that is made without
            arguments and turns normalised pixels (B, 3, H, W) into a map (B, C, H, W) or tokens (B, N, C).
        image_size: Pixels of both sides.
        kind: `grid` for a feature map, `patch` for the tokens of a network that is built for one image size.
        image_mean: Of pixels in [0, 1], as the network expects them; by default timm's.
        image_std: The same for their standard deviation.

    Raises:
        ValueError: If timm has no such network, or if it gives neither a map nor tokens at this size.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        image_size: int,
        kind: str,
        image_mean: Sequence[float] | None = None,
        image_std: Sequence[float] | None = None,
    ):
        super().__init__()
        self.name, self.image_size = name, image_size
        self.net, self.size = (import_object(name)(), {}) if is_reference(name) else _create(name, image_size, kind)
        expected = getattr(self.net, "pretrained_cfg", {"mean": IMAGENET_MEAN, "std": IMAGENET_STD})
        self.image_mean = _colour(image_mean or expected["mean"])
        self.image_std = _colour(image_std or expected["std"])
        self.register_buffer("mean", torch.tensor(self.image_mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(self.image_std).view(1, 3, 1, 1), persistent=False)
        self._folded: tuple[object, tuple[nn.Module, ...]] = (None, ())  # in a tuple: not a part of this module
        with evaluation_mode(self), torch.no_grad():
            try:
                self.dim = feature_rows(self.net, torch.zeros(1, 3, image_size, image_size)).shape[2]
            except Exception as error:  # timm's networks fail in many ways on a size that they do not take
                raise ValueError(f"{name} cannot be a {kind} backbone at {image_size} px: {_reason(error)}") from error

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] -> features (B, N, C)."""
        as_it_is = self.training or torch.is_grad_enabled() or is_exporting()  # exporters show tensors without data
        net = self.net if as_it_is else self.folded()
        return feature_rows(net, (pixels - self.mean) / self.std)

    def folded(self) -> Any:
        """The same network for inference, with its batch norms folded away; made anew when a weight has changed."""
        tensors = list(self.net.state_dict(keep_vars=True).values())
        if any(tensor.is_inference() for tensor in tensors):  # nothing tells when such a tensor changes
            return self.net
        version = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
        if self._folded[0] != version:
            self._folded = (version, (fold_batch_norms(self.net, self.image_size),))
        return self._folded[1][0]

    def fingerprint(self) -> str:
        """Changes with the network, any of its weights, the input size and how pixels are normalised."""
        settings = f"{self.name} {self.image_size} {self.image_mean} {self.image_std}"
        digest = hashlib.blake2b(settings.encode(), digest_size=8)
        update_digest(digest, self.state_dict())
        return digest.hexdigest()

    def load_weights(self, source: str) -> None:
        """Take weights from elsewhere.

        Args:
            source: A safetensors file in timm's naming, the folder of a saved model, or `hub` for those of timm.

        Raises:
            FileError: If they cannot be read, or are not for this network at this size.
        """
        if source == "hub" and is_reference(self.name):
            raise FileError(
                f"the hub has no weights of {self.name}: give a .safetensors file, a saved model, or random"
            )
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
    path, prefix = source, ""
    if source.is_dir():
        path, prefix = recover_folder(source) / "model.safetensors", "image_encoder.backbone.net."
    if path.suffix != ".safetensors":
        raise FileError(f"{path} is not a .safetensors file: other formats can run code when they are read")
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be read as safetensors: {error}") from error
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


def feature_rows(net: Any, pixels: Tensor) -> Tensor:
    """What a timm network makes of normalised pixels, as rows in reading order: (B, N, C).

    A feature map gives a row for each place, tokens one each; a class token is no place in the image. A network whose
    own output is a summary shows the map of its last stage instead, if it has one; of several sets of tokens the last
    counts.

    Raises:
        ValueError: If there is neither a map nor tokens; the message says what there is.
    """
    output = net.forward_features(pixels) if hasattr(net, "forward_features") else net(pixels)
    if not _has_places(output) and hasattr(net, "forward_intermediates"):
        return net.forward_intermediates(pixels, indices=1, norm=True, intermediates_only=True)[-1].flatten(2).mT
    if isinstance(output, list):
        output = output[-1]
    if not _has_places(output):
        given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ValueError(f"it gives {given}, neither a feature map (B, C, H, W) nor tokens (B, N, C)")
    if output.dim() == 3:
        return output[:, _prefix_tokens(net, output.shape[1]) :]
    if getattr(net, "output_fmt", "NCHW") == "NHWC":
        return output.flatten(1, 2)
    return output.flatten(2).mT


def _has_places(output: object) -> bool:
    """Whether an output is a map, or more tokens than a class token and its like."""
    return isinstance(output, Tensor) and (output.dim() == 4 or (output.dim() == 3 and output.shape[1] > 2))


def _prefix_tokens(net: Any, tokens: int) -> int:
    """How many of the tokens come before the patches; where timm does not say, those that spoil the square."""
    said = getattr(net, "num_prefix_tokens", None)
    return tokens - math.isqrt(tokens) ** 2 if said is None else said


def _create(name: str, image_size: int, kind: str) -> tuple[Any, dict[str, int]]:
    """A new network of timm without its classifier, and the size that it had to be told."""
    import timm  # slow to import, and not needed for regions

    if not timm.is_model(name):
        near = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
        raise ValueError(f"timm has no model {name!r}; near it: {near or 'none, see timm.list_models()'}")
    size = {"img_size": image_size}
    try:
        return timm.create_model(name, num_classes=0, **size), size
    except TypeError as error:
        if kind == "patch":
            raise ValueError(f"{name} has no patches: it takes images of any size; choose grid") from error
        return timm.create_model(name, num_classes=0), {}
    except Exception as error:  # timm's networks fail in many ways on a size that they do not take
        raise ValueError(f"{name} cannot be a {kind} backbone at {image_size} px: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(error) or "timm does not build it for this size"


def _colour(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue
