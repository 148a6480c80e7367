"""Exercises on the joint space: a shift, the chance in a map, and a linear rule."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from vse_demo.evaluation import retrieval_ranks
from vse_demo.teaching.checks import as_number, exercise, near, need, too


@exercise("8.1")
def one_vector_for_all_photos(
    t2i_stays: bool, i2t_stays: bool, images: Tensor, texts: Tensor, image_ids: Tensor, shift: Tensor
) -> str:
    need(
        isinstance(t2i_stays, bool) and isinstance(i2t_stays, bool),
        "each answer should be True or False (use torch.equal).",
    )
    old = retrieval_ranks(texts.double() @ images.double().T, image_ids)
    new = retrieval_ranks(texts.double() @ (images.double() + shift.double()).T, image_ids)
    i2t, t2i = (torch.equal(*both) for both in zip(old, new, strict=True))
    need(
        (t2i_stays, i2t_stays) != (i2t, t2i),
        "you have the two directions the wrong way round; retrieval_ranks returns the images' ranks first.",
    )
    need(t2i_stays == t2i, "for one caption, t · a is the same number for every photo: their order cannot change.")
    need(i2t_stays == i2t, "for one photo, t · a is another number for every caption: their order can change.")
    return "For a caption all photos gain the same, t · a. For a photo, captions gain different amounts."


@exercise("8.2")
def chance_in_a_map(common: float, maps: Sequence[np.ndarray]) -> str:
    share = as_number(common, "the share in common")
    need(len(maps) == 2, "maps should hold two maps.")
    one, other = (np.asarray(places, dtype=np.float64) for places in maps)
    need(one.shape == other.shape, "the two maps should be of the same points.")
    need(not np.allclose(one, other), "the two maps are the same: give draw_map two different seeds.")
    nearest = []
    for places in (one, other):
        apart = np.linalg.norm(places[:, None] - places[None], axis=2)
        np.fill_diagonal(apart, np.inf)
        nearest.append(np.argsort(apart, axis=1, kind="stable")[:, :10])
    right = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*nearest, strict=True)])
    need(not near(share, 10 * right, 0.02), "that is how many of the ten; the share is a tenth of it.")
    need(
        abs(share - right) < 0.02,
        f"{share:.2f} is {too(share, float(right))} for these two maps; a point is no neighbour of its own.",
    )
    return "What both maps show is in the data; the rest is the seed."


@exercise("8.3")
def a_linear_rule(
    as_it_is: float, closed: float, images: Tensor, texts: Tensor, image_ids: Tensor, learn: Tensor
) -> str:
    first, second = as_number(as_it_is, "the first share"), as_number(closed, "the second share")
    need(max(first, second) <= 1, "shares lie between 0 and 1.")
    need(
        min(first, second) > 0.2, "a rule that is wrong more often than a coin: are the labels swapped when you count?"
    )
    need(first > second, "with the gap closed there is less to see, not more: are the two the wrong way round?")
    here = learn, learn[image_ids]
    half = (images[here[0]].mean(0) - texts[here[1]].mean(0)) / 2
    right = [_linear_rule(normalize(images - by), normalize(texts + by), *here) for by in (0 * half, half)]
    need(
        abs(first - right[0]) < 0.05,
        f"as the vectors are, a linear rule is right {'more' if first < right[0] else 'less'} often on new photos than "
        "you say. Photos and captions should count the same, although there are more captions.",
    )
    need(
        abs(second - right[1]) < 0.1,
        f"with the gap closed it is right {'more' if second < right[1] else 'less'} often than you say. Learn from "
        "training photos, count on the others, move both by half the gap, normalise.",
    )
    return "What a linear rule can see of the modality is the distance of the two centres."


def _linear_rule(images: Tensor, texts: Tensor, learn_images: Tensor, learn_texts: Tensor) -> float:
    """How often a logistic regression is right about points it has not seen; both modalities count the same."""
    images, texts = images.double(), texts.double()
    rule = torch.zeros(images.shape[1] + 1, dtype=torch.float64, requires_grad=True)  # the last one is the bias
    optimizer = torch.optim.LBFGS([rule], max_iter=200, line_search_fn="strong_wolfe")
    known = images[learn_images], texts[learn_texts]
    half = sum(map(len, known)) / 2  # what each modality weighs

    def loss() -> Tensor:
        optimizer.zero_grad()
        scores = known[0] @ rule[:-1] + rule[-1], -known[1] @ rule[:-1] - rule[-1]
        total = rule[:-1].square().sum() / 2 + half * sum(softplus(-side).mean() for side in scores)
        total.backward()
        return total

    optimizer.step(loss)
    with torch.no_grad():
        of_images, of_texts = (points @ rule[:-1] + rule[-1] for points in (images[~learn_images], texts[~learn_texts]))
        return float((of_images > 0).double().mean() + (of_texts < 0).double().mean()) / 2
