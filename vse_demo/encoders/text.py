"""Captions -> (B, N, D) features: a bidirectional GRU over words, or a BERT-family transformer.

A tokenizer turns sentences into lists of token numbers; `pad_tokens` makes a batch and its mask of
them; an encoder turns the batch into one feature per token. Number 0 is always padding.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vse_demo.encoders.bert import Bert, is_plain_bert
from vse_demo.encoders.projection import Projection
from vse_demo.encoders.tokenizers import WordTokenizer
from vse_demo.layers import bidirectional_states
from vse_demo.ops.dispatch import is_exporting
from vse_demo.utils.files import FileError
from vse_demo.utils.tensors import round_to_half

TEXTS = ("bigru", "bert", "liwe")
LENGTH_GROUPS = 4  # parts of a batch, by length of the captions


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
    """Word vectors, one GRU each way with hidden size `dim`, the two directions averaged.

    With n-grams the mean of their vectors is added to the word's, as in fastText (Bojanowski et al., 2017), so that a
    misspelt or unknown word still looks like its relatives. LIWE (Wehrmann et al., 2019) builds words from single
    characters for the same reason.

    Args:
        vocabulary: Numbers of words.
        dim: The joint dimension.
        word_dim: Of the word vectors.
        ngram_buckets: Numbers of n-grams; 0 for none.
    """

    def __init__(self, vocabulary: int, dim: int, word_dim: int = 300, ngram_buckets: int = 0):
        super().__init__()
        if ngram_buckets < 0:
            raise ValueError(f"ngram_buckets must be at least 0, not {ngram_buckets}")
        self.embedding = nn.Embedding(vocabulary, word_dim, padding_idx=0)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.ngrams: nn.EmbeddingBag | None = None
        if ngram_buckets:
            self.ngrams = nn.EmbeddingBag(ngram_buckets + 1, word_dim, mode="mean", padding_idx=0)
            nn.init.uniform_(self.ngrams.weight[1:], -0.1, 0.1)
        self.gru = nn.GRU(word_dim, dim, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Token numbers (B, N), or (B, N, 1 + G) with n-grams, and their mask -> states (B, N, dim)."""
        return bidirectional_states(self.gru, self.word_vectors(tokens), mask.sum(1)).mean(2)

    def word_vectors(self, tokens: Tensor) -> Tensor:
        """What the GRU reads: (B, N, word_dim)."""
        if self.ngrams is None:
            return self.embedding(tokens)
        pieces = tokens[..., 1:]
        if torch.compiler.is_compiling():  # the same mean, of operations that every runtime has
            real = (pieces != 0).unsqueeze(-1)
            inside = (nn.functional.embedding(pieces, self.ngrams.weight) * real).sum(2) / real.sum(2).clamp(min=1)
            return self.embedding(tokens[..., 0]) + inside
        inside = self.ngrams(pieces.flatten(0, 1))  # 0 where there are none: a masked word
        return self.embedding(tokens[..., 0]) + inside.unflatten(0, tokens.shape[:2])

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
    """A BERT, or any encoder of transformers, and a projection of its token states to the joint dimension."""

    def __init__(self, config: Mapping[str, Any], dim: int, projection: str = "mlp"):
        super().__init__()
        self.backbone = Bert(config) if is_plain_bert(config) else _new_transformer(config)
        self.width = int(getattr(self.backbone, "config", self.backbone).hidden_size)
        self.projection = Projection(self.width, dim, projection)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.projection(self.states(tokens, mask), mask)

    def states(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The transformer's (B, N, H); what it holds for padding means nothing.

        Captions of like length go through it together: padded to the longest of the batch, more than
        half of the work would be padding.
        """
        if is_exporting():  # groups would depend on the lengths
            return self._run(tokens, mask)
        states = self.projection.linear.weight.new_zeros(*tokens.shape, self.width)
        for group in mask.sum(1).argsort().chunk(LENGTH_GROUPS):
            width = int(mask[group].any(0).nonzero().max()) + 1
            states[group, :width] = self._run(tokens[group, :width], mask[group, :width])
        return states

    def _run(self, tokens: Tensor, mask: Tensor) -> Tensor:
        output = self.backbone(input_ids=tokens, attention_mask=mask.long())
        return output if isinstance(output, Tensor) else output.last_hidden_state

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
        known = self.backbone.state_dict()
        self.backbone.load_state_dict({name: tensor for name, tensor in trained.state_dict().items() if name in known})

    def freeze_backbone(self) -> None:
        self.backbone.requires_grad_(False)
        round_to_half(self.backbone)


def _new_transformer(config: Mapping[str, Any]) -> Any:
    """A transformer that is no plain BERT, with random weights."""
    from transformers import AutoConfig, AutoModel

    settings = {**config, "dtype": "float32"}  # whatever precision it was stored in
    model = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # a summary of the first token that pooling replaces
    return model
