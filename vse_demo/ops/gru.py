"""A bidirectional GRU over sequences of different lengths.

PyTorch's own gives the same numbers, but its backward pass over a packed batch fills a gradient of
the size of the whole batch once for every step of the longest sequence. Here only the recurrence
itself goes step by step, both directions at once; everything else is a matrix product over all steps.

Rows are *packed*: the first step of all sequences, the longest first, then the second step of all that
have one, and so on, so that the rows of a step lie side by side. There are P of them, at most B N. What
is kept for the backward pass has room for B N rows, whatever P is: a compiler wants to know its size.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vse_demo.ops import plain
from vse_demo.ops.dispatch import fits, is_exporting
from vse_demo.ops.kernels import compiled, njit, run_at_once
from vse_demo.ops.library import gradients_by_plain, register, register_gradient
from vse_demo.ops.linear import linear


def bidirectional_gru(features: Tensor, lengths: Tensor, *weights: Tensor) -> Tensor:
    """States of a one-layer bidirectional GRU.

    Args:
        features: (B, N, E).
        lengths: (B,) int64, how many rows of each sequence are real; at least one.
        weights: `weight_ih` (3H, E), `weight_hh` (3H, H), `bias_ih` (3H,) and `bias_hh` (3H,) of the forward
            direction, then those of the backward one, as `nn.GRU` names and orders them.

    Returns:
        (2, B, N, H): forward states, then backward states; 0 after a sequence's end.
    """
    # The plain version cannot be exported, since what it does depends on the lengths: there it is always one node.
    if not fits(features, *weights, dtypes=(torch.float32, torch.float64)) and not is_exporting():
        return plain.bidirectional_gru(features, lengths, *weights)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (features, *weights))
    return _gru(features.contiguous(), lengths, *weights, keep)[0]


def _run(features: Tensor, lengths: Tensor, *weights: Any) -> tuple[Tensor, ...]:
    """The states and, if the last argument `keep` says so, what the backward pass needs of each packed row.

    That is: the reset and update gates (2, B N, 2H), the new state before the update, and what the old state
    says to it before the reset, (2, B N, H) each.
    """
    *weights, keep = weights  # type: ignore[assignment]
    (batch, width, _), size = features.shape, weights[1].shape[1]
    ways, counts = _pack(lengths, width)
    inputs = features.reshape(batch * width, -1)[ways]  # (2, P, E)
    gates = _products(inputs, weights[0::4], weights[2::4])  # (2, P, 3H)
    kept = [features.new_empty(0) for _ in range(3)]
    if batch == 1 and not keep and njit is not None and gates.dtype == torch.float32:
        states = _query_states(gates, weights[1::4], weights[3::4])
    else:
        states, parts = _recurrence(gates, weights[1::4], weights[3::4], counts, batch * width)
        kept = parts if keep else kept
    whole = states.new_zeros(2, batch * width, size)
    whole.scatter_(1, ways.unsqueeze(-1).expand_as(states), states)
    return whole.view(2, batch, width, size), *kept


def _recurrence(
    gates: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], counts: list[int], room: int
) -> tuple[Tensor, list[Tensor]]:
    """States (2, P, H) from what the inputs say to the gates (2, P, 3H), and what the backward pass needs.

    The three gates stand in PyTorch's order: reset, update, new.
    """
    size = weights[0].shape[1]
    states = gates.new_empty(*gates.shape[:2], size)
    both, new, recalled = (gates.new_empty(2, room, width) for width in (2 * size, size, size))
    for rows, state_before in _steps(counts, states):
        recurrent = _products(state_before, weights, biases)
        torch.sigmoid(gates[:, rows, : 2 * size] + recurrent[..., : 2 * size], out=both[:, rows])
        recalled[:, rows] = recurrent[..., 2 * size :]
        reset, update = both[:, rows].chunk(2, -1)
        new[:, rows] = torch.addcmul(gates[:, rows, 2 * size :], reset, recalled[:, rows]).tanh_()
        states[:, rows] = torch.lerp(new[:, rows], state_before, update)
    return states, [both, new, recalled]


def _run_backward(gradient: Tensor, features: Tensor, lengths: Tensor, *weights_and_kept: Tensor) -> tuple[Tensor, ...]:
    weights, (states, both, new, recalled) = weights_and_kept[:8], weights_and_kept[8:]
    batch, width, _ = features.shape
    ways, counts = _pack(lengths, width)
    places = ways.unsqueeze(-1).expand(-1, -1, states.shape[-1])
    states, gradient = (tensor.flatten(1, 2).gather(1, places) for tensor in (states, gradient))  # (2, P, H)
    steps = list(_steps(counts, states))
    to_gates, to_recurrent = _recurrence_backward(gradient, weights[1::4], steps, both, new, recalled)
    before = torch.cat([state_before for _, state_before in steps], 1)
    inputs = features.reshape(batch * width, -1)[ways]
    to_inputs = _products(to_gates, [weight.mT.contiguous() for weight in weights[0::4]])
    to_features = torch.zeros_like(features).view(batch * width, -1)
    to_features.index_copy_(0, ways[0], to_inputs[0]).index_add_(0, ways[1], to_inputs[1])
    to_weights = [
        part
        for way in (0, 1)
        for part in (
            linear(to_gates[way : way + 1].mT, inputs[way].mT)[0],
            linear(to_recurrent[way : way + 1].mT, before[way].mT)[0],
            to_gates[way].sum(0),
            to_recurrent[way].sum(0),
        )
    ]
    return to_features.view_as(features), *to_weights


def _recurrence_backward(
    gradient: Tensor, weights: Sequence[Tensor], steps: list[tuple[slice, Tensor]], both: Tensor, new: Tensor,
    recalled: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients (2, P, 3H) of what the inputs say to the gates, and of what the states say to them."""
    size = gradient.shape[2]
    to_gates = gradient.new_empty(*gradient.shape[:2], 3 * size)
    to_recurrent = torch.empty_like(to_gates)
    carried, back = gradient.new_zeros(2, 0, size), [weight.mT.contiguous() for weight in weights]
    for rows, state_before in reversed(steps):
        here = gradient[:, rows].clone()
        here[:, : carried.shape[1]] += carried
        reset, update = both[:, rows].chunk(2, -1)
        for_new = here * (1 - update) * (1 - new[:, rows].square())
        for_update = here * (state_before - new[:, rows]) * update * (1 - update)
        for_reset = for_new * recalled[:, rows] * reset * (1 - reset)
        to_gates[:, rows] = torch.cat([for_reset, for_update, for_new], -1)
        to_recurrent[:, rows] = torch.cat([for_reset, for_update, for_new * reset], -1)
        carried = here * update + _products(to_recurrent[:, rows], back)
    return to_gates, to_recurrent


def _pack(lengths: Tensor, width: int) -> tuple[Tensor, list[int]]:
    """Where the packed rows come from, (2, P) rows of (B N, E) for both directions, and how many each step has."""
    order = lengths.argsort(descending=True, stable=True)
    step, place = (torch.arange(int(lengths.max())).unsqueeze(1) < lengths[order]).nonzero(as_tuple=True)
    sequence = order[place]
    return sequence * width + torch.stack([step, lengths[sequence] - 1 - step]), step.bincount().tolist()


def _steps(counts: list[int], states: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of each step, and the states (2, rows, H) that they come from: those before it that go on."""
    before, first = states.new_zeros(2, counts[0], states.shape[2]), 0
    for count in counts:
        rows = slice(first, first + count)
        yield rows, before[:, :count]
        before, first = states[:, rows], rows.stop


def _products(rows: Tensor, weights: Sequence[Tensor] | Tensor, biases: Sequence[Tensor] | None = None) -> Tensor:
    """A linear layer for each direction: (2, P, in) and two of (out, in) -> (2, P, out)."""
    return torch.cat(
        [linear(rows[way : way + 1], weights[way], None if biases is None else biases[way]) for way in (0, 1)]
    )


def _fake(features: Tensor, lengths: Tensor, *weights: Any) -> tuple[Tensor, ...]:
    (batch, width, _), size, keep = features.shape, weights[1].shape[1], weights[-1]
    kept = [features.new_empty(*((2, batch * width, part * size) if keep else (0,))) for part in (2, 1, 1)]
    return features.new_empty(2, batch, width, size), *kept


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:-1], *output)


def _backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 11
    features, lengths, *others = ctx.saved_tensors
    if torch.is_grad_enabled():
        to_features, *to_weights = gradients_by_plain(
            lambda x, *weights: plain.bidirectional_gru(x, lengths, *weights), [features, *others[:8]], [gradient]
        )
    else:
        to_features, *to_weights = _gru_backward(gradient, features, lengths, *others)
    return to_features, None, *to_weights, None


_WEIGHTS = ", ".join(
    f"Tensor {name}{way}" for way in ("", "_reverse") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
)
_gru = register(
    f"bidirectional_gru(Tensor features, Tensor lengths, {_WEIGHTS}, bool keep) -> (Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
)
_gru_backward = register(
    f"bidirectional_gru_backward(Tensor gradient, Tensor features, Tensor lengths, {_WEIGHTS}, Tensor states, "
    f"Tensor both, Tensor new, Tensor recalled) -> ({', '.join(['Tensor'] * 9)})",
    _run_backward,
    lambda gradient, features, lengths, *others: tuple(map(torch.empty_like, (features, *others[:8]))),
)
register_gradient("bidirectional_gru", _setup, _backward)


def _query_states(gates: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """States (2, N, H) of a single sequence.

    Such a query waits for nothing but the weights, which are read once a step; here each direction reads its own.
    """
    states = gates.new_empty(*gates.shape[:2], weights[0].shape[1])
    run_at_once([(_one_way, (gates[way], weights[way], biases[way], states[way])) for way in (0, 1)])
    return states


@compiled
def _one_way(gates, weight, bias, states):  # type: ignore[no-untyped-def]
    size = states.shape[1]
    recurrent, state, one = np.empty(3 * size, np.float32), np.zeros(size, np.float32), np.float32(1)
    for step in range(len(gates)):
        for gate in range(3 * size):
            total = np.float32(0)
            for j in range(size):
                total += weight[gate, j] * state[j]
            recurrent[gate] = total + bias[gate]
        for j in range(size):
            reset = one / (one + np.exp(-gates[step, j] - recurrent[j]))
            update = one / (one + np.exp(-gates[step, size + j] - recurrent[size + j]))
            new = np.tanh(gates[step, 2 * size + j] + reset * recurrent[2 * size + j])
            state[j] = new + update * (state[j] - new)
            states[step, j] = state[j]
