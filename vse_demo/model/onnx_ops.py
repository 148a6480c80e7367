"""Operations that the exporter of PyTorch cannot translate to ONNX: our bidirectional GRU, and stable sorts."""

from collections.abc import Callable
from typing import Any

import torch

import vse_demo.ops  # noqa: F401 (registers the operation)


def _gru(features: Any, lengths: Any, *weights: Any) -> tuple[Any, Any, Any, Any]:
    """`torch.ops.vse_demo.bidirectional_gru` -> the ONNX operator GRU.

    PyTorch's gates stand in the order reset, update, new; those of ONNX in the order update, reset, new.
    """
    from onnxscript import opset18 as op

    def both(place: int) -> Any:
        """A weight or bias of both directions, gates in the order of ONNX: (2, 3H, …)."""
        ways = []
        for weight in (weights[place], weights[place + 4]):
            reset, update, new = op.Split(weight, num_outputs=3, axis=0)
            ways.append(op.Unsqueeze(op.Concat(update, reset, new, axis=0), op.Constant(value_ints=[0])))
        return op.Concat(*ways, axis=0)

    size = weights[1].shape[1]
    biases = op.Concat(both(2), both(3), axis=1)
    states, _ = op.GRU(
        op.Transpose(features, perm=[1, 0, 2]), both(0), both(1), biases, op.Cast(lengths, to=6), None,  # 6: int32
        direction="bidirectional", hidden_size=int(size), linear_before_reset=1,
    )  # fmt: skip
    unused = op.Constant(value_floats=[0.0])  # what a backward pass would need
    return op.Transpose(states, perm=[1, 2, 0, 3]), unused, unused, unused


def _stable_sort(values: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """`torch.sort(stable=True)` -> TopK of all; of equal values both put the first one first."""
    from onnxscript import opset18 as op

    place = op.Constant(value_ints=[dim])
    count = op.Gather(op.Shape(values), place)
    return op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.vse_demo.bidirectional_gru.default: _gru,
    torch.ops.aten.sort.stable: _stable_sort,
}
