"""The parts of a similarity add up to it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vse_demo import VSE, ModelConfig, explain
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer

SENTENCE = "a red field beside a green field"


def make_model(variant: str = "paper", **settings: object) -> VSE:
    torch.manual_seed(0)
    sizes = {"dim": 16, "backbone": "test_efficientnet", "image_size": 96, "word_dim": 8}
    config = ModelConfig(**{**sizes, "pooling_options": {"variant": variant}, **settings})
    return VSE(config, WordTokenizer(["red", "green", "field", "a"])).eval()


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_parts_of_both_sides_add_up_to_the_score(variant: str, images: list[Path]) -> None:
    model = make_model(variant)
    for image in images[:3]:
        found = explain(model, image, SENTENCE)
        assert found.score == pytest.approx(float(model.similarity([image], [SENTENCE])), abs=1e-6)
        assert float(found.image.parts.sum()) == pytest.approx(found.score, abs=1e-5)
        assert float(found.text.parts.sum()) == pytest.approx(found.score, abs=1e-5)


@pytest.mark.parametrize("options", [{"token": False}, {"embedding": False}, {"balance": [0.3, 0.7]}])
def test_they_add_up_with_a_level_off_or_a_fixed_balance(options: dict[str, object], images: list[Path]) -> None:
    found = explain(make_model(pooling_options=options), images[0], SENTENCE)
    assert float(found.image.parts.sum()) == pytest.approx(found.score, abs=1e-5)
    assert float(found.text.parts.sum()) == pytest.approx(found.score, abs=1e-5)
    assert sum(found.image.balance) == pytest.approx(1)


def test_every_word_and_every_cell_has_its_part(images: list[Path]) -> None:
    found = explain(make_model(), images[0], SENTENCE)
    assert found.words == SENTENCE.split()
    assert len(found.text.parts) == len(found.text.rank_weights) == 7
    assert found.heat_map.shape == (3, 3)
    assert float(found.image.rank_weights.sum()) == pytest.approx(1, abs=1e-5)


def test_taking_away_what_a_row_adds_leaves_the_rest(images: list[Path]) -> None:
    """Recompute one cell's part from the definition, value by value."""
    model = make_model()
    found = explain(model, images[0], SENTENCE)
    extracted = model.read_image_features([images[0]]).clone()  # an ordinary tensor, outside inference mode
    mask = torch.ones(extracted.shape[:2], dtype=torch.bool)
    features = model.image_encoder(extracted, mask).detach()
    pooled, trace = model.image_pooling(features, mask, return_trace=True)
    text = model.encode_texts([SENTENCE])[0].numpy()
    weights, norm = trace.input_weights()[0].detach().numpy(), pooled.norm().item()
    part = sum(weights[4, d] * features[0, 4, d].item() * text[d] for d in range(16)) / norm
    assert float(found.image.parts[4]) == pytest.approx(part, abs=1e-6)


def test_subwords_of_a_bert_have_parts_too(bert_folder: Path) -> None:
    text_config = TransformerText.read_config(str(bert_folder))
    config = ModelConfig(dim=16, vision="region", region_dim=6, text="bert", text_config=text_config)
    model = VSE(config, SubwordTokenizer.from_pretrained(str(bert_folder))).eval()
    regions = np.random.default_rng(0).normal(size=(36, 6)).astype(np.float32)
    found = explain(model, regions, "the red field")
    assert found.words[0] == "[CLS]"
    assert len(found.words) == len(found.text.parts)
    assert float(found.text.parts.sum()) == pytest.approx(found.score, abs=1e-5)


def test_what_cannot_be_split_says_so(images: list[Path]) -> None:
    with pytest.raises(ValueError, match="this model pools by gpo"):
        explain(make_model(pooling="gpo", pooling_options={}), images[0], SENTENCE)
    with pytest.raises(ValueError, match="the sentence is empty"):
        explain(make_model(), images[0], " ")
