"""Both encoders as programs for other runtimes: equal to the model, for any batch and length, or refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import captions_of

from vse_demo import VSE, ModelConfig
from vse_demo.cli import main
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer, pad_tokens
from vse_demo.model.export import export_folder, export_programs
from vse_demo.utils.files import FileError

pytestmark = pytest.mark.slow
onnxruntime = pytest.importorskip("onnxruntime")

SENTENCES = ["red", *captions_of(3), "a very long sentence about a red field and a green one, side by side"]


def make_model(kind: str, bert_folder: Path) -> VSE:
    torch.manual_seed(0)
    settings = {"dim": 8, "backbone": "test_efficientnet", "image_size": 64, "word_dim": 4}
    words = WordTokenizer.from_captions(captions_of(3), 1)
    if kind == "bert":
        config = ModelConfig(**settings, text="bert", text_config=TransformerText.read_config(str(bert_folder)))
        return VSE(config, SubwordTokenizer.from_pretrained(str(bert_folder))).eval()
    if kind == "regions":
        return VSE(ModelConfig(dim=8, vision="region", region_dim=6, word_dim=4), words).eval()
    if kind == "ngrams":
        words = WordTokenizer.from_captions(captions_of(3), 1, 50)
        return VSE(ModelConfig(**settings, ngram_buckets=50, pooling="mean"), words).eval()
    return VSE(ModelConfig(**settings, pooling_options={"variant": kind}), words).eval()


def inputs_of(model: VSE) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of other sizes than those that the exporter has seen."""
    torch.manual_seed(1)
    images = torch.rand(5, 3, 64, 64) if model.image_encoder.backbone is not None else torch.rand(5, 7, 6)
    return images, *pad_tokens(model.tokenizer.encode(SENTENCES))


@pytest.mark.parametrize("kind", ["paper", "official", "bert", "regions", "ngrams"])
def test_programs_give_the_vectors_of_the_model(kind: str, bert_folder: Path, tmp_path: Path) -> None:
    model = make_model(kind, bert_folder)
    images, tokens, mask = inputs_of(model)
    with torch.no_grad():
        expected = model(images, tokens, mask)
    programs = export_programs(model)
    found = programs["images"].module()(images), programs["texts"].module()(tokens, mask)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    files = export_folder(model, tmp_path / "out")
    assert [file.name for file in files] == ["images.onnx", "texts.onnx"]
    for file, theirs, given in zip(files, expected, ([images], [tokens, mask]), strict=True):
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        feed = {each.name: tensor.numpy() for each, tensor in zip(session.get_inputs(), given, strict=True)}
        np.testing.assert_allclose(session.run(None, feed)[0], theirs.numpy(), atol=1e-5)
        one = {name: array[:1] for name, array in feed.items()}
        np.testing.assert_allclose(session.run(None, one)[0], theirs.numpy()[:1], atol=1e-5)


def test_the_forward_pass_is_what_encoding_does(bert_folder: Path) -> None:
    model = make_model("official", bert_folder)
    _, tokens, mask = inputs_of(model)
    with torch.no_grad():
        torch.testing.assert_close(model(torch.rand(1, 3, 64, 64), tokens, mask)[1], model.encode_texts(SENTENCES))


@pytest.mark.parametrize("kind", ["official", "bert"])
@pytest.mark.parametrize("gradients", [torch.no_grad, torch.enable_grad])
def test_the_model_itself_can_be_exported(kind: str, gradients: type, bert_folder: Path) -> None:
    model = make_model(kind, bert_folder)
    inputs = inputs_of(model)
    with gradients():
        model(*inputs)  # its backbone may keep a network for inference from now on
        program = torch.export.export(model, inputs, strict=False)
    with torch.no_grad():
        for mine, theirs in zip(program.module()(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["official", "bert"])
def test_what_would_be_wrong_is_refused(kind: str, bert_folder: Path, tmp_path: Path) -> None:
    model = make_model(kind, bert_folder)
    with pytest.raises(RuntimeError, match="cannot be traced, only exported"):
        torch.jit.trace(model, inputs_of(model), check_trace=False)


def test_a_part_that_cannot_be_exported_leaves_nothing_behind(bert_folder: Path, tmp_path: Path) -> None:
    class Stubborn(torch.nn.Module):
        def forward(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return features[:, 0] if features.sum() > 0 else features[:, 1]

    model = make_model("paper", bert_folder)
    model.text_pooling = Stubborn()
    with pytest.raises(ValueError, match="the texts encoder cannot be exported"):
        export_folder(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_from_the_shell(bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model("official", bert_folder)
    model.save_pretrained(tmp_path / "model")
    arguments = ["export", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--format", "torch"]
    assert main(arguments) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "images.pt2", "texts.pt2", "vocabulary.json", "config.json", "SHA256SUMS",
    }  # fmt: skip
    program = torch.export.load(tmp_path / "out" / "texts.pt2").module()
    _, tokens, mask = inputs_of(model)
    torch.testing.assert_close(program(tokens, mask), model.encode_texts(SENTENCES), atol=1e-5, rtol=0)
    assert main(arguments) == 1
    assert "is there already" in capsys.readouterr().err
    with pytest.raises(FileError, match="is there already"):
        export_folder(model, tmp_path / "out")
