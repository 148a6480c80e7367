"""Captions -> (B, N, D) features: a bidirectional GRU over words, or a BERT-family transformer.

A tokenizer turns sentences into lists of token numbers; `pad_tokens` makes a batch and its mask of
them; an encoder turns the batch into one feature per token. Number 0 is always padding.
"""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vse_demo.data import clean
from vse_demo.files import FileError, read_json, write_json
from vse_demo.layers import Projection, round_to_half
from vse_demo.recurrent import bidirectional_states

TEXTS = ("bigru", "bert")
LENGTH_GROUPS = 4  # parts of a batch, by length of the captions
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
        return self.split(sentence)[:MAX_TOKENS] or [clean(sentence)]

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
        return self.tokenizer.encode(clean(sentence)).tokens

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch([clean(text) for text in sentences])]

    def word_numbers(self, sentence: str) -> list[int]:
        """As for words; special tokens are of none."""
        starts = [match.start() for match in re.finditer(r"\S+", sentence)]
        ends = [end if end > start else 0 for start, end in self.tokenizer.encode(clean(sentence)).offsets]
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


def read_word_vectors(path: Path, words: Iterable[str]) -> dict[str, np.ndarray]:
    """The pretrained vectors of these words, as far as a file has them.

    A text file as GloVe and fastText write it (a word and its numbers on each line), or a safetensors
    file with a tensor `vectors` and its words, separated by blanks, in the metadata.
    """
    wanted = set(words)
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "np") as file:
                names, table = file.metadata()["words"].split(" "), file.get_tensor("vectors")
            return {
                word: vector.astype(np.float32) for word, vector in zip(names, table, strict=True) if word in wanted
            }
        with path.open(encoding="utf-8") as lines:
            parts = (line.rstrip().split(" ") for line in lines)
            return {word: np.array(rest, np.float32) for word, *rest in parts if word in wanted and len(rest) > 1}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} cannot be read as word vectors: {error}") from error


class BiGRU(nn.Module):
    """Word vectors, one GRU each way with hidden size `dim`, the two directions averaged."""

    def __init__(self, vocabulary: int, dim: int, word_dim: int = 300):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, word_dim, padding_idx=0)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.gru = nn.GRU(word_dim, dim, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return bidirectional_states(self.gru, self.embedding(tokens), mask.sum(1)).mean(2)

    @torch.no_grad()
    def load_word_vectors(self, tokenizer: WordTokenizer, vectors: Mapping[str, np.ndarray]) -> int:
        """Start from pretrained vectors where there are any, scaled like the others; how many there were."""
        found = [word for word in tokenizer.words if word in vectors]
        if found:
            rows = torch.from_numpy(np.stack([vectors[word] for word in found])).float()
            if rows.shape[1] != self.embedding.embedding_dim:
                raise ValueError(f"word vectors have {rows.shape[1]} dimensions, not {self.embedding.embedding_dim}")
            rows *= self.embedding.weight[1:].std() / rows.std()
            self.embedding.weight[[tokenizer.numbers[word] for word in found]] = rows
        return len(found)


class TransformerText(nn.Module):
    """Any transformers encoder and a projection of its token states to the joint dimension."""

    def __init__(self, config: Mapping[str, Any], dim: int, projection: str = "mlp"):
        super().__init__()
        from transformers import AutoConfig, AutoModel

        settings = {**config, "dtype": "float32"}  # whatever precision it was stored in
        self.backbone = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
        if getattr(self.backbone, "pooler", None) is not None:
            self.backbone.pooler = None  # a summary of the first token that pooling replaces
        self.projection = Projection(self.backbone.config.hidden_size, dim, projection)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.projection(self.states(tokens, mask), mask)

    def states(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The transformer's (B, N, H); what it holds for padding means nothing.

        Captions of like length go through it together: padded to the longest of the batch, more than
        half of the work would be padding.
        """
        states = self.projection.linear.weight.new_zeros(*tokens.shape, self.backbone.config.hidden_size)
        for group in mask.sum(1).argsort().chunk(LENGTH_GROUPS):
            width = int(mask[group].any(0).nonzero().max()) + 1
            part = self.backbone(input_ids=tokens[group, :width], attention_mask=mask[group, :width].long())
            states[group, :width] = part.last_hidden_state
        return states

    @staticmethod
    def read_config(name_or_folder: str) -> dict[str, Any]:
        """The settings of a pretrained model, from a local folder or a hub name."""
        from transformers import AutoConfig

        try:
            settings = AutoConfig.from_pretrained(name_or_folder).to_dict()
        except (OSError, ValueError) as error:
            raise FileError(f"no transformers model in {name_or_folder}: {error}") from error
        settings.pop("_name_or_path", None)  # where it lay says nothing of what it is
        return settings

    def load_weights(self, name_or_folder: str) -> None:
        """Take pretrained weights, stored as safetensors, from a local folder or a hub name."""
        from transformers import AutoModel

        try:
            trained, report = AutoModel.from_pretrained(
                name_or_folder, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise FileError(f"no safetensors weights in {name_or_folder}: {error}") from error
        missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
        if missing:
            raise FileError(f"the weights in {name_or_folder} are not for its config: {missing[0]} is missing")
        if getattr(trained, "pooler", None) is not None:
            trained.pooler = None
        self.backbone.load_state_dict(trained.state_dict())

    def freeze_backbone(self) -> None:
        self.backbone.requires_grad_(False)
        round_to_half(self.backbone)
