"""The command line, as a person uses it: one story from training to search, and clear errors."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest

from vse_demo import OBJECTIVES, POOLINGS, PRESETS, VSE, ModelConfig, TrainConfig
from vse_demo.cli import main

TINY = [
    "--dim", "16", "--word-dim", "8", "--backbone", "test_efficientnet", "--image-size", "64",
    "--backbone-weights", "random", "--min-word-count", "1", "--batch-size", "8", "--epochs", "1",
]  # fmt: skip


@pytest.fixture
def model(karpathy_folder: Path, tmp_path: Path) -> str:
    """The folder of a model trained from the shell."""
    assert main(["train", "--data", str(karpathy_folder), "--out", str(tmp_path / "run"), *TINY]) == 0
    return str(tmp_path / "run" / "best")


def test_help_teaches_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    for verb in ("download", "train", "evaluate", "index", "search"):
        assert f"vse-demo {verb}" in text


def test_the_help_of_a_setting_is_that_of_its_field(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100000")  # nothing is broken at a hyphen
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split("options:", 1)[1].split())
    assert "--batch-size BATCH_SIZE images per batch; negatives come from the same batch (default: 128)" in text
    assert "--finetune-image, --no-finetune-image train the image backbone too" in text
    assert "--pooling-options KEY=VALUE [KEY=VALUE ...] of the pooling, as in variant=" in text
    for config in (ModelConfig, TrainConfig):
        for entry in fields(config):
            said = f" --{entry.name.replace('_', '-')}" in text
            assert said == ("help" in entry.metadata), entry.name
    for flag, names in (
        ("--pooling POOLING", POOLINGS),
        ("--objective OBJECTIVE", OBJECTIVES),
        ("--preset PRESET", PRESETS),
    ):
        assert f"{flag} {', '.join(names)}" in text
    assert set(PRESETS) <= set(text.split("presets:")[1].replace(",", " ").split())


@pytest.mark.slow
def test_help_and_mistakes_are_answered_without_pytorch(start_python: Callable[..., subprocess.Popen[str]]) -> None:
    program = (
        "import sys\nfrom vse_demo.cli import main\n"
        "for arguments in (['--help'], ['--version'], ['evaluate', '--help'], ['search', '--no-such-flag']):\n"
        "    try: main(arguments)\n    except SystemExit as end: print('code', end.code)\n"
        "print('torch' in sys.modules)"
    )
    out, errors = start_python("-c", program).communicate(timeout=120)
    assert [line for line in out.splitlines() if line.startswith("code")] == ["code 0"] * 3 + ["code 2"], errors
    assert out.splitlines()[-1] == "False"
    assert f"vse-demo {version('vse_demo')}" in out


@pytest.mark.slow
def test_the_package_is_a_program(start_python: Callable[..., subprocess.Popen[str]]) -> None:
    process = start_python("-m", "vse_demo", "--help")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert out.startswith("usage: vse-demo")
    assert "benchmark" not in out


@pytest.mark.slow
def test_evaluate_prints_json_as_promised(
    model: str, karpathy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    arguments = ["evaluate", "--data", str(karpathy_folder), "--split", "test", "--json"]
    assert main([*arguments, "--model", model]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert set(metrics) == {"i2t", "t2i", "rsum", "images", "captions"}
    assert set(metrics["i2t"]) == set(metrics["t2i"]) == {"r1", "r5", "r10", "medr"}
    assert (metrics["images"], metrics["captions"]) == (4, 20)
    recalls = [metrics[way][key] for way in ("i2t", "t2i") for key in ("r1", "r5", "r10")]
    assert metrics["rsum"] == pytest.approx(sum(recalls))
    assert main([*arguments, "--model", model, "--model", model]) == 0  # an ensemble of one model with itself
    assert json.loads(capsys.readouterr().out)["rsum"] == pytest.approx(metrics["rsum"])


@pytest.mark.slow
def test_evaluate_prints_a_table_and_takes_folds(
    model: str, karpathy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--model", model, "--data", str(karpathy_folder), "--folds", "2"]) == 0
    assert "image → text" in capsys.readouterr().out
    assert main(["evaluate", "--model", model, "--data", str(karpathy_folder), "--folds", "3"]) == 1
    assert "4 images do not split into 3 equal folds" in capsys.readouterr().err


def test_folds_that_do_not_fit_are_refused_before_anything_is_encoded(
    model: str, karpathy_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*arguments: object, **more: object) -> None:
        raise AssertionError("encoded")

    monkeypatch.setattr(VSE, "encode_images", encode)
    for folds in ("3", "0", "-1"):
        assert main(["evaluate", "--model", model, "--data", str(karpathy_folder), "--folds", folds]) == 1
        assert f"4 images do not split into {folds} equal folds" in capsys.readouterr().err


@pytest.mark.slow
def test_index_and_search_from_the_shell(
    model: str, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = str(tmp_path / "gallery")
    for split, said in (("val", "4 images added, 4 images and 20"), ("test", "4 images added, 8 images")):
        arguments = ["--data", str(karpathy_folder), "--split", split, "--gallery", gallery]
        assert main(["index", "--model", model, *arguments]) == 0
        assert said in capsys.readouterr().out
    assert main(["search", "red on the left", "--gallery", gallery, "-k", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    image = str(karpathy_folder / "images" / "15.jpg")
    assert main(["search", "--image", image, "--gallery", gallery, "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)
    assert len(hits) == 5
    assert {"item", "score"} == set(hits[0])


def test_index_without_a_split_takes_all_of_them(
    model: str, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "--model", model, "--data", str(karpathy_folder), "--gallery", str(tmp_path / "g")]) == 0
    assert "16 images added" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "--model", "nowhere", "--data", "."], "nowhere is not a folder with a model"),
        (["search", "--gallery", "."], "give a sentence"),
        (["search", "red", "--gallery", "nowhere"], "make one with vse-demo index"),
        (["train", "--data", "nowhere", "--out", "run"], "nowhere is not a folder"),
        (["train", "--data", ".", "--out", "run", "--resume", "--dim", "8"], "--resume keeps the settings"),
        (["train", "--data", ".", "--out", "run", "--preset", "clip"], "unknown preset 'clip'"),
        (["train", "--data", ".", "--out", "run", "--clip", "-1"], "clip must be above 0, not -1.0"),
        (["train", "--data", ".", "--out", "run", "--device", "gpu"], "device 'gpu' cannot be used here"),
        (["download", "imagenet", "--out", "x"], "unknown data set 'imagenet'"),
    ],
)
def test_mistakes_get_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("vse-demo: ")
    assert message in error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_options_of_poolings_and_objectives_reach_them(karpathy_folder: Path, tmp_path: Path) -> None:
    options = ["--pooling-options", "variant=official", "balance=[0.5, 0.5]", "--objective-options", "fixed_k=3"]
    assert main(["train", "--data", str(karpathy_folder), "--out", str(tmp_path / "run"), *TINY, *options]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["pooling_options"] == {"variant": "official", "balance": [0.5, 0.5]}
    assert config["objective_options"] == {"variant": "official", "fixed_k": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--objective-options", "k=1"], "unknown option of objective adopt 'k'; choose one of variant, temperature"),
        (["--objective-options", "temperature=cold"], "objective adopt cannot use the options"),
        (["--pooling-options", "k=1"], "pooling adpool cannot use the options {'variant': 'official', 'k': 1}"),
        (["--precision", "fp16"], "precision fp16 needs a CUDA device"),
    ],
)
def test_options_that_a_part_does_not_have_get_one_clear_line(
    options: list[str], message: str, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "--data", str(karpathy_folder), "--out", str(run), *TINY, *options]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("vse-demo: ")
    assert message in errors
    assert not run.exists()
