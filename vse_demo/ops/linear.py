"""Linear layers by the fastest product that a CPU has."""

import torch
from torch import Tensor

from vse_demo.ops.dispatch import fits, is_exporting

FEW_ROWS = 32  # for which a convolution does not pay


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`nn.functional.linear`, for (B, N, in) rows on a CPU as a convolution with a kernel of one pixel.

    It is the same product, but PyTorch hands convolutions to oneDNN and products to MKL, and on the AMD
    processor where both were timed oneDNN was about twice as fast.

    Args:
        rows: (..., in).
        weight: (out, in).
        bias: (out,).

    Returns:
        (..., out).
    """
    # An exported program has one way for sets of all sizes; how many rows are few would be a condition on its input.
    if rows.dim() != 3 or not fits(rows, weight) or is_exporting() or rows.shape[1] < FEW_ROWS:
        return torch.nn.functional.linear(rows, weight, bias)
    if not torch.backends.mkldnn.is_available():
        return torch.nn.functional.linear(rows, weight, bias)
    pixels = rows.contiguous().unsqueeze(2).permute(0, 3, 1, 2)  # (B, C, N, 1), channels last
    return torch.nn.functional.conv2d(pixels, weight[:, :, None, None], bias).permute(0, 2, 3, 1).squeeze(2)
