import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn.functional import cross_entropy, normalize

from vse_demo.losses import (
    K_VARIANTS,
    OBJECTIVES,
    AdOpt,
    HardTriplet,
    Objective,
    ScheduledTriplet,
    SumOfViolations,
    alignment,
    build_objective,
    mean_terms,
    negative_count,
    uniformity,
)
from vse_demo.utils.checks import VARIANTS

IMAGE_IDS = [3, 0, 0, 1, 3, 0, 4]  # five images with 3, 1, 0, 2 and 1 captions, in no order
many_examples = settings(max_examples=100)
every_variant = pytest.mark.parametrize("variant", K_VARIANTS)
# Texts that know nothing of their images, something, and nearly all: K is large, middling and 1.
every_likeness = pytest.mark.parametrize("likeness", [0.0, 0.4, 3.0])


def batch(likeness=0.4, image_ids=IMAGE_IDS, seed=0):
    """Unit embeddings in double: images (B, 6), texts (C, 6) more or less like their images, image_ids (C,)."""
    generator = torch.Generator().manual_seed(seed)
    images = normalize(torch.randn(max(image_ids) + 1, 6, dtype=torch.float64, generator=generator))
    noise = normalize(torch.randn(len(image_ids), 6, dtype=torch.float64, generator=generator))
    return images, normalize(noise + likeness * images[image_ids]), torch.tensor(image_ids)


def similarities_of(images, texts, image_ids):
    return (texts @ images.T).numpy()


def by_loops(similarities, image_ids, text_term, image_term):
    """term(true, negatives) of every pair: searching images by text, and texts by image."""
    per_text, per_image = [], []
    for text, image in enumerate(image_ids):
        true = similarities[text, image]
        wrong_images = [similarities[text, other] for other in range(similarities.shape[1]) if other != image]
        wrong_texts = [similarities[other, image] for other in range(len(image_ids)) if image_ids[other] != image]
        per_text.append(text_term(true, wrong_images))
        per_image.append(image_term(true, wrong_texts))
    return per_text, per_image


def hardest_violation(true, negatives):
    return max(0.0, 0.2 - true + max(negatives))


def all_violations(true, negatives):
    return sum(max(0.0, 0.2 - true + wrong) for wrong in negatives)


def info_nce(variant, k):
    """The loss of a pair by the paper's equation or the authors' code, at temperature 0.05."""

    def term(true, negatives):
        hardest = sorted(negatives, reverse=True)[:k]
        if variant == "paper":
            return -math.log(math.exp(true / 0.05) / sum(math.exp(wrong / 0.05) for wrong in hardest))
        positive, others = math.exp(true / 0.05), sum(math.exp((wrong + 0.2) / 0.05) for wrong in hardest)
        return -math.log(positive / (positive + others))

    return term


def measures_by_loops(similarities, image_ids, variant):
    """Alignment and uniformity."""
    texts, images = similarities.shape
    total = true = 0.0
    for text in range(texts):
        true += similarities[text, image_ids[text]]
        for image in range(images):
            value = similarities[text, image]
            if variant == "official":
                value = 0.0 if image == image_ids[text] else -value
            total += math.exp(value)
    mean = total / (texts * images)
    return true / texts, mean if variant == "official" else math.log(mean)


def k_by_formula(measures, candidates, variant):
    aligned, uniform = measures
    if variant == "paper":
        k = math.floor(candidates * math.cos((aligned + uniform) * math.pi / 4))
    elif variant == "official":
        k = int(candidates * math.cos((aligned + uniform) ** 1.25)) + 1
    else:
        contrast = aligned - uniform
        k = candidates if contrast < 0 else math.floor(candidates * math.cos(math.pi * contrast))
    return min(max(k, 1), candidates - 1)


def space(positive, negative, size=128):
    """Similarities with exactly normal negatives (quantiles, no chance) and equal positives."""
    count = size * (size - 1)
    normal = NormalDist(negative, 0.08)
    similarities = torch.full((size, size), float(positive), dtype=torch.float64)
    quantiles = [normal.inv_cdf((i + 0.5) / count) for i in range(count)]
    similarities[~torch.eye(size, dtype=torch.bool)] = torch.tensor(quantiles, dtype=torch.float64).clamp(-1, 1)
    return similarities


@pytest.mark.parametrize(
    ("positive", "negative", "paper", "official", "contrast"),
    [
        (0, 0, 127, 69, 127),
        (0.2, 0, 126, 40, 104),
        (0.4, 0, 121, 6, 42),
        (0.5, 0, 117, 1, 3),
        (1, 0, 89, 1, 1),
        (0.99, 0.99, 4, 11, 127),
    ],
)
def test_k_of_typical_spaces(positive, negative, paper, official, contrast):
    similarities = space(positive, negative)
    for variant, expected in (("paper", paper), ("official", official), ("contrast", contrast)):
        spread = uniformity(similarities, variant=variant).item()
        assert negative_count(alignment(similarities).item(), spread, 128, variant) == expected


@every_variant
@given(st.floats(-1, 1), st.floats(-1, math.e), st.integers(2, 500))
@many_examples
def test_k_is_between_one_and_all_negatives(variant, aligned, uniform, size):
    assert 1 <= negative_count(aligned, uniform, size, variant) <= size - 1


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1.5))
@many_examples
def test_official_k_falls_as_alignment_rises(one, other, uniform):
    k = [negative_count(aligned, uniform, 128, "official") for aligned in sorted((one, other))]
    assert k[0] >= k[1]


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(-0.5, 1), st.integers(2, 300))
@many_examples
def test_contrast_k_falls_as_true_pairs_stand_out_and_rises_with_crowding(one, other, uniform, size):
    low, high = sorted((one, other))
    assert negative_count(low, uniform, size, "contrast") >= negative_count(high, uniform, size, "contrast")
    assert negative_count(uniform, low, size, "contrast") <= negative_count(uniform, high, size, "contrast")


@given(st.floats(-1, 1), st.integers(2, 300))
@many_examples
def test_contrast_takes_all_negatives_where_everything_is_equally_alike(likeness, size):
    similarities = torch.full((size, size), likeness, dtype=torch.float64)
    measures = alignment(similarities).item(), uniformity(similarities, variant="contrast").item()
    assert negative_count(*measures, size, "contrast") == size - 1


@every_likeness
@every_variant
def test_alignment_and_uniformity_are_their_equations(variant, likeness):
    images, texts, image_ids = batch(likeness)
    similarities = texts @ images.T
    ours = alignment(similarities, image_ids).item(), uniformity(similarities, image_ids, variant).item()
    assert ours == pytest.approx(measures_by_loops(similarities.numpy(), IMAGE_IDS, variant))


def test_uniformity_is_that_of_wang_and_isola_plus_one():
    images, texts, image_ids = batch()
    gaussian = [math.exp(-0.5 * ((text - image) ** 2).sum()) for text in texts.numpy() for image in images.numpy()]
    assert uniformity(texts @ images.T, image_ids).item() == pytest.approx(math.log(np.mean(gaussian)) + 1)


@every_likeness
@pytest.mark.parametrize("fixed_k", [None, 1, 3, 100])
@every_variant
def test_adopt_is_its_equations(variant, fixed_k, likeness):
    objective, (images, texts, image_ids) = AdOpt(variant, fixed_k=fixed_k), batch(likeness)
    similarities = similarities_of(images, texts, image_ids)
    measures = measures_by_loops(similarities, IMAGE_IDS, variant)
    k_images, k_texts = (fixed_k or k_by_formula(measures, n, variant) for n in (len(images), len(texts)))
    terms = by_loops(similarities, IMAGE_IDS, info_nce(variant, k_images), info_nce(variant, k_texts))
    expected = np.mean(terms[0]) + np.mean(terms[1])
    result = objective(images, texts, image_ids)
    assert result.loss.item() == pytest.approx(expected if variant == "paper" else expected / 2)
    assert result.k == min(k_images, len(images) - 1)
    assert result.loss_t2i.item() == pytest.approx(np.mean(terms[0]))
    assert result.loss_i2t.item() == pytest.approx(np.mean(terms[1]))


@every_likeness
@pytest.mark.parametrize(("objective", "term"), [(HardTriplet, hardest_violation), (SumOfViolations, all_violations)])
def test_triplet_losses_are_their_loops(objective, term, likeness):
    images, texts, image_ids = batch(likeness)
    per_text, per_image = by_loops(similarities_of(images, texts, image_ids), IMAGE_IDS, term, term)
    assert objective()(images, texts, image_ids).loss.item() == pytest.approx(sum(per_text) + sum(per_image))


def test_the_schedule_of_k_is_used_in_these_tests():
    counts = [AdOpt()(*batch(likeness)).k for likeness in (0.0, 0.4, 3.0)]
    assert counts[0] > counts[1] > counts[2] == 1
    assert [AdOpt("contrast")(*batch(likeness)).k for likeness in (0.0, 3.0)] == [4, 1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_the_loss(name):
    images, texts, image_ids = batch()
    objective = build_objective(name)

    def loss(images, texts):
        return objective(normalize(images), normalize(texts), image_ids).loss

    assert gradcheck(loss, (images.requires_grad_(), texts.requires_grad_()))


@every_variant
def test_gradients_of_adopt_with_more_k_than_negatives(variant):
    images, texts, image_ids = batch()
    objective = AdOpt(variant, fixed_k=100)
    assert gradcheck(lambda i, t: objective(i, t, image_ids).loss, (images.requires_grad_(), texts.requires_grad_()))


def test_a_caption_of_the_same_image_is_never_a_negative():
    images, texts, image_ids = torch.eye(2), torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])  # two identical siblings
    for objective in (HardTriplet(), SumOfViolations(), ScheduledTriplet()):
        assert objective(images, texts, image_ids).loss.item() == 0
    terms = AdOpt("paper", temperature=1.0, fixed_k=5)(images, texts, image_ids)
    # Pairs 0 and 1 have one negative text of similarity 0, and pair 2 has two: log(1), log(1), log(2), less 1.
    assert terms.loss_i2t.item() == pytest.approx((-1 - 1 + math.log(2) - 1) / 3)
    assert terms.loss_t2i.item() == pytest.approx(-1)


@every_variant
def test_a_pair_is_never_its_own_negative(variant):
    images = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # each wrong similarity is −1, far below the right ones
    terms = AdOpt(variant, temperature=1.0, margin=0.0, fixed_k=1)(images, images, torch.arange(2))
    expected = -2 if variant == "paper" else math.log(1 + math.exp(-2))
    assert terms.loss_t2i.item() == terms.loss_i2t.item() == pytest.approx(expected)


@pytest.mark.parametrize("name", OBJECTIVES)
@given(st.permutations(range(5)), st.permutations(range(7)))
@settings(many_examples, max_examples=15)
def test_the_order_of_the_batch_changes_nothing(name, image_order, text_order):
    objective, (images, texts, image_ids) = build_objective(name), batch()
    moved = torch.tensor([image_order.index(image) for image in IMAGE_IDS])
    expected = objective(images, texts, image_ids).as_floats()
    assert objective(images[image_order], texts[text_order], moved[text_order]).as_floats() == pytest.approx(expected)


def test_one_negative_gives_the_difference_of_similarities_or_its_softplus():
    images, texts, image_ids = batch(image_ids=[0, 1, 2, 3])
    similarities = similarities_of(images, texts, image_ids)
    true, wrong = np.diag(similarities), similarities - 9 * np.eye(4)
    gaps = [wrong.max(axis) - true for axis in (1, 0)]  # s⁻ − s⁺ by text, by image
    paper, official = (AdOpt(variant, fixed_k=1)(images, texts, image_ids).loss.item() for variant in VARIANTS)
    assert paper == pytest.approx(sum(np.mean(gap / 0.05) for gap in gaps))
    assert official == pytest.approx(sum(np.mean(np.log1p(np.exp((gap + 0.2) / 0.05))) for gap in gaps) / 2)


def test_with_all_negatives_and_no_margin_adopt_is_the_symmetric_cross_entropy():
    images, texts, image_ids = batch(image_ids=[0, 1, 2, 3, 4])
    logits = texts @ images.T / 0.05
    expected = (cross_entropy(logits, image_ids) + cross_entropy(logits.T, image_ids)) / 2
    torch.testing.assert_close(AdOpt(margin=0.0, fixed_k=10**6)(images, texts, image_ids).loss, expected)


def test_scheduled_triplet_leaves_the_sum_after_the_first_epoch():
    objective, inputs = ScheduledTriplet(), batch(0.0)
    every, hardest = SumOfViolations()(*inputs).loss, HardTriplet()(*inputs).loss
    assert every > hardest
    assert objective(*inputs).loss == every
    for epoch, expected in ((0, every), (1, hardest), (2, hardest), (0, every)):
        objective.start_epoch(epoch)
        assert objective(*inputs).loss == expected
    longer = ScheduledTriplet(sum_epochs=3)
    for epoch, expected in ((0, every), (2, every), (3, hardest)):
        longer.start_epoch(epoch)
        assert longer(*inputs).loss == expected
    assert ScheduledTriplet(sum_epochs=0)(*inputs).loss == hardest


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_terms_for_the_log_are_numbers_of_one_definition(name):
    images, texts, image_ids = batch()
    terms = build_objective(name)(images.requires_grad_(), texts, image_ids)
    assert [term for term in vars(terms) if isinstance(getattr(terms, term), torch.Tensor) and
            getattr(terms, term).requires_grad] == ["loss"]  # fmt: skip
    row = terms.as_floats()
    assert row.keys() == {"loss", "k", "alignment", "uniformity", "loss_t2i", "loss_i2t"}
    assert all(type(value) is float for value in row.values())
    measures = measures_by_loops(similarities_of(images.detach(), texts, image_ids), IMAGE_IDS, "paper")
    assert (row["alignment"], row["uniformity"]) == pytest.approx(measures)


def test_a_loss_needs_neither_k_nor_epochs():
    class Repel(Objective):
        def directions(self, similarities, positive, image_ids):
            return similarities.mean(1), similarities.mean(0)[image_ids], None

    images, texts, image_ids = batch()
    repel = Repel()
    repel.start_epoch(3)
    terms = repel(images, texts, image_ids)
    assert terms.k is None
    assert "k" not in terms.as_floats()
    columns = [np.mean([text @ image for text in texts.numpy()]) for image in images.numpy()]
    assert terms.loss_i2t.item() == pytest.approx(np.mean([columns[image] for image in IMAGE_IDS]))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_similarities_give_the_loss_of_the_embeddings_they_come_from(name):
    images, texts, image_ids = batch()
    objective = build_objective(name)
    similarities = torch.tensor([[float(text @ image) for image in images] for text in texts], dtype=torch.float64)
    expected = objective(images, texts, image_ids).as_floats()
    assert objective.from_similarities(similarities, image_ids).as_floats() == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"similarities are \(7,\), they must be \(texts, images\)"):
        objective.from_similarities(similarities[:, 0], image_ids)
    with pytest.raises(ValueError, match=r"image_ids is \(7,\), 5 texts need \(5,\)"):
        objective.from_similarities(similarities.T, image_ids)


def test_the_means_of_several_batches_are_those_of_their_terms():
    terms = [AdOpt()(*batch(likeness)) for likeness in (0.0, 0.4, 3.0)]
    means = mean_terms(terms)
    for name in ("loss", "alignment", "uniformity", "loss_i2t", "loss_t2i"):
        assert means[name] == pytest.approx(np.mean([getattr(each, name).item() for each in terms]))
    assert means["k"] == pytest.approx(np.mean([each.k for each in terms]))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    ("images", "texts", "image_ids", "error", "message"),
    [
        ((2, 4), (2, 3), [0, 1], ValueError, r"images \(2, 4\) and texts \(2, 3\) must be"),
        ((2, 3, 1), (2, 3), [0, 1], ValueError, r"images \(2, 3, 1\) and texts \(2, 3\) must be"),
        ((2, 3), (3, 3), [0, 1], ValueError, r"image_ids is \(2,\), 3 texts need \(3,\)"),
        ((2, 3), (2, 3), [0.0, 1.0], TypeError, "image_ids is torch.float32, it must be torch.int64"),
        ((2, 3), (2, 3), [0, 2], ValueError, "image_ids points outside the 2 images"),
        ((2, 3), (2, 3), [-1, 1], ValueError, "image_ids points outside the 2 images"),
        ((1, 3), (2, 3), [0, 0], ValueError, "texts of at least two images"),
        ((2, 3), (2, 3), [1, 1], ValueError, "texts of at least two images"),
    ],
)
def test_bad_batches_are_refused(name, images, texts, image_ids, error, message):
    with pytest.raises(error, match=message):
        build_objective(name)(torch.ones(images), torch.ones(texts), torch.tensor(image_ids))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AdOpt(temperature=0), "temperature must be above 0, got 0"),
        (lambda: AdOpt(fixed_k=0), "fixed_k must be at least 1, got 0"),
        (lambda: AdOpt("mine"), "unknown AdOpt variant 'mine'; choose one of paper, official, contrast"),
        (lambda: negative_count(0, 0, 8, "mine"), "unknown K variant 'mine'; choose one of paper, official, contrast"),
        (lambda: uniformity(torch.eye(2), variant="mine"), "unknown uniformity variant 'mine'"),
        (lambda: ScheduledTriplet(sum_epochs=-1), "sum_epochs must be at least 0, got -1"),
        (lambda: alignment(torch.ones(3, 2)), "similarities are 3 × 2: say which image each text belongs to"),
        (lambda: build_objective("adopt", k=1), "unknown option of objective adopt 'k'; choose one of variant, temp"),
        (
            lambda: build_objective("hard", margin=0.1, variant="paper"),
            "objective hard 'variant'; choose one of margin",
        ),
        (lambda: build_objective("adopt", temperature="cold"), "objective adopt cannot use the options {'temperature'"),
        (lambda: build_objective("mine"), r"unknown objective 'mine'; choose one of adopt, hard, sum, vse\+\+"),
    ],
)
def test_bad_options_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@every_variant
def test_memory_grows_with_the_pairs_and_not_with_their_vectors(variant):
    kept = []
    images, texts = normalize(torch.randn(2, 64, 256), dim=2).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        AdOpt(variant)(images, texts, torch.arange(64)).loss.backward()
    assert max(kept) <= 64 * 256  # a similarity for each pair, or the vectors themselves; never 64 · 64 · 256


# A small world: two noisy views of the same things, turned, from a nearly collapsed start (lesson 5)


def alignment_after(variant, noise, steps=300, size=64, dim=16):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    things = draw(1024, dim)
    views = [things @ torch.linalg.qr(draw(dim, dim))[0] + noise * draw(1024, dim) for _ in range(2)]
    maps = [(0.1 * draw(dim, dim)).requires_grad_() for _ in views]
    shift = 10 * normalize(draw(1, dim))
    shifts = [shift.clone().requires_grad_() for _ in views]
    optimizer, objective = torch.optim.Adam(maps + shifts, lr=0.01), AdOpt(variant)
    for _ in range(steps):
        chosen = torch.randperm(1024, generator=generator)[:size]
        images, texts = (normalize(v[chosen] @ m + s) for v, m, s in zip(views, maps, shifts, strict=True))
        terms = objective(images, texts, torch.arange(size))
        optimizer.zero_grad()
        terms.loss.backward()
        optimizer.step()
    return terms


@pytest.mark.slow
def test_contrast_escapes_a_collapse_that_the_authors_k_falls_into():
    official, contrast = (alignment_after(variant, noise=1.3) for variant in ("official", "contrast"))
    assert official.alignment > 0.98  # one point, and K says that all is well
    assert official.k < 10
    assert contrast.alignment < 0.9
    assert contrast.alignment - contrast.uniformity > official.alignment - official.uniformity + 0.1


@pytest.mark.slow
def test_contrast_comes_down_to_few_negatives_in_a_good_space():
    assert alignment_after("contrast", noise=0.3).k < 10
