"""Operations that are fast on CPUs, most of them compiled by Numba, behind the names of their plain versions.

Why they are needed: `torch.sort` along N sorts each of the B × D columns by itself, one value at a time. Here a block
of 64 neighbouring columns is copied into the first-level cache and sorted by a *sorting network*: a fixed list of
(i, k), each of which puts the larger of rows i and k first. It knows no branches, so every step works on whole vector
registers. What follows the sort (scores, exponentials, sums) happens while the block is still in cache; the sorted
values of a batch are never written to memory.

Gradients need to know where each value came from, so the backward pass sorts once more: this time 64-bit integers
whose upper half orders like the value and whose lower half is the row. One comparison moves both. Sorting twice is
cheaper than writing down and reading a number for every value.

One file for each operation, and below them what they share:

- `sort`, `softmax`, `adpool`: pooling. `gru`: the recurrence of the text encoder. `linear`: products over rows.
  `search`: products with few queries, and counting for ranks.
- `plain`: the same operations in plain PyTorch. They are the definition, and the fallback.
- `dispatch`: when an operation is used and when its plain version; `disable_kernels` chooses the latter.
- `library`: registers an operation with PyTorch, for autocast, `torch.compile`, `torch.export` and gradients.
- `blocks`: sorting networks and what else is done to a block of 64 columns.
- `kernels`: compiling and running: Numba and threads.

Every function here works on any device and in any precision, except `count_at_least`, which is for tensors that are
`usable`, and `half_products`, which reads arrays in memory or in a mapped file.
"""

from vse_demo.ops.adpool import adpool_levels
from vse_demo.ops.blocks import sorting_network
from vse_demo.ops.dispatch import disable_kernels, kernels_disabled, usable
from vse_demo.ops.gru import bidirectional_gru
from vse_demo.ops.linear import linear
from vse_demo.ops.search import count_at_least, half_products, products
from vse_demo.ops.softmax import soft_maximum, softmax_sum
from vse_demo.ops.sort import sort_rows

__all__ = [
    "adpool_levels",
    "bidirectional_gru",
    "count_at_least",
    "disable_kernels",
    "half_products",
    "kernels_disabled",
    "linear",
    "products",
    "soft_maximum",
    "softmax_sum",
    "sort_rows",
    "sorting_network",
    "usable",
]
