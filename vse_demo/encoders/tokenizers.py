"""Sentences -> lists of token numbers, and padded batches of them. Number 0 is always padding."""

import re
import unicodedata
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vse_demo.utils.files import FileError, read_json, write_json
from vse_demo.utils.text import sanitize_text

MAX_TOKENS = 64  # the longest Flickr30K caption has 82 words, 99.9 % have fewer than 50
NGRAM_SIZES = (2, 3)  # characters; a typo spoils as many n-grams as it is long, so short ones
MAX_NGRAMS = 32  # of one word
Token = int | tuple[int, ...]  # a number; with n-grams, the word's number and those of its n-grams


def pad_tokens(sentences: Sequence[Sequence[Token]]) -> tuple[Tensor, Tensor]:
    """Token lists -> numbers (B, N), padded with 0, and their mask (B, N).

    Tokens with n-grams give (B, N, 1 + G), with G of the word that has most of them.

    >>> pad_tokens([[(2, 7, 8), (3, 9)], [(1,)]])[0].tolist()
    [[[2, 7, 8], [3, 9, 0]], [[1, 0, 0], [0, 0, 0]]]
    """
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    flat = [token for sentence in sentences for token in sentence]
    words = [token for token in flat if isinstance(token, tuple)]
    if words:
        width = max(2, *map(len, words))  # at least one column of n-grams, though every word may be masked
        real = torch.tensor([token + (0,) * (width - len(token)) for token in words])
    else:
        real = torch.tensor(flat)
    tokens = torch.zeros(*mask.shape, *real.shape[1:], dtype=torch.int64)
    tokens[mask] = real
    return tokens, mask


def character_ngrams(word: str) -> list[str]:
    """Pieces of a word, its two ends marked; of a very long word, those of its beginning.

    >>> character_ngrams("dog")
    ['<d', 'do', 'og', 'g>', '<do', 'dog', 'og>']
    """
    marked = f"<{word}>"[: MAX_NGRAMS + 1]  # no more pieces than that are taken, and they need no more letters
    pieces = [marked[at : at + size] for size in NGRAM_SIZES for at in range(len(marked) - size + 1)]
    return pieces[:MAX_NGRAMS]


class WordTokenizer:
    """Lower-case words and their numbers; words outside the vocabulary share one number.

    With n-grams a token also says what is inside the word, so that a typo or a word never seen is not like any other.

    Args:
        words: The vocabulary.
        ngram_buckets: Character n-grams are hashed to so many numbers, from 1; 0 for no n-grams.
    """

    FILE = "vocabulary.json"
    unknown = 1  # the number that all other words share
    special: frozenset[Token] = frozenset()  # tokens that stand for no word

    def __init__(self, words: Sequence[str], ngram_buckets: int = 0):
        self.words = list(words)
        self.numbers = {word: number for number, word in enumerate(self.words, start=2)}
        self.ngram_buckets = ngram_buckets
        self.mask_token: Token = (self.unknown,) if ngram_buckets else self.unknown  # a word of which nothing is seen
        self._known: dict[str, Token] = {}  # tokens of the vocabulary, as far as they were asked for

    @classmethod
    def from_captions(cls, captions: Iterable[str], min_count: int = 4, ngram_buckets: int = 0) -> "WordTokenizer":
        """The words that occur at least `min_count` times, the most frequent first."""
        counts = Counter(word for caption in captions for word in cls.split(caption))
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([word for word, count in ordered if count >= min_count], ngram_buckets)

    @staticmethod
    def split(sentence: str) -> list[str]:
        """
        >>> WordTokenizer.split("A man's dog, at 5 o'clock!")
        ['a', "man's", 'dog', 'at', '5', "o'clock"]
        """
        plain = unicodedata.normalize("NFKC", sentence).lower().replace("’", "'")
        return re.findall(r"\w+(?:'\w+)*", plain)

    def tokens(self, sentence: str) -> list[str]:
        """The words that `encode` numbers: what a plot puts under its bars."""
        return self.split(sentence)[:MAX_TOKENS] or [sanitize_text(sentence)]

    def encode(self, sentences: Sequence[str]) -> list[list[Token]]:
        return [[self._token(word) for word in self.tokens(text)] for text in sentences]

    def _token(self, word: str) -> Token:
        number = self.numbers.get(word, self.unknown)
        if not self.ngram_buckets:
            return number
        token = self._known.get(word)
        if token is None:
            hashes = (zlib.crc32(piece.encode()) for piece in character_ngrams(word))  # the same on every machine
            token = (number, *(1 + value % self.ngram_buckets for value in hashes))
            if number != self.unknown:  # what strangers type must not fill the memory
                self._known[word] = token
        return token

    def hide(self, token: Token) -> Token:
        """The token of a word as if it were not in the vocabulary: its n-grams, if there are any, are all that is left.

        >>> WordTokenizer(["dog"], ngram_buckets=100).hide((2, 31, 7))
        (1, 31, 7)
        """
        return (self.unknown, *token[1:]) if isinstance(token, tuple) else self.unknown

    def word_numbers(self, sentence: str) -> list[int]:
        """For each token, which word it is a part of, counted from 0 and between blanks; -1 for none.

        >>> WordTokenizer([]).word_numbers("rock-solid – see?")
        [0, 0, 2]
        """
        of_tokens = [number for number, word in enumerate(sentence.split()) for _ in self.split(word)]
        return of_tokens[:MAX_TOKENS] or [0]

    def __len__(self) -> int:
        return len(self.words) + 2

    def save(self, folder: Path) -> None:
        write_json(folder / self.FILE, self.words)

    @classmethod
    def load(cls, folder: Path, ngram_buckets: int = 0) -> "WordTokenizer":
        words = read_json(folder / cls.FILE)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise FileError(f"{folder / cls.FILE} must be a list of words")
        if len(set(words)) < len(words):
            raise FileError(f"{folder / cls.FILE} lists a word twice")
        return cls(words, ngram_buckets)


class SubwordTokenizer:
    """The tokenizer of a BERT-family model, with its special tokens around each sentence."""

    FILE = "tokenizer.json"

    def __init__(self, tokenizer: Any):  # tokenizers.Tokenizer
        self.tokenizer = tokenizer
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.special: frozenset[Token] = frozenset(tokenizer.encode("").ids)
        masks = [tokenizer.token_to_id(name) for name in ("[MASK]", "<mask>", "[UNK]", "<unk>")]
        self.mask_token: Token = next((number for number in masks if number is not None), 0)

    @classmethod
    def from_pretrained(cls, name_or_folder: str) -> "SubwordTokenizer":
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(name_or_folder, use_fast=True).backend_tokenizer)
        except (OSError, ValueError) as error:
            raise FileError(f"no tokenizer in {name_or_folder}: {error}") from error

    def tokens(self, sentence: str) -> list[str]:
        return self.tokenizer.encode(sanitize_text(sentence)).tokens

    def encode(self, sentences: Sequence[str]) -> list[list[Token]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch([sanitize_text(text) for text in sentences])]

    def word_numbers(self, sentence: str) -> list[int]:
        """As for words; special tokens are of none."""
        starts = [match.start() for match in re.finditer(r"\S+", sentence)]
        ends = [end if end > start else 0 for start, end in self.tokenizer.encode(sanitize_text(sentence)).offsets]
        return [bisect_left(starts, end) - 1 for end in ends]  # the last word that starts before the token ends

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def save(self, folder: Path) -> None:
        self.tokenizer.save(str(folder / self.FILE))

    @classmethod
    def load(cls, folder: Path) -> "SubwordTokenizer":
        from tokenizers import Tokenizer

        try:
            return cls(Tokenizer.from_file(str(folder / cls.FILE)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the Rust library raises bare exceptions, and its panics are no Exception
            raise FileError(f"{folder / cls.FILE} cannot be read as a tokenizer: {error}") from error


Tokenizer = WordTokenizer | SubwordTokenizer
