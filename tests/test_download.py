"""The real command, against a server on this machine with the layout of the Hugging Face hub."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import HANGS, ROOT, environment

from vse_demo.data import FILES, download, open_dataset, read_image
from vse_demo.utils.files import FileError

pytestmark = pytest.mark.slow

PLACE = "/datasets/nlphuji/flickr30k/resolve/main/"


class Hub(ThreadingHTTPServer):
    """Serves the files of a folder; `trouble` is what goes wrong with its zip: `500`, or `cut` half-way."""

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.folder = folder
        self.trouble = ""
        self.sent: list[str] = []


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        content = self.file().read_bytes()
        trouble = self.server.trouble if self.file().suffix == ".zip" else ""
        if trouble == "500":
            self.send_error(500)
        elif trouble == "cut":
            self.answer(content[: len(content) // 2])
            self.close_connection = True
        else:
            self.answer(content)
            self.server.sent.append(self.file().name)

    def answer(self, body: bytes) -> None:
        content = self.file().read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(body)

    def file(self) -> Path:
        assert self.path.startswith(PLACE)
        return self.server.folder / self.path.removeprefix(PLACE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(hub_copy_folder) -> Iterator[Hub]:
    with Hub(hub_copy_folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def fetch(hub, start_python, tmp_path) -> Callable[[Path], tuple[int, str]]:
    """`fetch(folder)`: the exit code and the output of `vse-demo download` from that server."""
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip

    def run(folder: Path) -> tuple[int, str]:
        with start_python("-m", "vse_demo.cli", "download", "flickr30k", "--out", folder, **settings) as process:
            output = "".join(process.communicate(timeout=HANGS))
        return process.returncode, output

    return run


def test_a_downloaded_data_set_opens(fetch, hub, tmp_path):
    code, output = fetch(tmp_path / "new" / "flickr30k")
    assert (code, output) == (0, f"flickr30k is in {tmp_path / 'new' / 'flickr30k'}\n")
    assert hub.sent == list(FILES)
    dataset = open_dataset(tmp_path / "new" / "flickr30k")
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [4, 2, 2]
    assert read_image(dataset.split("test").images[1]).size == (48, 40)


@pytest.mark.parametrize(
    "trouble",
    [
        "500",
        "cut",
    ],
)
def test_a_failed_download_says_so_and_can_be_repeated(fetch, hub, tmp_path, trouble):
    table, archive = (tmp_path / "out" / name for name in FILES)
    hub.trouble = trouble
    code, output = fetch(tmp_path / "out")
    assert code == 1
    assert "vse-demo: cannot fetch flickr30k-images.zip of nlphuji/flickr30k: " in output
    assert "run the command again" in output
    assert "Traceback" not in output
    assert table.read_bytes() == (hub.folder / table.name).read_bytes()
    assert not archive.exists()

    hub.trouble = ""
    assert fetch(tmp_path / "out")[0] == 0
    assert archive.read_bytes() == (hub.folder / archive.name).read_bytes()
    assert hub.sent == list(FILES)  # each once


def test_an_unknown_data_set_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="unknown data set 'coco'; choose one of flickr30k"):
        download("coco", tmp_path)


def test_a_download_that_lacks_pictures_is_refused(hub_copy_folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: None)  # all is there already
    download("flickr30k", hub_copy_folder)
    with zipfile.ZipFile(hub_copy_folder / "flickr30k-images.zip", "w"):
        pass
    with pytest.raises(FileError, match="4 of 4 images are not in"):
        download("flickr30k", hub_copy_folder)


def test_the_script_for_pretrained_parts_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "msgpack.py").write_text("raise ImportError('not installed')")
    command = [sys.executable, ROOT / "scripts" / "pretrained.py", "--out", tmp_path / "out"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(PYTHONPATH=str(tmp_path)))
    assert run.returncode == 1
    assert run.stderr.strip().endswith('pip install "vse_demo[pretrained]", or msgpack')
    assert not (tmp_path / "out").exists()
