"""A bidirectional GRU over sequences of different lengths, on a CPU.

PyTorch's own gives the same numbers, but its backward pass over a packed batch fills a gradient of
the size of the whole batch once for every step of the longest sequence. Here only the recurrence
itself goes step by step, both directions at once; everything else is a matrix product over all steps.
On other devices, and inside `ops.disable_kernels()`, PyTorch's own is used.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vse_demo import ops


def bidirectional_states(gru: nn.GRU, features: Tensor, lengths: Tensor) -> Tensor:
    """States (B, N, 2, H) of a one-layer bidirectional GRU over (B, N, E); 0 after a sequence's end.

    Item `[b, n, 0]` has read `features[b, :n + 1]`, item `[b, n, 1]` has read `features[b, n:lengths[b]]`.
    """
    if features.device.type != "cpu" or ops.kernels_disabled():
        packed = pack_padded_sequence(features, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=features.shape[1])
        return states.unflatten(-1, (2, -1))
    batch, width, _ = features.shape
    # Packed rows: the first step of all sequences, the longest first, then the second step of all that have one …
    order = lengths.argsort(descending=True, stable=True)
    step, place = (torch.arange(int(lengths.max())).unsqueeze(1) < lengths[order]).nonzero(as_tuple=True)
    sequence = order[place]
    ways = sequence * width + torch.stack([step, lengths[sequence] - 1 - step])  # (2, P) rows of (B N, E), both ways
    rows = features.reshape(batch * width, -1)
    weights_in, biases_in, weights, biases = (
        [getattr(gru, f"{name}_l0"), getattr(gru, f"{name}_l0_reverse")]
        for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
    )
    gates = _products(rows[ways], weights_in, biases_in)  # (2, P, 3H)
    if batch == 1 and not torch.is_grad_enabled() and ops.usable(gates):
        states = ops.gru_states(gates, weights, biases)  # (2, P, H)
    else:
        states = _Recurrence.apply(gates, torch.stack(weights), torch.stack(biases), step.bincount().tolist())
    whole = states.new_zeros(2, batch * width, gru.hidden_size)
    return whole.scatter(1, ways.unsqueeze(-1).expand_as(states), states).unflatten(1, (batch, width)).movedim(0, 2)


class _Recurrence(torch.autograd.Function):
    """States (2, P, H) of packed rows, from what the inputs say to the gates, (2, P, 3H).

    `weight` (2, 3H, H) and `bias` (2, 3H) are the recurrent ones of both directions, `counts` the
    number of rows of each step. The three gates stand in PyTorch's order: reset, update, new.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, counts: list[int]) -> Tensor:
        size = weight.shape[2]
        both, new, recalled, states = (
            gates.new_empty(*gates.shape[:2], width) for width in (2 * size, size, size, size)
        )
        for rows, state_before in _steps(counts, states):
            recurrent = _products(state_before, weight, bias)
            torch.sigmoid(gates[:, rows, : 2 * size] + recurrent[..., : 2 * size], out=both[:, rows])
            recalled[:, rows] = recurrent[..., 2 * size :]
            reset, update = both[:, rows].chunk(2, -1)
            new[:, rows] = torch.addcmul(gates[:, rows, 2 * size :], reset, recalled[:, rows]).tanh_()
            states[:, rows] = torch.lerp(new[:, rows], state_before, update)
        ctx.counts = counts
        ctx.save_for_backward(weight, both, new, recalled, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        weight, both, new, recalled, states = ctx.saved_tensors
        size = weight.shape[2]
        to_gates = grad.new_empty(*grad.shape[:2], 3 * size)
        to_recurrent = torch.empty_like(to_gates)
        carried, back = grad.new_zeros(2, 0, size), weight.mT.contiguous()
        steps = list(_steps(ctx.counts, states))
        for rows, state_before in reversed(steps):
            here = grad[:, rows].clone()
            here[:, : carried.shape[1]] += carried
            reset, update = both[:, rows].chunk(2, -1)
            for_new = here * (1 - update) * (1 - new[:, rows].square())
            for_update = here * (state_before - new[:, rows]) * update * (1 - update)
            for_reset = for_new * recalled[:, rows] * reset * (1 - reset)
            to_gates[:, rows] = torch.cat([for_reset, for_update, for_new], -1)
            to_recurrent[:, rows] = torch.cat([for_reset, for_update, for_new * reset], -1)
            carried = here * update + _products(to_recurrent[:, rows], back)
        to_weight = _products(to_recurrent.mT, torch.cat([state_before for _, state_before in steps], 1).mT)
        return to_gates, to_weight, to_recurrent.sum(1), None


def _products(
    rows: Tensor, weights: Tensor | Sequence[Tensor], biases: Tensor | Sequence[Tensor] | None = None
) -> Tensor:
    """A linear layer for each direction: (2, P, in) and two of (out, in) -> (2, P, out)."""
    return torch.cat(
        [ops.linear(rows[way : way + 1], weights[way], None if biases is None else biases[way]) for way in (0, 1)]
    )


def _steps(counts: list[int], states: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of each step, and the states (2, rows, H) that they come from: those before it that go on."""
    before, first = states.new_zeros(2, counts[0], states.shape[2]), 0
    for count in counts:
        rows = slice(first, first + count)
        yield rows, before[:, :count]
        before, first = states[:, rows], rows.stop
