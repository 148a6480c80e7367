"""Exercises of the tour: the cosine, and what follows from it."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vse_demo.teaching.checks import as_array, as_number, exercise, near, need, too


@exercise("1.1")
def cosine_of_any_two_vectors(cosine: Callable[[np.ndarray, np.ndarray], float]) -> str:
    need(callable(cosine), "cosine should be a function of two vectors: def cosine(one, other): …")
    one, other = np.array([1.0, 2.0]), np.array([2.0, 1.0])
    given = cosine(one, other)
    need(given is not None and given is not ..., "the function returns nothing yet.")
    value = as_number(given, "what the function returns")
    need(not near(value, 4), "that is the dot product; divide it by both lengths, or (10, 20) gets another answer.")
    need(not near(value, 4 / 5**0.5), "you divided by one length only; both vectors have one.")
    need(not near(value, 2**0.5), "that is the distance of the two points, not the cosine of their angle.")
    need(near(value, 0.8), f"(1, 2) and (2, 1) should give 4 / (√5 · √5) = 0.8, yours gives {value:.3f}.")
    need(near(cosine(10 * one, other), 0.8), "a longer vector should give the same cosine, yours changes.")
    need(near(cosine(one, -one), -1), "opposite vectors should give −1.")
    return "The lengths are divided out: only the angle is left."


@exercise("1.2")
def shared_neighbours(same: float, different: float, similarities: Tensor, image_ids: np.ndarray) -> str:
    same, different = as_number(same, "the first average"), as_number(different, "the second average")
    nearest = torch.zeros_like(similarities).scatter_(1, similarities.topk(5, dim=1).indices, 1.0)
    pairs = np.array([np.flatnonzero(image_ids == photo)[:2] for photo in np.unique(image_ids)])
    firsts, seconds = nearest[pairs[:, 0]], nearest[pairs[:, 1]]
    shared = firsts @ seconds.T  # of each first caption with each second one
    true_same = float(shared.diagonal().mean())
    photos = len(pairs)
    true_different = float((shared.sum() - shared.diagonal().sum()) / (photos * (photos - 1)))
    need(not near(same, true_same / 5), "that is a share; the question is how many of the five, from 0 to 5.")
    need(
        not (near(different, true_same, 1e-3) and not near(same, true_same, 1e-3)),
        "you have the two the wrong way round.",
    )
    need(near(same, true_same, 0.01), f"for captions 1 and 2 of a photo {same:.2f} of five is {too(same, true_same)}.")
    allowed = max(0.25, 4 * float(shared.std()) / photos**0.5)  # it depends on which photos were paired
    need(
        abs(different - true_different) < allowed,
        f"for captions of two photos {different:.2f} of five is {too(different, true_different)}.",
    )
    return "Two sentences about one photo find much the same; about two photos, hardly anything."


@exercise("1.3")
def two_things_at_once(both: Tensor, boat: Tensor, beach: Tensor, image_vectors: Tensor) -> str:
    vector = as_array(both, tuple(boat.shape), "the vector of both")
    need(np.linalg.norm(vector) > 1e-6, "the vector is zero: it has no direction to search in.")
    total, scores = (boat + beach).double().numpy(), image_vectors.double().numpy() @ vector
    need(not near(vector, (boat * beach).numpy(), 1e-6), "you multiplied entry by entry; the exercise adds.")
    cosine = float(vector @ total / np.linalg.norm(vector) / np.linalg.norm(total))
    need(cosine > 0.9999, f"its direction is not that of the sum (their cosine is {cosine:.2f}).")
    need(
        (np.diff(image_vectors.double().numpy()[np.argsort(-scores)] @ total) <= 1e-6).all(),
        "the order is another one.",
    )
    return "(s + t) · v = s · v + t · v; the length of the sum scales all scores alike, so the order stays."
