"""AdPool: learned weights of ranks, a soft maximum, and a learned balance of the two."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vse_demo import ops
from vse_demo.layers import RowLinear
from vse_demo.pooling.functional import (
    masked_softmax,
    real_ranks,
    real_rows,
    soft_maximum,
    softmax_sum,
    sort_rows,
    sort_with_order,
    weighted_sum,
)
from vse_demo.utils.checks import VARIANTS, check_choice

INITS = ("random", "mean")


@dataclass(frozen=True)
class PoolTrace:
    """What AdPool did to one batch, for plots and explanations. A level switched off leaves None."""

    sorted_values: Tensor  # (B, N, D) largest first, padding last and 0
    order: Tensor  # (B, N, D) the row that each sorted value came from
    token_weights: Tensor | None  # by rank: (B, N) for the paper's variant, (B, N, D) for the official one
    embedding_weights: Tensor | None  # (B, N, D), rows in their own order
    balance: Tensor  # (B, 2): weight of the token level, weight of the embedding level

    def input_weights(self) -> Tensor:
        """The weight of every input value in the output.

        AdPool's output is `(weights * features).sum(1)` exactly, so a similarity splits into one
        part per row without any approximation.

        Returns:
            (B, N, D).
        """
        total = torch.zeros_like(self.sorted_values)
        if self.token_weights is not None:
            by_rank = self.token_weights
            if by_rank.dim() == 2:
                by_rank = by_rank.unsqueeze(-1).expand_as(total)
            total = total.scatter(1, self.order, by_rank) * self.balance[:, :1, None]
        if self.embedding_weights is not None:
            total = total + self.embedding_weights * self.balance[:, 1:, None]
        return total


class AdPool(nn.Module):
    """Adaptive pooling: learn the weight of each rank, and how much to trust a soft maximum.

    Token level: a softmax over the sorted rows, from a learned score of each row (`paper`: one
    scalar per row, `u @ w`) or of each value (`official`: `relu(linear(u))`, a weight per rank and
    dimension). Embedding level, without parameters: a softmax over the raw values of each
    dimension, a soft maximum. Balance: a shared vector scores both results, and the softmax of the
    two scores mixes them; or two fixed weights.

    Source: Zhang et al., EACL 2023, arXiv:2210.02206, section 3.2. Unlike the authors' code, padded
    rows take no part in the token softmax: there an embedding changes with the longest caption of
    its batch. The bias of their balance layer is left out, since it cancels in the softmax.

    Args:
        dim: D, of the features.
        variant: "paper" or "official".
        token: Whether there is a token level.
        embedding: Whether there is an embedding level.
        balance: Fixed weights of the two levels, which sum to 1; None to learn them.
        init: "random", or "mean" (our own): the token level starts as the mean and learns what to do better. With
            `embedding=False` that is all of AdPool.

    Raises:
        ValueError: If both levels are off, the variant or init is unknown, or the balance is not two such weights.
    """

    def __init__(
        self,
        dim: int,
        variant: str = "official",
        token: bool = True,
        embedding: bool = True,
        balance: tuple[float, float] | None = None,
        init: str = "random",
    ):
        super().__init__()
        if not (token or embedding):
            raise ValueError("AdPool needs its token level, its embedding level, or both")
        if balance is not None and not (token and embedding):
            raise ValueError("a fixed balance needs both levels")
        if balance is not None and not (len(balance) == 2 and min(balance) >= 0 and abs(sum(balance) - 1) < 1e-6):
            raise ValueError(f"balance must be two weights that sum to 1, not {balance}")
        self.dim = dim
        self.variant = check_choice(variant, VARIANTS, "AdPool variant")
        self.token, self.embedding = token, embedding
        self.fixed_balance = balance
        if token:
            self.token_score = nn.Linear(dim, 1, bias=False) if variant == "paper" else RowLinear(dim, dim)
        if check_choice(init, INITS, "AdPool init") == "mean":
            self.start_at_mean()
        if token and embedding and balance is None:
            self.balance_score = nn.Linear(dim, 1, bias=False)

    def forward(
        self, features: Tensor, mask: Tensor | None = None, return_trace: bool = False
    ) -> Tensor | tuple[Tensor, PoolTrace]:
        """Pool each item.

        Args:
            features: (B, N, D).
            mask: (B, N) bool, True where a row is real; all of them if None.
            return_trace: Whether to return every weight on the way too.

        Returns:
            The pooled vectors (B, D); with `return_trace` also a `PoolTrace`.

        Raises:
            ValueError: If the shapes do not fit, or an item has no real row.
            TypeError: If the mask is not bool.
        """
        if features.shape[-1] != self.dim:
            raise ValueError(f"features have {features.shape[-1]} dimensions, this AdPool has {self.dim}")
        mask = real_rows(features, mask)
        if return_trace:
            return self.trace(features, mask)
        token, soft = self.levels(features, mask)
        balance = self.balance(token, soft)
        return balance[:, :1] * token + balance[:, 1:] * soft

    @torch.no_grad()
    def start_at_mean(self) -> None:
        """Give every rank the same score, whatever is there."""
        if not self.token:
            raise ValueError("AdPool's token level is what can start at the mean, and it is off")
        self.token_score.weight.zero_()
        if self.token_score.bias is not None:
            self.token_score.bias.fill_(1.0)  # above 0, or the ReLU would pass no gradient and nothing could be learned

    def levels(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The two pooled vectors, (B, D) each; a level that is switched off repeats the other."""
        if self.token and self.embedding and self.variant == "paper":
            return ops.adpool_levels(features, mask, self.token_score.weight[0])
        if not self.token:
            soft = soft_maximum(features, mask)
            return soft, soft
        values, ranks = sort_rows(features, mask)
        if self.variant == "paper":
            token = weighted_sum(masked_softmax(self.token_scores(values), ranks), values)
        else:
            token = softmax_sum(self.token_score(values), values, ranks, relu=True)
        return token, soft_maximum(features, mask) if self.embedding else token

    def token_scores(self, values: Tensor) -> Tensor:
        """Of each sorted row (B, N), or of each of its values (B, N, D)."""
        if self.variant == "paper":
            return self.token_score(values).squeeze(-1)
        return self.token_score(values).relu()

    def balance(self, token: Tensor, soft: Tensor) -> Tensor:
        """The weights (B, 2) of the token level and the embedding level."""
        if not (self.token and self.embedding):
            return token.new_tensor([float(self.token), float(self.embedding)]).expand(len(token), 2)
        if self.fixed_balance is not None:
            return token.new_tensor(self.fixed_balance).expand(len(token), 2)
        return torch.cat([self.balance_score(token), self.balance_score(soft)], dim=1).softmax(1)

    def trace(self, features: Tensor, mask: Tensor) -> tuple[Tensor, PoolTrace]:
        """The pooled vectors with every weight on the way, slowly."""
        features = features.masked_fill(~mask.unsqueeze(-1), 0)
        values, order = sort_with_order(features, mask)
        token_weights = masked_softmax(self.token_scores(values), real_ranks(mask)) if self.token else None
        embedding_weights = masked_softmax(features, mask) if self.embedding else None
        balance = self.balance(*self.levels(features, mask))
        trace = PoolTrace(values, order, token_weights, embedding_weights, balance)
        return weighted_sum(trace.input_weights(), features), trace

    def extra_repr(self) -> str:
        return f"{self.dim}, variant={self.variant!r}, token={self.token}, embedding={self.embedding}"
