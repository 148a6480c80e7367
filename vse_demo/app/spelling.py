"""Words that a model has never met, and what may have been meant by them."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rapidfuzz import process
from rapidfuzz.distance import OSA

from vse_demo.app.queries import members_of
from vse_demo.encoders.tokenizers import SubwordTokenizer, WordTokenizer
from vse_demo.model.protocol import EmbeddingModel

ENDINGS = ("s", "es", "'s", "s'", "ed", "er", "ers", "ing", "ly", "y", "ish", "less", "like")
SHORT = 4  # letters; a word of so many is taken for another one if one letter is wrong, a longer one if two are
NEAR = 30  # candidates that are compared


@dataclass(frozen=True)
class Lexicon:
    """The words of a model's vocabulary and of a collection's captions, the most frequent first.

    Args:
        words: What the model knows.
        real: Words that exist although this model may not know them: nobody meant another one.
    """

    words: dict[str, int]  # and their ranks
    real: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, model: EmbeddingModel, captions: Iterable[str], real: Collection[str] = ()) -> "Lexicon | None":
        """Collect the words of a model; None if its vocabulary is not known."""
        tokenizers = [member.tokenizer for member in members_of(model)]
        if not tokenizers:
            return None
        counts = Counter(word for caption in captions for word in WordTokenizer.split(caption))
        known = dict.fromkeys(word for tokenizer in tokenizers for word in vocabulary(tokenizer))
        if any(isinstance(tokenizer, SubwordTokenizer) for tokenizer in tokenizers):
            known |= dict.fromkeys([*counts, *real])  # it reads words that it was not told of by their pieces
        ordered = sorted(known, key=lambda word: -counts[word])  # stable: then as the vocabulary has them
        return cls({word: rank for rank, word in enumerate(ordered)}, frozenset(real))

    def unknown(self, sentence: str) -> list[str]:
        """The words of a sentence that are not known, each once; numbers and signs are no words."""
        words = dict.fromkeys(WordTokenizer.split(sentence))
        return [word for word in words if any(map(str.isalpha, word)) and not self.knows(word)]

    def knows(self, word: str) -> bool:
        """Whether a word, or what it is derived from, is known."""
        stems = [
            word.removesuffix(ending) for ending in ENDINGS if word.endswith(ending) and len(word) > len(ending) + 2
        ]
        return word in self.words or any(stem in self.words or f"{stem}e" in self.words for stem in stems)

    def nearest(self, word: str) -> str:
        """The known word that was probably meant; nothing if none is near, or if the word exists."""
        if word in self.real or len(word) < 3:
            return ""
        limit = 1 if len(word) <= SHORT else 2
        found = process.extract(word, self.words.keys(), scorer=OSA.distance, score_cutoff=limit, limit=NEAR)
        near = [(distance, each[0] != word[0], self.words[each], each) for each, distance, _ in found if len(each) > 2]
        return min(near)[-1] if near else ""

    def correct(self, sentence: str) -> str:
        """The sentence with all unknown words replaced by near ones; nothing if there is none to replace."""
        instead = {word: self.nearest(word) for word in self.unknown(sentence)}
        if not any(instead.values()):
            return ""
        repaired = []
        for part in sentence.split():
            for word in WordTokenizer.split(part):
                if instead.get(word):
                    at = part.lower().find(word)
                    part = part[:at] + instead[word] + part[at + len(word) :] if at >= 0 else part
            repaired.append(part)
        return " ".join(repaired)


def vocabulary(tokenizer: WordTokenizer | SubwordTokenizer) -> Sequence[str]:
    """The whole words that a tokenizer knows, the most frequent first."""
    if isinstance(tokenizer, WordTokenizer):
        return tokenizer.words
    numbers = tokenizer.tokenizer.get_vocab(with_added_tokens=False)
    return [
        word for word in sorted(numbers, key=numbers.__getitem__) if word.isalpha() and (len(word) > 1 or word == "a")
    ]
