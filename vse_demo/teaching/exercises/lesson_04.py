"""Exercises on alignment and uniformity: the temperature, a blind spot, and what the logarithm adds."""

import torch
from torch import Tensor

from vse_demo.losses import alignment, uniformity
from vse_demo.teaching.checks import as_array, as_number, exercise, near, need, too


@exercise("4.1")
def temperature_as_t(t: float, constant: float) -> str:
    t, constant = as_number(t, "t"), as_number(constant, "the constant")
    need(not near(t, 20), "2t must be 1/τ = 20; you have t = 20.")
    need(not near(t, 0.05), "that is the temperature itself; compare sim/τ with 2t·sim.")
    need(near(t, 10), f"2t must be 1/τ; t = {t:g} is {too(t, 10)}.")
    need(not near(constant, -20), "the sign: uniform_WI has −2t in front, so 2t has to be added to it.")
    need(
        near(constant, 20),
        f"uniform_WI(t) = −2t + log E exp(2t·sim): what takes the −2t away? {constant:g} is {too(constant, 20)}.",
    )
    return "t = 1/(2τ) = 10: so large that only the nearest pairs count."


@exercise("4.2")
def two_clumps_that_look_uniform(photos: Tensor, texts: Tensor) -> str:
    one, other = as_array(photos, (4, 2), "four_photos"), as_array(texts, (4, 2), "four_texts")
    need(near((one**2).sum(1), 1) and near((other**2).sum(1), 1), "the points should lie on the circle: length 1.")
    need(near(one, one[:1].repeat(4, axis=0)), "all four photos should be the same point.")
    across = torch.tensor(other @ one.T)
    value = float(uniformity(across))
    need(near(value, -1), f"the paper's uniformity is {value:.2f}; for −1 all similarities must be −1.")
    assert near(alignment(across), -1)  # follows
    return "Across: −1, 'perfect'. Within each kind: two collapsed clumps. Only the alignment, −1, gives it away."


@exercise("4.3")
def mean_and_half_the_variance(estimate: Tensor, similarities: Tensor) -> str:
    value = as_number(estimate, "the estimate")
    mean, variance = float(similarities.mean()), float(similarities.var())
    need(not near(value, mean, 1e-6), "that is the mean alone; half of the variance is missing.")
    need(not near(value, mean + variance, 1e-5), "you added the whole variance; half of it is right.")
    need(
        not near(value, mean + variance**0.5 / 2, 1e-5), "you added half of the standard deviation; it is the variance."
    )
    need(near(value, mean + variance / 2, 1e-4), "it should be similarities.mean() + similarities.var() / 2.")
    gap = abs(value - float(uniformity(similarities)))
    return f"Within {max(gap, 0.001):.3f} of the uniformity: the mean similarity, plus a small charge for uneven ones."
