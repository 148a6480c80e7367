"""A bar in the terminal while something takes long."""

from collections.abc import Iterator
from typing import Any

from tqdm.auto import tqdm


def in_batches(items: Any, size: int, unit: str, progress: bool) -> Iterator[Any]:
    """Slices of a sequence, one after another.

    Args:
        items: A list, or an array.
        size: Items in a slice; the last one may have fewer.
        unit: What the items are called.
        progress: Whether to show a bar.
    """
    with tqdm(total=len(items), unit=f" {unit}", disable=not progress, leave=False) as bar:
        for start in range(0, len(items), size):
            batch = items[start : start + size]
            yield batch
            bar.update(len(batch))
