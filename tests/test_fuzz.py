"""Every public function on whatever comes: a result that is what it should be, or an error of a documented kind."""

import math
import string
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import paint

import vse_demo
from vse_demo import VSE, Gallery, ModelConfig, TrainConfig
from vse_demo.app.service import check_sentence
from vse_demo.data import open_dataset
from vse_demo.encoders import WordTokenizer
from vse_demo.utils.files import FileError, read_json, write_json
from vse_demo.utils.text import sanitize_text

DOCUMENTED = (ValueError, TypeError, FloatingPointError)  # FileError is a ValueError; the last: training diverged
EXAMPLES = 60  # for each function
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")

sizes = st.integers(0, 6)
numbers = st.one_of(st.integers(-3, 300), st.floats(allow_nan=True, allow_infinity=True))
texts = st.text(max_size=40) | st.text(st.characters(categories=["Cs", "Cc", "L"]), max_size=10)
words = st.sampled_from([*vse_demo.POOLINGS, *vse_demo.OBJECTIVES, *vse_demo.PRESETS, "paper", "official", "", "no"])
values = st.none() | st.booleans() | numbers | texts | words | st.lists(numbers, max_size=3)
settings_of = st.dictionaries(
    st.sampled_from(
        ["variant", "k", "margin", "temperature", "dim", "epochs", "pooling", "batch_size", "ema_decay", "x"]
    ),
    values,
    max_size=3,
)


@st.composite
def tensors(draw: st.DrawFn, *shape: int | None) -> torch.Tensor:
    """Of this shape, None being any size, with odd numbers among its own."""
    lengths = [draw(sizes) if length is None else length for length in shape]
    filled = torch.randn(lengths, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if filled.numel() and draw(st.booleans()):
        filled.view(-1)[draw(st.integers(0, filled.numel() - 1))] = draw(
            st.sampled_from([0.0, 1e30, math.inf, math.nan])
        )
    return filled


@pytest.fixture(scope="module")
def model() -> VSE:
    torch.manual_seed(0)
    config = ModelConfig(dim=12, backbone="test_efficientnet", image_size=64, word_dim=8)
    return VSE(config, WordTokenizer(["red", "green", "a"])).eval()


def pooled(pooling: Any, rows: torch.Tensor) -> None:
    mask = torch.ones(rows.shape[:2], dtype=torch.bool)
    result = pooling(rows, mask)
    assert result.shape == (rows.shape[0], rows.shape[2])
    assert bool(result.isfinite().all()) or not bool(rows.isfinite().all()) or float(rows.abs().max()) > 1e20


def loss_of(objective: Any, data: st.DataObject) -> None:
    images, captions = data.draw(tensors(None, 4)), data.draw(tensors(None, 4))
    image_ids = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=len(captions), max_size=len(captions))))
    assert objective(images, captions, image_ids.long()).loss.shape == ()


def try_gallery(model: VSE, data: st.DataObject) -> None:
    gallery = Gallery(model, ["a", "b"], ["0", "1"], ["x"], np.array([0]), torch.eye(2, 12), torch.eye(1, 12))
    hits = gallery.search_images(data.draw(texts), data.draw(st.integers(-2, 9)))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    gallery.keep(data.draw(st.lists(st.sampled_from("abc"))))


def try_folder(data: st.DataObject) -> None:
    """A data set of whatever JSON."""
    json_values = st.recursive(
        values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    )
    names = st.sampled_from(["images", "filename", "sentences", "raw", "split", "0.jpg"])
    records = st.recursive(
        json_values, lambda inner: st.dictionaries(names, inner, max_size=4) | st.lists(inner, max_size=2)
    )
    with tempfile.TemporaryDirectory() as place:
        write_json(Path(place) / data.draw(st.sampled_from(["dataset_a.json", "captions.json"])), data.draw(records))
        dataset = open_dataset(place)
        for name in dataset.splits:
            dataset.split(name)


def try_training(data: st.DataObject) -> None:
    """Settings of any kind, on a folder that is none: nothing is ever written."""
    with tempfile.TemporaryDirectory() as place:
        config = vse_demo.make_config(data.draw(words), data.draw(settings_of))
        with pytest.raises(FileError):
            vse_demo.train(config, Path(place) / "none", Path(place) / "run")
        assert not (Path(place) / "run").exists()


def try_evaluate(data: st.DataObject) -> None:
    images, captions = data.draw(tensors(None, 4)), data.draw(tensors(None, 4))
    image_ids = torch.tensor(data.draw(st.lists(st.integers(-1, 7), min_size=len(captions), max_size=len(captions))))
    metrics = vse_demo.evaluate(images, captions, image_ids.long(), data.draw(st.integers(-1, 3)))
    assert 0 <= metrics["rsum"] <= 600


def try_ranks(data: st.DataObject) -> None:
    images, captions = data.draw(tensors(None, 4)), data.draw(tensors(None, 4))
    image_ids = torch.tensor(data.draw(st.lists(st.integers(-1, 7), min_size=len(captions), max_size=len(captions))))
    vse_demo.retrieval_ranks(images, captions, image_ids.long())


TRIES: dict[str, Callable[[VSE, st.DataObject], Any]] = {
    "AdOpt": lambda _, data: loss_of(vse_demo.AdOpt(**data.draw(settings_of)), data),
    "AdPool": lambda _, data: pooled(vse_demo.AdPool(4, **data.draw(settings_of)), data.draw(tensors(None, None, 4))),
    "Ensemble": lambda model, data: vse_demo.Ensemble(data.draw(st.lists(st.just(model), max_size=2))),
    "Gallery": try_gallery,
    "HardTriplet": lambda _, data: loss_of(vse_demo.HardTriplet(**data.draw(settings_of)), data),
    "ModelConfig": lambda _, data: VSE(ModelConfig(**data.draw(settings_of)), WordTokenizer(["a"])),
    "OBJECTIVES": lambda _, data: loss_of(vse_demo.build_objective(data.draw(words)), data),
    "POOLINGS": lambda _, data: pooled(
        vse_demo.build_pooling(data.draw(words), 4, "text"), data.draw(tensors(2, 3, 4))
    ),
    "PRESETS": lambda _, data: vse_demo.make_config(data.draw(words), {}),
    "RankPool": lambda _, data: pooled(vse_demo.RankPool(), data.draw(tensors(None, None, 4))),
    "ScheduledTriplet": lambda _, data: loss_of(vse_demo.ScheduledTriplet(**data.draw(settings_of)), data),
    "SumOfViolations": lambda _, data: loss_of(vse_demo.SumOfViolations(**data.draw(settings_of)), data),
    "TrainConfig": lambda _, data: TrainConfig(**data.draw(settings_of)),
    "VSE": lambda model, data: model.similarity([paint(1)], data.draw(st.lists(texts, max_size=3))),
    "alignment": lambda _, data: vse_demo.alignment(
        data.draw(tensors(4, 3)), torch.tensor(data.draw(st.lists(st.integers(0, 2), max_size=6)), dtype=torch.int64)
    ),
    "build_objective": lambda _, data: vse_demo.build_objective(data.draw(words), **data.draw(settings_of)),
    "build_pooling": lambda _, data: vse_demo.build_pooling(
        data.draw(words), 4, data.draw(words), **data.draw(settings_of)
    ),
    "evaluate": lambda _, data: try_evaluate(data),
    "explain": lambda model, data: vse_demo.explain(model, paint(1), data.draw(texts)),
    "make_config": lambda _, data: vse_demo.make_config(data.draw(words), data.draw(settings_of)),
    "negative_count": lambda _, data: vse_demo.negative_count(
        data.draw(numbers), data.draw(numbers), data.draw(numbers), data.draw(words)
    ),
    "open_dataset": lambda _, data: try_folder(data),
    "retrieval_ranks": lambda _, data: try_ranks(data),
    "train": lambda _, data: try_training(data),
    "uniformity": lambda _, data: vse_demo.uniformity(data.draw(tensors(None, 3))),
}  # fmt: skip
PLAIN = {"CaptionedImages", "Explanation", "PoolTrace"}  # hold values, and do nothing with them


def test_every_public_name_is_tried() -> None:
    assert set(TRIES) | PLAIN == set(vse_demo.__all__)


@pytest.mark.parametrize("name", TRIES)
def test_whatever_comes_there_is_a_result_or_a_documented_error(model: VSE, name: str) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=True, deadline=None)
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        try:
            TRIES[name](model, data)
        except DOCUMENTED as error:
            assert str(error)  # noqa: PT017

    attempt()


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc"])))
def test_clean_text_can_be_written_anywhere_and_stays_clean(text: str) -> None:
    assert sanitize_text(sanitize_text(text)) == sanitize_text(text)
    assert sanitize_text(text).encode().decode() == sanitize_text(text)
    assert not set(sanitize_text(text)) & {*map(chr, range(32))}
    if set(text) <= set(string.printable) - set("\t\n\r\x0b\x0c"):
        assert sanitize_text(text) == text


@given(st.text(max_size=3000))
def test_a_sentence_is_searched_for_or_refused(text: str) -> None:
    try:
        assert 0 < len(check_sentence(text)) <= 2000
    except ValueError as error:
        assert "sentence" in str(error)  # noqa: PT017


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_a_file_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a.json"
        path.write_bytes(content)
        try:
            read_json(path)
        except FileError as error:
            assert "a.json cannot be read as JSON" in str(error)  # noqa: PT017
