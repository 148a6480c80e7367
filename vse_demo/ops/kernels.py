"""Kernels: functions on NumPy arrays that Numba compiles, and the threads that run them.

A kernel takes `start` and `stop` first and works on that slice of the batch. It is written for one core and keeps
what it needs in small arrays of its own; `over_batch` gives each thread its slices.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    from numba import njit
except ImportError:  # everything still works, only slower
    njit = None

SLICES = 4  # of a batch, for each thread

Argument = Tensor | np.ndarray | bool | float
_threads: ThreadPoolExecutor | None = None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use and keep the result on disk, if there is a place for it.

    Sums may be reordered (that is what vector units do), but infinities and NaN keep their meaning.

    Args:
        function: A function on NumPy arrays and numbers, in the part of Python that Numba knows.

    Returns:
        The same function, fast; without Numba, the function itself.
    """
    if njit is None:
        return function
    options = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return njit(**options)(function)


def over_batch(kernel: Callable[..., None], *arguments: Argument) -> None:
    """Run a kernel on slices of the batch, in several threads, and wait for all.

    There are more slices than threads: PyTorch's own threads keep spinning for a while after each of
    its operations, so that not all of ours advance equally.

    Args:
        kernel: Called as `kernel(start, stop, *arguments)`.
        arguments: What it reads and writes; the length of the first is that of the batch.
    """
    items, threads = len(arguments[0]), torch.get_num_threads()  # type: ignore[arg-type]
    count = SLICES * threads if threads > 1 else 1
    cuts = [items * number // count for number in range(count + 1)]
    slices = [(start, stop) for start, stop in itertools.pairwise(cuts) if stop > start]
    run_at_once([(kernel, (*bounds, *arguments)) for bounds in slices])


def run_at_once(calls: list[tuple[Callable[..., None], tuple[Argument, ...]]]) -> None:
    """Run several kernels side by side and wait for all.

    Args:
        calls: Each a kernel and its arguments. They must not write to the same place.
    """
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


def _forget_threads() -> None:
    """A forked process has none of its parent's threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
