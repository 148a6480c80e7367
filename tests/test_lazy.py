"""Models of which a part is built, or that another runtime computes: the same vectors and the same name."""

from pathlib import Path

import pytest
import torch
from support import captions_of, paint

from vse_demo import VSE, Ensemble, ModelConfig, load_model
from vse_demo.cli import main
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer
from vse_demo.model import onnx_model
from vse_demo.model.lazy import LazyModel
from vse_demo.model.onnx_model import OnnxModel
from vse_demo.shipped import load_gallery, load_shipped
from vse_demo.utils.files import FileError

IMAGES = [paint(seed) for seed in range(3)]


@pytest.fixture(params=["bigru", "bert", "regions"])
def folder(request: pytest.FixtureRequest, bert_folder: Path, tmp_path: Path) -> Path:
    """A saved model with weights in half precision."""
    torch.manual_seed(0)
    settings = {"dim": 8, "backbone": "test_efficientnet", "image_size": 64, "word_dim": 4}
    words = WordTokenizer.from_captions(captions_of(3), 1)
    if request.param == "bert":
        config = ModelConfig(**settings, text="bert", text_config=TransformerText.read_config(str(bert_folder)))
        model = VSE(config, SubwordTokenizer.from_pretrained(str(bert_folder)))
    elif request.param == "regions":
        model = VSE(ModelConfig(dim=8, vision="region", region_dim=6, word_dim=4), words)
    else:
        model = VSE(ModelConfig(**settings), words)
    model.eval().save_pretrained(tmp_path / "model", half=True)
    return tmp_path / "model"


def items_of(model: VSE) -> list:
    return IMAGES if model.image_encoder.backbone is not None else list(torch.rand(3, 5, 6).numpy())


def test_a_lazy_model_is_the_model(folder: Path) -> None:
    model, lazy = VSE.from_pretrained(folder), load_model(folder, lazy=True)
    assert isinstance(lazy, LazyModel)
    assert (lazy.dim, lazy.fingerprint()) == (model.dim, model.fingerprint())
    assert torch.equal(lazy.encode_texts(captions_of(1)), model.encode_texts(captions_of(1)))
    assert "whole" not in vars(lazy)  # sentences need no image encoder
    items = items_of(model)
    assert torch.equal(lazy.encode_images(items), model.encode_images(items))


def test_a_lazy_model_notices_what_is_broken(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"dim": 8', '"dim": 9'))
    with pytest.raises(FileError, match=r"config\.json is not as it was saved"):
        LazyModel(folder)
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(FileError, match=r"does not fit its config\.json"):
        LazyModel(folder).encode_texts(["red"])


def test_members_of_an_ensemble_can_be_lazy(folder: Path) -> None:
    whole, lazy = load_model([folder, folder]), load_model([folder, folder], lazy=True)
    assert isinstance(lazy, Ensemble)
    assert lazy.fingerprint() == whole.fingerprint()
    assert torch.equal(lazy.encode_texts(["red"]), whole.encode_texts(["red"]))


@pytest.mark.slow
def test_onnx_runtime_gives_the_vectors_of_the_model_and_exports_it_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("VSE_DEMO_CACHE", str(tmp_path / "cache"))
    model, fast = VSE.from_pretrained(folder), load_model(folder, backend="onnx")
    assert isinstance(fast, OnnxModel)
    assert (fast.dim, fast.fingerprint()) == (model.dim, model.fingerprint())
    texts, items = [*captions_of(1), "red", "a long sentence about a red field and a green one"], items_of(model)
    torch.testing.assert_close(fast.encode_texts(texts, batch_size=2), model.encode_texts(texts), atol=1e-5, rtol=0)
    sizes, run = list[int](), onnx_model._run
    with monkeypatch.context() as patch:
        patch.setattr(
            onnx_model, "_run", lambda session, *inputs: sizes.append(len(inputs[0])) or run(session, *inputs)
        )
        vectors = fast.encode_images(items, batch_size=2)
    torch.testing.assert_close(vectors, model.encode_images(items), atol=1e-5, rtol=0)
    assert sizes == ([2, 1] if model.config.vision == "region" else [1, 1, 1])  # a picture of a batch takes longer
    assert fast.encode_texts([]).shape == fast.encode_images([]).shape == (0, 8)

    monkeypatch.setattr(onnx_model, "VSE", None)  # which an export would need
    again = load_model(folder, backend="onnx")
    assert torch.equal(again.encode_texts(texts), fast.encode_texts(texts))
    next((tmp_path / "cache").rglob("texts.onnx")).write_bytes(b"broken")
    with pytest.raises(FileError, match=r"texts\.onnx is not as it was saved"):
        load_model(folder, backend="onnx")


def test_a_backend_that_cannot_be_used_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="unknown backend 'tensorrt'; choose one of torch, onnx"):
        load_model(folder, backend="tensorrt")
    with pytest.raises(ValueError, match="computes on CPUs"):
        load_model(folder, "cuda", backend="onnx")
    with pytest.raises(ValueError, match="runs models that were trained here"):
        load_model("package.module:Name", backend="onnx")
    with pytest.raises(ValueError, match="unknown backend 'tensorrt'"):
        load_shipped(backend="tensorrt")
    with pytest.raises(ValueError, match="computes on CPUs: leave out the device 'cuda', or choose torch"):
        load_gallery(device="cuda", backend="onnx")
    monkeypatch.setattr(onnx_model.importlib.util, "find_spec", lambda name: None)
    out = folder.parent / "vectors.npy"
    texts = folder.parent / "texts.txt"
    texts.write_text("red\n")
    arguments = ["embed", "--model", str(folder), "--texts", str(texts), "--out", str(out), "--backend", "onnx"]
    assert main(arguments) == 1
    assert 'pip install "vse_demo[export]"' in capsys.readouterr().err
    assert not out.exists()
