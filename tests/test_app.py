"""The demo page, through the same API that its buttons use."""

import gc
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from gradio_client import Client, handle_file

from vse_demo import VSE, ModelConfig
from vse_demo.text import WordTokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))
import app

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of gradio_client


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory, write_karpathy: Callable[..., Path]) -> Path:
    return write_karpathy(tmp_path_factory.mktemp("app") / "data")


@pytest.fixture(scope="module")
def client(data_folder: Path, start_python: Callable[..., subprocess.Popen[str]]) -> Iterator[Client]:
    """A client of the demo, which runs as a program of its own on a small random model."""
    torch.manual_seed(0)
    config, model = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=8), data_folder / "model"
    VSE(config, WordTokenizer(["red", "left"])).save_pretrained(model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = start_python(app.__file__, "--model", model, "--data", data_folder, "--port", port)
    for _ in range(600):
        assert server.poll() is None, server.communicate()[1]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    client = Client(f"http://127.0.0.1:{port}", verbose=False)
    yield client
    client.close()
    server.kill()
    server.communicate()
    del client
    gc.collect()  # what the client leaves open is warned about here, where it is expected


def test_a_sentence_finds_five_pictures(client: Client) -> None:
    found = client.predict("red on the left", api_name="/find_images")
    assert len(found) == 5
    assert all(Path(item["image"]).exists() for item in found)


def test_a_picture_finds_five_captions(client: Client, data_folder: Path) -> None:
    found = client.predict(handle_file(data_folder / "images" / "3.jpg"), api_name="/find_captions")
    assert len(found["data"]) == 5


def test_an_empty_sentence_gets_a_hint(client: Client) -> None:
    with pytest.raises(Exception, match="Type a sentence first"):
        client.predict("  ", api_name="/find_images")


def test_without_a_model_the_app_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_models(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    monkeypatch.setattr(app, "shipped", no_models)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    with pytest.raises(SystemExit, match="give --model RUN/best"):
        app.main()
