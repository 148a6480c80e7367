"""Why an image and a sentence match: a score, split over the places of the image and over the words as typed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vse_demo.app.queries import ImageQuery, TextQuery, members_of
from vse_demo.explanation import Explanation, explain_direction, explain_features
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.model.vse import VSE
from vse_demo.pooling.adpool import AdPool
from vse_demo.shipped import MODELS


@dataclass(frozen=True)
class Attribution:
    """A score, split over the image and over the sentence; of an ensemble, the mean of its members' parts."""

    score: float
    heat_map: np.ndarray  # (N, N) over the image; adds up to the score
    words: list[str]  # as they were typed
    parts: np.ndarray  # one per word; with `rest` they add up to the score
    rest: float  # of what a model puts around a sentence, such as [CLS]
    explanations: dict[str, Explanation]  # of each model by name: how it pooled


def gives_reasons(model: EmbeddingModel) -> bool:
    """Whether a score of this model can be split over its parts: only AdPool's can."""
    poolings = [pooling for member in members_of(model) for pooling in (member.image_pooling, member.text_pooling)]
    return bool(poolings) and all(isinstance(pooling, AdPool) for pooling in poolings)


def attribute(model: EmbeddingModel, image: ImageQuery, text: TextQuery) -> Attribution:
    """Split the score of an image and a sentence, both encoded by this model, over their parts.

    Raises:
        ValueError: The model gives no reasons.
    """
    if not gives_reasons(model):
        raise ValueError("This model gives no reasons: only scores of AdPool can be split exactly")
    members = members_of(model)
    names = MODELS.get(text.model, ())
    if len(names) != len(members):
        names = tuple(f"model {number}" for number in range(1, len(members) + 1))
    explanations = [
        explain_features(member, image_features, text_features, text.sentence)
        for member, image_features, text_features in zip(members, image.features, text.features, strict=True)
    ]
    words = [by_word(member, text.sentence, each) for member, each in zip(members, explanations, strict=True)]
    rest, *parts = np.mean(words, axis=0)
    return Attribution(
        score=float(np.mean([each.score for each in explanations])),
        heat_map=mean_grid([each.heat_map.numpy() for each in explanations]),
        words=text.sentence.split(),
        parts=np.array(parts),
        rest=float(rest),
        explanations=dict(zip(names, explanations, strict=True)),
    )


def attribute_image(model: EmbeddingModel, image: ImageQuery, vector: Tensor) -> Attribution:
    """Split the score of an image with any vector (1, D) of this model's space over the places of the image."""
    if not gives_reasons(model):
        raise ValueError("This model gives no reasons: only scores of AdPool can be split exactly")
    members = members_of(model)
    directions = vector[0].split([member.dim for member in members])  # an ensemble's vectors are its members', scaled
    grids = [
        explain_direction(member, features, direction * len(members) ** 0.5).numpy()
        for member, features, direction in zip(members, image.features, directions, strict=True)
    ]
    heat_map = mean_grid(grids)
    return Attribution(float(heat_map.sum()), heat_map, [], np.empty(0), 0.0, {})


def by_word(model: VSE, sentence: str, explanation: Explanation) -> np.ndarray:
    """Add up the parts of a sentence's tokens: first of those of no word, then of each word as it was typed."""
    numbers = np.array(model.tokenizer.word_numbers(sentence)) + 1  # of the tokens; 0 for no word
    return np.bincount(numbers, explanation.text.parts.numpy(), len(sentence.split()) + 1)


def mean_grid(grids: Sequence[np.ndarray]) -> np.ndarray:
    """Average square grids of different sizes on their smallest common grid; a grid keeps its sum."""
    side = math.lcm(*(len(grid) for grid in grids))
    fine = [np.kron(grid, np.ones((side // len(grid),) * 2)) * (len(grid) / side) ** 2 for grid in grids]
    return np.mean(fine, axis=0)
