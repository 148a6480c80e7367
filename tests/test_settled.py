"""The claims where training has settled: what is planned, and a page that says what the runs say."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support import ROOT, captions_of

sys.path.insert(0, str(ROOT / "scripts"))

import settled

from vse_demo.losses import build_objective
from vse_demo.pooling import build_pooling
from vse_demo.training import make_config

ASSETS = ROOT / "assets" / "runs" / "settled"


@pytest.mark.parametrize("name", settled.SETTINGS)
def test_every_setting_can_be_trained_and_changes_what_it_says(name: str) -> None:
    config, plain = (
        make_config("vse+2ad", {**settled.BUDGET, **settled.SETTINGS[each].changes}) for each in (name, "full")
    )
    build_objective(config.objective, **config.objective_options)
    build_pooling(config.model.pooling, 8, "image", **config.model.pooling_options)
    assert (config == plain) == (name == "full")
    assert (config.epochs, config.patience, config.batch_size, config.learning_rate) == (25, 5, 128, 5e-4)


def test_every_claim_is_about_settings_that_are_run() -> None:
    assert {name for _, *sides in settled.CLAIMS for name in sides} <= set(settled.SETTINGS)


def test_a_group_is_run_seed_by_seed_before_the_next_group() -> None:
    plan = [(setting.name, seed) for setting, seed in settled.planned(list(settled.SETTINGS), [0, 1, 2])]
    assert plan[:5] == [("full", 0), ("mean", 0), ("hard-warm", 0), ("k-all", 0), ("full", 1)]
    assert plan[12] == ("full-paper", 0)
    assert len(plan) == len(set(plan)) == 3 * len(settled.SETTINGS)


@pytest.mark.slow
def test_runs_are_trained_once_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    data, random = tmp_path / "flickr30k", np.random.default_rng(0)
    data.mkdir()
    for split, seeds in (("train", range(12)), ("dev", range(12, 18))):
        np.save(data / f"{split}_ims.npy", random.normal(size=(len(seeds), 4, 6)).astype(np.float16))
        (data / f"{split}_caps.txt").write_text("".join(f"{line}\n" for seed in seeds for line in captions_of(seed)))
    monkeypatch.setattr(settled, "BUDGET", {**settled.BUDGET, "region_dim": 6, "dim": 8, "epochs": 2, "batch_size": 8})
    with pytest.raises(SystemExit, match=r"no run in .* has ended"):
        settled.report(tmp_path, tmp_path / "assets")
    for _ in range(2):
        settled.train_all(tmp_path, ["flickr30k"], ["full", "mean"], [0, 1], "")
    assert capsys.readouterr().out.count("RSUM") == 4  # what is there is not trained again
    settled.report(tmp_path, tmp_path / "assets")
    text = (tmp_path / "assets" / "README.md").read_text()
    assert "12 photos to learn from, 6 held out; 4 runs." in text
    assert "| AdPool is better than mean pooling |" in text
    assert "**Not run:** hard triplet after 5 epochs" in text
    assert settled.page(tmp_path / "assets") == text
    assert len((tmp_path / "assets" / "curves.csv").read_text().splitlines()) == 1 + 4 * 2
    assert str(tmp_path) not in (tmp_path / "assets" / "configs.json").read_text()

    data.rename(tmp_path / "coco")  # another data set, whose runs are added to those that are stored
    shutil.rmtree(tmp_path / "runs")
    settled.train_all(tmp_path, ["coco"], ["mean"], [0], "")
    for _ in range(2):
        settled.report(tmp_path, tmp_path / "assets")
        both = (tmp_path / "assets" / "README.md").read_text()
        assert both.startswith(text.rstrip("\n"))
        assert "12 photos to learn from, 6 held out; 1 runs." in both
        assert len((tmp_path / "assets" / "curves.csv").read_text().splitlines()) == 1 + 5 * 2


@pytest.mark.skipif(not ASSETS.exists(), reason="no settled runs are stored")
def test_the_page_says_what_the_stored_results_say() -> None:
    assert settled.page(ASSETS) == (ASSETS / "README.md").read_text(encoding="utf-8")
