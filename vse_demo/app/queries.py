"""Sentences and images that are asked about, each encoded once for all that is asked about it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor, nn

from vse_demo.data.images import ImageLike, as_image
from vse_demo.encoders.tokenizers import MAX_TOKENS, pad_tokens
from vse_demo.model.ensemble import Ensemble
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.model.vse import VSE
from vse_demo.utils.tensors import l2_normalize
from vse_demo.utils.text import sanitize_text

MINUS = -0.5  # weight of what is not wanted
MINUS_WORD = re.compile(r"""(?:^|(?<=\s))[-−](?:"([^"]*\w[^"]*)"|([^\W\d_][\w'’-]*))(?=\s|$)""")
MAX_CHARACTERS = 2000  # of a sentence; a model reads its first 64 words at most


@dataclass(frozen=True)
class Query:
    """What a model makes of a sentence or an image, encoded once for all that is asked about it."""

    model: str
    vector: Tensor  # (1, D), a unit vector
    features: list[Tensor]  # (1, N, D) before pooling, one of each member of the model


@dataclass(frozen=True)
class TextQuery(Query):
    """A sentence, encoded."""

    sentence: str


@dataclass(frozen=True)
class ImageQuery(Query):
    """An image, encoded."""

    image: Image.Image


@dataclass(frozen=True)
class MixedQuery(Query):
    """A sentence and an image together, or what is not wanted taken away: a sum of their vectors."""

    sentence: str
    image: Image.Image | None


def mix(model: str, image: ImageQuery | None, text: TextQuery | None, minus: Sequence[TextQuery]) -> Query:
    """Add up an image and a sentence and take away what is not wanted, by half, as `vse-demo search` does.

    Raises:
        ValueError: Nothing is left.
    """
    parts = [(each.vector, 1.0) for each in (image, text) if each] + [(each.vector, MINUS) for each in minus]
    total = torch.stack([weight * vector for vector, weight in parts]).sum(0)
    if not (image or text) or total.norm() < 1e-6:
        raise ValueError("Say what to look for, not only what to leave out: a beach -people")
    sentence, picture = text.sentence if text else "", image.image if image else None
    return MixedQuery(model, l2_normalize(total), [], sentence, picture)


def split_minus(sentence: str) -> tuple[str, list[str]]:
    """Split a sentence into what is wanted and what is not: words with a minus before them, several in quotes.

    >>> split_minus('a beach -people -"red umbrella" rock-solid')
    ('a beach rock-solid', ['people', 'red umbrella'])
    """
    found = re.findall(MINUS_WORD, sentence)
    return " ".join(re.sub(MINUS_WORD, " ", sentence).split()), [quoted or word for quoted, word in found]


def encode_text(model: EmbeddingModel, name: str, sentence: str) -> TextQuery:
    """Encode a sentence by the model of this name.

    Raises:
        ValueError: It is empty, or too long.
    """
    sentence, members = check_sentence(sentence), members_of(model)
    if not members:
        return TextQuery(name, model.encode_texts([sentence]), [], sentence)
    with torch.inference_mode():
        tokens = [pad_tokens(member.tokenizer.encode([sentence])) for member in members]
        features = [
            member.text_encoder(numbers.to(member.device), mask.to(member.device))
            for member, (numbers, mask) in zip(members, tokens, strict=True)
        ]
        vector = _pool([member.text_pooling for member in members], features)
    return TextQuery(name, vector, features, sentence)


def words_read(model: EmbeddingModel, sentence: str) -> int | None:
    """How many words of a sentence a model reads; None if it reads all of them, or if that cannot be told."""
    words = split_minus(sentence)[0]
    numbers = [member.tokenizer.word_numbers(words) for member in members_of(model)]
    read = [max(each) + 1 for each in numbers if len(each) >= MAX_TOKENS]  # of models that read to their end
    return min(read) if read and min(read) < len(words.split()) else None


def encode_image(model: EmbeddingModel, name: str, image: ImageLike) -> ImageQuery:
    """Encode an image; members of an ensemble that have the same backbone share its features."""
    image, members = as_image(image), members_of(model)
    if not members:
        return ImageQuery(name, model.encode_images([image]), [], image)
    backbones = model.eyes if isinstance(model, Ensemble) else [""]
    seen: dict[str, Tensor] = {}
    features = []
    with torch.inference_mode():
        for member, backbone in zip(members, backbones, strict=True):
            if backbone not in seen:
                seen[backbone] = member.read_image_features([image]).to(member.device)
            features.append(member.image_encoder(seen[backbone], _no_padding(seen[backbone])))
        vector = _pool([member.image_pooling for member in members], features)
    return ImageQuery(name, vector, features, image)


def members_of(model: EmbeddingModel) -> list[VSE]:
    """What a model consists of; nothing if any of it is only known to be an `EmbeddingModel`."""
    members = model.members if isinstance(model, Ensemble) else [model]
    known = [member for member in members if isinstance(member, VSE)]
    return known if len(known) == len(members) else []


def _pool(poolings: Sequence[nn.Module], features: Sequence[Tensor]) -> Tensor:
    """The unit vector (1, D) of one item, from its features (1, N, D) in each member of a model."""
    pooled = [pooling(each, _no_padding(each)) for pooling, each in zip(poolings, features, strict=True)]
    return Ensemble.join([l2_normalize(each).float().cpu() for each in pooled])


def _no_padding(features: Tensor) -> Tensor:
    """The mask (1, N) of a single item."""
    return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)


def check_sentence(sentence: str) -> str:
    """Return a sentence without control characters and without blanks around it.

    Raises:
        ValueError: Nothing is left of it, or it has more than `MAX_CHARACTERS`.
    """
    if not isinstance(sentence, str) or not (sentence := sanitize_text(sentence).strip()):
        raise ValueError("Type a sentence first, for example: a dog on the beach")
    if len(sentence) > MAX_CHARACTERS:
        raise ValueError(
            f"That is {len(sentence):,} characters; give one sentence, of {MAX_CHARACTERS:,} characters at most "
            f"(the models read {MAX_TOKENS} words)"
        )
    return sentence
