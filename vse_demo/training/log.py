"""The log of a run: a row per step and a row per validation, written as they happen."""

import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vse_demo.evaluation import Metrics
from vse_demo.utils.files import write_atomic

Row = Mapping[str, float]
OnRow = Callable[[Row], object]


class Log:
    """Rows of a metrics file, each written as it comes.

    Args:
        path: of the file; rows after `step` are of a run that was killed, and are left out.
        step: at which the run goes on.
        tensorboard: folder for TensorBoard's files, if any.
        on_row: is called with each row when it is written.
    """

    def __init__(self, path: Path, step: int, tensorboard: Path | None = None, on_row: OnRow | None = None):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        steps = [_row_step(line) for line in lines]
        broken = sum(math.isnan(of_row) for of_row in steps[:-1])  # the last one may well be cut off
        if broken:
            warnings.warn(f"{path}: {broken} broken rows are left out", stacklevel=2)
        write_atomic(path, "".join(f"{line}\n" for line, of_row in zip(lines, steps, strict=True) if of_row <= step))
        self.path, self.on_row = path, on_row
        self.board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(tensorboard), purge_step=step + 1)

    def write(self, row: Row) -> None:
        """Add a row."""
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self.board:
            for name, value in row.items():
                if name != "step":
                    self.board.add_scalar(name, value, row["step"])
        if self.on_row:
            self.on_row(row)


class NoLog(Log):
    """The log of a process that does not write."""

    def __init__(self) -> None:
        pass

    def write(self, row: Row) -> None:
        """The row is in the log of another process."""


def _row_step(line: str) -> float:
    """NaN for what is no row."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return math.nan


def flatten(metrics: Metrics) -> dict[str, float]:
    """Metrics as one row: i2t_r1, …, t2i_medr, rsum."""
    ways = (("i2t", metrics["i2t"]), ("t2i", metrics["t2i"]))
    row = {f"{way}_{key}": float(value) for way, figures in ways for key, value in figures.items()}  # type: ignore[arg-type]
    return {**row, "rsum": metrics["rsum"]}
