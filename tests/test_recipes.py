"""CONTRIBUTING is true: its names exist, its arrow is the one that is enforced, and its recipes work as written."""

import importlib
import re
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from support import COLOURS, ROOT, captions_of, paint

import vse_demo
from vse_demo import VSE, AdOpt, ModelConfig
from vse_demo.encoders import CachedFeatures, WordTokenizer
from vse_demo.losses import OBJECTIVES
from vse_demo.model import InteractionModel
from vse_demo.model.dual import DualEncoder
from vse_demo.pooling import POOLINGS, build_pooling
from vse_demo.training import PairDataset, Trainer, make_config

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", TEXT)))
ROOMS = {path.stem for path in Path(vse_demo.__file__).parent.iterdir()}


def resolve(name: str) -> Any:
    """What a dotted name of the package stands for."""
    parts = name.removeprefix("vse_demo.").split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(["vse_demo", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[count:], module)
    raise AttributeError(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name.split(".")[0] in ROOMS and not name.endswith(".py")])
def test_a_name_in_a_walk_exists(name: str) -> None:
    resolve(name)


def test_names_of_the_glossary_and_files_exist() -> None:
    new = re.findall(r"^\| .+? \| (`.+?`) \| .+ \|$", TEXT.split("Names that changed")[1], re.MULTILINE)
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "vse_demo").rglob("*.py"))
    for name in re.findall(r"`(\w+)", " ".join(new)):
        assert re.search(rf"\b{name}\b", source), name
    for file in re.findall(r"`((?:vse_demo|tests|scripts)/[\w/]+\.py|[a-z]+\.(?:py|toml|txt))`", TEXT):
        assert (ROOT / file).exists() or file == "__init__.py", file


def test_every_room_is_in_the_map_and_the_arrow_is_the_one_that_is_enforced() -> None:
    rooms = {name for name in ROOMS if not name.startswith("_") and name != "py"}
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT.split("## The arrow")[0], re.MULTILINE)) == rooms
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    drawn = [line.strip(" └") for line in re.search(r"```\n(cli\n.*?)```", TEXT, re.DOTALL)[1].splitlines()]
    assert drawn == [layer.replace("vse_demo.", "") for layer in contracts[0]["layers"]]


def follow(recipe: str, **names: Any) -> dict[str, Any]:
    """Run the code of a recipe, with these names at hand."""
    exec(re.search(rf"### {recipe}\n.*?```python\n(.*?)```", TEXT, re.DOTALL)[1], names)
    return names


def make_model(**settings: Any) -> VSE:
    torch.manual_seed(0)
    config = ModelConfig(dim=8, vision="region", region_dim=6, word_dim=4, **settings)
    return VSE(config, WordTokenizer(list(COLOURS)))


def train_for_a_step(model: DualEncoder, pairs: PairDataset | None = None, **settings: Any) -> dict[str, float]:
    """The log of one step on painted images; every weight must have learned."""
    config = make_config("vse+2ad", {"batch_size": 4, "word_dropout": 0.0, **settings})
    trainer = Trainer(model, config)
    captions = [captions_of(image)[0] for image in range(4)]
    regions = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)).numpy()
    numbers = torch.arange(4).numpy()
    data = pairs or PairDataset(CachedFeatures(regions, numbers), model.tokenizer.encode(captions), numbers)
    batches = trainer.epoch_steps(data, 0)[0]
    row = trainer.train_step([trainer.inputs.make(data, batch, 0) for batch in batches], 0, 1e-3)
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)
    return row


def test_a_pooling_by_the_recipe_trains_and_ignores_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("vse_demo.pooling.aggregators"), "POOLINGS", added := dict(POOLINGS))
    monkeypatch.setattr("vse_demo.pooling.POOLINGS", added)
    follow("A pooling")
    pooling = build_pooling("powermean", 2, power=2.0)
    features = torch.tensor([[[3.0, 1.0], [4.0, 1.0], [torch.nan, 9.0]]])
    pooled = pooling(features, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(pooled, torch.tensor([[12.5**0.5, 1.0]]))
    assert train_for_a_step(make_model(pooling="powermean"))["loss"] > 0


def test_an_interaction_by_the_recipe_trains_and_ignores_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = importlib.import_module("vse_demo.interaction.registry")
    monkeypatch.setattr(registry, "INTERACTIONS", added := dict(registry.INTERACTIONS))
    monkeypatch.setattr("vse_demo.interaction.INTERACTIONS", added)
    follow("An interaction")
    config = ModelConfig(dim=8, vision="region", region_dim=6, word_dim=4, interaction="maximum")
    model = InteractionModel(config, WordTokenizer(list(COLOURS)))
    regions = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).numpy()
    together = model.similarity([regions], ["red", "red green blue black"])
    torch.testing.assert_close(model.similarity([regions], ["red"])[0], together[0, :1])
    words, cells = model.encode_texts(["red green"])[0], model.encode_images([regions])[0]
    cosines = torch.nn.functional.cosine_similarity(words[:, None], cells[None], dim=2)
    torch.testing.assert_close(model.similarity([regions], ["red green"])[0, 0], cosines.amax(1).mean())
    assert train_for_a_step(model)["loss"] > 0


def test_a_loss_by_the_recipe_trains_and_is_adopt_with_every_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("vse_demo.losses.registry"), "OBJECTIVES", added := dict(OBJECTIVES))
    monkeypatch.setattr("vse_demo.losses.OBJECTIVES", added)
    info_nce = follow("A loss")["InfoNCE"]
    images, texts = torch.nn.functional.normalize(torch.randn(2, 5, 8), dim=2)
    every = AdOpt("official", margin=0.0, fixed_k=4)(images, texts, torch.arange(5)).loss
    torch.testing.assert_close(info_nce()(images, texts, torch.arange(5)).loss, 2 * every)
    row = train_for_a_step(make_model(), objective="infonce", objective_options={"temperature": 0.1})
    assert row["loss"] > 0
    assert "k" not in row


def test_an_encoder_by_the_recipe_trains_and_ignores_padding() -> None:
    model = make_model()
    follow("An encoder", model=model)
    alone, padded = model.encode_texts(["red"]), model.encode_texts(["red", "red green blue black"])[:1]
    torch.testing.assert_close(alone, padded)
    assert train_for_a_step(model)["loss"] > 0


def test_a_data_layout_by_the_recipe_is_read_and_trained_on(tmp_path: Path) -> None:
    lines = ["split,file,caption"]
    for image in range(4):
        paint(image).save(tmp_path / f"{image}.jpg")
        lines += [f'train,{image}.jpg,"{caption}"' for caption in captions_of(image)[:2]]
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    data = follow("A data layout")["open_table"](tmp_path).split("train")
    assert data.captions_of(3) == captions_of(3)[:2]
    torch.manual_seed(0)
    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4)
    model = VSE(config, WordTokenizer(list(COLOURS)))
    pairs = PairDataset.make(data, model.tokenizer, model.image_encoder, cache=tmp_path / "cache")
    assert train_for_a_step(model, pairs)["loss"] > 0
    with pytest.raises(vse_demo.utils.files.FileError, match=r"captions.csv is not a table of captions"):
        follow("A data layout")["open_table"](tmp_path / "none")


def test_every_new_name_of_the_changelog_exists() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("### Names that changed")[1]
    files = [path for folder in ("vse_demo", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    source = " ".join(path.stem + " " + path.parent.name + " " + path.read_text(encoding="utf-8") for path in files)
    new = [name for line in changes.splitlines() for part in line.split(" -> ")[1:] for name in code_names(part)]
    assert len(new) > 50
    for name in new:
        assert re.search(rf"\b{name}\b", source), name


def code_names(text: str) -> list[str]:
    """The Python names in backticks, each by itself: `losses.terms.LossTerms` has three."""
    spans = [span for span in re.findall(r"`([^`]+)`", text) if not span.startswith(("--", "make", "python"))]
    return [name for span in spans for name in re.findall(r"[A-Za-z_]\w*", span.split("[")[0])]
