"""How an operation is made known to PyTorch: `torch.ops.vse_demo.<name>`.

PyTorch then treats it like one of its own. `torch.compile` and `torch.export` keep it as a single node, because a
*fake* version tells the shapes of its results; `torch.autocast` hands it float32; gradients flow through a second
registered operation. A program that was exported with these nodes needs `import vse_demo.ops` before it is loaded;
one that was exported inside `disable_kernels` needs nothing, unless it has a GRU.

The `Library` is used directly, not `torch.library.custom_op`: that loads the whole compiler at the first call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("vse_demo", "DEF")


def register(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Make an operation known to PyTorch.

    Args:
        schema: Its name, arguments and results, as in `"double(Tensor x) -> Tensor"`.
        kernel: What a CPU does. Its results share memory neither with each other nor with the arguments.
        fake: Empty results of the right shape, from arguments whose values cannot be seen.

    Returns:
        The operation.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, kernel, "CPU")
    torch.library.register_fake(f"vse_demo::{name}", fake, lib=_library)
    torch.library.register_autocast(f"vse_demo::{name}", "cpu", torch.float32, lib=_library)
    return getattr(torch.ops.vse_demo, name).default


def register_gradient(
    name: str, setup: Callable[..., None], backward: Callable[..., Sequence[Tensor | None] | Tensor | None]
) -> None:
    """Tell PyTorch how the gradient of a registered operation is computed.

    Args:
        name: That of the operation.
        setup: Called as `setup(ctx, inputs, output)`; keeps what the backward pass needs.
        backward: Called as `backward(ctx, *gradients)`; a gradient, or None, for each argument.
    """
    torch.library.register_autograd(f"vse_demo::{name}", backward, setup_context=setup, lib=_library)


def gradients_by_plain(
    plain: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that can be differentiated once more, from the plain version of an operation.

    For backward passes that run with `create_graph=True`; the compiled ones have no derivative of their own.

    Args:
        plain: The operation as a function of `inputs` alone.
        inputs: Its differentiable arguments.
        gradients: Those of its results; None where a result was not used.

    Returns:
        A gradient for each input; None where none is wanted.
    """
    inputs = [tensor.view_as(tensor) for tensor in inputs]  # one of them may have been computed from another
    results = plain(*inputs)
    results = (results,) if isinstance(results, Tensor) else results
    used = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None and r.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(
        torch.autograd.grad([r for r, _ in used], wanted, [g for _, g in used], create_graph=True, allow_unused=True)
    )
    return [next(found) if tensor.requires_grad else None for tensor in inputs]
