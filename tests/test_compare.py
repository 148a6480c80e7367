"""The comparison of methods: trained once, resumed without training again, and a page that says what was not run."""

import csv
import shutil
import sys
from pathlib import Path

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import compare

from vse_demo.training import make_config

SMALL = {"region_dim": 16, "dim": 16, "word_dim": 8, "batch_size": 8, "epochs": 1, "min_word_count": 1}


@pytest.fixture(autouse=True)
def budget_for_eight_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "BUDGET", {**compare.BUDGET, **SMALL})


@pytest.mark.slow
def test_methods_are_trained_once_and_the_page_tells_all(
    precomp_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, assets = tmp_path / "out", tmp_path / "assets"
    shutil.copytree(precomp_folder, out / "tiny")
    names = ["VSE+2AD", "SCAN (t2i)", "SCAN (t2i) without attention"]
    compare.train_all(out, "", names)
    assert len(list(out.glob("runs/*/result.json"))) == 3 * len(compare.SEEDS)
    capsys.readouterr()
    compare.train_all(out, "", names)
    assert capsys.readouterr().out == ""  # nothing is trained again
    compare.report(out, assets)
    page = (assets / "README.md").read_text()
    table = page.split("## Does")[0]
    rows = {line.split("|")[1].strip(): line.split("|") for line in table.splitlines() if line.startswith("| ")}
    assert {method.name for method in compare.METHODS} <= set(rows)
    assert rows["IMRAM"][2].strip() == "0"
    assert rows["VSE+2AD"][2].strip() == "2"
    assert "SCAN (t2i) without attention | tiny |" in page
    assert page.split("## Two stages")[1].count("| SCAN (t2i) | tiny |") == 1
    with (assets / "results.csv").open(newline="") as file:
        assert {row["method"] for row in csv.DictReader(file)} == set(names)
    assert (assets / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_every_row_is_made_of_a_preset_and_ablates_one_that_is_there() -> None:
    names = {method.name for method in compare.METHODS}
    for method in compare.METHODS:
        config = make_config(method.preset, {**compare.BUDGET, **method.changes})
        assert config.model.dim == 16
        assert not method.ablates or method.ablates in names
    assert set(compare.PUBLISHED) <= names
