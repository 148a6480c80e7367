"""Making one store equal to another: vectors are copied, nothing is encoded."""

import torch

from vse_demo.retrieval.store import Store
from vse_demo.retrieval.sync import Report
from vse_demo.utils.files import FileError

BLOCK = 1000  # images that are copied at a time


def replicate(source: Store, target: Store, report: Report | None = None) -> None:
    """Copy what a store lacks or has otherwise, and forget what the other does not have.

    Args:
        source: Is only read.
        target: Of the same model.
        report: Is told how many images are done, and of how many.

    Raises:
        FileError: If the stores are of different models.
    """
    if source.model.fingerprint() != target.model.fingerprint():
        raise FileError("a gallery can only be copied to one of the same model")
    with target.writing():
        here = {entry.digest: entry for entry in target.entries()}
        wanted = []
        for entry in source.entries():
            if here.pop(entry.digest, None) != entry:
                wanted.append(entry)
        target.discard(list(here))
        for start in range(0, len(wanted), BLOCK):
            block = wanted[start : start + BLOCK]
            images, captions = source.fetch([entry.digest for entry in block])
            target.put(block, images, torch.cat([torch.empty(0, source.model.dim), *captions]))
            if report is not None:
                report(start + len(block), len(wanted))
