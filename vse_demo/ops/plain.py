"""The operations in plain PyTorch: what they mean, on any device and in any precision.

Each compiled operation is tested against its version here, and steps back to it wherever `dispatch.usable` says no.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from vse_demo.ops.dispatch import inside_torch_func


def real_ranks(mask: Tensor) -> Tensor:
    """Which ranks are real once padding has come last.

    Args:
        mask: (B, N) bool, True where a row is real.

    Returns:
        (B, N) bool: as many True as there are real rows, first.
    """
    return torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)


def sort_with_order(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each dimension on its own, largest first, and say where each value came from.

    Args:
        features: (B, N, D).
        mask: (B, N) bool, True where a row is real.

    Returns:
        The sorted values (B, N, D), padding last and 0, and the row that each came from; of equal values the first
        row comes first.
    """
    order = features.masked_fill(~mask.unsqueeze(-1), -torch.inf).argsort(dim=1, descending=True, stable=True)
    values = features.gather(1, order)
    return values.masked_fill(~real_ranks(mask).unsqueeze(-1), 0), order


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax along N; padded rows get weight 0.

    Args:
        scores: (B, N) or (B, N, D).
        mask: (B, N) bool, True where a row is real.

    Returns:
        Weights in the shape of the scores.
    """
    if scores.dim() == 3:
        mask = mask.unsqueeze(-1)
    return scores.masked_fill(~mask, -torch.inf).softmax(1)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Sum values over N.

    Args:
        weights: One for each row (B, N), or for each value (B, N, D).
        values: (B, N, D).

    Returns:
        (B, D).
    """
    if weights.dim() == 2:
        return torch.einsum("bn,bnd->bd", weights, values)
    return (weights * values).sum(1)


def softmax_sum(scores: Tensor, values: Tensor, mask: Tensor, relu: bool = False) -> Tensor:
    """Sum values over N, weighted by a softmax along N: see `ops.softmax_sum`."""
    scores = scores.relu() if relu else scores
    return weighted_sum(masked_softmax(scores, mask), values.masked_fill(~mask.unsqueeze(-1), 0))


def adpool_levels(features: Tensor, mask: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Both levels of AdPool: see `ops.adpool_levels`."""
    values, _ = sort_with_order(features, mask)
    token = weighted_sum(masked_softmax(values @ score, real_ranks(mask)), values)
    return token, softmax_sum(features, features, mask)


def bidirectional_gru(features: Tensor, lengths: Tensor, *weights: Tensor) -> Tensor:
    """States of a bidirectional GRU: see `ops.bidirectional_gru`."""
    if features.is_meta or inside_torch_func():  # where PyTorch's own does not work
        return torch.stack([_one_way(features, lengths, weights[:4]), _one_way(features, lengths, weights[4:], True)])
    packed = pack_padded_sequence(features, lengths.cpu(), batch_first=True, enforce_sorted=False)
    start = features.new_zeros(2, len(features), weights[1].shape[1])
    states, _ = torch.gru(packed.data, packed.batch_sizes, start, weights, True, 1, 0.0, False, True)
    unpacked, _ = pad_packed_sequence(
        PackedSequence(states, *packed[1:]), batch_first=True, total_length=features.shape[1]
    )
    return unpacked.unflatten(-1, (2, -1)).movedim(2, 0)


def _one_way(features: Tensor, lengths: Tensor, weights: tuple[Tensor, ...], backward: bool = False) -> Tensor:
    """States (B, N, H) of a GRU in one direction, one step after the other, 0 where there is padding."""
    weight_in, weight, bias_in, bias = weights
    real = (torch.arange(features.shape[1], device=features.device) < lengths.unsqueeze(1)).unsqueeze(-1)
    gates = linear(features.masked_fill(~real, 0), weight_in, bias_in)
    state, states = torch.zeros_like(gates[:, 0].chunk(3, -1)[0]), []
    steps = range(features.shape[1])
    for step in reversed(steps) if backward else steps:
        reset_in, update_in, new_in = gates[:, step].chunk(3, -1)
        reset, update, new = linear(state, weight, bias).chunk(3, -1)
        new = (new_in + (reset_in + reset).sigmoid() * new).tanh()
        state = torch.lerp(new, state, (update_in + update).sigmoid()).masked_fill(~real[:, step], 0)
        states.append(state)
    return torch.stack(states[::-1] if backward else states, 1)
