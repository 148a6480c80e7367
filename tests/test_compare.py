"""The comparison of methods: trained once, resumed without training again, and a page that says what was not run."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import compare

from vse_demo.teaching.paper import MAIN_TABLE
from vse_demo.training import make_config

SMALL = {"region_dim": 16, "dim": 16, "word_dim": 8, "batch_size": 8, "epochs": 1, "min_word_count": 1}


@pytest.fixture(autouse=True)
def budget_for_eight_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "BUDGET", {**compare.BUDGET, **SMALL})


@pytest.mark.slow
def test_methods_are_trained_once_and_the_page_tells_all(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assets = tmp_path / "assets"
    names = ["VSE+2AD", "SCAN (t2i)", "SCAN (t2i) without attention"]
    compare.train_all(out, "", names)
    assert len(list(out.glob("runs/*/result.json"))) == 3 * len(compare.SEEDS)
    capsys.readouterr()
    compare.train_all(out, "", names)
    assert capsys.readouterr().out == ""  # nothing is trained again
    assets.mkdir()
    old = [run(method="VSE+2AD", rsum=599.0), run(method="CAAN", rsum=123.4)]
    compare.write_table(assets / "results.csv", old)
    threads = torch.get_num_threads()
    try:
        compare.report(out, assets)
    finally:
        torch.set_num_threads(threads)
    page = (assets / "README.md").read_text()
    found = rows(page)
    assert set(found) >= {method.name for method in compare.METHODS}
    assert [found[name][1] for name in ("IMRAM", "CAAN", "VSE+2AD")] == ["0", "1", "2"]
    assert found["CAAN"][8] == "123.4"
    assert all(row[10].endswith("×") and row[11].endswith(" M") for name, row in found.items() if name != "method")
    assert "SCAN (t2i) without attention | tiny |" in page
    assert page.split("## Two stages")[1].count("| SCAN (t2i) | tiny |") == 1
    table = compare.read_results(assets / "results.csv")
    assert {row["method"] for row in table} == {*names, "CAAN"}
    assert 599.0 not in [row["rsum"] for row in table]  # the new run took its place
    assert (assets / "compare.png").read_bytes().startswith(b"\x89PNG")


def run(**changes: object) -> dict[str, Any]:
    """What is known of a run."""
    about = {"data": "tiny", "method": "CAAN", "seed": 0, "cpu_seconds": None}
    recalls = {f"{way}_{name}": 10.0 for way in ("i2t", "t2i") for name in ("r1", "r5", "r10", "medr")}
    return {**about, **recalls, "rsum": 60.0, "rerank_r1": None, **changes}


def rows(page: str) -> dict[str, list[str]]:
    """The cells of the tables of methods, by method."""
    lines = [line for line in page.split("## Does")[0].splitlines() if line.startswith("| ")]
    return {cells[0]: cells for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}


@pytest.fixture
def costs() -> dict[str, compare.Cost]:
    return {method.name: compare.Cost(100.0, 2.0, 1_000_000) for method in compare.METHODS}


@pytest.fixture
def out(precomp_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(precomp_folder, tmp_path / "out" / "tiny")
    return tmp_path / "out"


def test_what_was_not_run_keeps_its_published_figures(
    out: Path, costs: dict[str, compare.Cost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "PUBLISHED", {"DSRN": {"tiny": 507.6}, "CAAN": {"tiny": 478.6}})
    found = rows(compare.page(out, [run()], costs))
    assert found["DSRN"] == ["DSRN", "0", *[""] * 7, "507.6 (BERT)", "1.0×", "1.00 M"]
    assert found["CAAN"] == ["CAAN", "1", *["10.0"] * 6, "60.0", "478.6", "1.0×", "1.00 M"]


@pytest.mark.parametrize(("gain", "sentence"), [
    (1.9, "None of those run here does, so it has none."),
    (2.0, "These do, so it should have one: CAAN."),
])  # fmt: skip
def test_the_page_decides_whether_the_app_has_a_second_stage(
    gain: float, sentence: str, out: Path, costs: dict[str, compare.Cost]
) -> None:
    results = [run(method="VSE+2AD"), run(rerank_r1=10.0 + gain)]
    page = compare.page(out, results, costs)
    assert sentence in page
    assert f"| CAAN | tiny | 10.0 | {10 + gain:.1f} | 10.0 | 2.0 |" in page
    slow = {name: cost._replace(milliseconds=301.0) for name, cost in costs.items()}
    assert "None of those run here does" in compare.page(out, results, slow)
    shutil.copytree(out / "tiny", out / "other")  # where it has not been run
    assert "None of those run here does" in compare.page(out, results, costs)


def test_verdicts_over_seeds_and_runs_that_replace_others() -> None:
    assert compare.compared([]) == "not run"
    assert compare.compared([1.0]) == "ahead in one seed"
    assert compare.compared([1.0, 0.1]) == "ahead in both seeds"
    assert compare.compared([-1.0, -0.1]) == "behind in both seeds"
    assert compare.compared([1.0, 0.0]) == "mixed"
    merged = compare.merge([run(seed=1, rsum=1.0), run(rsum=2.0)], [run(rsum=3.004)])
    assert [(each["seed"], each["rsum"]) for each in merged] == [(0, 3.0), (1, 1.0)]


def test_every_row_is_made_of_a_preset_and_ablates_one_that_is_there() -> None:
    names = {method.name for method in compare.METHODS}
    for method in compare.METHODS:
        config = make_config(method.preset, {**compare.BUDGET, **method.changes})
        assert config.model.dim == 16
        assert not method.ablates or method.ablates in names
    assert set(compare.PUBLISHED) <= names


def test_published_figures_are_those_of_the_papers_table() -> None:
    for method, figures in compare.PUBLISHED.items():
        text = "BERT" if method in compare.WITH_BERT else "BiGRU"
        name = method.replace("(", "").replace(")", "")
        (row,) = [row for row in MAIN_TABLE if (row.text, row.vision, row.method) == (text, "R", name)]
        sums = {"coco": row.coco[6], "flickr30k": row.flickr[6] if row.flickr else None}
        assert figures == {data: value for data, value in sums.items() if value is not None}
