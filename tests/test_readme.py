"""What the README shows runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_first_example_runs_and_gives_a_sensible_loss() -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert example
    names: dict[str, object] = {}
    exec(example[1], names)
    assert 0 < float(names["loss"].detach()) < 20  # type: ignore[attr-defined]
