"""LIWE: words are read letter by letter, so there is no vocabulary: a tokenizer and an encoder."""

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from vse_demo.encoders.tokenizers import Token, WordTokenizer
from vse_demo.layers import bidirectional_states

CHARACTERS = 129  # padding, ASCII by its codes, and 128 for all others
LONGEST = 30  # letters of a word; the rest is not read


class CharacterTokenizer(WordTokenizer):
    """Lower-case words as the codes of their letters. Code 1, which no text has, is a masked word.

    >>> CharacterTokenizer([]).encode(["a né"])
    [[(97,), (110, 128)]]
    """

    def __init__(self, words: Sequence[str] = (), ngram_buckets: int = 0):
        super().__init__(words, ngram_buckets)
        self.mask_token: Token = (self.unknown,)

    @classmethod
    def from_captions(
        cls, captions: Iterable[str] = (), min_count: int = 4, ngram_buckets: int = 0
    ) -> "CharacterTokenizer":
        """The same for all captions: nothing is counted."""
        return cls()

    def __len__(self) -> int:
        return CHARACTERS

    def _token(self, word: str) -> Token:
        return tuple(min(ord(letter), CHARACTERS - 1) for letter in word[:LONGEST])


class LIWE(nn.Module):
    """Letters into words, words into states of a bidirectional GRU.

    Wehrmann et al., ICCV 2019 (Language-agnostic visual-semantic embeddings): the vectors of a word's letters are
    concatenated, in order and padded with 0 to a fixed length, and go through small layers to a word vector; a
    bidirectional GRU reads these, and its directions are averaged. Sizes are those of the authors' code: letters of 24
    dimensions, layers of 128 and 256 units with weight normalisation and ReLU. Ours: 30 letters of a word (theirs 26),
    no batch norm, no ReLU after the last layer, and letters beyond ASCII share one vector.

    Args:
        dim: The joint dimension.
        word_dim: Of the word vectors.
        letter_dim: Of the letters' vectors.
    """

    def __init__(self, dim: int, word_dim: int = 300, letter_dim: int = 24):
        super().__init__()
        self.letters = nn.Embedding(CHARACTERS, letter_dim, padding_idx=0)
        sizes = [LONGEST * letter_dim, 128, 256, word_dim]
        self.layers = nn.ModuleList(weight_norm(nn.Linear(width, out)) for width, out in itertools.pairwise(sizes))
        self.gru = nn.GRU(word_dim, dim, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Codes of letters (B, N, L), 0 after a word's end, and the mask (B, N) of words -> states (B, N, dim)."""
        return bidirectional_states(self.gru, self.word_vectors(tokens), mask.sum(1)).mean(2)

    def word_vectors(self, tokens: Tensor) -> Tensor:
        """What the GRU reads: (B, N, word_dim)."""
        codes = nn.functional.pad(tokens, (0, LONGEST - tokens.shape[2]))
        states = self.letters(codes).flatten(2)
        for layer in self.layers[:-1]:
            states = torch.relu(layer(states))
        return self.layers[-1](states)
