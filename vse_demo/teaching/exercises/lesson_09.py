"""Exercises on explanations: the parts of a maximum, a wrong caption taken apart, and a suspect tested."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vse_demo.evaluation import retrieval_ranks
from vse_demo.explanation import Explanation
from vse_demo.teaching.checks import as_array, exercise, near, need, too


@exercise("9.1")
def parts_of_a_maximum(parts: Sequence[float]) -> str:
    values = as_array(parts, (3,), "the three parts")
    right = np.array([0.0, 4.0, 4.2]) / np.sqrt(74)
    need(not near(values, right * np.sqrt(74), 1e-2), "divide by the length of the pooled vector (5, 7): √74.")
    need(near(values[0], 0, 1e-2), "“a” holds no maximum, so it has no part.")
    need(
        near(values.sum(), right.sum(), 1e-2),
        f"they should add up to the score of (5, 7); {values.sum():.2f} is {too(values.sum(), right.sum())}.",
    )
    need(near(values, right, 1e-2), "“red” holds the maximum of d1 (5) and “kite” that of d2 (7).")
    return "A maximum gives each dimension to one word; the parts still add up."


@exercise("9.2")
def the_wrong_caption(
    photo: int,
    caption: int,
    pieces: Sequence[str],
    similarities: Tensor,
    image_ids: Tensor,
    explain: Callable[[int, int], Explanation],
) -> str:
    ranks, _ = retrieval_ranks(similarities, image_ids)
    mine, worst = int(ranks[int(photo)]), int(ranks.max())
    need(mine == worst, f"photo {photo} has rank {mine}, the worst of a photo is {worst} (photos' ranks come first).")
    need(
        int(caption) == int(similarities[:, int(photo)].argmax()),
        "the caption that won is the largest entry of the photo's column.",
    )
    need(len(pieces) == 3, "name three pieces.")
    told = explain(int(photo), int(caption))
    right = {told.words[piece] for piece in told.text.parts.topk(3).indices.tolist()}
    need(set(pieces) == right, f"the three largest parts are others; yours has {len(set(pieces) & right)} of them.")
    return f"These pieces won the wrong place: {', '.join(sorted(right))}."


@exercise("9.3")
def suspect_on_trial(
    shorter: Sequence[int],
    ranks: Sequence[int],
    ids: Sequence[int],
    suspect: Sequence[int],
    encode: Callable[[Sequence[int]], Tensor],
    image_vectors: Tensor,
    target: int,
) -> str:
    expected = [number for place, number in enumerate(ids) if place not in suspect]
    need(len(shorter) < len(ids), "the sentence is as long as before: leave the suspect's numbers out.")
    need(list(shorter) == expected, "leave out all pieces of the suspect, and nothing else.")
    given = as_array(ranks, (2,), "the two ranks")
    right = []
    for numbers in (ids, shorter):
        with torch.inference_mode():
            cosines = image_vectors @ encode(numbers)
        right.append(1 + int((cosines > cosines[target]).sum()))
    need(not near(given, np.array(right) - 1), "a rank begins at 1.")
    need(not near(given, right[::-1]) or right[0] == right[1], "you have the two ranks the wrong way round.")
    for place, which in enumerate(("with", "without")):
        need(near(given[place], right[place]), f"the rank {which} the suspect is {too(given[place], right[place])}.")
    told = "better" if right[1] < right[0] else "no better"
    return f"Without it the rank is {told}. It need not improve: a difference tells about two photos, a rank about all."
