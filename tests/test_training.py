"""Training: it learns, it logs, it survives being killed, and it refuses bad settings before it starts."""

import copy
import functools
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_hostile_faults import COMMAND, kill

from vse_demo import VSE, TrainConfig, make_config, open_dataset, train
from vse_demo.data import read_image, with_typos
from vse_demo.evaluation import Metrics, evaluate
from vse_demo.training import (
    METHODS,
    Batch,
    PairDataset,
    Run,
    Trainer,
    batches,
    build_model,
    learning_rate,
    load_steps,
)
from vse_demo.utils.files import FileError

pytestmark = pytest.mark.slow

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SMALL = {
    "dim": 16, "word_dim": 8, "backbone": "test_efficientnet", "image_size": 64, "backbone_weights": "random",
    "min_word_count": 1, "batch_size": 8, "epochs": 2, "captions_per_image": 2,
}  # fmt: skip
WORDS = ("apple", "bear", "car", "dog", "egg", "fish", "goat", "hat", "ink", "jar", "kite", "lamp")


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Precomputed regions of three things each, and captions that name them: something to learn."""
    folder, random = tmp_path / "scenes", np.random.default_rng(0)
    folder.mkdir()
    looks = random.normal(size=(len(WORDS), 24))
    for split, count in (("train", 160), ("dev", 40)):
        things = np.stack([random.permutation(len(WORDS))[:3] for _ in range(count)])
        regions = looks[things] + random.normal(0, 0.3, (count, 3, 24))
        np.save(folder / f"{split}_ims.npy", regions.astype(np.float32))
        orders = [random.permutation(trio) for trio in things for _ in range(2)]
        lines = ["a {} near a {} and a {}".format(*(WORDS[thing] for thing in order)) for order in orders]
        (folder / f"{split}_caps.txt").write_text("\n".join(lines))
    return folder


def learn(preset: str, scenes: Path, run: Path, **more: float) -> Metrics:
    settings = {"dim": 32, "word_dim": 16, "vision": "region", "region_dim": 24, "min_word_count": 1}
    recipe = {"batch_size": 32, "captions_per_image": 2, "epochs": 25, "learning_rate": 3e-3}
    return train(make_config(preset, {**settings, **recipe, **more}), scenes, run)


@pytest.mark.parametrize("preset", METHODS)
def test_every_method_learns_to_find_what_it_has_not_seen(preset: str, scenes: Path, tmp_path: Path) -> None:
    metrics = learn(preset, scenes, tmp_path / "run")
    assert metrics["images"] == 40
    assert metrics["t2i"]["r5"] > 60  # 12.5 by chance
    assert metrics["i2t"]["r5"] > 60


def test_a_model_that_has_seen_typos_reads_them(scenes: Path, tmp_path: Path) -> None:
    data = open_dataset(scenes).split("dev")
    images, misspelt = data.images, with_typos(data.captions, 1)
    kept = {}
    for name, more in {"words": {}, "inside": {"ngram_buckets": 500, "typos": 0.3, "unknown_words": 0.2}}.items():
        plain = learn("vse+2ad", scenes, tmp_path / name, **more)
        model = VSE.from_pretrained(tmp_path / name / "best")
        vectors = model.encode_images(list(images)), model.encode_texts(misspelt)
        kept[name] = evaluate(*vectors, torch.from_numpy(data.image_ids))["rsum"] / plain["rsum"]
    assert kept["inside"] > 0.9 > kept["words"]


def test_k_falls_as_training_goes_on(scenes: Path, tmp_path: Path) -> None:
    learn("vse+2ad", scenes, tmp_path / "run")
    k = np.array([row["k"] for row in rows(tmp_path / "run") if "k" in row])
    by_fifths = [part.mean() for part in np.array_split(k, 5)]
    assert by_fifths == sorted(by_fifths, reverse=True)
    assert by_fifths[-1] < 0.75 * by_fifths[0]


def test_a_run_leaves_its_log_its_settings_and_its_best_model(karpathy_folder: Path, tmp_path: Path) -> None:
    config = make_config("vse+2ad", SMALL)
    metrics = train(config, karpathy_folder, tmp_path / "run")
    steps = [row for row in rows(tmp_path / "run") if "loss" in row]
    validations = [row for row in rows(tmp_path / "run") if "rsum" in row]
    assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
    assert set(steps[0]) >= {"loss", "k", "alignment", "uniformity", "lr", "loss_i2t", "loss_t2i"}
    assert set(validations[0]) >= {f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)}
    assert max(row["rsum"] for row in validations) == metrics["rsum"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 0
    stored = VSE.from_pretrained(tmp_path / "run" / "best").config
    assert replace(stored, image_mean=None, image_std=None) == config.model


def test_the_learning_rate_falls_to_a_tenth(karpathy_folder: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", {**SMALL, "epochs": 4, "decay_epochs": 2}), karpathy_folder, tmp_path / "run")
    rates = {row["epoch"]: row["lr"] for row in rows(tmp_path / "run") if "lr" in row}
    assert list(rates.values()) == pytest.approx([5e-4, 5e-4, 5e-5, 5e-5])


def test_a_run_stops_when_validation_no_longer_rises(scenes: Path, tmp_path: Path) -> None:
    learn("vse+2ad", scenes, tmp_path / "run", epochs=40, patience=2, learning_rate=0.01)
    rsums = [row["rsum"] for row in rows(tmp_path / "run") if "rsum" in row]
    assert len(rsums) < 40
    assert np.argmax(rsums) == len(rsums) - 3
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    train(None, scenes, tmp_path / "run", resume=True)  # it is over
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_the_cosine_schedule_rises_and_falls_to_nothing() -> None:
    config = make_config("vse+2ad", {"epochs": 4, "schedule": "cosine", "warmup_steps": 10, "learning_rate": 1.0})
    rates = [learning_rate(config, step, epochs=4, per_epoch=25) for step in range(100)]
    assert rates[0] == pytest.approx(0.1, abs=1e-3)
    assert np.argmax(rates) == 9
    assert rates[50] == pytest.approx(0.5)
    assert rates[-1] < 1e-3


def test_what_is_judged_and_saved_is_the_average_of_the_weights(karpathy_folder: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", {**SMALL, "epochs": 1, "ema_decay": 0.5}), karpathy_folder, tmp_path / "run")
    stored = load_file(tmp_path / "run" / "last.safetensors")
    key = "image_encoder.projection.linear.weight"
    best = load_file(tmp_path / "run" / "best" / "model.safetensors")[key]
    assert torch.equal(best, stored[f"ema.module.{key}"])
    assert not torch.equal(best, stored[f"model.{key}"])


def test_the_same_seed_gives_the_same_weights(karpathy_folder: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(make_config("vse+2ad", {**SMALL, "seed": seed}), karpathy_folder, tmp_path / name)
    a, b, c = (load_file(tmp_path / name / "last.safetensors") for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)


@pytest.mark.parametrize("text_epochs", [1, 4])  # killed among the pictures, killed before them
def test_a_killed_run_resumes_to_the_same_weights(
    text_epochs: int, karpathy_folder: Path, tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    settings = {**SMALL, "batch_size": 4, "epochs": 6, "checkpoint_steps": 3, "schedule": "cosine", "ema_decay": 0.9}
    settings |= {"text_epochs": text_epochs}
    flags = ["--mirror", *(part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", value))]
    command = ["-m", "vse_demo.cli", "train", "--data", karpathy_folder]
    untouched = start_python(*command, "--out", tmp_path / "whole", *flags)
    output = untouched.communicate()[1]
    assert untouched.returncode == 0, output

    log = tmp_path / "killed" / "metrics.jsonl"  # is begun, then opened for each row
    kill(start_python, COMMAND, [*command[2:], "--out", log.parent, *flags], log, at=15)
    assert len(rows(log.parent)) == 13 < len(rows(tmp_path / "whole"))

    resumed = start_python(*command, "--out", tmp_path / "killed", "--resume")
    output = resumed.communicate()[1]
    assert resumed.returncode == 0, output
    whole, again = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[key], again[key]) for key in whole)
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    best = [VSE.from_pretrained(tmp_path / name / "best").fingerprint() for name in ("whole", "killed")]
    assert best[0] == best[1]


def test_a_frozen_backbone_stays_and_a_trained_one_moves_after_the_warm_up(
    karpathy_folder: Path, tmp_path: Path
) -> None:
    key = "model.image_encoder.backbone.net.conv_stem.weight"
    config = make_config("vse+2ad", {**SMALL, "epochs": 1})
    start = build_model_weights(config, karpathy_folder)
    for name, settings, moves in (
        ("frozen", {"epochs": 1}, False),
        ("warming", {"epochs": 1, "finetune_image": True}, False),
        ("trained", {"epochs": 2, "finetune_image": True}, True),
    ):
        train(make_config("vse+2ad", {**SMALL, **settings}), karpathy_folder, tmp_path / name)
        weight = load_file(tmp_path / name / "last.safetensors")[key]
        before = start if settings.get("finetune_image") else start.half().float()
        assert torch.equal(weight, before) != moves, name


def build_model_weights(config: TrainConfig, data: Path) -> torch.Tensor:
    torch.manual_seed(config.seed)
    live = make_config("vse+2ad", {**SMALL, "finetune_image": True})
    model, _ = build_model(live, open_dataset(data).split("train").captions)
    return model.image_encoder.backbone.net.conv_stem.weight.detach().clone()  # type: ignore[union-attr]


def test_pretrained_parts_learn_at_a_tenth_of_the_rate(bert_folder: Path) -> None:
    settings = {**SMALL, "text": "bert", "text_backbone": str(bert_folder), "finetune_text": True}
    model, config = build_model(make_config("vse+2ad", settings), ["a caption"])
    trainer = Trainer(model, config)
    shares = {id(p): group["share"] for group in trainer.optimizer.param_groups for p in group["params"]}
    assert shares[id(model.text_encoder.backbone.embeddings.word_embeddings.weight)] == 0.1
    assert shares[id(model.text_encoder.projection.linear.weight)] == 1.0
    assert id(model.image_encoder.backbone.net.conv_stem.weight) not in shares  # type: ignore[union-attr]


def test_word_vectors_are_where_a_bigru_starts_from(karpathy_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("red 1 2 3 4 5 6 7 8\nunused 0 0 0 0 0 0 0 0\ngreen 8 7 6 5 4 3 2 1\n")
    settings = {**SMALL, "word_vectors": str(tmp_path / "vectors.txt")}
    captions = open_dataset(karpathy_folder).split("train").captions
    model, _ = build_model(make_config("vse+2ad", settings), captions)
    rows = model.text_encoder.embedding.weight[[model.tokenizer.numbers[word] for word in ("red", "green")]]
    assert torch.allclose(rows[0] * 8, rows[0, 7] * torch.arange(1.0, 9.0), atol=1e-6)
    assert torch.equal(rows[0], rows[1].flip(0))
    (tmp_path / "vectors.txt").write_text("nothing 1 2 3\n")
    with pytest.raises(FileError, match="has no vector for any word of the captions"):
        build_model(make_config("vse+2ad", settings), captions)


def test_text_epochs_teach_the_text_encoder_alone(karpathy_folder: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.json"
    records = [{"filename": f"{word}.jpg", "split": "train", "sentences": [{"raw": f"a {word}"}, {"raw": f"{word}s"}]}
               for word in WORDS]  # fmt: skip
    more.write_text(json.dumps({"images": records}))
    settings = {**SMALL, "epochs": 1, "text_epochs": 2, "more_captions": str(more), "schedule": "cosine"}
    train(make_config("vse+2ad", settings), karpathy_folder, tmp_path / "run")
    model = VSE.from_pretrained(tmp_path / "run" / "best")
    assert {"apple", "apples", "red"} <= set(model.tokenizer.words)
    log = rows(tmp_path / "run")
    text_steps = 2 * ((8 * 3 + len(WORDS)) // 8)  # groups of 2 captions: three of each picture, one of each word
    assert [row["step"] for row in log if "rsum" in row] == [text_steps + 3]
    assert [row["epoch"] for row in log if "loss" in row] == [0] * 4 + [1] * 4 + [0] * 3
    assert log[text_steps]["lr"] == log[0]["lr"]  # each part has its own schedule


def test_captions_of_one_picture_draw_near_in_text_epochs(scenes: Path, tmp_path: Path) -> None:
    settings = {"dim": 32, "word_dim": 16, "vision": "region", "region_dim": 24, "min_word_count": 1, "epochs": 1}
    recipe = {"batch_size": 32, "text_epochs": 30, "learning_rate": 3e-3, "word_dropout": 0.0}
    train(make_config("vse+2ad", {**settings, **recipe}), scenes, tmp_path / "run")
    log = [row for row in rows(tmp_path / "run") if "loss" in row]
    first, last = log[0], log[30 * 10 - 1]  # 320 captions are 10 steps
    assert first["uniformity"] > 0.7  # untrained, all sentences look alike
    assert last["uniformity"] < 0.3
    assert last["alignment"] > 0.8


def test_mirrored_pictures_are_shown_every_other_time(karpathy_folder: Path, tmp_path: Path) -> None:
    config = make_config("vse+2ad", {**SMALL, "mirror": True, "feature_dropout": 0.0})
    data = open_dataset(karpathy_folder).split("train")
    model, config = build_model(config, data.captions)
    pairs = PairDataset.make(data, model.tokenizer, model.image_encoder, cache=tmp_path / "cells", mirror=True)
    batch = Batch(list(range(8)), [0], torch.zeros(1, dtype=torch.int64))
    inputs = Trainer(model, config).inputs
    shown = [inputs.make(pairs, batch, number).features for number in range(20)]
    plain, mirrored = pairs.images[batch.images], pairs.mirrored[batch.images]
    is_plain = torch.stack([(cells == plain).flatten(1).all(1) for cells in shown])
    is_mirrored = torch.stack([(cells == mirrored).flatten(1).all(1) for cells in shown])
    assert (is_plain ^ is_mirrored).all()
    assert 0.35 < is_mirrored.float().mean() < 0.65


def test_the_backbone_of_a_saved_model_can_be_taken(karpathy_folder: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", {**SMALL, "epochs": 1}), karpathy_folder, tmp_path / "first")
    first = tmp_path / "first" / "best"
    settings = {**SMALL, "dim": 24, "epochs": 1, "backbone_weights": str(first)}
    train(make_config("vse++", settings), karpathy_folder, tmp_path / "second")
    prints = [
        VSE.from_pretrained(folder).image_encoder.backbone.fingerprint()
        for folder in (first, tmp_path / "second" / "best")
    ]
    assert prints[0] == prints[1]
    with pytest.raises(FileError, match=r"config\.json is missing"):
        build_model(make_config("vse++", {**settings, "backbone_weights": str(tmp_path)}), ["a dog"])


@pytest.mark.parametrize("finetune", [False, True])
def test_a_bert_trains(karpathy_folder: Path, bert_folder: Path, tmp_path: Path, finetune: bool) -> None:
    settings = {**SMALL, "text": "bert", "text_backbone": str(bert_folder), "finetune_text": finetune}
    train(make_config("vse+2ad", settings), karpathy_folder, tmp_path / "run")
    assert len(VSE.from_pretrained(tmp_path / "run" / "best").encode_texts(["red and green"])) == 1


def test_patches_of_a_vit_train(karpathy_folder: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "vision": "patch", "backbone": "test_vit", "image_size": 64}
    train(make_config("vse-infty", settings), karpathy_folder, tmp_path / "run")
    assert (tmp_path / "run" / "best" / "model.safetensors").exists()


def test_tensorboard_files_are_written_on_request(karpathy_folder: Path, tmp_path: Path) -> None:
    train(make_config("vse++", SMALL), karpathy_folder, tmp_path / "run", tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_a_finished_run_is_not_overwritten(karpathy_folder: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", SMALL), karpathy_folder, tmp_path / "run")
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    with pytest.raises(FileError, match="holds a run already: --resume continues it"):
        train(make_config("vse+2ad", SMALL), karpathy_folder, tmp_path / "run")
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before


def test_resuming_a_finished_run_changes_nothing(karpathy_folder: Path, tmp_path: Path) -> None:
    metrics = train(make_config("vse+2ad", SMALL), karpathy_folder, tmp_path / "run")
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    assert train(None, karpathy_folder, tmp_path / "run", resume=True) == metrics
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone_weights": ""}, "give a .safetensors file for test_efficientnet, a saved model that has it, 'hub'"),
        ({"text": "bert"}, "needs text_backbone"),
        ({"batch_size": 1}, "batch_size must be at least 2, not 1"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"feature_dropout": 1.0}, "feature_dropout must be at least 0 and below 1"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; choose one of fp32, bf16, fp16"),
        ({"frozen_stages": 1}, "frozen_stages are those of a fine-tuned image backbone, and finetune_image is off"),
        ({"patience": -1}, "patience must be at least 0, not -1"),
        ({"typos": 1.5}, "typos must be from 0 to 1, not 1.5"),
        ({"unknown_words": -0.1}, "unknown_words must be from 0 to 1, not -0.1"),
        ({"unknown_words": 0.1}, "unknown_words shows the n-grams of words, and ngram_buckets is 0: try 20000"),
        ({"ngram_buckets": -2}, "ngram_buckets must be a whole number from 0 to 1048576, not -2"),
        ({"accumulate": 0}, "accumulate must be at least 1, not 0"),
        ({"clip": -1.0}, "clip must be above 0, not -1.0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, not 0.0"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0, not -1"),
        ({"objective_options": {"k": 1}}, "unknown option of objective adopt 'k'; choose one of variant, temperature"),
        ({"more_captions": "more.json"}, "more_captions are read in text_epochs, and text_epochs is 0"),
        ({"schedule": "linear"}, "unknown schedule 'linear'; choose one of step, cosine"),
        ({"pooling": "median"}, "unknown pooling 'median'; choose one of mean, max"),
        ({"objective": "mse"}, "unknown objective 'mse'; choose one of adopt"),
        ({"text": "gru"}, "unknown text encoder 'gru'"),
        ({"vision": "video"}, "unknown vision 'video'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings: dict[str, object], message: str, karpathy_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train(make_config("vse+2ad", {**SMALL, **settings}), karpathy_folder, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown preset 'clip'; choose one of vse\\+\\+, vse-infty, vse\\+2ad"):
        make_config("clip", {})


def test_a_broken_checkpoint_says_so(karpathy_folder: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", SMALL), karpathy_folder, tmp_path / "run")
    (tmp_path / "run" / "last.safetensors").write_bytes(b"half a file")
    with pytest.raises(FileError, match=r"last\.safetensors is not a checkpoint of this run"):
        train(None, karpathy_folder, tmp_path / "run", resume=True)


# Settings and data that cannot work


def flat_scenes(folder: Path, count: int = 12) -> Path:
    """Regions that differ too little to be told apart, with one sentence for all: every rank is the last."""
    folder.mkdir()
    for split in ("train", "dev"):
        regions = np.ones((count, 3, 24), dtype=np.float32)
        regions[:, 0, 0] += np.arange(count) * 2e-7
        np.save(folder / f"{split}_ims.npy", regions)
        (folder / f"{split}_caps.txt").write_text("\n".join(["a thing"] * count))
    return folder


REGIONS = {**SMALL, "vision": "region", "region_dim": 24, "batch_size": 4}


def test_a_run_whose_rsum_is_zero_ends_with_a_model(tmp_path: Path) -> None:
    metrics = train(make_config("vse++", REGIONS), flat_scenes(tmp_path / "flat"), tmp_path / "run")
    assert metrics["rsum"] == 0
    assert VSE.from_pretrained(tmp_path / "run" / "best").config.region_dim == 24


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=needs_cuda)])
def test_a_resumed_run_keeps_the_optimizers_state_where_its_weights_are(
    device: str, karpathy_folder: Path, tmp_path: Path
) -> None:
    train(make_config("vse+2ad", {**SMALL, "epochs": 1}), karpathy_folder, tmp_path / "run")
    trainer = Run(tmp_path / "run").resume(device)
    assert trainer.step == 3
    moments = [
        (name, state[name].device.type)
        for state in trainer.optimizer.state.values()
        for name in state
        if name != "step"
    ]
    assert {name for name, _ in moments} == {"exp_avg", "exp_avg_sq"}
    assert {place for _, place in moments} == {device}
    assert trainer.model.device.type == device


def test_validation_counts_copies_of_an_image_once(karpathy_folder: Path, tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(8, 12)]  # those of val
    (karpathy_folder / "images" / names[1]).write_bytes((karpathy_folder / "images" / names[0]).read_bytes())
    metrics = train(make_config("vse+2ad", {**SMALL, "epochs": 1}), karpathy_folder, tmp_path / "run")
    assert (metrics["images"], metrics["captions"]) == (3, 20)


def test_a_run_does_not_go_on_with_other_data(
    karpathy_folder: Path, tmp_path: Path, write_karpathy: Callable[..., Path]
) -> None:
    train(make_config("vse+2ad", {**SMALL, "epochs": 1}), karpathy_folder, tmp_path / "run")
    other = write_karpathy(tmp_path / "other", {"train": 7, "val": 4})
    with pytest.raises(FileError, match="began with other training data: 8 images and 40 captions; --data has 7"):
        train(None, other, tmp_path / "run", resume=True)
    renamed = karpathy_folder / "dataset_tiny.json"
    renamed.write_text(renamed.read_text().replace("Two halves", "Both halves"))
    with pytest.raises(FileError, match="run began with other training data"):
        train(None, karpathy_folder, tmp_path / "run", resume=True)


def change_regions(folder: Path, split: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    np.save(folder / f"{split}_ims.npy", change(np.load(folder / f"{split}_ims.npy")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: change_regions(folder, "train", lambda old: old + 1), r"other training data: .*\[8, 36, 16\]"),
        (lambda folder: change_regions(folder, "train", lambda old: old[:, :9]), r"training .* has .*\[8, 9, 16\]"),
        (lambda folder: change_regions(folder, "train", lambda old: old.astype(np.float64)), "training .* has .*f8"),
        (lambda folder: change_regions(folder, "dev", lambda old: old + 1), "other validation data: 4 images and 20"),
        (lambda folder: (folder / "dev_caps.txt").write_text("red\n" * 4), "has 4 images and 4 captions"),
    ],
)
def test_a_run_does_not_go_on_with_other_regions_or_other_validation(
    change: Callable[[Path], object], message: str, precomp_folder: Path, tmp_path: Path
) -> None:
    settings = {"dim": 16, "word_dim": 8, "vision": "region", "region_dim": 16, "batch_size": 8, "epochs": 1}
    config = make_config("vse+2ad", {**settings, "min_word_count": 1})
    first = train(config, precomp_folder, tmp_path / "run", progress=False)
    assert train(None, precomp_folder, tmp_path / "run", resume=True, progress=False) == first
    change(precomp_folder)
    with pytest.raises(FileError, match=message):
        train(None, precomp_folder, tmp_path / "run", resume=True, progress=False)
    stored = json.loads((tmp_path / "run" / "data.json").read_text())
    before = {name: stored[name] for name in ("images", "captions", "digest")}  # all that was written once
    (tmp_path / "run" / "data.json").write_text(json.dumps(before))
    Run(tmp_path / "run").check_data(*map(open_dataset(precomp_folder).split, ("train", "dev")))


def test_a_start_that_fails_does_not_block_the_next(karpathy_folder: Path, tmp_path: Path) -> None:
    image = karpathy_folder / "images" / "3.jpg"
    good = image.read_bytes()
    image.write_bytes(b"no image")
    for settings in ({}, {"finetune_image": True}):  # found while features are extracted, and in the first step
        with pytest.raises(FileError, match=r"3\.jpg"):
            train(make_config("vse+2ad", {**SMALL, **settings}), karpathy_folder, tmp_path / "run", workers=0)
        assert not (tmp_path / "run").exists()
    image.write_bytes(good)
    train(make_config("vse+2ad", {**SMALL, "epochs": 1}), karpathy_folder, tmp_path / "run")


def test_a_start_that_fails_leaves_what_others_have_put_there(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="24 channels"):
        train(make_config("vse+2ad", {**REGIONS, "region_dim": 23}), scenes, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_device_that_is_not_there_is_named(karpathy_folder: Path, tmp_path: Path) -> None:
    absent = "cuda:63" if torch.cuda.is_available() else "cuda"
    for device, message in ((absent, f"device {absent!r} cannot be used here"), ("gpu", "device 'gpu' cannot be used")):
        with pytest.raises(ValueError, match=message):
            train(make_config("vse+2ad", SMALL), karpathy_folder, tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


# Images that are decoded in steps, and what makes steps faster


LIVE = {**SMALL, "finetune_image": True, "freeze_epochs": 0, "batch_size": 4}


def test_the_number_of_workers_changes_nothing(hub_copy_folder: Path, tmp_path: Path) -> None:
    for workers in (0, 1, 2):  # the images are in an archive, which every process opens for itself
        train(make_config("vse+2ad", {**LIVE, "epochs": 1}), hub_copy_folder, tmp_path / str(workers), workers=workers)
    alone, one, two = (load_file(tmp_path / name / "last.safetensors") for name in "012")
    assert all(torch.equal(alone[key], one[key]) and torch.equal(alone[key], two[key]) for key in alone)
    assert rows(tmp_path / "0") == rows(tmp_path / "1") == rows(tmp_path / "2")


def test_images_are_decoded_by_the_workers(karpathy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(batches, "read_image", lambda file: (decoded.append(os.getpid()), read_image(file))[1])
    data = open_dataset(karpathy_folder).split("train")
    model, config = build_model(make_config("vse+2ad", LIVE), data.captions)
    trainer = Trainer(model, config)
    pairs = PairDataset.make(data, model.tokenizer, model.image_encoder, live=True)
    for workers in (2, 0):
        (inputs,) = next(load_steps(trainer.remaining_steps(pairs, 0, 0), workers))
        assert inputs.pixels.dtype == torch.uint8
        assert inputs.pixels.shape == (4, 3, 64, 64)
        assert len(decoded) == (0 if workers else 4)  # none of them here


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named_in_one_line(workers: int, karpathy_folder: Path, tmp_path: Path) -> None:
    (karpathy_folder / "images" / "3.jpg").write_bytes(b"no image")
    with pytest.raises(FileError, match=r"^3\.jpg .*") as caught:
        train(make_config("vse+2ad", LIVE), karpathy_folder, tmp_path / "run", workers=workers)
    assert "\n" not in str(caught.value)


def test_accumulated_batches_have_the_mean_of_their_gradients(scenes: Path) -> None:
    data = open_dataset(scenes).split("train")
    settings = {**REGIONS, "accumulate": 3, "clip": 1e9, "word_dropout": 0.0, "feature_dropout": 0.0}
    model, config = build_model(make_config("vse+2ad", settings), data.captions)
    trainer = Trainer(model, config)
    pairs = PairDataset.make(data, model.tokenizer, model.image_encoder)
    steps = trainer.epoch_steps(pairs, 0)
    assert {len(step) for step in steps} == {3}
    assert len(steps) == 160 // 4 // 3
    inputs = next(load_steps(trainer.remaining_steps(pairs, 0, 0)))
    start = copy.deepcopy(model)
    row = trainer.train_step(inputs, 0, 1e-3)

    model = start.train()
    losses = []
    for batch in inputs:  # one after another, by hand
        torch.manual_seed(batch.seed)
        images, texts = model.embed_image_features(batch.features), model.embed_tokens(batch.tokens, batch.mask)
        losses.append(trainer.objective(images, texts, batch.image_ids).loss)
        (losses[-1] / 3).backward()
    assert row["loss"] == pytest.approx(sum(loss.item() for loss in losses) / 3)
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_an_epoch_with_fewer_batches_than_a_step_is_one_step(scenes: Path) -> None:
    data = open_dataset(scenes).split("dev")
    model, config = build_model(make_config("vse+2ad", {**REGIONS, "accumulate": 100}), data.captions)
    steps = Trainer(model, config).epoch_steps(PairDataset.make(data, model.tokenizer, model.image_encoder), 0)
    assert [len(step) for step in steps] == [10]


def test_a_killed_run_with_workers_and_accumulation_resumes_to_the_same_weights(
    karpathy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("vse+2ad", {**LIVE, "accumulate": 2, "epochs": 2, "checkpoint_steps": 1, "ema_decay": 0.9})
    train(config, karpathy_folder, tmp_path / "whole", workers=0)
    step = Trainer.train_step

    def stop_in_the_second_epoch(trainer: Trainer, *arguments: object) -> dict[str, float]:
        if trainer.step == 4:
            raise KeyboardInterrupt
        return step(trainer, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stop_in_the_second_epoch)
        with pytest.raises(KeyboardInterrupt):
            train(config, karpathy_folder, tmp_path / "cut", workers=2)
    train(None, karpathy_folder, tmp_path / "cut", resume=True, workers=1)
    whole, cut = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[key], cut[key]) for key in whole)
    assert rows(tmp_path / "whole") == rows(tmp_path / "cut")


def test_bf16_learns_in_lower_precision_and_keeps_fp32_weights(
    karpathy_folder: Path, bert_folder: Path, tmp_path: Path
) -> None:
    settings = {**SMALL, "text": "bert", "text_backbone": str(bert_folder), "finetune_text": True, "epochs": 1}
    for precision in ("fp32", "bf16"):
        config = make_config("vse+2ad", {**settings, "precision": precision})
        train(config, karpathy_folder, tmp_path / precision)
    full, mixed = (rows(tmp_path / precision)[0]["loss"] for precision in ("fp32", "bf16"))
    assert full != mixed
    assert mixed == pytest.approx(full, rel=0.05)
    assert {tensor.dtype for tensor in load_file(tmp_path / "bf16" / "last.safetensors").values()} <= {
        torch.float32,
        torch.int64,
    }


def test_a_bigru_learns_in_bf16(karpathy_folder: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", {**SMALL, "precision": "bf16"}), karpathy_folder, tmp_path / "run")
    assert all(np.isfinite(row["loss"]) for row in rows(tmp_path / "run") if "loss" in row)


@needs_cuda
def test_fp16_scales_its_gradients_and_resumes(karpathy_folder: Path, tmp_path: Path) -> None:
    config = make_config("vse+2ad", {**SMALL, "precision": "fp16"})
    train(config, karpathy_folder, tmp_path / "run", device="cuda")
    assert Run(tmp_path / "run").resume("cuda").scaler.get_scale() > 1


def test_fp16_is_refused_on_a_cpu(karpathy_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision fp16 needs a CUDA device, and this is cpu: try bf16"):
        train(make_config("vse+2ad", {**SMALL, "precision": "fp16"}), karpathy_folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("default")  # PyTorch warns itself while it traces
def test_compiled_encoders_take_the_same_steps(
    scenes: Path, bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []
    compile_eagerly = functools.partial(torch.compile, backend="eager")  # traced, but not turned into machine code
    monkeypatch.setattr(torch, "compile", lambda part: (compiled.append(part), compile_eagerly(part))[1])
    settings = {**REGIONS, "text": "bert", "text_backbone": str(bert_folder), "pooling": "mean", "batch_size": 64}
    config = make_config("vse++", {**settings, "epochs": 1})
    for name in ("plain", "compiled"):
        train(config, scenes, tmp_path / name, compiled=name == "compiled")
    assert len(compiled) == 2  # the image side and the text side; regions have no backbone
    losses = [[row["loss"] for row in rows(tmp_path / name) if "loss" in row] for name in ("plain", "compiled")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_frozen_stages_stay_and_the_others_move(karpathy_folder: Path, tmp_path: Path) -> None:
    config = make_config("vse+2ad", {**LIVE, "epochs": 1, "frozen_stages": 2})
    torch.manual_seed(config.seed)
    model, _ = build_model(config, open_dataset(karpathy_folder).split("train").captions)
    before = dict(model.image_encoder.backbone.net.named_parameters())
    train(config, karpathy_folder, tmp_path / "run")
    after = load_file(tmp_path / "run" / "last.safetensors")
    kept = {n for n, p in before.items() if torch.equal(p, after[f"model.image_encoder.backbone.net.{n}"])}
    assert kept == {name for name in before if name.startswith(("conv_stem", "bn1", "blocks.0."))}
    stored = load_file(tmp_path / "run" / "best" / "model.safetensors")
    assert torch.equal(stored["image_encoder.backbone.net.conv_stem.weight"].float(), before["conv_stem.weight"])
    with pytest.raises(ValueError, match="test_efficientnet has 6 stages, frozen_stages must be below that, not 6"):
        build_model(make_config("vse+2ad", {**LIVE, "frozen_stages": 6}), ["a dog"])


def test_train_tells_each_row_as_it_is_written(karpathy_folder: Path, tmp_path: Path) -> None:
    told: list[dict[str, float]] = []

    def listen(row: dict[str, float]) -> None:
        told.append(dict(row))
        assert rows(tmp_path / "run") == told  # it is in the file already

    train(make_config("vse+2ad", {**SMALL, "text_epochs": 1}), karpathy_folder, tmp_path / "run", on_row=listen)
    assert [row["epoch"] for row in told if "rsum" in row] == [1, 2]
    assert told == rows(tmp_path / "run")


def test_a_run_that_its_listener_ends_can_be_resumed(karpathy_folder: Path, tmp_path: Path) -> None:
    config = make_config("vse+2ad", {**SMALL, "checkpoint_steps": 1, "epochs": 1})
    train(config, karpathy_folder, tmp_path / "whole")

    def stop(row: dict[str, float]) -> None:
        if row["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, karpathy_folder, tmp_path / "cut", on_row=stop)
    train(None, karpathy_folder, tmp_path / "cut", resume=True)
    assert rows(tmp_path / "whole") == rows(tmp_path / "cut")


@pytest.mark.parametrize("progress", [True, False])
def test_bars_are_shown_or_not(
    progress: bool, karpathy_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config("vse+2ad", {**SMALL, "epochs": 1, "text_epochs": 1, "mirror": True})
    train(config, karpathy_folder, tmp_path / "run", cache=tmp_path / "cells", progress=progress)
    shown = capfd.readouterr().err
    assert ("extracting features" in shown, "steps on text" in shown, "steps" in shown) == (progress,) * 3
