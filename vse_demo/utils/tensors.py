"""Small things that are done to tensors and modules everywhere."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def update_digest(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    """Let the names and contents of tensors take part in a fingerprint, a `hashlib` object."""
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


@torch.no_grad()
def round_to_half(module: nn.Module) -> None:
    """Round the matrices of a frozen module to what fp16 can hold, the precision they are stored in.

    Features cached in training are then exactly those that the saved model computes. Vectors (biases,
    norms and their running statistics) are few and stay fp32.
    """
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            parameter.copy_(parameter.half().float())


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch off dropout and batch statistics in the block; afterwards every part is in the mode it was in.

    A module that is in evaluation mode already is not touched, so threads can share it.
    """
    in_training = [part for part in module.modules() if part.training]
    for part in in_training:
        part.training = False
    try:
        yield
    finally:
        for part in in_training:
            part.training = True


def l2_normalize(vectors: Tensor) -> Tensor:
    """Vectors (..., D) of length 1; one of zeros stays as it is."""
    return nn.functional.normalize(vectors, dim=-1)


def check_device(device: str | torch.device) -> None:
    """Raise a ValueError if PyTorch cannot use a device of this name here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # depending on why
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}; try cpu") from error


def full_precision(tensor: Tensor) -> Tensor:
    """The same numbers as float32 where they were halves; float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def refuse_tracing() -> None:
    """Raise a RuntimeError inside `torch.jit.trace` and the old ONNX exporter, whose programs would be wrong.

    They keep the numbers of one example, such as the lengths of its sentences, as if they were always the same.
    """
    if torch.jit.is_tracing():
        raise RuntimeError(
            "this model cannot be traced, only exported: use `vse-demo export`, torch.export.export, "
            "or torch.onnx.export with dynamo=True"
        )
