"""Kills, full disks, read-only folders, two at once and Ctrl-C: nothing lost or half-written, the next run goes on."""

import contextlib
import errno
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support import HANGS, wait_until
from test_download import Hub, hub  # noqa: F401 - a fixture

from vse_demo import VSE, Gallery, ModelConfig, open_dataset
from vse_demo.app.collection import open_service
from vse_demo.cli import main
from vse_demo.encoders import RowFile, WordTokenizer
from vse_demo.training import Run
from vse_demo.utils.files import STALE, FileError, write_atomic, write_folder

pytestmark = pytest.mark.slow

KILLS = {"extract": 3, "train": 5, "index": 3, "download": 2}  # how often each is killed, at moments drawn from a seed
INDEX_WRITES = 6  # files that indexing writes or renames at least
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "model"
    config = ModelConfig(dim=12, backbone="test_efficientnet", image_size=64, word_dim=8)
    VSE(config, WordTokenizer(["red", "green", "left", "right"])).save_pretrained(folder)
    return folder


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders that killed processes have left."""
    return [path.name for path in folder.rglob(".*") if len(path.name) > 33 and path.name[-33] == "."]


def age(folder: Path) -> None:
    """Let an hour pass for what was left."""
    for path in folder.rglob(".*"):
        os.utime(path, (time.time() - 3600,) * 2)


KILLER = """
import os, signal, sys

def count(event, details):
    name = str(details[1] if event == "os.rename" else details[0]) if details else ""
    if not name.startswith(os.environ["KILL_IN"]):
        return
    writes = event == "open" and (set(details[1] or "") & set("wax+") or not details[1] and details[2] & os.O_CREAT)
    if writes or event == "os.rename":
        count.left -= 1
        if count.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

count.left = int(os.environ["KILL_AT"])
sys.addaudithook(count)
"""
COMMAND = "import sys; from vse_demo.cli import main; sys.exit(main(sys.argv[1:]))"


def kill(start: Start, program: str, arguments: list[object], folder: Path, at: int, **more: str) -> None:
    """Run a program that kills itself as `kill -9` does, just before it writes or renames its nth file in `folder`.

    So the moment does not depend on how fast the machine is.
    """
    with start("-c", KILLER + program, *arguments, KILL_IN=str(folder), KILL_AT=str(at), **more) as process:
        errors = process.communicate(timeout=600)[1]
    assert process.returncode == -signal.SIGKILL, errors


def finish(start: Start, program: str, arguments: list[object], **more: str) -> None:
    """Run a program to its end."""
    with start("-c", program, *arguments, **more) as process:
        errors = process.communicate(timeout=600)[1]
    assert process.returncode == 0, errors


# Kill -9


TRAINING = [
    "--epochs", 3, "--batch-size", 4, "--dim", 8, "--word-dim", 4, "--backbone", "test_efficientnet",
    "--image-size", 64, "--min-word-count", 1, "--backbone-weights", "random", "--checkpoint-steps", 1,
    "--ema-decay", 0.9,
]  # fmt: skip


def test_a_training_that_is_killed_again_and_again_ends_with_the_same_weights(
    karpathy_folder: Path, tmp_path: Path, start_python: Start
) -> None:
    command = ["train", "--data", karpathy_folder, "--cache", tmp_path / "features", "--out"]
    whole, cut, moments = tmp_path / "whole", tmp_path / "cut", random.Random(1)
    finish(start_python, COMMAND, [*command, whole, *TRAINING])
    for _ in range(KILLS["train"]):
        more = ["--resume"] if (cut / "config.json").exists() else TRAINING
        kill(start_python, COMMAND, [*command, cut, *more], cut, moments.randrange(4, 20))
    assert 0 < Run(cut).resume("cpu").step < 30
    finish(start_python, COMMAND, [*command, cut, "--resume"])
    one, other = (VSE.from_pretrained(run / "best").state_dict() for run in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [len((run / "metrics.jsonl").read_text().splitlines()) for run in (whole, cut)]
    assert rows[0] == rows[1]  # none twice, none lost


def test_an_index_that_is_killed_keeps_the_old_gallery_until_the_new_one_is_whole(
    model: Path, karpathy_folder: Path, tmp_path: Path, start_python: Start
) -> None:
    folder = tmp_path / "galleries"
    gallery = folder / "gallery"
    command = ["index", "--model", model, "--data", karpathy_folder, "--gallery", gallery]
    assert main([str(each) for each in [*command, "--split", "val"]]) == 0
    loaded = VSE.from_pretrained(model)
    for moment in random.Random(2).sample(range(1, INDEX_WRITES + 1), KILLS["index"]):
        kill(start_python, COMMAND, command, folder, moment)
        assert len(Gallery.load(gallery, loaded)) in (4, 16)  # the old one or the new one
    assert main([str(each) for each in command]) == 0
    assert len(Gallery.load(gallery, loaded)) == 16
    age(tmp_path)
    Gallery.load(gallery, loaded).save(gallery)
    assert leftovers(tmp_path) == []


def test_a_download_that_is_killed_goes_on(hub: Hub, start_python: Start, tmp_path: Path) -> None:  # noqa: F811
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    command = ["download", "flickr30k", "--out", tmp_path / "out"]
    moments = random.Random(3)
    for _ in range(KILLS["download"]):  # whenever that is, and be it after the end
        with start_python("-c", COMMAND, *command, **settings) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=moments.uniform(2, 4))
            process.kill()
    finish(start_python, COMMAND, command, **settings)
    dataset = open_dataset(tmp_path / "out")
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [4, 2, 2]


def test_an_extraction_that_is_killed_again_and_again_is_whole_in_the_end(
    images: list[Path], tmp_path: Path, start_python: Start, tiny_encoder
) -> None:
    from test_features import SLOW_EXTRACTION

    from vse_demo.encoders import cached_features

    command = [images[0].parent, tmp_path / "features", 0]
    moments = random.Random(4)
    for _ in range(KILLS["extract"]):
        kill(start_python, SLOW_EXTRACTION, command, tmp_path / "features", moments.randrange(4, 8))
    finish(start_python, SLOW_EXTRACTION, command)
    features = cached_features(tiny_encoder, images, tmp_path / "features")[range(10)]
    undisturbed = cached_features(tiny_encoder, images, tmp_path / "other")[range(10)]
    torch.testing.assert_close(features, undisturbed, rtol=1e-3, atol=1e-5)


def test_what_killed_processes_left_is_cleared_up_when_it_is_old(tmp_path: Path) -> None:
    for name in ("note.txt", "model"):
        fresh, stale = (tmp_path / f".{name}.{digit * 32}" for digit in "ab")
        for path in (fresh, stale):
            path.mkdir() if name == "model" else path.touch()
        os.utime(stale, (time.time() - STALE - 1,) * 2)
    (tmp_path / ".note.txt.swp").touch()
    write_atomic(tmp_path / "note.txt", "new")
    with write_folder(tmp_path / "model"):
        pass
    left = [".model.aaaaa", ".note.txt.aa", ".note.txt.sw", "model", "note.txt"]
    assert sorted(path.name[:12] for path in tmp_path.iterdir()) == left


# A full disk


def fill_disk(patch: pytest.MonkeyPatch, room: int) -> None:
    """Let so many files be opened for writing, and none after them."""
    open_path, left = Path.open, [None] * room

    def open_if_there_is_room(path: Path, mode: str = "r", *rest: object, **more: object) -> object:
        if any(sign in mode for sign in "wax"):
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            left.pop()
        return open_path(path, mode, *rest, **more)

    patch.setattr(Path, "open", open_if_there_is_room)


SAVES: dict[str, Callable[[VSE, Path], None]] = {
    "model": lambda model, folder: model.save_pretrained(folder),
    "gallery": lambda model, folder: Gallery(model, [], [], []).save(folder),
    "file": lambda model, folder: write_atomic(folder / "a", "new"),
}


@pytest.mark.parametrize("room", range(5))
@pytest.mark.parametrize("what", SAVES)
def test_a_full_disk_leaves_the_good_copy_and_nothing_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, room: int
) -> None:
    loaded, folder = VSE.from_pretrained(model), tmp_path / "place" / "saved"
    SAVES[what](loaded, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    with monkeypatch.context() as patch:
        fill_disk(patch, room)
        try:
            SAVES[what](loaded, folder)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before
    assert [path.name for path in folder.parent.iterdir()] == ["saved"]
    SAVES[what](loaded, folder)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    karpathy_folder: Path, tmp_path: Path, tiny_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--data", karpathy_folder, "--out", tiny_disk / "run", "--cache", tmp_path / "cells"]
    (tiny_disk / "full").write_bytes(bytes(7_000_000))
    assert main([str(each) for each in [*command, *TRAINING]]) == 1
    assert "vse-demo: [Errno 28] No space left on device" in capsys.readouterr().err
    assert leftovers(tiny_disk) == []
    (tiny_disk / "full").unlink()
    more = ["--resume"] if (tiny_disk / "run" / "config.json").exists() else TRAINING
    assert main([str(each) for each in [*command, *more]]) == 0
    assert Run(tiny_disk / "run").resume("cpu").step == 30


# A read-only folder


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that not even root can write to."""
    place = tmp_path / "read-only"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], capture_output=True).returncode:
        place.chmod(0o500)
        if os.access(place, os.W_OK):
            pytest.skip("nothing is read-only here")
    yield place
    subprocess.run(["umount", "-l", place], capture_output=True)


def test_a_read_only_folder_is_named(
    model: Path, karpathy_folder: Path, tmp_path: Path, read_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = ["index", "--model", model, "--data", karpathy_folder, "--gallery", read_only / "gallery"]
    train = ["train", "--data", karpathy_folder, "--out", read_only / "run", "--cache", tmp_path / "cells", *TRAINING]
    cached = ["train", "--data", karpathy_folder, "--out", tmp_path / "run", "--cache", read_only / "cells", *TRAINING]
    for command in (index, train, cached):
        assert main([str(each) for each in command]) == 1
        errors = capsys.readouterr().err
        assert str(read_only) in errors.splitlines()[-1]
        assert "Traceback" not in errors


def test_a_cache_that_cannot_be_written_is_named(
    model: Path, karpathy_folder: Path, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VSE_DEMO_CACHE", str(read_only))
    with pytest.raises(FileError, match=r"read-only/galleries cannot be a cache .*: set VSE_DEMO_CACHE"):
        open_service(karpathy_folder, [model]).gallery()


# Two at once


def test_two_that_index_into_the_same_gallery_lose_nothing(
    model: Path, karpathy_folder: Path, tmp_path: Path, start_python: Start
) -> None:
    gallery = tmp_path / "gallery"
    command = [
        "-m",
        "vse_demo.cli",
        "index",
        "--model",
        model,
        "--data",
        karpathy_folder,
        "--gallery",
        gallery,
        "--split",
    ]
    with start_python(*command, "val") as one, start_python(*command, "test") as other:
        errors = one.communicate(timeout=120)[1] + other.communicate(timeout=120)[1]
    assert (one.returncode, other.returncode) == (0, 0), errors
    assert sorted(Gallery.load(gallery, VSE.from_pretrained(model)).names) == sorted(f"{n}.jpg" for n in range(8, 16))


def test_rows_of_two_writers_do_not_mix(tmp_path: Path) -> None:
    rows = RowFile(tmp_path, (2, 3))
    cells = torch.arange(12.0).view(2, 2, 3)
    rows.append(["a" * 32, "b" * 32], cells)
    with rows.rows_file.open("ab") as file:
        file.write(b"half a row")
    rows.drop_partial_rows()
    rows.append(["c" * 32], cells[:1])
    assert rows.sound(["a" * 32, "c" * 32, "d" * 32]) == {"a" * 32: 0, "c" * 32: 2}
    assert np.array_equal(rows.map()[2], cells[0].numpy())


# Ctrl-C in a notebook


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_training_that_is_interrupted_in_a_notebook_goes_on_in_the_next_cell(
    karpathy_folder: Path, tmp_path: Path
) -> None:
    from jupyter_client.manager import start_new_kernel

    first = f"""
from vse_demo import make_config, train
config = make_config("vse+2ad", dict(epochs=200, batch_size=4, dim=8, word_dim=4, backbone="test_efficientnet",
    image_size=64, min_word_count=1, backbone_weights="random", checkpoint_steps=1))
train(config, {str(karpathy_folder)!r}, {str(tmp_path / "run")!r})
"""
    then = f"""
from vse_demo.training import Run
run = Run(__import__("pathlib").Path({str(tmp_path / "run")!r}))
step = run.resume("cpu").step
told = step > 0 and (run.folder / "best" / "model.safetensors").exists()
"""
    manager, client = start_new_kernel(env={**os.environ, "VSE_DEMO_CACHE": str(tmp_path / "cells")})
    try:
        client.execute(first)
        wait_until((tmp_path / "run" / "best" / "model.safetensors").exists)
        manager.interrupt_kernel()
        assert client.get_shell_msg(timeout=HANGS)["content"]["ename"] == "KeyboardInterrupt"
        reply = {"status": "aborted"}  # for a moment a kernel throws away what comes after a cell that failed
        while reply["status"] == "aborted":
            client.execute(then, user_expressions={"told": "told"})
            reply = client.get_shell_msg(timeout=HANGS)["content"]
        assert reply["status"] == "ok", reply
        assert reply["user_expressions"]["told"]["data"]["text/plain"] == "True"
        assert leftovers(tmp_path) == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_ctrl_c_in_the_shell_says_stopped_and_resumes(
    karpathy_folder: Path, tmp_path: Path, start_python: Start
) -> None:
    command = ["train", "--data", karpathy_folder, "--out", tmp_path / "run", "--cache", tmp_path / "cells"]
    with start_python("-m", "vse_demo.cli", *command, *TRAINING, "--epochs", 500) as process:
        for _ in range(10 * HANGS):
            if (tmp_path / "run" / "best").exists():
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=HANGS)[1]
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "vse-demo: stopped"
    assert Run(tmp_path / "run").resume("cpu").step > 0
