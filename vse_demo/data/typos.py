"""Misspelt sentences: for training that forgives typos, and for measuring how well."""

import re
import string
from collections.abc import Sequence

import numpy as np

SHORTEST = 4  # letters of a word that gets a typo: in a shorter one there is little left to guess from
_WORD = re.compile(rf"[^\W\d_]{{{SHORTEST},}}")


def misspell(word: str, random: np.random.Generator) -> str:
    """One slip of the finger: two letters swapped, one left out, doubled, or replaced by another.

    The result is never the word itself, and never empty.

    >>> misspell("beach", np.random.default_rng(3))
    'beahc'
    """
    while (slip := _slip(word, random)) == word:  # as when two equal letters are swapped
        pass
    return slip


def _slip(word: str, random: np.random.Generator) -> str:
    at, kind = int(random.integers(len(word))), int(random.integers(4))
    letter = string.ascii_lowercase[random.integers(26)]
    if kind == 0 and len(word) > 1:
        at = min(at, len(word) - 2)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1 and len(word) > 1:
        return word[:at] + word[at + 1 :]
    if kind == 2:
        return word[:at] + word[at] + word[at:]
    return word[:at] + letter + word[at + 1 :]


def with_typo(sentence: str, random: np.random.Generator) -> str:
    """A sentence with a typo in one of its longer words; unchanged if it has none.

    >>> with_typo("A dog on the beach.", np.random.default_rng(3))
    'A dog on the beahc.'
    """
    words = list(_WORD.finditer(sentence))
    if not words:
        return sentence
    chosen = words[random.integers(len(words))]
    return sentence[: chosen.start()] + misspell(chosen.group(), random) + sentence[chosen.end() :]


def with_typos(sentences: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Sentences with so many typos each, the same for the same seed: for measuring what typos cost."""
    random = np.random.default_rng(seed)
    misspelt = list(sentences)
    for _ in range(count):
        misspelt = [with_typo(sentence, random) for sentence in misspelt]
    return misspelt
