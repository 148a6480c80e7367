"""Two stages: the second model's order counts, and the command can do it."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vse_demo import VSE, ModelConfig, open_dataset
from vse_demo.cli import main
from vse_demo.encoders import WordTokenizer
from vse_demo.model import InteractionModel
from vse_demo.retrieval import Hit, rerank

HITS = [Hit(4, "four", 0.9), Hit(1, "one", 0.8), Hit(7, "seven", 0.7)]


class Lengths:
    """Likes what is long."""

    def similarity(self, images: list, texts: list) -> Tensor:
        return torch.tensor([[float(len(image) + len(text)) for text in texts] for image in images])


def test_the_second_model_decides_and_equals_keep_their_order() -> None:
    found = rerank(Lengths(), HITS, ["four", "one", "seven"], ["?"])
    assert [(hit.index, hit.item, hit.score) for hit in found] == [(7, "seven", 6.0), (4, "four", 5.0), (1, "one", 4.0)]
    same = rerank(Lengths(), HITS, ["image"], ["abc", "def", "ghi"])
    assert [hit.index for hit in same] == [4, 1, 7]
    assert rerank(Lengths(), [], [], ["?"]) == []


def test_pairs_must_be_as_many_as_results() -> None:
    with pytest.raises(ValueError, match="3 results need as many pairs, not 2 images and 1 texts"):
        rerank(Lengths(), HITS, ["a", "b"], ["?"])


def save(kind: type, folder: Path, **settings: str) -> Path:
    torch.manual_seed(0)
    sizes = {"dim": 8, "backbone": "test_efficientnet", "image_size": 64, "word_dim": 4, **settings}
    kind(ModelConfig(**sizes), WordTokenizer(["red", "green", "field", "left"])).save_pretrained(folder)
    return folder


@pytest.fixture
def gallery(karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Of a small first model, which lies beside it."""
    first, folder = save(VSE, tmp_path / "first"), tmp_path / "gallery"
    assert main(["index", "--model", str(first), "--data", str(karpathy_folder), "--gallery", str(folder)]) == 0
    capsys.readouterr()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "message"), [
    (["--add", "a red field"], "leave out all other terms"),
    (["--subtract", "a red field"], "leave out all other terms"),
    (["left", "--add", "a red field"], "leave out all other terms"),
    (["left", "--find", "captions"], "find images by a sentence, captions by an image"),
])  # fmt: skip
def test_the_command_says_what_it_cannot_rank_again(
    asked: list[str], message: str, gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = save(InteractionModel, tmp_path / "second", interaction="scan")
    assert main(["search", "--gallery", str(gallery), "--rerank", str(second), *asked]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", [VSE, InteractionModel])
def test_a_model_of_regions_is_no_second_stage(
    kind: type, gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interaction = "scan" if kind is InteractionModel else ""
    second = save(kind, tmp_path / "second", vision="region", interaction=interaction)
    assert main(["search", "--gallery", str(gallery), "--rerank", str(second), "left"]) == 1
    assert "second takes precomputed regions" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_ranks_again_by_an_interaction(
    gallery: Path, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second, data = save(InteractionModel, tmp_path / "second", interaction="scan"), open_dataset(karpathy_folder)
    command = ["search", "--gallery", str(gallery), "--rerank", str(second), "-k", "3", "--json"]
    assert main([*command, "a red field"]) == 0
    hits = json.loads(capsys.readouterr().out)
    files = {
        name: file
        for split in data.splits
        for name, file in zip(data.split(split).names, data.split(split).images, strict=True)
    }
    model = InteractionModel.from_pretrained(second)
    scores = {name: model.similarity([file], ["a red field"]).item() for name, file in files.items()}
    best = sorted(scores, key=lambda name: -scores[name])[:3]
    assert [hit["item"] for hit in hits] == best
    assert [hit["score"] for hit in hits] == pytest.approx([scores[name] for name in best], abs=1e-5)
    assert main([*command, "--image", str(files[best[0]])]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    files[best[0]].unlink()
    assert main([*command, "a red field"]) == 1
    assert "is not there: index its folder once more" in capsys.readouterr().err
