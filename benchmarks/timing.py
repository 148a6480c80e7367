"""Two pieces of work, timed in turn: a ratio and its quartiles."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from vse_demo import ops

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` says how many times faster the first side is."""

    what: str
    against: str
    aim: str
    ratio: float
    low: float  # quartiles of the rounds
    high: float
    milliseconds: float  # of the first side


def compare(what: str, against: str, aim: str, ours: Work, theirs: Work, rounds: int = 9) -> Row:
    """Time two pieces of work in turn, after one round to warm up.

    Args:
        what: Name of the first side.
        against: Name of the second side.
        aim: What `ratio` should be, in words for the table; may be empty.
        ours: The first side.
        theirs: The second side.
        rounds: How often each side is timed.

    Returns:
        The medians over the rounds, and the quartiles of the ratio.
    """
    ours(), theirs()
    mine, ratios = [], []
    for _ in range(rounds):
        a, b = seconds(ours), seconds(theirs)
        mine.append(a)
        ratios.append(b / a)
    low, _, high = statistics.quantiles(ratios, n=4) if rounds > 1 else [ratios[0]] * 3
    return Row(what, against, aim, statistics.median(ratios), low, high, 1000 * statistics.median(mine))


def seconds(work: Work) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def milliseconds(work: Work, rounds: int = 9) -> float:
    """The median of some runs, after one to warm up."""
    work()
    return 1000 * statistics.median(seconds(work) for _ in range(rounds))


def without_kernels(work: Work) -> Work:
    """The same work in plain PyTorch."""

    def run() -> None:
        with ops.disable_kernels():
            work()

    return run
