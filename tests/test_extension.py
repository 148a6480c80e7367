"""Parts of somebody's own: objects in Python, `package.module:Name` in the shell; what is stored imports nothing."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from vse_demo import VSE, ModelConfig, TrainConfig, build_objective, build_pooling, make_config, train
from vse_demo.cli import main
from vse_demo.data import Dataset, open_dataset
from vse_demo.encoders import WordTokenizer
from vse_demo.losses import LossTerms
from vse_demo.utils.files import FileError

MODULE = """
import torch
from torch import nn

from vse_demo.data import open_dataset
from vse_demo.losses import HardTriplet


class PowerMean(nn.Module):
    def __init__(self, dim, power=3.0):
        super().__init__()
        self.scale, self.power = nn.Parameter(torch.ones(dim)), power

    def forward(self, features, mask):
        values = features.clamp(min=1e-6) ** self.power * mask.unsqueeze(-1)
        return (values.sum(1) / mask.sum(1, keepdim=True)) ** (1 / self.power) * self.scale


class WordVectors(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=0)

    def forward(self, tokens, mask):
        return self.embedding(tokens)


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 16, 16)

    def forward(self, pixels):
        return self.convolution(pixels)


class Contrastive(nn.Module):  # knows nothing of K or epochs
    def __init__(self, temperature=0.1):
        super().__init__()
        self.temperature = temperature

    def forward(self, images, texts, image_ids):
        return nn.functional.cross_entropy(texts @ images.T / self.temperature, image_ids)


def distance(images, texts, image_ids, factor=1.0):
    return factor * (images[image_ids] - texts).square().mean()


def halves(folder):
    return open_dataset(folder)
"""
TINY = {
    "dim": 16, "word_dim": 8, "image_size": 64, "min_word_count": 1, "batch_size": 8, "epochs": 1,
    "backbone_weights": "random",
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, with `own_parts.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_parts.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("own_parts", None)


def test_every_part_is_trained_from_the_shell_and_loaded_again(own: Path, karpathy_folder: Path) -> None:
    settings = [text for name, value in TINY.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    parts = ["--pooling", "own_parts:PowerMean", "--pooling-options", "power=2", "--text", "own_parts:WordVectors",
             "--backbone", "own_parts:Patches", "--objective", "own_parts:Contrastive", "--layout", "own_parts:halves",
             "--objective-options", "temperature=0.2"]  # fmt: skip
    assert main(["train", "--data", str(karpathy_folder), "--out", "run", *settings, *parts]) == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert {"loss", "alignment", "uniformity"} <= set(rows[0])
    assert not {"k", "loss_i2t"} & set(rows[0])
    model = VSE.from_pretrained("run/best")
    assert type(model.image_pooling).__name__ == "PowerMean"
    assert model.image_pooling.power == 2
    assert model.similarity([*karpathy_folder.glob("images/*.jpg")][:2], "red").shape == (2, 1)


def test_every_part_is_an_object_in_python(own: Path, karpathy_folder: Path) -> None:
    import own_parts

    parts = {"pooling": own_parts.PowerMean, "text": own_parts.WordVectors, "backbone": own_parts.Patches}
    config = make_config("vse+2ad", {**TINY, **parts, "objective": own_parts.Contrastive})
    assert config.model.pooling == "own_parts:PowerMean"
    assert config.objective == "own_parts:Contrastive"
    dataset = open_dataset(karpathy_folder, layout=own_parts.halves)
    assert isinstance(dataset, Dataset)
    assert train(config, dataset, own / "run", progress=False)["images"] == 4
    with pytest.raises(FileError, match="already"):
        train(config, dataset, own / "run", progress=False)
    assert train(None, dataset, own / "run", resume=True, progress=False)["images"] == 4


def test_a_stored_model_imports_nothing_by_itself(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import own_parts

    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4, pooling=own_parts.PowerMean)
    VSE(config, WordTokenizer(["red"])).save_pretrained(own / "model")
    del sys.modules["own_parts"]
    with pytest.raises(FileError, match="pooling own_parts:PowerMean is not of this package: import own_parts first"):
        VSE.from_pretrained(own / "model")
    assert "own_parts" not in sys.modules
    stored = json.loads((own / "model" / "config.json").read_text())
    for evil in ("subprocess:Popen", "os:system", "torch:load"):
        (own / "model" / "config.json").write_text(json.dumps({**stored, "pooling": evil}))
        with pytest.raises(FileError, match=r"is not a class of torch\.nn\.modules\.module\.Module"):
            VSE.from_pretrained(own / "model")
    (own / "model" / "config.json").write_text(json.dumps(stored))
    arguments = ["index", "--model", "model", "--data", "default", "--split", "val", "--gallery", "g"]
    assert main(arguments) == 1
    assert "--import own_parts" in capsys.readouterr().err
    assert "own_parts" not in sys.modules


def test_a_gallery_imports_and_calls_nothing_by_itself(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_parts.py").write_text("from vse_demo import VSE\ndef make():\n    return VSE.from_pretrained('model')\n")
    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4)
    VSE(config, WordTokenizer(["red"])).save_pretrained(own / "model")
    index = ["index", "--model", "own_parts:make", "--data", "default", "--split", "val", "--gallery", "g"]
    assert main(index) == 0
    del sys.modules["own_parts"]
    search = ["search", "red", "--gallery", "g"]
    assert main(search) == 1
    assert "encoded by own_parts:make, which is imported only if you name it: --model own_parts:make" in (
        capsys.readouterr().err
    )
    assert "own_parts" not in sys.modules
    assert main([*search, "--model", "own_parts:make"]) == 0


def test_a_plain_function_is_a_loss(own: Path) -> None:
    images, texts = (nn.functional.normalize(torch.randn(4, 8), dim=1) for _ in range(2))
    loss = build_objective("own_parts:distance", factor=2.0)
    loss.start_epoch(3)
    terms = loss(images, texts, torch.arange(4))
    assert isinstance(terms, LossTerms)
    torch.testing.assert_close(terms.loss, 2 * (images - texts).square().mean())
    assert set(terms.as_floats()) == {"loss", "alignment", "uniformity"}
    with pytest.raises(ValueError, match="unknown option of objective own_parts:distance 'margin'"):
        build_objective("own_parts:distance", margin=1)
    with pytest.raises(ValueError, match="must be"):
        loss(images, texts[:, :3], torch.arange(4))


def test_a_pooling_is_told_only_what_it_asks_for(own: Path) -> None:
    features, mask = torch.rand(2, 3, 5), torch.ones(2, 3, dtype=torch.bool)
    pooled = build_pooling("own_parts:PowerMean", 5, power=1.0)(features, mask)
    torch.testing.assert_close(pooled, features.mean(1))
    with pytest.raises(ValueError, match="own_parts:PowerMean cannot use the options"):
        build_pooling("own_parts:PowerMean", 5, colour="red")
    with pytest.raises(ValueError, match="is not a class or function at the top of a module"):
        replace(TrainConfig(), objective=lambda images, texts, image_ids: texts.sum())
