"""The verdicts on the paper's claims: Student's t, and a page that says what the stored results say."""

import json
import sys

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import experiments

from vse_demo.training import make_config

RUNS = ROOT / "assets" / "runs"


@pytest.mark.parametrize(
    ("differences", "p", "expected"),
    [  # p from tables of Student's t: 4.303 with two degrees of freedom is 0.05, and 12.706 with one
        ([-0.5, -3.3, -6.1], 0.18, "not distinguishable"),  # −3.3 ± 2.8
        ([-6.3, -7.7, -9.1], 0.011, "does not hold"),
        ([4.313 / 3**0.5 + shift for shift in (-1, 0, 1)], 0.0498, "holds"),
        ([4.293 / 3**0.5 + shift for shift in (-1, 0, 1)], 0.0502, "not distinguishable"),
        ([12.8 + 1, 12.8 - 1], 0.0496, "hint: holds"),
        ([-12.8 + 1, -12.8 - 1], 0.0496, "hint: does not hold"),
        ([12.6 + 1, 12.6 - 1], 0.0504, "not distinguishable"),
    ],
)
def test_a_verdict_is_that_of_students_t(differences: list[float], p: float, expected: str) -> None:
    assert experiments.p_value(differences) == pytest.approx(p, rel=0.03)
    assert experiments.verdict(differences) == expected


def test_the_page_says_what_the_stored_results_say() -> None:
    assert experiments.page(experiments.read_results(RUNS), RUNS) == (RUNS / "README.md").read_text(encoding="utf-8")


def test_the_settings_are_those_of_the_stored_runs() -> None:
    stored = json.loads((RUNS / "configs.json").read_text(encoding="utf-8"))
    for _, setting, seed in experiments.planned(list(experiments.TABLES)):
        before = stored[f"{setting.name}-{seed}"]
        now = make_config("vse+2ad", experiments.settings_of(setting, seed))
        pooling = before["model"]["pooling_options"]
        if before["model"]["pooling"] == "adpool":  # what was not said was the paper's then, and AdOpt the authors'
            pooling = {"variant": "paper", **pooling}
        objective = before["objective_options"]
        if before["objective"] == "adopt":
            objective = {"variant": "official", **objective}
        assert (now.model.pooling, now.model.pooling_options) == (before["model"]["pooling"], pooling), setting.name
        assert (now.objective, now.objective_options) == (before["objective"], objective), setting.name
        assert (now.seed, now.epochs, now.model.dim) == (before["seed"], before["epochs"], before["model"]["dim"])
