"""Every public name on arguments of the right type, most of them good and some odd.

A try ends in a result that is what it should be, or in an error of a documented kind. So that an error is not all that
is ever tried, a fair share of the tries of each name must succeed.
"""

import math
import string
import tempfile
from collections import Counter
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
from vse_demo.app.queries import check_sentence
from vse_demo.data import open_dataset
from vse_demo.encoders import WordTokenizer
from vse_demo.utils.files import FileError, read_json, write_json
from vse_demo.utils.text import sanitize_text

EXAMPLES = 60  # for each name, or all there are
SUCCESSES = 0.3  # of the tries of a name, at least
NOT_INT64 = "it must be torch.int64"  # the one documented TypeError
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


def mostly(good: st.SearchStrategy, odd: st.SearchStrategy) -> st.SearchStrategy:
    """Good values nine times in ten."""
    return st.sampled_from([good] * 9 + [odd]).flatmap(lambda chosen: chosen)


def names(known: Any) -> st.SearchStrategy[str]:
    """Known names, and some that are not."""
    return mostly(st.sampled_from(list(known)), st.sampled_from(["", "no", "ADPOOL", "\ud800"]))


def fractions(low: float, high: float) -> st.SearchStrategy[float]:
    """Between two bounds, or not even a number."""
    return mostly(st.floats(low, high), st.sampled_from([-1.0, 0.0, 1.0, 1e30, math.inf, -math.inf, math.nan]))


def counts(low: int, high: int) -> st.SearchStrategy[int]:
    """Between two bounds, or too few."""
    return mostly(st.integers(low, high), st.integers(-2, 1))


def some(**known: st.SearchStrategy) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these settings."""
    return st.fixed_dictionaries({}, optional=known)


variants = names(["paper", "official"])
sentences = mostly(
    st.text(st.characters(categories=["L", "P"]), min_size=1, max_size=20),
    st.text(max_size=40) | st.text(st.characters(categories=["Cs", "Cc", "L"]), max_size=10),
)
of_adopt = some(
    variant=variants, temperature=fractions(0.01, 2), margin=fractions(0, 1), fixed_k=st.none() | counts(1, 9)
)
rank_weights = st.none() | st.lists(fractions(0.1, 2), min_size=1)
of_triplet = some(margin=fractions(0, 1))
of_adpool = some(variant=variants, token=st.booleans(), embedding=st.booleans(), balance=st.just((0.25, 0.75)))
of_model = some(
    vision=names(["grid", "region"]), text=names(["bigru"]), projection=names(["mlp", "linear"]),
    pooling=names(vse_demo.POOLINGS), word_dim=st.integers(1, 8),
)  # fmt: skip
of_training = some(
    epochs=counts(1, 30), batch_size=counts(2, 300), captions_per_image=counts(1, 5), decay_epochs=counts(1, 20),
    feature_dropout=fractions(0, 0.9), word_dropout=fractions(0, 0.9), ema_decay=fractions(0, 0.999),
    schedule=names(["step", "cosine"]), seed=st.integers(0, 9),
)  # fmt: skip
LOSSES = {
    vse_demo.AdOpt: of_adopt,
    vse_demo.HardTriplet: of_triplet,
    vse_demo.ScheduledTriplet: of_triplet,
    vse_demo.SumOfViolations: of_triplet,
}
OF_POOLING = {"adpool": of_adpool, "kmax": some(k=counts(1, 9))}


@st.composite
def tensors(draw: st.DrawFn, *shape: int) -> torch.Tensor:
    """Of this shape, at times with an odd number among its own."""
    filled = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    odd = draw(mostly(st.none(), st.sampled_from([0.0, 1e30, math.inf, math.nan])))
    if odd is not None and filled.numel():
        filled.view(-1)[draw(st.integers(0, filled.numel() - 1))] = odd
    return filled


@st.composite
def image_ids(draw: st.DrawFn, images: int) -> torch.Tensor:
    """The image of each text, every image having one; at times too few, too large, or of another type."""
    good = draw(st.permutations([*range(images), *draw(st.lists(st.integers(0, images - 1), max_size=4))]))
    ids = torch.tensor(draw(mostly(st.just(good), st.lists(st.integers(-1, 7), max_size=6))), dtype=torch.int64)
    return draw(mostly(st.just(ids), st.just(ids.float())))


@pytest.fixture(scope="module")
def model() -> VSE:
    torch.manual_seed(0)
    config = ModelConfig(dim=12, backbone="test_efficientnet", image_size=64, word_dim=8)
    return VSE(config, WordTokenizer(["red", "green", "a"])).eval()


def sensible(values: torch.Tensor) -> bool:
    """Whether all values are finite, and their squares too."""
    return bool(values.isfinite().all()) and (not values.numel() or float(values.abs().max()) < 1e18)


def try_pooling(pooling: Any, data: st.DataObject) -> None:
    features = data.draw(tensors(data.draw(st.integers(1, 6)), data.draw(mostly(st.integers(1, 6), st.just(0))), 4))
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    mask[:, data.draw(mostly(st.integers(1, 6), st.just(0))) :] = False
    pooled = pooling(features, mask)
    assert pooled.shape == (features.shape[0], features.shape[2])
    assert bool(pooled.isfinite().all()) or not sensible(features)


def try_loss(objective: Any, data: st.DataObject) -> None:
    images = data.draw(tensors(data.draw(st.integers(2, 5)), 4))
    ids = data.draw(image_ids(len(images)))
    texts = data.draw(tensors(data.draw(mostly(st.just(len(ids)), st.integers(0, 6))), 4))
    terms = objective(images, texts, ids)
    assert terms.loss.shape == ()
    assert terms.k is None or 1 <= terms.k < len(images)


def try_gallery(model: VSE, data: st.DataObject) -> None:
    gallery = Gallery(model, ["a", "b"], ["0", "1"], ["x"], np.array([0]), torch.eye(2, 12), torch.eye(1, 12))
    hits = gallery.search_images(data.draw(sentences), data.draw(counts(1, 9)))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    kept = data.draw(st.lists(st.sampled_from("abc")))
    gallery.keep(kept)
    assert gallery.names == [name for name in ("a", "b") if name in kept]


def try_model(data: st.DataObject) -> None:
    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, region_dim=6, **data.draw(of_model))
    assert VSE(config, WordTokenizer(["a"])).encode_texts(["a a", "b"]).shape == (2, 8)


def try_folder(data: st.DataObject) -> None:
    """A data set of two images whose caption file may have something else anywhere."""
    odd = st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    )
    captions = mostly(st.lists(sentences, max_size=3), odd)
    files = mostly(st.sampled_from(["0.jpg", "1.jpg"]), odd)
    raw = mostly(st.lists(st.fixed_dictionaries({"raw": sentences}), max_size=3), odd)
    splits = mostly(st.sampled_from(["train", "val", "restval"]), odd)
    record = mostly(st.fixed_dictionaries({"filename": files, "sentences": raw}, optional={"split": splits}), odd)
    karpathy = st.fixed_dictionaries({"images": mostly(st.lists(record, min_size=1, max_size=3), odd)})
    plain = st.dictionaries(st.sampled_from(["0.jpg", "1.jpg"]), captions, min_size=1)
    name, content = data.draw(
        st.sampled_from([("dataset_a.json", karpathy), ("captions.json", karpathy), ("captions.json", plain)])
    )
    with tempfile.TemporaryDirectory() as place:
        for number in (0, 1):
            paint(number, (8, 8)).save(Path(place) / f"{number}.jpg")
        write_json(Path(place) / name, data.draw(content))
        dataset = open_dataset(place)
        assert all(len(dataset.split(split)) for split in dataset.splits)


def try_training(data: st.DataObject) -> None:
    """Settings that may be wrong, on a folder that is none: nothing is ever written."""
    with tempfile.TemporaryDirectory() as place:
        config = vse_demo.make_config(data.draw(names(vse_demo.PRESETS)), data.draw(of_training))
        with pytest.raises(FileError):
            vse_demo.train(config, Path(place) / "none", Path(place) / "run")
        assert not (Path(place) / "run").exists()


def try_evaluate(data: st.DataObject) -> None:
    images = data.draw(tensors(data.draw(st.integers(1, 5)), 4))
    ids = data.draw(image_ids(len(images)))
    metrics = vse_demo.evaluate(images, data.draw(tensors(len(ids), 4)), ids, data.draw(counts(1, 1)))
    assert 0 <= metrics["rsum"] <= 600


def try_ranks(data: st.DataObject) -> None:
    images = data.draw(st.integers(1, 5))
    ids = data.draw(image_ids(images))
    of_images, of_texts = vse_demo.retrieval_ranks(data.draw(tensors(len(ids), images)), ids)
    assert of_images.shape == (images,)
    assert 1 <= of_texts.min() <= of_texts.max() <= images


def try_statistic(measure: Callable[..., torch.Tensor], data: st.DataObject) -> None:
    similarities = data.draw(tensors(data.draw(st.integers(1, 4)), 3))
    count = data.draw(mostly(st.just(len(similarities)), st.integers(0, 6)))
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), dtype=torch.int64)
    result = measure(similarities, ids)
    assert bool(result.isfinite()) or not sensible(similarities)


def try_count(data: st.DataObject) -> None:
    size = data.draw(counts(2, 300))
    k = vse_demo.negative_count(data.draw(fractions(-1, 1)), data.draw(fractions(-1, 3)), size, data.draw(variants))
    assert 1 <= k <= max(1, size - 1)


def try_any_loss(data: st.DataObject) -> None:
    name = data.draw(names(vse_demo.OBJECTIVES))
    try_loss(vse_demo.build_objective(name, **data.draw(LOSSES.get(vse_demo.OBJECTIVES.get(name), of_triplet))), data)


def try_any_pooling(data: st.DataObject) -> None:
    name = data.draw(names(vse_demo.POOLINGS))
    options = data.draw(OF_POOLING.get(name, some()))
    try_pooling(vse_demo.build_pooling(name, 4, data.draw(names(["image", "text"])), **options), data)


TRIES: dict[str, Callable[[VSE, st.DataObject], Any]] = {
    **{
        loss.__name__: lambda _, data, loss=loss, options=options: try_loss(loss(**data.draw(options)), data)
        for loss, options in LOSSES.items()
    },
    "AdPool": lambda _, data: try_pooling(vse_demo.AdPool(4, **data.draw(of_adpool)), data),
    "Ensemble": lambda model, data: vse_demo.Ensemble(data.draw(st.lists(st.just(model), max_size=2))).similarity(
        [paint(1)], data.draw(st.lists(sentences, max_size=2))
    ),
    "Gallery": try_gallery,
    "ModelConfig": lambda _, data: try_model(data),
    "OBJECTIVES": lambda _, data: try_loss(data.draw(st.sampled_from([*vse_demo.OBJECTIVES.values()]))(), data),
    "POOLINGS": lambda _, data: try_pooling(data.draw(st.sampled_from([*vse_demo.POOLINGS.values()]))(4, "text"), data),
    "PRESETS": lambda _, data: vse_demo.make_config(data.draw(names(vse_demo.PRESETS)), {}),
    "RankPool": lambda _, data: try_pooling(vse_demo.RankPool(data.draw(rank_weights)), data),
    "TrainConfig": lambda _, data: TrainConfig(**data.draw(of_training)),
    "VSE": lambda model, data: model.similarity([paint(1)], data.draw(st.lists(sentences, max_size=3))),
    "alignment": lambda _, data: try_statistic(vse_demo.alignment, data),
    "build_objective": lambda _, data: try_any_loss(data),
    "build_pooling": lambda _, data: try_any_pooling(data),
    "evaluate": lambda _, data: try_evaluate(data),
    "explain": lambda model, data: vse_demo.explain(model, paint(1), data.draw(sentences)),
    "load_gallery": lambda _, data: vse_demo.load_gallery("default", data.draw(names(["grid-bigru"]))),
    "load_model": lambda _, data: vse_demo.load_model(data.draw(names(["grid-bigru"]))),
    "make_config": lambda _, data: vse_demo.make_config(data.draw(names(vse_demo.PRESETS)), data.draw(of_training)),
    "negative_count": lambda _, data: try_count(data),
    "open_dataset": lambda _, data: try_folder(data),
    "retrieval_ranks": lambda _, data: try_ranks(data),
    "train": lambda _, data: try_training(data),
    "uniformity": lambda _, data: try_statistic(vse_demo.uniformity, data),
}  # fmt: skip
# What holds values, describes a class, or takes no arguments.
PLAIN = {"CaptionedImages", "EmbeddingModel", "Explanation", "PoolTrace", "list_models", "tune_process"}


def test_every_public_name_is_tried() -> None:
    assert set(TRIES) | PLAIN == set(vse_demo.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIES)
def test_a_try_ends_in_a_result_or_in_a_documented_error_and_many_in_a_result(model: VSE, name: str) -> None:
    outcomes: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=True, deadline=None)
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        try:
            TRIES[name](model, data)
            outcomes["result"] += 1
        except (ValueError, FloatingPointError) as error:  # the latter: training diverged
            assert str(error)  # noqa: PT017
            outcomes["error"] += 1
        except TypeError as error:
            assert NOT_INT64 in str(error)  # noqa: PT017
            outcomes["error"] += 1

    attempt()
    assert outcomes["result"] >= SUCCESSES * outcomes.total(), outcomes


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
