import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vse_demo.evaluation import evaluate, retrieval_ranks

CAPTIONS = st.lists(st.integers(1, 4), min_size=1, max_size=15)  # of each image
examples = settings(max_examples=40)

# Right similarities, by row: .9, .3, .6 and .65.
SIMILARITIES = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.8, 0.4], [0.5, 0.6, 0.62], [0.95, 0.0, 0.65]])
OWNER = torch.tensor([0, 0, 1, 2])


def distinct(captions, seed=0):
    """Similarities (C, I) without a tie, and an image_ids in random order."""
    rng = np.random.default_rng(seed)
    image_ids = rng.permutation(np.repeat(np.arange(len(captions)), captions))
    similarities = rng.permutation(len(image_ids) * len(captions)).reshape(len(image_ids), -1)
    return torch.tensor(similarities, dtype=torch.float32), torch.tensor(image_ids)


def ranks_by_sorting(similarities, image_ids):
    similarities, image_ids = similarities.numpy(), image_ids.numpy()
    image_ranks = []
    for image, column in enumerate(similarities.T):
        found = [image_ids[text] == image for text in np.argsort(-column)]
        image_ranks.append(found.index(True) + 1)
    text_ranks = [list(np.argsort(-row)).index(mine) + 1 for row, mine in zip(similarities, image_ids, strict=True)]
    return image_ranks, text_ranks


def figures(ranks):
    recalls = {f"r{k}": 100 * sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 5, 10)}
    return recalls | {"medr": float(np.median(ranks))}


def evaluate_similarities(similarities, image_ids, **options):
    """Embeddings whose products are exactly the given similarities: unit images, and the rows as texts."""
    return evaluate(torch.eye(similarities.shape[1]), similarities, image_ids, **options)


@given(CAPTIONS, st.integers(0, 99), st.sampled_from([1, 7, 512]))
@examples
def test_ranks_are_those_of_a_full_sort(captions, seed, chunk):
    similarities, image_ids = distinct(captions, seed)
    image_ranks, text_ranks = retrieval_ranks(similarities, image_ids, chunk)
    assert (image_ranks.tolist(), text_ranks.tolist()) == ranks_by_sorting(similarities, image_ids)


@given(CAPTIONS, st.integers(0, 99), st.sampled_from([1, 7, 512]))
@examples
def test_metrics_are_those_of_a_full_sort(captions, seed, chunk):
    similarities, image_ids = distinct(captions, seed)
    metrics = evaluate_similarities(similarities, image_ids, chunk=chunk)
    i2t, t2i = map(figures, ranks_by_sorting(similarities, image_ids))
    assert metrics["i2t"] == pytest.approx(i2t)
    assert metrics["t2i"] == pytest.approx(t2i)
    assert metrics["rsum"] == pytest.approx(sum(way[k] for way in (i2t, t2i) for k in ("r1", "r5", "r10")))
    assert (metrics["images"], metrics["captions"]) == (len(captions), sum(captions))


def test_similarities_are_dot_products():
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(20, 5, generator=generator), torch.randn(60, 5, generator=generator)
    image_ids = torch.arange(60) % 20
    i2t, t2i = map(figures, ranks_by_sorting(texts @ images.T, image_ids))
    metrics = evaluate(images, texts, image_ids)
    assert (metrics["i2t"], metrics["t2i"]) == (pytest.approx(i2t), pytest.approx(t2i))


def test_an_example_worked_by_hand():
    image_ranks, text_ranks = retrieval_ranks(SIMILARITIES, OWNER)
    assert image_ranks.tolist() == [2, 2, 1]  # .95 beats .9, .8 beats .6, nothing beats .65
    assert text_ranks.tolist() == [1, 3, 2, 2]
    metrics = evaluate_similarities(SIMILARITIES, OWNER)
    assert metrics["i2t"] == pytest.approx({"r1": 100 / 3, "r5": 100, "r10": 100, "medr": 2})
    assert metrics["t2i"] == pytest.approx({"r1": 25, "r5": 100, "r10": 100, "medr": 2})
    assert metrics["rsum"] == pytest.approx(100 / 3 + 25 + 400)


@given(CAPTIONS, st.sampled_from([1, 7, 512]))
@examples
def test_ties_count_against_the_model(captions, chunk):
    _, image_ids = distinct(captions)
    image_ranks, text_ranks = retrieval_ranks(torch.full((len(image_ids), len(captions)), 0.5), image_ids, chunk)
    assert image_ranks.tolist() == [len(image_ids) - mine + 1 for mine in captions]
    assert text_ranks.tolist() == [len(captions)] * len(image_ids)


def test_a_tie_of_two_right_captions_costs_nothing():
    image_ranks, _ = retrieval_ranks(torch.tensor([[0.7, 0.1], [0.7, 0.2], [0.3, 0.2]]), torch.tensor([0, 0, 1]))
    assert image_ranks.tolist() == [1, 2]  # the second image ties with a wrong caption at .2


def test_an_even_number_of_ranks_has_its_median_between_two():
    metrics = evaluate_similarities(torch.tensor([[0.9, 0.1], [0.8, 0.3]]), torch.tensor([0, 1]))
    assert metrics["t2i"]["medr"] == 1.5
    assert metrics["i2t"]["medr"] == 1


@pytest.mark.parametrize("folds", [1, 2, 3, 6])
def test_folds_are_searched_alone_and_averaged(folds):
    similarities, image_ids = distinct([1, 4, 2, 2, 5, 1])
    size = 6 // folds
    parts = []
    for first in range(0, 6, size):
        mine = (image_ids >= first) & (image_ids < first + size)
        parts.append(ranks_by_sorting(similarities[mine, first : first + size], image_ids[mine] - first))
    metrics = evaluate_similarities(similarities, image_ids, folds=folds)
    for direction, way in enumerate(("i2t", "t2i")):
        by_fold = [figures(part[direction]) for part in parts]
        assert metrics[way] == pytest.approx({key: np.mean([fold[key] for fold in by_fold]) for key in by_fold[0]})
    assert (metrics["images"], metrics["captions"]) == (6, 15)
    assert metrics["rsum"] == pytest.approx(sum(metrics[w][r] for w in ("i2t", "t2i") for r in ("r1", "r5", "r10")))


@pytest.mark.parametrize(
    ("image_ids", "message"),
    [
        ([0, 0, 1], r"image_ids is \(3,\), 4 texts need \(4,\)"),
        ([0, 0, 1, 3], "image_ids points outside the 3 images"),
        ([0, 0, 2, 2], "image 1 has no text"),
    ],
)
def test_bad_owners_are_refused(image_ids, message):
    for call in (retrieval_ranks, evaluate_similarities):
        with pytest.raises(ValueError, match=message):
            call(SIMILARITIES, torch.tensor(image_ids))


@pytest.mark.parametrize("folds", [2, 0, -1])
def test_uneven_folds_are_refused(folds):
    with pytest.raises(ValueError, match=f"3 images do not split into {folds} equal folds"):
        evaluate_similarities(SIMILARITIES, OWNER, folds=folds)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["images", "texts"])
def test_broken_embeddings_are_refused(side, value):
    embeddings = {"images": torch.eye(3), "texts": SIMILARITIES.clone()}
    embeddings[side][2, 1] = value
    with pytest.raises(ValueError, match="some similarities are NaN"):
        evaluate(**embeddings, image_ids=OWNER)


@pytest.mark.parametrize("seed", range(20))
def test_a_collapsed_space_scores_nothing_whatever_its_products_round_to(seed):
    torch.manual_seed(seed)
    point = torch.nn.functional.normalize(torch.randn(256), dim=0)
    image_ids = torch.arange(171).repeat_interleave(3)  # 513 texts: the last chunk is a single row
    metrics = evaluate(point.repeat(171, 1), point.repeat(513, 1), image_ids)
    assert metrics["rsum"] == 0
    assert metrics["i2t"]["medr"] == 511


def test_ranks_of_double_similarities_are_counted_in_double():
    similarities = torch.tensor([[0.1, 0], [0.1000000001, 0.9]], dtype=torch.float64)
    assert retrieval_ranks(similarities, torch.tensor([0, 1]))[0].tolist() == [2, 1]


def test_nan_similarities_are_refused():
    with pytest.raises(ValueError, match="some similarities are NaN"):
        retrieval_ranks(torch.tensor([[torch.nan, 0.1], [0.8, 0.3]]), torch.tensor([0, 1]))
