"""The command line, as a person uses it: one story from training to search, and clear errors."""

import csv
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from support import HANGS, ROOT, serve
from test_retrieval import make_model

from vse_demo import OBJECTIVES, POOLINGS, PRESETS, VSE, Gallery, ModelConfig, TrainConfig, open_dataset, shipped
from vse_demo.cli import VERBS, main, make_parser
from vse_demo.training import COMPETITORS, build_model, make_config

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
    for verb in VERBS:
        assert f"vse-demo {verb.__name__.rpartition('.')[2]}" in text


def test_the_help_of_a_setting_is_that_of_its_field(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100000")  # nothing is broken at a hyphen
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split("options:", 1)[1].split())
    assert "--batch-size BATCH_SIZE images per batch; negatives come from the same batch (default: 128)" in text
    assert "--finetune-image, --no-finetune-image train the image backbone too" in text
    assert "--pooling-options KEY=VALUE [KEY=VALUE ...] of the pooling, one or more, as in variant=" in text
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
    assert all(f"{name} {paper}" in text for name, (paper, _) in COMPETITORS.items())


@pytest.mark.slow
def test_help_and_mistakes_are_answered_without_pytorch(start_python: Callable[..., subprocess.Popen[str]]) -> None:
    program = (
        "import sys\nfrom vse_demo.cli import main\n"
        "for arguments in (['--help'], ['--version'], ['evaluate', '--help'], ['search', '--no-such-flag']):\n"
        "    try: main(arguments)\n    except SystemExit as end: print('code', end.code)\n"
        "print('torch' in sys.modules)"
    )
    out, errors = start_python("-c", program).communicate(timeout=HANGS)
    assert [line for line in out.splitlines() if line.startswith("code")] == ["code 0"] * 3 + ["code 2"], errors
    assert out.splitlines()[-1] == "False"
    assert f"vse-demo {version('vse_demo')}" in out


@pytest.mark.slow
def test_the_package_is_a_program(start_python: Callable[..., subprocess.Popen[str]]) -> None:
    process = start_python("-m", "vse_demo", "--help")
    out, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 0, errors
    assert out.startswith("usage: vse-demo")
    assert "benchmark" not in out


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 100_000])  # the pipe breaks at the end, or amid the output
def test_a_reader_that_has_enough_ends_the_command_without_a_word(
    lines: int, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    program = (
        "import sys; from vse_demo.cli import lessons, main\n"
        "def run(chosen):\n"
        f"    for number in range({lines}): sys.stdout.buffer.write(b'a path\\n')\n"
        "lessons.run = run\n"
        "sys.exit(main(['lessons']))"
    )
    with start_python("-c", program) as process:
        process.stdout.close()  # type: ignore[union-attr]
        assert process.wait(timeout=HANGS) == 141
        assert process.stderr.read() == ""  # type: ignore[union-attr]


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


@pytest.mark.slow
def test_evaluate_measures_misspelt_captions_too(
    model: str, karpathy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--model", model, "--data", str(karpathy_folder), "--split", "test"]
    capsys.readouterr()
    answers = []
    for more in (["--json"], ["--json", "--typos", "1"], ["--json", "--typos", "1"]):
        assert main([*arguments, *more]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    plain, once, again = answers
    misspelt = once.pop("misspelt")
    assert once == plain
    assert set(misspelt) == set(plain)
    assert again["misspelt"] == misspelt  # the same typos every time
    assert main([*arguments, "--typos", "2"]) == 0
    out = capsys.readouterr().out
    assert "with 2 typos in each caption:" in out
    assert out.count("RSUM") == 3
    assert main([*arguments, "--typos", "-1"]) == 1
    assert "--typos must be at least 0, not -1" in capsys.readouterr().err


def test_folds_that_do_not_fit_are_refused_before_anything_is_encoded(
    model: str, karpathy_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*arguments: object, **more: object) -> None:
        raise AssertionError("encoded")

    monkeypatch.setattr(VSE, "encode_images", encode)
    for folds in ("3", "0", "-1"):
        assert main(["evaluate", "--model", model, "--data", str(karpathy_folder), "--folds", folds]) == 1
        errors = capsys.readouterr().err
        assert f"4 images do not split into {folds} equal folds" in errors
        assert ("try --fold-size 1" in errors) == (folds == "3")


@pytest.mark.slow
def test_index_and_search_from_the_shell(
    model: str, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = str(tmp_path / "gallery")
    for split, said in (
        ("val", "4 images added, 0 changed, 0 removed; 4 images and 20"),
        ("test", "4 images added, 0 changed"),
    ):
        arguments = ["--data", str(karpathy_folder), "--split", split, "--gallery", gallery]
        assert main(["index", "--model", model, *arguments]) == 0
        assert said in capsys.readouterr().out
    assert main(["search", "red on the left", "--gallery", gallery, "-k", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    image = str(karpathy_folder / "images" / "15.jpg")
    assert main(["search", "--image", image, "--gallery", gallery, "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)
    assert len(hits) == 5
    assert {"item", "score", "name", "file"} == set(hits[0])


@pytest.fixture
def gallery_folder(tmp_path: Path, karpathy_folder: Path) -> Path:
    """A gallery of the four pictures of the test split, and the model that made it."""
    make_model().save_pretrained(tmp_path / "tiny")
    gallery = Gallery.open(tmp_path / "gallery", VSE.from_pretrained(tmp_path / "tiny"), [tmp_path / "tiny"])
    gallery.sync(karpathy_folder, ["test"], progress=False)
    return tmp_path / "gallery"


def search(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["search", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_hits_are_paths_in_every_format(
    gallery_folder: Path, karpathy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["red on the left", "--gallery", gallery_folder, "-k", 3]
    paths = search(capsys, *where, "--format", "paths").splitlines()
    assert {Path(path).parent for path in paths} == {karpathy_folder / "images"}
    assert [line.split("  ")[1] for line in search(capsys, *where).splitlines()] == paths
    assert [hit["file"] for hit in json.loads(search(capsys, *where, "--format", "json"))] == paths
    rows = list(csv.DictReader(search(capsys, *where, "--format", "csv").splitlines()))
    assert [(row["query"], row["rank"], row["file"]) for row in rows] == [
        ("red on the left", str(rank), path) for rank, path in enumerate(paths, 1)
    ]


def test_many_queries_come_from_a_file(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queries.txt").write_text("red\n\ngreen on the left\n")
    where = ["--queries", tmp_path / "queries.txt", "--gallery", gallery_folder, "-k", 2]
    answers = json.loads(search(capsys, *where, "--json"))
    assert [answer["query"] for answer in answers] == ["red", "green on the left"]
    for answer in answers:
        alone = json.loads(search(capsys, answer["query"], "--gallery", gallery_folder, "-k", 2, "--json"))
        assert alone == answer["hits"]


def test_an_image_finds_images_where_there_are_no_captions(
    gallery_folder: Path, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, plain = karpathy_folder / "images" / "13.jpg", tmp_path / "plain"
    shutil.copytree(karpathy_folder / "images", tmp_path / "pictures")
    assert (
        main(
            ["index", "--model", str(tmp_path / "tiny"), "--data", str(tmp_path / "pictures"), "--gallery", str(plain)]
        )
        == 0
    )
    assert search(capsys, "--image", image, "--gallery", plain, "--format", "paths").startswith(
        f"{tmp_path / 'pictures' / '13.jpg'}\n"
    )
    assert main(["search", "red", "--gallery", str(plain), "--find", "captions"]) == 1
    assert "--find captions: this gallery has no captions" in capsys.readouterr().err
    found = json.loads(search(capsys, "--image", image, "--gallery", gallery_folder, "--json", "--find", "images"))
    assert found[0]["name"] == "13.jpg"
    captions = json.loads(search(capsys, "--image", image, "--gallery", gallery_folder, "--json"))
    assert all(" " in hit["item"] for hit in captions)


def test_images_and_sentences_are_added_and_subtracted(
    gallery_folder: Path, karpathy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = karpathy_folder / "images" / "13.jpg"
    more = ["--image", image, "--add", "2:blue", "--subtract", karpathy_folder / "images" / "12.jpg"]
    hits = json.loads(search(capsys, "red", *more, "--gallery", gallery_folder, "--json"))
    gallery = Gallery.load(gallery_folder, make_model())
    expected = gallery.search_images(["red", image, ("blue", 2), (karpathy_folder / "images" / "12.jpg", -1)])
    assert [hit["name"] for hit in hits] == [hit.name for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-4)
    some = search(capsys, "red", "--gallery", gallery_folder, "--where", "name=14.jpg", "--format", "paths")
    assert some == f"{karpathy_folder / 'images' / '14.jpg'}\n"


def test_what_a_search_cannot_read_or_find_is_said(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes("ein grüner Hügel".encode("latin-1"))
    for arguments, message in (
        (["red", "-s", "nofile.jpg"], "there is no image nofile.jpg"),
        (["red", "-a", "2:nofile.PNG"], "there is no image nofile.PNG"),
        (["red", "--where", "foo=1"], "has that; choose one of folder, split, name, source, date"),
        (["--queries", tmp_path / "none.txt"], "none.txt cannot be read: No such file or directory"),
        (["--queries", tmp_path / "latin.txt"], "latin.txt cannot be read as text: it is not UTF-8"),
        (["--queries", tmp_path / "empty.txt"], "empty.txt is empty: it should hold a sentence on each line"),
    ):  # fmt: skip
        assert main(["search", "--gallery", str(gallery_folder), *map(str, arguments)]) == 1
        assert capsys.readouterr().err.rstrip().endswith(message)
    for where in ("split=none", "date=..1999-01-01"):  # images have these, but none passes
        assert search(capsys, "red", "--gallery", gallery_folder, "--where", where) == ""


def test_index_without_a_split_takes_all_of_them(
    model: str, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "--model", model, "--data", str(karpathy_folder), "--gallery", str(tmp_path / "g")]) == 0
    assert "16 images added" in capsys.readouterr().out


@pytest.mark.parametrize("ray", [[], ["--ray"]])
def test_index_makes_no_gallery_of_data_that_cannot_be_read(
    ray: list[str], karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    gallery = tmp_path / "gallery"
    for wrong, message in (
        (["--data", str(tmp_path / "empty")], "holds no images"),
        (["--data", str(karpathy_folder), "--split", "tset"], "has no split 'tset'; it has train, val, test"),
    ):
        assert main(["index", "--model", "grid-bigru", "--gallery", str(gallery), *ray, *wrong]) == 1
        assert message in capsys.readouterr().err
        assert not gallery.exists()


def test_every_verb_that_reads_data_takes_a_layout_of_yours(
    tmp_path: Path, save_picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for verb in ("train", "evaluate", "calibrate", "embed", "index"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert "--layout MODULE:NAME" in capsys.readouterr().out
    (tmp_path / "own_layout.py").write_text(
        "from vse_demo import open_dataset\ndef below(folder):\n    return open_dataset(folder / 'below')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    save_picture(tmp_path / "data" / "below" / "0.png")
    save_picture(tmp_path / "data" / "1.png", 1)
    make_model().save_pretrained(tmp_path / "tiny")
    index = ["index", "--model", str(tmp_path / "tiny"), "--data", str(tmp_path / "data")]
    arguments = [*index, "--gallery", str(tmp_path / "gallery"), "--layout", "own_layout:below"]
    assert main([*arguments, "--ray"]) == 1
    assert "--ray does not take --layout" in capsys.readouterr().err
    assert main(arguments) == 0
    assert Gallery.load(tmp_path / "gallery", make_model()).names == ["0.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "red", "--gallery", "postgresql://127.0.0.1:1/none"], "the database cannot be reached or used"),
        (["evaluate", "--model", "nowhere", "--data", "."], "nowhere is not a folder with a model"),
        (["search", "--gallery", "."], "give a sentence"),
        (["search", "red", "--gallery", "nowhere"], "make one with vse-demo index"),
        (["train", "--data", "nowhere", "--out", "run"], "nowhere is not a folder"),
        (["train", "--data", ".", "--out", "run", "--resume", "--dim", "8"], "--resume keeps the settings"),
        (["train", "--data", ".", "--out", "run", "--preset", "clip"], "unknown preset 'clip'"),
        (["train", "--data", ".", "--out", "run", "--clip", "-1"], "clip must be above 0, not -1.0"),
        (["train", "--data", ".", "--out", "run", "--dim", "-1"], "dim must be a whole number from 1 to 16384, not -1"),
        (["train", "--data", ".", "--out", "run", "--image-size", "0"], "image_size must be a whole number from 1 to"),
        (
            ["train", "--data", ".", "--out", "run", "--ngram-buckets", "-1"],
            "ngram_buckets must be a whole number from 0",
        ),
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


def test_training_takes_the_names_of_what_comes_along(tmp_path: Path) -> None:
    chosen = make_parser().parse_args(["train", "--data", "default", "--out", str(tmp_path / "run")])
    assert set(open_dataset(chosen.data).splits) == {"train", "val", "test"}
    config = make_config("vse+2ad", {"backbone_weights": "grid-bigru", "dim": 8, "word_dim": 4})
    assert config.backbone_weights == "grid-bigru"
    built, _ = build_model(config, ["a dog"])
    model = VSE.from_pretrained("grid-bigru")
    assert built.config.backbone == model.config.backbone
    weights = zip(built.image_encoder.backbone.parameters(), model.image_encoder.backbone.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in weights)


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


def test_the_gallery_that_comes_along_is_searched_by_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Nothing:
        def search_images(self, query: object, k: int, where: object) -> list[object]:
            return []

        def __len__(self) -> int:
            return 0

    monkeypatch.setattr(shipped, "load_gallery", lambda *arguments, lazy: asked.append((*arguments, lazy)) or Nothing())
    assert main(["search", "a dog"]) == 0
    assert main(["search", "a dog", "--model", "ensemble", "--device", "cpu", "--backend", "onnx"]) == 0
    assert asked == [("default", None, "cpu", "torch", True), ("default", ["ensemble"], "cpu", "onnx", True)]


def test_lessons_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lessons"]) == 0
    assert "jupyter lab lessons/01_tour.ipynb" in capsys.readouterr().out
    copied = {path.name for path in Path("lessons").glob("*.ipynb")}
    assert copied == {path.name for path in (ROOT / "notebooks" / "student").glob("*.ipynb")}
    Path("lessons/01_tour.ipynb").write_text("my own work")
    assert main(["lessons"]) == 1
    assert "lessons is there already" in capsys.readouterr().err
    assert Path("lessons/01_tour.ipynb").read_text() == "my own work"
    assert main(["lessons", "--out", "again"]) == 0


def test_the_demo_says_what_it_lacks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["app"]) == 1
    assert 'pip install "vse_demo[app]"' in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_starts_from_the_command(tmp_path: Path) -> None:
    program = tmp_path / "vse-demo"
    program.write_text("import sys; from vse_demo.cli import main; main(['app', *sys.argv[1:]])")
    with serve(tmp_path / "log", program=program) as server:
        assert urllib.request.urlopen(server.address, timeout=HANGS).status == 200


def test_folds_of_a_size_name_what_is_left_over(
    model: str, karpathy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--model", model, "--data", str(karpathy_folder)]
    capsys.readouterr()
    assert main([*arguments, "--fold-size", "3", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert (metrics["images"], metrics["captions"], metrics["left_out"]) == (3, 15, ["15.jpg"])
    assert main([*arguments, "--fold-size", "2"]) == 0
    assert "left out" not in capsys.readouterr().out
    for wrong, message in ((["--fold-size", "5"], "from 1 to 4"), (["--fold-size", "2", "--folds", "2"], "not both")):
        assert main([*arguments, *wrong]) == 1
        assert message in capsys.readouterr().err


def test_embed_writes_arrays_and_tables(model: str, karpathy_folder: Path, tmp_path: Path) -> None:
    data = ["embed", "--model", model, "--data", str(karpathy_folder)]
    assert main([*data, "--split", "test", "--out", str(tmp_path / "images.npy")]) == 0
    files = sorted(open_dataset(karpathy_folder).split("test").images, key=lambda path: path.name)
    expected = VSE.from_pretrained(model).encode_images(files, convert_to_numpy=True)
    np.testing.assert_allclose(np.load(tmp_path / "images.npy"), expected, atol=1e-6)
    (tmp_path / "lines.txt").write_text("red on the left\na blue field\n")
    texts = ["embed", "--model", model, "--texts", str(tmp_path / "lines.txt")]
    assert main([*texts, "--out", str(tmp_path / "texts.parquet")]) == 0
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "texts.parquet")
    assert table["item"].to_pylist() == ["red on the left", "a blue field"]
    assert np.array(table["vector"].to_pylist()).shape == (2, 16)
    assert main([*texts, "--out", str(tmp_path / "texts.csv")]) == 1
    (tmp_path / "lines.txt").write_text("red\n\nblue\n")
    assert main([*texts, "--out", str(tmp_path / "more.npy")]) == 1
    assert not (tmp_path / "more.npy").exists()


def test_embed_takes_the_images_that_index_takes(
    tmp_path: Path, save_picture: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        save_picture(tmp_path / "data" / f"{number}.png", number)
    (tmp_path / "data" / "1.png").write_bytes(b"no picture")
    captions = {"0.png": ["red"], "1.png": ["green"], "gone.png": ["blue"]}
    (tmp_path / "data" / "captions.json").write_text(json.dumps(captions))
    make_model().save_pretrained(tmp_path / "tiny")
    source = ["--model", str(tmp_path / "tiny"), "--data", str(tmp_path / "data")]
    said = []
    for verb, target in (("index", ["--gallery", "gallery"]), ("embed", ["--out", "vectors.npy"])):
        assert main([verb, *source, target[0], str(tmp_path / target[1])]) == 0
        errors = capsys.readouterr().err.splitlines()
        said.append(sorted(line for line in errors if line.startswith("left out: ")))
    assert said[0] == said[1]
    assert len(said[0]) == 2
    names = (tmp_path / "vectors.names.txt").read_text().splitlines()
    assert names == ["0.png", "2.png", "3.png", "4.png"]
    gallery = Gallery.load(tmp_path / "gallery", make_model())
    order = [gallery.names.index(name) for name in names]
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), gallery.image_vectors[order], atol=2e-3)
    for path in (tmp_path / "data").glob("*.png"):
        path.write_bytes(b"")
    assert main(["embed", *source, "--out", str(tmp_path / "none.npy")]) == 1
    assert "has no image that can be read" in capsys.readouterr().err
    assert not list(tmp_path.glob("none*"))
