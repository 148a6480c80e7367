"""How fast? Every claim against its alternative, in one process on one machine, as a ratio.

    python -m benchmarks.run                    # all sections, as a table
    python -m benchmarks.run --only pooling     # one of them

Both sides of a comparison run in turn, round by round, so that whatever else the machine does slows both. A row holds
the median of the rounds' ratios and their quartiles.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.sections import SECTIONS, time_parts
from benchmarks.timing import Row
from vse_demo.utils.checks import check_choice
from vse_demo.utils.runtime import tune_process


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table or JSON, and perhaps draw the figure."""
    parser = argparse.ArgumentParser("python -m benchmarks.run", description="How fast is each part here?")
    parser.add_argument("--only", action="append", default=[], metavar="SECTION", help=f"{', '.join(SECTIONS)}; repeat")
    parser.add_argument("--json", action="store_true", help="print JSON, as in assets/benchmark.json")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="also draw where the time of AdPool goes")
    chosen = parser.parse_args(arguments)
    tune_process()  # as our own programs do; both sides gain by it
    rows = []
    try:
        for row in measure(chosen.only):
            rows.append(row)
            print(f"{row.ratio:8.3g} ×  {row.what}, against {row.against}", file=sys.stderr, flush=True)
    except ValueError as error:
        parser.error(str(error))
    print(json.dumps(as_json(rows)) if chosen.json else f"{machine()}\n\n{as_table(rows)}")
    if chosen.figure:
        draw_time_parts(chosen.figure)
    return 0


def measure(sections: Sequence[str]) -> Iterator[Row]:
    """The rows of the chosen sections, as they are measured; all sections if none is chosen.

    Raises:
        ValueError: If there is no such section.
    """
    for name in sections:
        check_choice(name, list(SECTIONS), "section")
    for name in sections or list(SECTIONS):
        torch.manual_seed(0)
        yield from SECTIONS[name]()


def machine() -> str:
    """What was measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = "CPU"
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"


def as_table(rows: list[Row]) -> str:
    """Markdown, for the terminal and docs/speed.md."""
    lines = ["| what | against | times faster (quartiles) | ms | aim |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{row.ratio:.3g} ({row.low:.3g}–{row.high:.3g})"
        lines.append(f"| {row.what} | {row.against} | {ratio} | {row.milliseconds:.3g} | {row.aim} |")
    return "\n".join(lines)


def as_json(rows: list[Row]) -> dict[str, Any]:
    """The machine and the rows, as assets/benchmark.json stores them."""
    return {"machine": machine(), "rows": [asdict(row) for row in rows]}


def draw_time_parts(path: Path) -> None:
    """Write `time_parts` as an image."""
    from matplotlib.figure import Figure

    from vse_demo.plots import plot_time_parts

    figure = Figure(figsize=(7.5, 3.1), layout="constrained")
    plot_time_parts(time_parts(), figure.subplots()).set_title("Where the time of AdPool goes, (128, 36, 1024) forward")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
