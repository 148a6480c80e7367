"""When the compiled operations are used, and how their work is spread over threads."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    from numba import njit
except ImportError:  # everything still works, only slower
    njit = None
MAX_ROWS = 1024  # larger sets would not stay in cache
SLICES = 4  # of a batch, for each thread
_disabled = False


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels apply: float32 on a CPU, not too many rows in (B, N, D), Numba there, not switched off."""
    few_rows = all(tensor.dim() != 3 or tensor.shape[1] <= MAX_ROWS for tensor in tensors)
    return njit is not None and few_rows and fits(*tensors)


def kernels_disabled() -> bool:
    """Whether this is inside a `disable_kernels` block."""
    return _disabled


def fits(*tensors: Tensor) -> bool:
    return not _disabled and all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)


@contextlib.contextmanager
def disable_kernels() -> Iterator[None]:
    """Use plain PyTorch inside this block, for comparison."""
    global _disabled
    before, _disabled = _disabled, True
    try:
        yield
    finally:
        _disabled = before


Argument = Tensor | np.ndarray | bool | float
_threads: ThreadPoolExecutor | None = None


def _forget_threads() -> None:
    """A forked process has none of its parent's threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def over_batch(kernel: Callable[..., None], *arguments: Argument) -> None:
    """Run a kernel on slices of the batch at once and wait for all.

    There are more slices than threads: PyTorch's own threads keep spinning for a while after each of
    its operations, so that not all of ours advance equally.
    """
    items, threads = len(arguments[0]), torch.get_num_threads()  # type: ignore[arg-type]
    count = SLICES * threads if threads > 1 else 1
    cuts = [items * number // count for number in range(count + 1)]
    slices = [(start, stop) for start, stop in itertools.pairwise(cuts) if stop > start]
    run_at_once([(kernel, (*bounds, *arguments)) for bounds in slices])


def run_at_once(calls: list[tuple[Callable[..., None], tuple[Argument, ...]]]) -> None:
    global _threads
    ready = [(kernel, [_array(argument) for argument in arguments]) for kernel, arguments in calls]
    if len(ready) == 1 or torch.get_num_threads() == 1:
        for kernel, arrays in ready:
            kernel(*arrays)
        return
    if _threads is None:
        _threads = ThreadPoolExecutor(torch.get_num_threads())
    for future in [_threads.submit(kernel, *arrays) for kernel, arrays in ready]:
        future.result()


def _array(argument: Argument) -> Any:
    return argument.detach().numpy() if isinstance(argument, Tensor) else argument


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first use and keep the result on disk, if there is a place for it.

    Sums may be reordered (that is what vector units do), but infinities and NaN keep their meaning.
    """
    if njit is None:
        return function
    options = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return njit(**options)(function)
