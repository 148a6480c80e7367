"""Training on many processes, and in chunks: the mathematics of one process, and its files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from distributed_worker import DTYPES, NO_EFFECT, STEPS, TEXTS, gradients, make_pairs, make_trainer, steps
from safetensors.torch import load_file
from support import HANGS, ROOT, environment, wait_until
from torch import Tensor

from vse_demo import VSE, TrainConfig, make_config, open_dataset, train
from vse_demo.layers import RowNorm, row_statistics
from vse_demo.model.interaction import new_model
from vse_demo.training import PairDataset, Run, Share, Trainer, World, build_model, load_steps

pytestmark = pytest.mark.slow

SMALL = {
    "dim": 16, "word_dim": 8, "vision": "region", "region_dim": 24, "min_word_count": 1, "batch_size": 8, "epochs": 2,
    "captions_per_image": 2, "checkpoint_steps": 1,
}  # fmt: skip


ALONE = ("--standalone",)  # all processes of a run are of one torchrun


def torchrun(processes: int, *arguments: object, nodes: Sequence[object] = ALONE) -> subprocess.Popen:
    """Several Python processes that know each other, of which this one is the parent's child."""
    run = [sys.executable, "-m", "torch.distributed.run", "--local_addr", "127.0.0.1"]
    command = [*run, *nodes, "--nproc_per_node", processes, *arguments]
    return subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(TORCH_ELASTIC_SHUTDOWN_TIMEOUT=str(HANGS)),  # who is told to end may take long to say why
    )  # fmt: skip


def finish(process: subprocess.Popen) -> tuple[str, str]:
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, err
    return out, err


def part(results: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in results.items() if name.startswith(prefix)}


def assert_alike(ours: dict[str, Tensor], expected: dict[str, Tensor], error: float) -> None:
    """Compare by the largest deviation, as a share of the largest value; what has no effect is left out."""
    assert ours.keys() == expected.keys()
    for name in expected:
        if not name.endswith(NO_EFFECT):
            scale = expected[name].abs().max().clamp(min=1e-6 if error > 1e-9 else 1e-12)
            assert (ours[name] - expected[name]).abs().max() <= error * scale, name


@pytest.fixture(scope="module", params=[2, 3])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    out = tmp_path_factory.mktemp("distributed") / "results.safetensors"
    finish(torchrun(request.param, ROOT / "tests" / "distributed_worker.py", out))
    return load_file(out)


@pytest.mark.parametrize("text", TEXTS)
def test_gradients_of_several_processes_are_those_of_one(text: str, results: dict[str, Tensor]) -> None:
    assert_alike(part(results, f"{text}/gradient/"), gradients(text, World()), 1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_in_float32_the_whole_gradient_differs_by_rounding(text: str, results: dict[str, Tensor]) -> None:
    ours, expected = part(results, f"{text}/single/"), gradients(text, World(), dtype=torch.float32)
    counted = [name for name in expected if not name.endswith(NO_EFFECT)]
    vectors = [torch.cat([each[name].flatten() for name in counted]) for each in (ours, expected)]
    assert (vectors[0] - vectors[1]).norm() <= 5e-6 * vectors[1].norm()


@pytest.mark.parametrize("text", TEXTS)
def test_several_processes_that_compute_in_chunks_have_the_same_gradients(
    text: str, results: dict[str, Tensor]
) -> None:
    assert_alike(part(results, f"{text}/chunked/"), gradients(text, World()), 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", TEXTS)
def test_several_processes_take_the_steps_of_one(text: str, dtype: torch.dtype, results: dict[str, Tensor]) -> None:
    expected = steps(text, World(), dtype)
    assert len(expected["k"]) == STEPS
    assert len(expected["k"].unique()) > 1
    assert_same_steps(part(results, f"{text}/{dtype}/"), expected, dtype)


def assert_same_steps(ours: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype) -> None:
    """The same K and loss at each step; in float64 also the same weights.

    In float32 the weights of a ReLU at its kink, or of what hardly matters, differ: Adam follows the sign of noise.
    """
    assert ours["k"].tolist() == expected["k"].tolist()
    torch.testing.assert_close(ours["loss"], expected["loss"], rtol=1e-5, atol=0)
    if dtype == torch.float64:
        assert_close(ours, expected)


def assert_close(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name in expected:
        if not name.endswith(NO_EFFECT):
            torch.testing.assert_close(ours[name], expected[name], rtol=0, atol=1e-6, msg=name)


def test_what_fills_no_batch_waits_for_another_epoch() -> None:
    """40 images in batches of 7: K depends on the size of a batch, so there is no short one."""
    trainer = make_trainer("bigru", World())
    pairs = make_pairs(trainer.model.tokenizer)
    groups = sum(-(-count // 3) for count in np.bincount(pairs.image_ids))  # of up to three captions of an image
    epochs = [[batch for (batch,) in trainer.epoch_steps(pairs, epoch)] for epoch in range(4)]
    assert groups % 7
    assert {len(batches) for batches in epochs} == {groups // 7}
    assert {len(batch.images) for batches in epochs for batch in batches} <= {5, 6, 7}  # an image may have two groups
    seen = [{caption for batch in batches for caption in batch.captions} for batches in epochs]
    assert all(len(captions) < len(pairs.image_ids) for captions in seen)
    assert set.union(*seen) == set(range(len(pairs.image_ids)))


# In chunks


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_have_the_gradients_of_the_whole_batch(text: str, chunk: int) -> None:
    assert_alike(gradients(text, World(), chunk), gradients(text, World()), 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", TEXTS)
def test_chunks_take_the_same_steps(text: str, dtype: torch.dtype) -> None:
    assert_same_steps(steps(text, World(), dtype, chunk=3), steps(text, World(), dtype), dtype)


def test_a_norm_of_each_chunk_would_err() -> None:
    """What the whole batch is worth: the reference of the tests above is not blind to it."""
    torch.manual_seed(0)
    norm, features, mask = RowNorm(4), torch.randn(6, 3, 4), torch.ones(6, 3, dtype=torch.bool)
    whole, halves = norm(features, mask), torch.cat([norm(half, half[..., 0] < 9) for half in features.split(3)])
    assert (whole - halves).norm() > 0.05 * whole.norm()
    with norm.given(*norm.batch_statistics([row_statistics(half, half[..., 0] < 9) for half in features.split(3)])):
        given = torch.cat([norm(half, half[..., 0] < 9) for half in features.split(3)])
    torch.testing.assert_close(given, whole)


@pytest.mark.parametrize("frozen", [True, False])
def test_chunks_of_pixels_take_the_same_steps(frozen: bool, karpathy_folder: Path, tmp_path: Path) -> None:
    live = {
        **SMALL, "vision": "grid", "backbone": "test_efficientnet", "image_size": 64, "backbone_weights": "random",
        "finetune_image": True, "freeze_epochs": int(frozen), "epochs": 1,
    }  # fmt: skip
    for chunk in (0, 3):
        config = make_config("vse+2ad", live)
        train(config, karpathy_folder, tmp_path / str(chunk), workers=0, chunk=chunk, progress=False)
    assert_same_log(tmp_path / "3", tmp_path / "0")


def test_memory_is_that_of_a_chunk() -> None:
    """What is kept between the passes does not grow with the width of the joint space in all places."""
    kept = {chunk: saved_bytes(chunk) for chunk in (0, 2)}
    assert kept[2] < kept[0] / 4


def saved_bytes(chunk: int) -> int:
    """Bytes that autograd keeps of the image side of a batch of 32."""
    torch.manual_seed(0)
    trainer = make_trainer("bigru", World(), chunk)
    features = torch.randn(32, 6, 12)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.embed_features(features)
    return sum(kept.values()) - features.numel() * 4


def test_what_cannot_be_computed_in_chunks_is_refused() -> None:
    trainer = make_trainer("bigru", World())
    config = replace(trainer.config, model=replace(trainer.config.model, pooling="gcn", pooling_options={}))
    model = VSE(config.model, trainer.model.tokenizer)
    with pytest.raises(ValueError, match="pooling 'gcn' normalises over the whole batch"):
        Trainer(model, config, chunk=2)
    with pytest.raises(ValueError, match="chunk must be at least 1, or 0 for whole batches, not -1"):
        Trainer(model, config, chunk=-1)
    with pytest.raises(ValueError, match="--compile is for one process that computes whole batches"):
        Trainer(model, config, compiled=True, chunk=2)
    config = replace(trainer.config, model=replace(trainer.config.model, interaction="scan"))
    with pytest.raises(ValueError, match="interaction 'scan' compares the features of both sides, not embeddings"):
        Trainer(new_model(config.model, trainer.model.tokenizer), config, world=World(0, 2))


# Shares


def test_shares_hold_every_image_and_caption_once() -> None:
    image_ids = torch.tensor([3, 0, 0, 2, 1, 4, 4, 6, 5])
    for size in range(1, 8):
        shares = [Share(rank, size) for rank in range(size)]
        assert [image for share in shares for image in range(7)[share.images(7)]] == list(range(7))
        assert sorted(place for share in shares for place in share.captions(image_ids).tolist()) == list(range(9))
        for share in shares:
            images = range(7)[share.images(7)]
            assert images
            assert {int(image_ids[place]) for place in share.captions(image_ids)} == set(images)


@pytest.mark.parametrize("live", [False, True])
def test_shares_of_a_batch_are_parts_of_what_one_process_sees(live: bool, karpathy_folder: Path) -> None:
    """What is left out, mirrored and cut out is drawn for the whole batch."""
    settings = {**SMALL, "vision": "grid", "backbone": "test_efficientnet", "image_size": 64, "word_dropout": 0.5}
    data = open_dataset(karpathy_folder).split("train")
    config = make_config("vse+2ad", {**settings, "backbone_weights": "random", "finetune_image": live, "mirror": True})
    model, config = build_model(config, data.captions)
    pairs = PairDataset.make(data, model.tokenizer, model.image_encoder, live, mirror=True)
    inputs = [
        next(load_steps(Trainer(model, config, world=World(rank, size)).remaining_steps(pairs, 0, 0)))[0]
        for rank, size in ((0, 1), (0, 3), (1, 3), (2, 3))
    ]
    for share in inputs[1:]:
        assert torch.equal(share.image_ids, inputs[0].image_ids)
        assert share.seed == inputs[0].seed
    seen = [each.pixels if live else each.features for each in inputs]
    assert torch.equal(torch.cat(seen[1:]), seen[0])
    for rank, own in enumerate(inputs[1:]):
        places = Share(rank, 3).captions(inputs[0].image_ids)
        width = own.tokens.shape[1]
        assert torch.equal(own.tokens, inputs[0].tokens[places, :width])
        assert torch.equal(own.mask, inputs[0].mask[places, :width])
        assert not inputs[0].mask[places, width:].any()


# Whole runs


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_log(run: Path, other: Path) -> None:
    """The same steps with the same K and, but for rounding, the same loss."""
    ours, expected = rows(run), rows(other)
    assert [(row["step"], row.get("k")) for row in ours] == [(row["step"], row.get("k")) for row in expected]
    losses = [[row["loss"] for row in log if "loss" in row] for log in (ours, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Precomputed regions with two captions each, of different lengths."""
    folder, random = tmp_path / "scenes", np.random.default_rng(0)
    folder.mkdir()
    for split, count in (("train", 27), ("dev", 10)):
        np.save(folder / f"{split}_ims.npy", random.normal(size=(count, 3, 24)).astype(np.float32))
        lines = [" ".join(random.choice(["ant", "bee", "cat", "dog"], random.integers(1, 6))) for _ in range(2 * count)]
        (folder / f"{split}_caps.txt").write_text("\n".join(lines))
    return folder


def flags(**settings: object) -> list[str]:
    return [item for name, value in settings.items() for item in (f"--{name.replace('_', '-')}", str(value))]


def train_flags(data: Path, out: Path, **more: object) -> list[str]:
    return ["-m", "vse_demo", "train", *flags(data=data, out=out, **{**SMALL, **more})]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_of_two_processes_leaves_the_files_of_one(nodes: int, scenes: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", {**SMALL, "text_epochs": 1}), scenes, tmp_path / "one", progress=False)
    command = train_flags(scenes, tmp_path / "two", text_epochs=1)
    out, err = finish(torchrun(2, *command)) if nodes == 1 else on_two_nodes(*command)
    assert out.count("RSUM") == out.count("the best model is in") == 1
    assert err.count("steps on text") > 0
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert {path.name for path in (tmp_path / "two").iterdir()} == names
    assert_same_log(tmp_path / "two", tmp_path / "one")


def on_two_nodes(*arguments: object) -> tuple[str, str]:
    """What two programs of torchrun with a process each, which meet at an address, have said together."""
    meeting = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = ["--rdzv_endpoint", f"127.0.0.1:{meeting.port}", "--rdzv_conf", "is_host=0"]  # this process is the host
    nodes = ["--nnodes", 2, "--rdzv_backend", "c10d", "--rdzv_id", "test", *place]
    with contextlib.ExitStack() as until_done:
        running = [torchrun(1, *arguments, nodes=nodes) for _ in range(2)]
        for node in running:
            until_done.callback(node.kill)
        said = [finish(node) for node in running]
    return said[0][0] + said[1][0], said[0][1] + said[1][1]


def train_until(step: int, config: TrainConfig | None, scenes: Path, out: Path) -> None:
    """Train in this process, from the start or from a checkpoint, and stop after a step, whose row is written."""

    def stop(row: dict[str, float]) -> None:
        if row["step"] == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, scenes, out, resume=config is None, on_row=stop, progress=False)


def test_a_run_of_one_process_is_resumed_by_two(scenes: Path, tmp_path: Path) -> None:
    config = make_config("vse+2ad", SMALL)
    train(config, scenes, tmp_path / "whole", progress=False)
    train_until(5, config, scenes, tmp_path / "cut")
    finish(torchrun(2, "-m", "vse_demo", "train", *flags(data=scenes, out=tmp_path / "cut"), "--resume"))
    assert_same_log(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_others_and_one_process_resumes(rank: int, scenes: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    several = torchrun(2, *train_flags(scenes, run, epochs=100_000))
    wait_until(lambda: several.poll() is not None or ((run / "metrics.jsonl").exists() and len(rows_so_far(run)) > 4))
    os.kill(worker(several.pid, rank), signal.SIGKILL)
    _, err = several.communicate(timeout=HANGS)  # it ends
    assert several.returncode != 0
    assert err.count("vse-demo: ") == 1
    assert "The run goes on from its last checkpoint with --resume" in err
    assert "vse_demo/training" not in err  # no traceback but torchrun's own

    reached = Run(run).resume("cpu").step
    assert reached > 0
    train_until(reached + 4, None, scenes, run)
    train_until(reached + 4, make_config("vse+2ad", {**SMALL, "epochs": 100_000}), scenes, tmp_path / "whole")
    assert_same_log(run, tmp_path / "whole")


def rows_so_far(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def worker(parent: int, rank: int) -> int:
    """The process of a rank among the children of torchrun."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    environments = {pid: Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children}
    (found,) = [pid for pid, settings in environments.items() if f"RANK={rank}".encode() in settings]
    return int(found)


def test_a_batch_smaller_than_the_world_is_refused_on_every_rank(scenes: Path, tmp_path: Path) -> None:
    refused = torchrun(3, *train_flags(scenes, tmp_path / "run", batch_size=2))
    _, err = refused.communicate(timeout=HANGS)
    assert refused.returncode != 0
    assert "a batch has 2 images, too few for 3 processes" in err or "a batch has 1 images, too few for 3" in err
    assert not (tmp_path / "run").exists()
    trainer = make_trainer("bigru", World())
    pairs = make_pairs(trainer.model.tokenizer)
    for rank in range(4):
        small = Trainer(trainer.model, replace(trainer.config, batch_size=3), world=World(rank, 4))
        with pytest.raises(ValueError, match=r"a batch has . images, too few for 4 processes: each needs one"):
            small.epoch_steps(pairs, 0)


def test_a_run_that_is_there_is_left_alone_by_all(scenes: Path, tmp_path: Path) -> None:
    train(make_config("vse+2ad", {**SMALL, "epochs": 1}), scenes, tmp_path / "run", progress=False)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    refused = torchrun(2, *train_flags(scenes, tmp_path / "run"))
    _, err = refused.communicate(timeout=HANGS)
    assert refused.returncode != 0
    assert "holds a run already" in err
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
