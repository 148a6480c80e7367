"""The recipes in full size: every one is built as it is and takes a real step on a few pictures."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vse_demo import PRESETS, AdOpt, AdPool, ModelConfig, make_config, open_dataset
from vse_demo.model.config import write_config
from vse_demo.training import CAPTIONS, IMAGES, PairDataset, Trainer, build_model, validate
from vse_demo.utils.files import FileError


@pytest.fixture(scope="module")
def wide_bert(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT-base but for its depth and its vocabulary: 2 layers of 768 dimensions with random weights."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("wide-bert")
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    tokenizer.save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory, picture_captions: Callable[[int], list[str]]) -> Path:
    """36 regions of 2048 channels for each of four pictures."""
    folder = tmp_path_factory.mktemp("regions")
    np.save(folder / "train_ims.npy", np.random.default_rng(0).random((4, 36, 2048), dtype=np.float32))
    captions = [caption for seed in range(4) for caption in picture_captions(seed)]
    (folder / "train_caps.txt").write_text("\n".join(captions))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("captions", CAPTIONS)
@pytest.mark.parametrize("images", IMAGES)
def test_the_papers_recipes_train_in_full_size(
    images: str, captions: str, regions: Path, karpathy_folder: Path, wide_bert: Path
) -> None:
    preset = PRESETS[f"{images}-{captions}"]
    given = {"batch_size": 4, "min_word_count": 1, "freeze_epochs": 0}
    given |= {"backbone_weights": "random"} if "backbone_weights" in preset else {}
    given |= {"text_backbone": str(wide_bert)} if "text_backbone" in preset else {}
    config = make_config(f"{images}-{captions}", given)
    data = open_dataset(regions if images == "region" else karpathy_folder).split("train")
    model, config = build_model(config, data.captions)
    assert (model.dim, config.epochs, config.learning_rate) == (1024, 25, 5e-4)
    trainer = Trainer(model, config)
    pairs = PairDataset.make(data, model.tokenizer, model.image_encoder, config.finetune_image)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    (batch,) = trainer.epoch_steps(pairs, 0)[0]
    row = trainer.train_step([trainer.inputs.make(pairs, batch, 0)], 0, config.learning_rate)
    assert np.isfinite(row["loss"])
    moved = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    for part in ("image_encoder.backbone", "text_encoder.backbone", "image_encoder.projection", "text_pooling"):
        weights = [name for name in before if name.startswith(part)]
        assert set(weights[:1] + weights[-1:]) <= set(moved), part  # from the first layer to the last
    assert validate(model, pairs, batch_size=2)["images"] == len(data)


def test_the_small_recipes_are_those_of_their_runs() -> None:
    for name in ("bigru", "minilm"):
        config = make_config(f"small-{name}", {})
        log = json.loads((Path(__file__).parent.parent / "assets" / "runs" / f"small-{name}.json").read_text())
        for key in (
            "objective",
            "epochs",
            "text_epochs",
            "batch_size",
            "captions_per_image",
            "learning_rate",
            "ema_decay",
        ):
            assert log["config"][key] == getattr(config, key), key
        assert log["config"]["model"]["dim"] == config.model.dim


@pytest.mark.parametrize(("preset", "variant"), [("vse+2ad", "official"), ("vse+2ad-paper", "paper")])
def test_a_method_is_of_one_source_on_both_sides(preset: str, variant: str) -> None:
    config = make_config(preset, {"vision": "region"})
    model, config = build_model(config, ["a dog"])
    trainer = Trainer(model, config)
    assert {model.image_pooling.variant, model.text_pooling.variant, trainer.objective.variant} == {variant}


def test_what_is_not_said_is_as_in_the_authors_code() -> None:
    assert AdPool(4).variant == AdOpt().variant == "official"


def test_options_are_added_to_those_of_the_preset_and_go_with_their_part() -> None:
    config = make_config("vse+2ad-paper", {"pooling_options": {"token": False}, "objective_options": {"fixed_k": 3}})
    assert config.model.pooling_options == {"variant": "paper", "token": False}
    assert config.objective_options == {"variant": "paper", "fixed_k": 3}
    config = make_config("vse+2ad-paper", {"pooling": "mean", "objective": "hard"})
    assert config.model.pooling_options == config.objective_options == {}
    config = make_config("vse+2ad", {"pooling": "kmax", "pooling_options": {"k": 2}})
    assert config.model.pooling_options == {"k": 2}


@pytest.mark.parametrize("preset", ["vse+2ad", "grid-bigru", "patch-bigru"])
def test_backbone_weights_of_a_saved_model_bring_its_backbone_along(preset: str, tmp_path: Path) -> None:
    stored = ModelConfig(backbone="test_efficientnet", image_size=64, image_mean=(0.1, 0.2, 0.3), image_std=(1, 1, 1))
    write_config(stored, tmp_path)
    model = make_config(preset, {"backbone_weights": str(tmp_path), "dim": 8}).model
    seen = ("vision", "backbone", "image_size", "image_mean", "image_std")
    assert [getattr(model, name) for name in seen] == [getattr(stored, name) for name in seen]
    assert model.dim == 8
    assert make_config(preset, {"backbone_weights": str(tmp_path), "image_size": 96}).model.image_size == 96
    assert make_config("region-bigru", {"backbone_weights": str(tmp_path)}).model.vision == "region"
    assert make_config(preset, {"backbone_weights": "random"}).model.backbone != "test_efficientnet"


def test_backbone_weights_of_a_model_without_a_backbone_are_refused(tmp_path: Path) -> None:
    write_config(ModelConfig(vision="region"), tmp_path)
    with pytest.raises(FileError, match="has no backbone"):
        make_config("vse+2ad", {"backbone_weights": str(tmp_path)})
