"""A model that is not ours: a CLIP in a wrapper of twenty lines is evaluated, searched with, and shown in the app."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_pretrained import save_model
from transformers import AutoTokenizer

from vse_demo import VSE, EmbeddingModel, Ensemble, Gallery, ModelConfig, evaluate, open_dataset
from vse_demo.app.actions import Actions
from vse_demo.app.service import Service
from vse_demo.encoders import WordTokenizer
from vse_demo.model import PretrainedModel

WORDS = ["a", "red", "green", "blue", "field", "beside", "left", "right", "on", "the"]


@pytest.fixture(scope="module")
def make_clip(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], EmbeddingModel]:
    """The wrapper of the protocol's documentation, as it stands there, around small random weights."""
    names: dict[str, Any] = {}
    exec(textwrap.dedent(str(EmbeddingModel.__doc__).split("Example, a CLIP of transformers:\n")[1]), names)
    folder = save_model("clip", tmp_path_factory.mktemp("clip"))
    AutoTokenizer.from_pretrained(folder, model_max_length=16).save_pretrained(folder)
    return lambda: names["CLIP"](str(folder))


def small_vse() -> VSE:
    torch.manual_seed(0)
    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4)
    return VSE(config, WordTokenizer(WORDS)).eval()


def test_our_models_and_a_wrapper_are_what_the_protocol_describes(make_clip: Callable[[], Any]) -> None:
    vse = small_vse()
    for model in (vse, Ensemble([vse]), make_clip()):
        assert isinstance(model, EmbeddingModel)
    assert not isinstance(make_clip().model, EmbeddingModel)


def test_the_documented_wrapper_gives_the_vectors_of_ours(make_clip: Callable[[], Any], images: list[Path]) -> None:
    clip, sentences = make_clip(), ["red on the left", "a green field"]
    ours = PretrainedModel.from_pretrained(clip.name)
    for name, items in (("encode_images", images), ("encode_texts", sentences)):
        torch.testing.assert_close(getattr(clip, name)(items), getattr(ours, name)(items))
        torch.testing.assert_close(getattr(clip, name)(items, 1), getattr(ours, name)(items))
        assert getattr(clip, name)([]).shape == (0, clip.dim) == (0, 12)


def test_a_wrapper_is_evaluated_and_searched(
    make_clip: Callable[[], EmbeddingModel], karpathy_folder: Path, tmp_path: Path
) -> None:
    model, data = make_clip(), open_dataset(karpathy_folder).split("test")
    metrics = evaluate(
        model.encode_images(data.images), model.encode_texts(data.captions), torch.from_numpy(data.image_ids)
    )
    assert metrics["images"] == 4
    Gallery.build(model, data, progress=False).save(tmp_path / "gallery")
    gallery = Gallery.load(tmp_path / "gallery", model)
    hit, *_ = gallery.search_images(data.captions[0])
    scores = model.encode_images(data.images) @ model.encode_texts(data.captions[:1]).T
    assert hit.score == pytest.approx(float(scores.max()), abs=1e-3)  # stored in half precision
    assert hit.item == data.names[int(scores.argmax())]


def test_an_ensemble_of_a_wrapper_and_a_vse_scores_their_mean(
    make_clip: Callable[[], EmbeddingModel], images: list[Path]
) -> None:
    vse, clip = small_vse(), make_clip()
    mixed, texts = Ensemble([vse, clip, vse]), ["red on the left", "a green field"]
    assert mixed.dim == 8 + 12 + 8
    of_clip = clip.encode_images(images) @ clip.encode_texts(texts).T
    torch.testing.assert_close(mixed.similarity(images, texts), (2 * vse.similarity(images, texts) + of_clip) / 3)


@pytest.mark.parametrize("alone", [True, False])
def test_the_app_searches_with_it_and_gives_no_reasons(
    alone: bool, make_clip: Callable[[], EmbeddingModel], karpathy_folder: Path
) -> None:
    model = make_clip() if alone else Ensemble([small_vse(), make_clip()])
    data = open_dataset(karpathy_folder).split("test")
    gallery = Gallery.build(model, data, progress=False)
    files = dict(zip(data.names, data.images, strict=True))
    service = Service({"given": lambda _: gallery}, files, {}, lambda *_: None)
    sentence, image = service.encode_text(data.captions[0]), service.encode_image(data.images[0])
    assert [hit.item for hit in service.find_images(sentence, 3)] == [
        hit.item for hit in gallery.search_images(data.captions[0], 3)
    ]
    assert service.recognise(image).name == data.names[0]
    assert not service.gives_reasons()
    with pytest.raises(ValueError, match="gives no reasons"):
        service.explain(image, sentence)
    told = Actions(service).explain(data.names[0], sentence, 0)
    assert (told.count("<figure"), f'<p class="name">{data.names[0]}</p>' in told) == (1, True)  # only what it is
