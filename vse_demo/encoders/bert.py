"""BERT (Devlin et al., 2019) in plain PyTorch, with the parameter names of transformers.

MiniLM and most sentence encoders are BERTs of another size. transformers computes the same numbers, but takes seconds
to be imported: longer than a search.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

SIZES = {  # settings that count here, with the defaults of transformers
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
PLAIN = {  # and those that must be so
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


def is_plain_bert(settings: Mapping[str, Any]) -> bool:
    """Whether settings of transformers describe what `Bert` computes."""
    plain = all(settings.get(name, value) == value for name, value in PLAIN.items())
    return plain and settings.get("model_type") == "bert"


class Bert(nn.Module):
    """Token numbers (B, N) and their mask -> states (B, N, hidden_size).

    Args:
        settings: As transformers names them; those that are not of `SIZES` do not matter here.

    Raises:
        ValueError: If the heads do not divide the states.
    """

    def __init__(self, settings: Mapping[str, Any]):
        super().__init__()
        sizes = {name: settings.get(name, default) for name, default in SIZES.items()}
        self.hidden_size: int = sizes["hidden_size"]
        if self.hidden_size % sizes["num_attention_heads"]:
            raise ValueError(f"{sizes['num_attention_heads']} heads do not divide {self.hidden_size} states")
        self.embeddings = Embeddings(sizes)
        layers = nn.ModuleList(Layer(sizes) for _ in range(sizes["num_hidden_layers"]))
        self.encoder = nn.ModuleDict({"layer": layers})
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=sizes["initializer_range"])
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The states; those of padding mean nothing."""
        states, mask = self.embeddings(input_ids), attention_mask[:, None, None].bool()  # over heads and queries
        for layer in self.encoder["layer"].children():
            states = layer(states, mask)
        return states


class Embeddings(nn.Module):
    """Words and their places, added up; every sentence is a first sentence."""

    def __init__(self, sizes: Mapping[str, Any]):
        super().__init__()
        width = sizes["hidden_size"]
        self.word_embeddings = nn.Embedding(sizes["vocab_size"], width, padding_idx=sizes["pad_token_id"])
        self.position_embeddings = nn.Embedding(sizes["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(sizes["type_vocab_size"], width)
        self.LayerNorm = nn.LayerNorm(width, eps=sizes["layer_norm_eps"])
        self.dropout = nn.Dropout(sizes["hidden_dropout_prob"])

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]]
        states = self.word_embeddings(tokens) + self.token_type_embeddings.weight[0] + places
        return self.dropout(self.LayerNorm(states))


class Layer(nn.Module):
    """Attention of each token to all real ones, then two linear layers for each by itself."""

    def __init__(self, sizes: Mapping[str, Any]):
        super().__init__()
        width, inner = sizes["hidden_size"], sizes["intermediate_size"]
        self.heads, self.attention_dropout = sizes["num_attention_heads"], sizes["attention_probs_dropout_prob"]
        projections = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": projections, "output": Addition(width, width, sizes)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = Addition(inner, width, sizes)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            project(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, N, width of a head)
            for project in self.attention["self"].children()
        )
        dropout = self.attention_dropout if self.training else 0.0
        seen = nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        states = self.attention["output"](seen.transpose(1, 2).flatten(2), states)
        return self.output(nn.functional.gelu(self.intermediate["dense"](states)), states)


class Addition(nn.Module):
    """What a sub-layer has found, added to what it was given."""

    def __init__(self, in_dim: int, dim: int, sizes: Mapping[str, Any]):
        super().__init__()
        self.dense = nn.Linear(in_dim, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=sizes["layer_norm_eps"])
        self.dropout = nn.Dropout(sizes["hidden_dropout_prob"])

    def forward(self, found: Tensor, given: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(found)) + given)
