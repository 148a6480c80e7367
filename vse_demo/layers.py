"""Small layers that encoders and pooling share. All know about masks: padding never leaks."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vse_demo import ops


def all_real(mask: Tensor) -> bool:
    """Whether a mask is known to have no padding, so that work on padding can be left out.

    Nobody knows while a program is compiled or exported, on the `meta` device, or inside `torch.vmap`.

    Args:
        mask: (B, N) bool, True where a row is real.

    Returns:
        True if every row is real; False if one is not, or if the values cannot be seen.
    """
    if torch.compiler.is_compiling():
        return False
    try:
        return bool(mask.all())
    except RuntimeError:
        return False


def bidirectional_states(gru: nn.GRU, features: Tensor, lengths: Tensor) -> Tensor:
    """States of a one-layer bidirectional GRU; 0 after a sequence's end.

    `torch.compile` refuses to look into an `nn.GRU` unless `torch._dynamo.config.allow_rnn` is set; with it, this
    compiles as a whole.

    Args:
        gru: One layer, two directions, with biases.
        features: (B, N, E).
        lengths: (B,) int64, how many rows of each sequence are real.

    Returns:
        (B, N, 2, H). Item `[b, n, 0]` has read `features[b, :n + 1]`, item `[b, n, 1]` has read
        `features[b, n:lengths[b]]`.
    """
    forward, backward = gru.all_weights
    return ops.bidirectional_gru(features, lengths, *forward, *backward).movedim(0, 2)


class RowLinear(nn.Linear):
    """A linear layer over rows, (..., in) -> (..., out), by the fastest product that a CPU has."""

    def forward(self, rows: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            rows: (..., in); fastest for (B, N, in).

        Returns:
            (..., out).
        """
        return ops.linear(rows, self.weight, self.bias)


class RowStatistics(NamedTuple):
    """Of the real rows of a batch, or of a part of one."""

    rows: Tensor  # () how many
    mean: Tensor  # (D,)
    squares: Tensor  # (D,) sum of the squared deviations from the mean


def row_statistics(features: Tensor, mask: Tensor) -> RowStatistics:
    """Count, mean and squared deviations of the real rows of (B, N, D), without a shape that depends on the mask."""
    padding, count = ~mask.unsqueeze(-1), mask.sum()
    real = features.masked_fill(padding, 0)
    mean = real.sum((0, 1)) / count
    return RowStatistics(count, mean, (real - mean).masked_fill(padding, 0).square().sum((0, 1)))


class RowNorm(nn.BatchNorm1d):
    """Batch norm of (B, N, D) over the real rows only; padded rows come out as 0.

    While training, a batch with a single real row has no variance: it is normalised by the running
    statistics instead.

    A norm that sees a part of a batch at a time must still take the statistics of all of it. Where the parts are in
    several processes, `total` adds up over them; where they come one after another, `batch_statistics` is called
    first with the statistics of all parts, and what it returns is `given` to each part.
    """

    total: Callable[[Tensor], Tensor] | None = None
    _given: tuple[Tensor, Tensor] | None = None

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise the real rows.

        Args:
            features: (B, N, D).
            mask: (B, N) bool, True where a row is real.

        Returns:
            (B, N, D).
        """
        everywhere = all_real(mask)
        if not self.training:
            real = features if everywhere else features.masked_fill(~mask.unsqueeze(-1), 0)
            rows = self._by_running_statistics(real.flatten(0, 1)).view_as(features)
            return rows if everywhere else rows.masked_fill(~mask.unsqueeze(-1), 0)
        if self._given is not None:
            return self._normalise(features, mask, *self._given)
        if self.total is not None or torch.compiler.is_compiling() or mask.is_meta:
            return self._normalise(features, mask, *self.batch_statistics([row_statistics(features, mask)]))
        rows = features.flatten(0, 1) if everywhere else features[mask]
        rows = self._by_running_statistics(rows) if len(rows) == 1 else super().forward(rows)
        if everywhere:
            return rows.view_as(features)
        return rows.new_zeros(features.shape).masked_scatter(mask.unsqueeze(-1), rows)

    @contextlib.contextmanager
    def given(self, mean: Tensor, variance: Tensor) -> Iterator[None]:
        """In the block, normalise by these statistics, of a batch of which only a part is seen."""
        self._given = (mean, variance)
        try:
            yield
        finally:
            self._given = None

    def batch_statistics(self, parts: Sequence[RowStatistics]) -> tuple[Tensor, Tensor]:
        """Mean and variance (D,) of a training batch from those of its parts; the running statistics follow them."""
        total = self.total or (lambda tensor: tensor)
        counts, means, squares = (torch.stack(each) for each in zip(*parts, strict=True))
        counts = counts.unsqueeze(1)
        count = total(counts.sum())
        mean = total((counts * means).sum(0)) / count
        variance = total((squares + counts * (means - mean).square()).sum(0)) / count
        running_mean, running_variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
        alone = count == 1
        with torch.no_grad():
            batches = self.get_buffer("num_batches_tracked").add_(~alone)
            momentum = 1 / batches.clamp(min=1) if self.momentum is None else self.momentum
            step = torch.where(alone, 0.0, momentum).to(running_mean)
            running_mean.lerp_(mean.to(running_mean), step)
            running_variance.lerp_((variance * (count / (count - 1).clamp(min=1))).to(running_mean), step)
        return torch.where(alone, running_mean, mean), torch.where(alone, running_variance, variance)

    def _normalise(self, features: Tensor, mask: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        padding = ~mask.unsqueeze(-1)
        rows = (features.masked_fill(padding, 0) - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias
        return rows.masked_fill(padding, 0).to(features.dtype)

    def _by_running_statistics(self, rows: Tensor) -> Tensor:
        return nn.functional.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
