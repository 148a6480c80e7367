"""Exercises on interaction: a late score by hand, what a query costs, and the ceiling of two stages."""

from collections.abc import Callable

from torch import Tensor

from vse_demo.teaching.checks import as_number, exercise, near, need, too


@exercise("10.1")
def max_sim_by_hand(score: float) -> str:
    value = as_number(score, "the score")
    need(not near(value, 0.9), "you took the best word for each cell; each word chooses its best cell.")
    need(not near(value, 1.6), "that is the sum over the words; take their mean.")
    need(not near(value, 0.6), "that is the mean of all four products; for each word only the best cell counts.")
    need(near(value, 0.8), f"{value:.2f} is {too(value, 0.8)}: for each word its best cell, then the mean of the two.")
    return "Word 1 fits the second cell best (0.6), word 2 too (1): 0.8 on average."


@exercise("10.2")
def seconds_of_a_query(alone: float, reranking: float) -> str:
    first, second = as_number(alone, "the first time"), as_number(reranking, "the second time")
    need(not near(first, 2000 / 1_000_000), "that is the other way up: pairs divided by pairs per second.")
    need(not near(first, 500 / 60, 1e-2), "in seconds, please.")
    need(
        near(first, 500),
        f"{first:g} seconds for all are {too(first, 500)}: how many pairs, and how many of them in a second?",
    )
    need(near(second, 0.05), f"{second:g} seconds for 100 pairs are {too(second, 0.05)}.")
    return "Eight minutes, or a twentieth of a second: that is why there are two stages."


@exercise("10.3")
def ceiling_of_two_stages(ceiling: Callable[[Tensor, int], float], first: Tensor, belongs: Tensor) -> str:
    need(callable(ceiling), "ceiling_of should be a function of the similarities and n.")
    for n in (1, 5, first.shape[1]):
        given = ceiling(first, n)
        need(given is not None and given is not ..., "the function returns nothing yet.")
        value = as_number(given, "the ceiling")
        right = float(100 * (first.topk(n, dim=1).indices == belongs[:, None]).any(dim=1).float().mean())
        need(not near(value, right / 100) or right == 0, "in per cent: 100 times that.")
        need(
            near(value, right, 1e-3),
            f"for n = {n} it is {too(value, right)}: how many captions have their photo among the first n?",
        )
    return "It is R@n of the first stage: what was not found cannot be reordered."
