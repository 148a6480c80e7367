"""Models by name: those that come along, folders, objects, and repositories of a hub (here a server of our own)."""

import base64
import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

import vse_demo
from vse_demo import VSE, Ensemble, ModelConfig, list_models, load_gallery, load_model
from vse_demo.encoders import WordTokenizer
from vse_demo.model.names import find_models, lasting_name
from vse_demo.utils.files import FileError
from vse_demo.utils.paths import shipped

COMMIT = "0" * 40


class Hub(ThreadingHTTPServer):
    """The part of the Hugging Face hub that fetches and takes models: files of a commit, by repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, dict[str, bytes]] = {}
        self.sent: list[str] = []


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if found := re.fullmatch(r"/api/models/([\w-]+/[\w-]+)(?:/revision/\w+)?", self.path.split("?")[0]):
            files = self.server.files.get(found[1])
            if files is None:
                return self.refuse()
            names = [{"rfilename": name} for name in files]
            return self.answer({"id": found[1], "sha": COMMIT, "siblings": names, "private": False, "tags": []})
        if found := re.fullmatch(r"/api/models/([\w-]+/[\w-]+)/tree/\w+", self.path.split("?")[0]):
            files = self.server.files[found[1]]
            rows = [{"type": "file", "path": name, "size": len(data), "oid": COMMIT} for name, data in files.items()]
            return self.answer(rows)
        if found := re.fullmatch(r"/([\w-]+/[\w-]+)/resolve/\w+/(.+)", self.path):
            data = self.server.files.get(found[1], {}).get(found[2])
            if data is None:
                return self.refuse()
            if self.command == "GET":
                self.server.sent.append(found[2])
            return self.send(data)
        return self.refuse()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            about = json.loads(body)
            name = "/".join(filter(None, [about.get("organization"), about["name"]]))
            self.server.files.setdefault(name, {})
            return self.answer({"url": f"{self.server.address}/{name}"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if found := re.match(r"/api/models/([\w-]+/[\w-]+)/commit/", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    data = base64.b64decode(line["value"]["content"])
                    self.server.files[found[1]][line["value"]["path"]] = data
            return self.answer({"commitOid": COMMIT, "commitUrl": f"{self.server.address}/{found[1]}/commit/{COMMIT}"})
        return self.refuse()

    def answer(self, content: object) -> None:
        self.send(json.dumps(content).encode())

    def send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(hub: Hub, start_python: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """`ask(arguments …)`: the exit code and the output of Python that sees that hub."""
    settings = {
        "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip

    def run(*arguments: object) -> tuple[int, str]:
        with start_python(*arguments, **settings) as process:
            output = "".join(process.communicate(timeout=300))
        return process.returncode, output

    return run


def small_model() -> VSE:
    torch.manual_seed(0)
    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4)
    return VSE(config, WordTokenizer(["a", "red", "field"])).eval()


@pytest.mark.slow
def test_a_model_goes_to_the_hub_and_comes_back(hub: Hub, ask: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    model = small_model()
    model.save_pretrained(tmp_path / "model")
    send = f"from vse_demo import VSE; print(VSE.from_pretrained({str(tmp_path / 'model')!r}).push_to_hub('me/small'))"
    code, output = ask("-c", send)
    assert code == 0, output
    assert output.splitlines()[-1] == f"{hub.address}/me/small/commit/{COMMIT}"
    hub.files["me/small"]["more.bin"] = b"a pickle, say: never fetched"
    for _ in range(2):  # the second time from the cache
        code, output = ask(
            "-c", "from vse_demo import VSE; print(VSE.from_pretrained('me/small@main', 'cpu').fingerprint())"
        )
        assert output.split()[-1] == model.fingerprint(), output
    assert sorted(set(hub.sent)) == sorted(hub.sent)
    assert "more.bin" not in hub.sent


@pytest.mark.slow
def test_a_repository_that_the_hub_does_not_have_gets_one_clear_line(ask: Callable[..., tuple[int, str]]) -> None:
    code, output = ask("-m", "vse_demo", "search", "a dog", "--gallery", "default", "--model", "me/nothing")
    assert code == 1
    assert "me/nothing is not a folder with a model" in output
    assert "grid-minilm" in output
    assert "the hub gave no model me/nothing" in output
    assert "Traceback" not in output


def test_the_models_that_come_along_are_found_by_name() -> None:
    assert list_models() == ["grid-minilm", "grid-bigru", "ensemble"]
    assert vse_demo.list_models is list_models
    assert find_models("ensemble") == [shipped("models") / "grid-minilm", shipped("models") / "grid-bigru"]
    with pytest.raises(FileError, match="ensemble is not one model but 2: name one of them, grid-minilm or grid-bigru"):
        VSE.from_pretrained("ensemble")
    with pytest.raises(FileError, match=r"grid-nothing is not a folder with a model, and none of .*grid-minilm"):
        VSE.from_pretrained("grid-nothing")


@pytest.mark.slow
def test_a_shipped_model_by_name_is_that_of_its_folder() -> None:
    by_name = VSE.from_pretrained("grid-bigru", device="cpu")
    assert by_name.fingerprint() == VSE.from_pretrained(shipped("models") / "grid-bigru").fingerprint()
    assert not by_name.training
    ensemble = load_model("ensemble")
    assert isinstance(ensemble, Ensemble)
    gallery = load_gallery("default", ["ensemble"])
    assert gallery.model.fingerprint() == ensemble.fingerprint()
    sentence = gallery.captions[0]
    assert gallery.search_images(sentence) == load_gallery(models="ensemble").search_images(sentence)


def test_a_folder_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small_model().save_pretrained("grid-minilm")
    small_model().save_pretrained("me/small")
    assert VSE.from_pretrained("grid-minilm").fingerprint() == small_model().fingerprint()
    assert VSE.from_pretrained("me/small").dim == 8
    assert lasting_name("grid-minilm") == str(tmp_path / "grid-minilm")
    assert lasting_name("grid-bigru") == "grid-bigru"


def test_an_object_of_python_is_a_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_models.py").write_text("from test_hub import small_model\nmade = small_model()\nnumber = 5\n")
    assert load_model("my_models:made").fingerprint() == small_model().fingerprint()
    assert load_model("my_models:small_model").fingerprint() == small_model().fingerprint()
    assert isinstance(load_model(["my_models:made", "my_models:made"]), Ensemble)
    with pytest.raises(ValueError, match="my_models:number is no model: it needs dim, encode_images"):
        load_model("my_models:number")
    with pytest.raises(ValueError, match="my_models:nobody: my_models has no nobody"):
        load_model("my_models:nobody")
    with pytest.raises(ValueError, match="no_such_module cannot be imported"):
        load_model("no_such_module:model")


def test_an_object_of_python_is_told_the_device_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_places.py").write_text(
        "from test_hub import small_model\nmade = small_model()\ndef told(device):\n    return made.to(device)\n"
    )
    assert str(load_model("my_places:told").device) == "cpu"
    assert str(load_model("my_places:told", "meta").device) == "meta"
    for name in ("made", "small_model"):
        with pytest.raises(ValueError, match=f"my_places:{name} is not told where to compute.* the device 'meta'"):
            load_model(f"my_places:{name}", "meta")


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    small_model().save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="device 'gpu' cannot be used here"):
        VSE.from_pretrained(tmp_path / "model", device="gpu")


def test_arrays_come_out_if_asked_for(images: list[Path]) -> None:
    model = small_model()
    for each in (model, Ensemble([model, model])):
        vectors = each.encode_images(images, convert_to_numpy=True)
        assert isinstance(vectors, np.ndarray)
        np.testing.assert_array_equal(vectors, each.encode_images(images).numpy())
        sentence = each.encode_texts("a red field", convert_to_numpy=True)
        assert sentence.shape == (1, each.dim)
        np.testing.assert_allclose(np.linalg.norm(sentence, axis=1), 1, rtol=1e-6)
