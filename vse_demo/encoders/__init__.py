"""Images and captions -> features (B, N, D), one per grid cell, patch, region or token."""

from vse_demo.encoders.backbone import Backbone, fold_batch_norms
from vse_demo.encoders.characters import LIWE, CharacterTokenizer
from vse_demo.encoders.feature_cache import NAME, NAME_BYTES, CachedFeatures, RowFile, cached_features
from vse_demo.encoders.projection import Projection
from vse_demo.encoders.text import LENGTH_GROUPS, TEXTS, BiGRU, TransformerText, read_word_vectors
from vse_demo.encoders.tokenizers import (
    MAX_NGRAMS,
    MAX_TOKENS,
    SubwordTokenizer,
    Token,
    Tokenizer,
    WordTokenizer,
    character_ngrams,
    pad_tokens,
)
from vse_demo.encoders.vision import VISIONS, ImageEncoder

__all__ = [
    "LENGTH_GROUPS",
    "LIWE",
    "MAX_NGRAMS",
    "MAX_TOKENS",
    "NAME",
    "NAME_BYTES",
    "TEXTS",
    "VISIONS",
    "Backbone",
    "BiGRU",
    "CachedFeatures",
    "CharacterTokenizer",
    "ImageEncoder",
    "Projection",
    "RowFile",
    "SubwordTokenizer",
    "Token",
    "Tokenizer",
    "TransformerText",
    "WordTokenizer",
    "cached_features",
    "character_ngrams",
    "fold_batch_norms",
    "pad_tokens",
    "read_word_vectors",
]
