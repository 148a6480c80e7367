"""What the README shows runs as it stands."""

import json
import re
from pathlib import Path

from benchmarks.run import as_table
from benchmarks.timing import Row
from vse_demo.utils.paths import shipped

README = Path(__file__).parent.parent / "README.md"


def test_the_first_example_runs_and_gives_a_sensible_loss() -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert example
    names: dict[str, object] = {}
    exec(example[1], names)
    assert 0 < float(names["loss"].detach()) < 20  # type: ignore[attr-defined]


def test_the_table_of_speed_is_what_was_measured() -> None:
    measured = json.loads((shipped("") / "benchmark.json").read_text(encoding="utf-8"))
    assert as_table([Row(**row) for row in measured["rows"]]) in README.read_text(encoding="utf-8")
