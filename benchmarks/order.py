"""AdPool and a batch of pictures in this process, which is tuned before PyTorch is loaded, after that, or never.

    python -m benchmarks.order before

prints rows as JSON. The section `order` of `benchmarks.run` runs it in a process for each.
"""

import json
import sys
from dataclasses import asdict

from vse_demo.utils.runtime import tune_process


def main(when: str) -> None:
    """Tune the process `before`, `after` or `never`, and print the rows."""
    if when == "before":
        tune_process()
    import torch

    if when == "after":
        tune_process()
    from benchmarks.sections import batch_row, pooling_rows

    torch.manual_seed(0)
    rows = [row for ragged in (True, False) for row in pooling_rows((640, 14, 1024), ragged)]
    print(json.dumps([asdict(row) for row in [*rows, batch_row()]]))


if __name__ == "__main__":
    main(sys.argv[1])
