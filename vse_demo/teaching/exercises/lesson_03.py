"""Exercises on AdPool: the embedding level, the mean as a special case, and the order of rows."""

import torch
from torch import Tensor

from vse_demo.pooling import AdPool
from vse_demo.teaching.checks import as_array, exercise, near, need


@exercise("3.1")
def embedding_level_in_a_line(soft: Tensor, batch: Tensor) -> str:
    values = as_array(soft, (len(batch), batch.shape[2]), "the pooled batch")
    need(not near(values, 1), "all are 1: you summed the weights, but they have to multiply the values first.")
    need(
        not near(values, (batch.softmax(2) * batch).sum(1)),
        "your softmax runs over the dimensions; the words compete (axis 1).",
    )
    need(
        not near(values, (batch.softmax(0) * batch).sum(1)),
        "your softmax runs over the batch; the words compete (axis 1).",
    )
    need(not near(values, batch.mean(1)), "that is the mean; where is the softmax?")
    need(
        not near(values, (batch.softmax(1) * batch).mean(1)), "the weights sum to 1 already: sum, do not average again."
    )
    need(
        near(values, (batch.softmax(1) * batch).sum(1)),
        "it is not the softmax over the words, times the values, summed.",
    )
    return "Axis 1 is N: the rows compete, the dimensions do not."


@exercise("3.2")
def adpool_that_is_a_mean(pool: AdPool, both_levels_lie: str, batch: Tensor) -> str:
    need(isinstance(pool, AdPool), "mean_pool should be an AdPool.")
    with torch.no_grad():
        pooled = pool(batch.to(next(pool.parameters()).dtype))
        _, trace = pool(batch.to(next(pool.parameters()).dtype), return_trace=True)
    need(
        trace.balance[0, 0] > 0.5 or near(pooled, batch.mean(1)),
        "the soft maximum is never the mean: give its level no weight.",
    )
    need(near(trace.token_weights.std(1), 0), "ranks still count differently: which scores make all weights equal?")
    need(near(pooled, batch.mean(1)), "it does not give the mean of each column yet.")
    need(
        str(both_levels_lie).strip().lower() == "above",
        "look at the first figure: every number of both levels against the mean of its column.",
    )
    return (
        "Scores of 0 make the token level a mean. With the lesson's w both levels lie above it, and so does every mix."
    )


@exercise("3.3")
def order_of_rows(before: Tensor, after: Tensor, new_weights: Tensor, pool: AdPool, sets: Tensor, order: Tensor) -> str:
    with torch.no_grad():
        (true_before, trace), (true_after, moved) = (pool(rows, return_trace=True) for rows in (sets, sets[:, order]))
    shape = tuple(true_before.shape)
    need(near(as_array(before, shape, "before"), true_before), "before should be the vectors of sets.")
    need(near(as_array(after, shape, "after"), true_after), "after should be the vectors of sets[:, order].")
    weights = as_array(new_weights, tuple(sets.shape), "new_weights")
    old = trace.input_weights()
    need(not near(weights, old), "these are still the old weights; they have to move with their rows.")
    need(
        not near(weights, old[:, order.argsort()]),
        "you moved them the wrong way: row n of the new order is row order[n] of the old.",
    )
    need(
        near(weights, moved.input_weights()), "the weights of the new order are those of the old one, in the new order."
    )
    return "The vector stays, and the weights move with their rows."
