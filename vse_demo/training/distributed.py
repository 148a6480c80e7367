"""Training on many processes, with the mathematics of one.

`torchrun --nproc_per_node 4 -m vse_demo train …` starts the same program four times, on one machine or on several.
Every process draws the same batches from the seed and embeds its share of each: a run of images with their captions.
The embeddings are gathered, and every process computes the unchanged loss of the whole batch, so that alignment,
uniformity, K and the hardest negatives are those of the batch. Gradients flow to a process's own embeddings; their sum
over the processes is the gradient of the batch, and every process takes the same step with it.

What is left out of words and features is drawn for the whole batch before it is shared, and batch norms take their
statistics over all processes. What a pretrained transformer drops inside is drawn by each process for itself.
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before processes connect: its defaults would keep what connects them alive for good
from torch import Tensor, nn

from vse_demo.layers import RowNorm
from vse_demo.training.batches import Batch, Share, batch_images

TIMEOUT = timedelta(minutes=30)  # for a machine that vanishes; a process that ends is noticed at once
GO_ON = "The run goes on from its last checkpoint with --resume, on as many processes as you like"


@dataclass(frozen=True)
class World:
    """The processes that train together, seen from one of them; by default there is but one.

    Args:
        rank: the number of this process; 0 is the one that writes.
        size: how many there are.
        device: what this process computes on.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def leads(self) -> bool:
        """Whether this is the process that validates, writes and shows progress."""
        return self.rank == 0

    @property
    def share(self) -> Share:
        """What this process computes of each batch."""
        return Share(self.rank, self.size)

    def check_batches(self, batches: Iterable[Batch]) -> None:
        """Raise a ValueError, in every process alike, if a batch has no image for one of them."""
        smallest = min(len(batch.images) for batch in batches)
        if smallest < self.size:
            raise ValueError(
                f"a batch has {smallest} images, too few for {self.size} processes: each needs one. "
                "Choose a larger --batch-size or fewer processes"
            )

    def gather_images(self, vectors: Tensor, image_ids: Tensor) -> Tensor:
        """The embeddings (B, D) of all images of a batch from those of this process's share."""
        places = torch.arange(batch_images(image_ids))
        return self._gather(vectors, [places[share.images(len(places))] for share in self._shares()])

    def gather_texts(self, vectors: Tensor, image_ids: Tensor) -> Tensor:
        """The embeddings (C, D) of all captions of a batch from those of this process's share."""
        return self._gather(vectors, [share.captions(image_ids) for share in self._shares()])

    def _shares(self) -> list[Share]:
        return [Share(rank, self.size) for rank in range(self.size)]

    def _gather(self, rows: Tensor, places: Sequence[Tensor]) -> Tensor:
        """The rows of all processes, each at its place; only those of this process have a gradient."""
        if self.size == 1:
            return rows
        padded = rows.new_zeros(max(map(len, places)), *rows.shape[1:])  # all processes must send the same shape
        padded[: len(rows)] = rows.detach()
        received = [torch.empty_like(padded) for _ in places]
        with connected():
            dist.all_gather(received, padded)
        parts = [part[: len(place)] for part, place in zip(received, places, strict=True)]
        parts[self.rank] = rows
        return torch.cat(parts)[torch.cat(list(places)).argsort().to(rows.device)]

    def share_statistics(self, model: nn.Module) -> None:
        """Let the batch norms of a model take their statistics over all processes."""
        for module in model.modules():
            if isinstance(module, RowNorm) and self.size > 1:
                module.total = sum_over_processes

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every gradient the sum of those of all processes."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.size == 1 or not gradients:
            return
        together = torch.cat([gradient.flatten() for gradient in gradients])  # one message instead of many
        with connected():
            dist.all_reduce(together)
        parts = together.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    @torch.no_grad()
    def copy_weights(self, model: nn.Module) -> None:
        """Give every process the weights of the first: two machines may round differently when they draw them."""
        for tensor in model.state_dict().values() if self.size > 1 else ():
            with connected():
                dist.broadcast(tensor, 0)

    def from_first(self, compute: Callable[[], Any]) -> Any:
        """What the first process computes, anything that JSON can hold, for all of them; the others wait."""
        if self.size == 1:
            return compute()
        content = json.dumps(compute()).encode() if self.leads else b""
        length = torch.tensor([len(content)], device=self.device)
        with connected():
            dist.broadcast(length, 0)
            message = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
            if self.leads:
                message.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            dist.broadcast(message, 0)
        return json.loads(message.cpu().numpy().tobytes())

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.from_first(lambda: None)


class _Sum(torch.autograd.Function):
    """The sum of a tensor over all processes. Each of them uses the sum, so gradients are summed in turn."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _summed(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient)


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    with connected():
        dist.all_reduce(total)
    return total


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, with its gradient."""
    return _Sum.apply(tensor)


def is_first_process() -> bool:
    """Whether this process may speak for the run: it is the only one, or the first of those of torchrun."""
    return int(os.environ.get("RANK", 0)) == 0


@contextlib.contextmanager
def join_world(device: str) -> Iterator[World]:
    """The processes that torchrun has started, connected while the block runs; otherwise this one alone.

    Args:
        device: `cpu` or `cuda`, of which each process of a machine takes its own.

    Raises:
        ValueError: if processes cannot train together on such a device.
        ConnectionError: if another process ends, or this one is told to.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield World(device=device)
        return
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"many processes train together on cpu or cuda, not on {device}")
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
    with ended_by_signal():
        with connected():
            dist.init_process_group("gloo" if kind == "cpu" else "nccl", timeout=TIMEOUT)
        yield World(dist.get_rank(), size, device)
        dist.destroy_process_group()  # not after an error: it would wait for those that are gone


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Turn the errors of a lost connection into a sentence."""
    try:
        yield
    except RuntimeError as error:
        reason = "another process of this run has ended or cannot be reached"
        raise ConnectionError(f"{reason}, so this one ends too. {GO_ON}") from error


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """Turn SIGTERM, which torchrun sends when another process has ended, into a sentence."""

    def end(number: int, frame: object) -> None:
        raise ConnectionError(f"this process was told to end, as when another of this run has ended. {GO_ON}")

    if threading.current_thread() is not threading.main_thread():
        yield  # a thread receives no signals
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except ConnectionError:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process is about to end, and should say why
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, before)
