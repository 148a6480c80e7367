"""The recurrence of a GRU over a single sequence."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vse_demo.ops.dispatch import compiled, run_at_once


def gru_states(gates: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """States (2, N, H) of a bidirectional GRU over one sequence, from what its inputs say to the gates (2, N, 3H).

    `weights` (3H, H) and `biases` (3H,) are the recurrent ones of each direction. Such a query waits for
    nothing but the weights, which are read once a step; here each direction reads its own.
    """
    states = gates.new_empty(*gates.shape[:2], weights[0].shape[1])
    run_at_once([(_gru_states, (gates[way], weights[way], biases[way], states[way])) for way in (0, 1)])
    return states


@compiled
def _gru_states(gates, weight, bias, states):  # type: ignore[no-untyped-def]
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
