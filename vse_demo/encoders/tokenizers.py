"""Sentences -> lists of token numbers, and padded batches of them. Number 0 is always padding."""

import re
import unicodedata
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


def pad_tokens(sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token lists -> numbers (B, N), padded with 0, and their mask (B, N)."""
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    tokens = torch.zeros(mask.shape, dtype=torch.int64)
    tokens[mask] = torch.tensor([token for sentence in sentences for token in sentence])
    return tokens, mask


class WordTokenizer:
    """Lower-case words and their numbers; words outside the vocabulary share one number."""

    FILE = "vocabulary.json"
    unknown = mask_token = 1  # a masked word looks like one never seen
    special: frozenset[int] = frozenset()  # tokens that stand for no word

    def __init__(self, words: Sequence[str]):
        self.words = list(words)
        self.numbers = {word: number for number, word in enumerate(self.words, start=2)}

    @classmethod
    def from_captions(cls, captions: Iterable[str], min_count: int = 4) -> "WordTokenizer":
        """The words that occur at least `min_count` times, the most frequent first."""
        counts = Counter(word for caption in captions for word in cls.split(caption))
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([word for word, count in ordered if count >= min_count])

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

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[self.numbers.get(word, self.unknown) for word in self.tokens(text)] for text in sentences]

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
    def load(cls, folder: Path) -> "WordTokenizer":
        words = read_json(folder / cls.FILE)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise FileError(f"{folder / cls.FILE} must be a list of words")
        if len(set(words)) < len(words):
            raise FileError(f"{folder / cls.FILE} lists a word twice")
        return cls(words)


class SubwordTokenizer:
    """The tokenizer of a BERT-family model, with its special tokens around each sentence."""

    FILE = "tokenizer.json"

    def __init__(self, tokenizer: Any):  # tokenizers.Tokenizer
        self.tokenizer = tokenizer
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.special = frozenset(tokenizer.encode("").ids)
        masks = [tokenizer.token_to_id(name) for name in ("[MASK]", "<mask>", "[UNK]", "<unk>")]
        self.mask_token: int = next((number for number in masks if number is not None), 0)

    @classmethod
    def from_pretrained(cls, name_or_folder: str) -> "SubwordTokenizer":
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(name_or_folder, use_fast=True).backend_tokenizer)
        except (OSError, ValueError) as error:
            raise FileError(f"no tokenizer in {name_or_folder}: {error}") from error

    def tokens(self, sentence: str) -> list[str]:
        return self.tokenizer.encode(sanitize_text(sentence)).tokens

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
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
