"""When the CPU operations are used, and when the plain versions of `plain` take their place.

The rule is in `usable`. It asks nothing that depends on the values of a tensor, so that `torch.compile` and
`torch.export` can follow it.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from vse_demo.ops.kernels import njit

MAX_ROWS = 1024  # larger sets would not stay in cache
HALVES = (torch.bfloat16, torch.float16)
is_exporting = getattr(
    torch.compiler, "is_exporting", torch.compiler.is_compiling
)  # PyTorch 2.6 cannot tell them apart
_disabled: ContextVar[bool] = ContextVar("vse_demo_kernels_disabled", default=False)


def usable(*tensors: Tensor) -> bool:
    """Whether the compiled operations apply to these tensors.

    They do for float32 on a CPU, for at most `MAX_ROWS` rows in (B, N, D), with Numba installed, outside of
    `disable_kernels`. Half precision is welcome inside `torch.autocast`, which casts it to float32. Inside
    `torch.func` transforms, and where forward-mode derivatives are taken, plain PyTorch is used: it has a rule
    for each of them.

    Args:
        tensors: All floating-point arguments of the operation.

    Returns:
        True if the operation may be called, False if its plain version must be.
    """
    if njit is None or not fits(*tensors):
        return False
    # A compiled or exported program works with sets of any size: a bound would become a condition on its input.
    return torch.compiler.is_compiling() or all(t.dim() != 3 or t.shape[1] <= MAX_ROWS for t in tensors)


def fits(*tensors: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> bool:
    """The part of `usable` that has nothing to do with Numba: device, precision, and who is asking.

    Args:
        tensors: All floating-point arguments of the operation.
        dtypes: The precisions that the operation knows.

    Returns:
        True if the operation may be called.
    """
    if _disabled.get() or inside_torch_func():
        return False
    known = (*dtypes, *HALVES) if torch.is_autocast_enabled("cpu") else dtypes
    return all(t.device.type == "cpu" and t.dtype in known and not _is_dual(t) for t in tensors)


def inside_torch_func() -> bool:
    """Whether a transform of `torch.func` is at work: `grad`, `vmap`, `jvp` …

    Returns:
        True inside a function that is being transformed.
    """
    return _transforms_active()


# What `torch.autograd.Function` asks too. Without it, only `torch.func` loses its way back to plain PyTorch.
_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def kernels_disabled() -> bool:
    """Whether this is inside a `disable_kernels` block.

    Returns:
        True inside, False outside.
    """
    return _disabled.get()


@contextlib.contextmanager
def disable_kernels() -> Iterator[None]:
    """Use plain PyTorch inside this block: for comparison, or to export a program that needs nothing of ours.

    Only the thread (or asyncio task) that entered the block is affected. `torch.compile` looks when it compiles: a
    function that was compiled outside of the block keeps its operations.

    >>> with disable_kernels():
    ...     usable(torch.zeros(1, 2, 3))
    False
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def _is_dual(tensor: Tensor) -> bool:
    """Whether a forward-mode derivative is being taken of this tensor."""
    return not torch.compiler.is_compiling() and forward_ad.unpack_dual(tensor).tangent is not None
