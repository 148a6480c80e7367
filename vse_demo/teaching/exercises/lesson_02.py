"""Exercises on pooling: the median, what each pooling forgets, and the order of rows."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vse_demo.teaching.checks import as_array, exercise, near, need


@exercise("2.1")
def median_as_rank_weights(weights: np.ndarray) -> str:
    values = as_array(weights, (4,), "the weights")
    need(not near(values, 1 / 4), "these weights give the mean; the median looks at the middle ranks only.")
    need(not near(values, [1, 0, 0, 0]), "these weights give the maximum.")
    need(near(values.sum(), 1), f"the weights should sum to 1, yours sum to {values.sum():g}.")
    need(near(values[[0, 3]], 0), "the largest and the smallest value have no say in a median.")
    need(near(values, [0, 0.5, 0.5, 0]), "the two middle ranks should count the same.")
    return "The median is the mean of ranks 2 and 3."


@exercise("2.2")
def what_each_pooling_forgets(same_max: Sequence[Sequence[float]], same_mean: Sequence[Sequence[float]]) -> str:
    for name, pair in (("same_max", same_max), ("same_mean", same_mean)):
        need(len(pair) == 2 and all(len(one) for one in pair), f"{name} should be a pair of lists of numbers.")
    need(max(same_max[0]) == max(same_max[1]), "the two lists of same_max have different maxima.")
    need(
        not near(np.mean(same_max[0]), np.mean(same_max[1])), "the mean cannot tell the lists of same_max apart either."
    )
    need(near(np.mean(same_mean[0]), np.mean(same_mean[1])), "the two lists of same_mean have different means.")
    need(max(same_mean[0]) != max(same_mean[1]), "max cannot tell the lists of same_mean apart either.")
    return "Max forgets all but the largest; the mean forgets how the total is spread."


@exercise("2.3")
def weights_before_sorting(
    unsorted: Callable[[Tensor, Tensor], Tensor], sorted_stays: bool, unsorted_stays: bool
) -> str:
    need(callable(unsorted), "unsorted should be a function of a batch (B, N, D) and N weights.")
    generator = torch.Generator().manual_seed(1)
    sets, weights = torch.randn(2, 5, 3, generator=generator), torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0])
    given = unsorted(sets, weights)
    need(given is not None and given is not ..., "the function returns nothing yet.")
    values = as_array(given, (2, 3), "what unsorted returns")
    ranked = sets.sort(dim=1, descending=True).values
    need(not near(values, torch.einsum("n,bnd->bd", weights, ranked)), "you sorted; here the rows keep their places.")
    need(
        near(values, torch.einsum("n,bnd->bd", weights, sets)),
        "it should be the sum of the rows, each times its weight.",
    )
    need(sorted_stays is True, "sorting undoes any order of the rows, so RankPool's result stays.")
    need(unsorted_stays is False, "without the sort a weight belongs to a place, so a new order gives a new result.")
    return "Sorted, the order of rows does not matter. Weights given to places: it does."
