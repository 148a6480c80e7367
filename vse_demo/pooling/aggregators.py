"""The other aggregators of the paper's comparison, each after its own paper, and all by name.

Same contract as `pooling`: (B, N, D) and mask -> (B, D); padding never matters. All but `Seq2Seq`
ignore the order of the rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vse_demo.layers import RowNorm, bidirectional_states
from vse_demo.pooling.adpool import AdPool
from vse_demo.pooling.functional import (
    masked_mean,
    masked_softmax,
    real_rows,
    soft_maximum,
    softmax_sum,
    sort_rows,
    weighted_sum,
)
from vse_demo.pooling.rank import RankPool
from vse_demo.utils.checks import check_choice
from vse_demo.utils.objects import call_with, import_object, is_reference


class SoftPool(nn.Module):
    """Softmax of the values of each dimension: a soft maximum without parameters.

    Stergiou et al., ICCV 2021, arXiv:2101.00440. The embedding level of AdPool alone.
    """

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        return soft_maximum(features, real_rows(features, mask))


class AdaPool(nn.Module):
    """A learned mix of SoftPool and of weights by likeness to the mean (Dice–Sørensen).

    Stergiou and Poppe, IEEE TIP 2022, arXiv:2111.00772; one output position, so one mixing weight.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.tensor(0.5))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = real_rows(features, mask)
        features = features.masked_fill(~mask.unsqueeze(-1), 0)
        centre = masked_mean(features, mask).unsqueeze(1)
        tiny = torch.finfo(features.dtype).tiny  # two zeros are alike: tiny / tiny
        likeness = (2 * (features * centre).abs() + tiny) / (features.square() + centre.square() + tiny)
        mix = self.mix.clamp(0, 1)
        return mix * softmax_sum(likeness, features, mask) + (1 - mix) * soft_maximum(features, mask)


class LIP(nn.Module):
    """Local importance pooling: a small network scores every value, exp of the scores weights them.

    Gao et al., ICCV 2019, arXiv:1908.04156: linear layer, instance norm, sigmoid times 12. A set has
    no neighbourhood, so their 3×3 convolution is a 1×1 one here.
    """

    sharpness = 12.0  # bounds the ratio of two weights to e^12, as in their paper

    def __init__(self, dim: int):
        super().__init__()
        self.score = nn.Linear(dim, dim, bias=False)
        self.scale = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = real_rows(features, mask)
        features = features.masked_fill(~mask.unsqueeze(-1), 0)
        scores = self.score(features)
        centred = scores - masked_mean(scores, mask).unsqueeze(1)
        variance = masked_mean(centred.square(), mask).unsqueeze(1)
        normed = centred * (variance + 1e-5).rsqrt() * self.scale + self.shift
        return softmax_sum(normed.sigmoid() * self.sharpness, features, mask)


class SelfAttention(nn.Module):
    """One transformer encoder layer over the rows (Vaswani et al., 2017), then their mean."""

    def __init__(self, dim: int, heads: int = 8):
        super().__init__()
        heads = heads if dim % heads == 0 else 1
        self.layer = nn.TransformerEncoderLayer(dim, heads, dim, dropout=0.0, batch_first=True)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = real_rows(features, mask)
        features = features.masked_fill(~mask.unsqueeze(-1), 0)
        return masked_mean(self.layer(features, src_key_padding_mask=~mask), mask)


class GCN(nn.Module):
    """Four graph convolutions over a learned affinity of the rows, then their mean.

    The region reasoning of VSRN (Li et al., ICCV 2019, arXiv:1909.02701).
    """

    def __init__(self, dim: int, layers: int = 4):
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(dim) for _ in range(layers))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = real_rows(features, mask)
        features = features.masked_fill(~mask.unsqueeze(-1), 0)
        for layer in self.layers:
            features = layer(features, mask)
        return masked_mean(features, mask)


class GraphLayer(nn.Module):
    """rows + norm(W · affinity · rows · W_g), with affinity = φ(rows) ψ(rows)ᵀ / number of rows."""

    def __init__(self, dim: int):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = RowNorm(dim)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        affinity = self.query(features) @ self.key(features).mT  # (B, N, N)
        affinity = affinity.masked_fill(~mask.unsqueeze(1), 0) / mask.sum(1)[:, None, None]
        return features + self.norm(self.out(affinity @ self.value(features)), mask)


class Seq2Seq(nn.Module):
    """Read the rows as a sequence with a bidirectional GRU; its two last states, averaged."""

    def __init__(self, dim: int):
        super().__init__()
        self.gru = nn.GRU(dim, dim, batch_first=True, bidirectional=True)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = real_rows(features, mask)
        lengths = mask.sum(1)
        # Real rows to the front, in their order: what follows them is padding.
        front = (~mask).long().argsort(dim=1, stable=True).unsqueeze(-1).expand_as(features)
        forward, backward = bidirectional_states(self.gru, features.gather(1, front), lengths).unbind(2)
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, forward.shape[2])
        return (forward.gather(1, last).squeeze(1) + backward[:, 0]) / 2


class DSRN(nn.Module):
    """Dual semantic relations: features related among themselves, then again together with the whole image.

    Wen et al., IEEE TCSVT 2020, arXiv:2010.11550. Both are graph attention over a complete graph: softmax of products
    of projected nodes with several heads, added to the nodes (section III). Theirs relates detected regions with one
    another, then regions with the grid of a second network. Here there is one kind of features, so the second graph has
    these and their mean; the result is the mean over its nodes. Texts have no second kind: their mean.

    Args:
        dim: D.
        heads: Of the attention; one where they do not divide D.
        relations: False for the ablation: the mean of the features.
    """

    def __init__(self, dim: int, heads: int = 8, relations: bool = True):
        super().__init__()
        heads = heads if dim % heads == 0 else 1
        graphs = 2 if relations else 0
        self.graphs = nn.ModuleList(nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(graphs))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = real_rows(features, mask)
        nodes = features.masked_fill(~mask.unsqueeze(-1), 0)
        for number, graph in enumerate(self.graphs):
            if number == 1:  # the whole image joins its parts
                nodes = torch.cat([masked_mean(nodes, mask).unsqueeze(1), nodes], dim=1)
                mask = torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)
            related, _ = graph(nodes, nodes, nodes, key_padding_mask=~mask, need_weights=False)
            nodes = nodes + related
        return masked_mean(nodes, mask)


class GPO(nn.Module):
    """Generalized pooling operator: a GRU over rank encodings gives the weight of each rank.

    Chen et al., CVPR 2021 (VSE∞), arXiv:2011.04305. The weights depend on the rank and on how many
    rows there are, never on the values.
    """

    temperature = 0.1  # colder: fewer ranks win

    def __init__(self, rank_dim: int = 32, hidden: int = 32):
        super().__init__()
        self.rank_dim = rank_dim
        self.gru = nn.GRU(rank_dim, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = real_rows(features, mask)
        values, _ = sort_rows(features, mask)
        lengths = mask.sum(1)
        if torch.compiler.is_compiling() or mask.is_meta:  # how many lengths there are cannot be seen
            return weighted_sum(self.rank_weights(lengths, features), values)
        lengths, which = lengths.unique(return_inverse=True)
        return weighted_sum(self.rank_weights(lengths, features)[which], values)

    def rank_weights(self, lengths: Tensor, features: Tensor) -> Tensor:
        """The weights of the ranks in sets of given lengths.

        Args:
            lengths: (L,) int64.
            features: (B, N, D), for N and the precision.

        Returns:
            (L, N).
        """
        n = features.shape[1]
        encodings = self.rank_encodings(n).to(features).expand(len(lengths), n, -1)
        both_ways = bidirectional_states(self.gru, encodings, lengths).mean(2)  # (L, N, hidden)
        ranks = torch.arange(n, device=features.device) < lengths.unsqueeze(1)
        return masked_softmax(self.score(both_ways).squeeze(-1) / self.temperature, ranks)

    def rank_encodings(self, n: int) -> Tensor:
        """Sines and cosines of the rank, as for positions in a transformer: (N, rank_dim)."""
        rates = 10000.0 ** (-torch.arange(0, self.rank_dim, 2) / self.rank_dim)
        angles = torch.arange(n).unsqueeze(1) * rates
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def manual(modality: str) -> RankPool:
    """The paper's hand-tuned choice: 5-max for images, mean for text.

    Args:
        modality: "image" or "text".

    Returns:
        The pooling.
    """
    check_choice(modality, ("image", "text"), "modality")
    return RankPool([1] * 5) if modality == "image" else RankPool()


POOLINGS: dict[str, Callable[..., nn.Module]] = {
    "mean": lambda dim, modality: RankPool(),
    "max": lambda dim, modality: RankPool([1]),
    "kmax": lambda dim, modality, k=5: RankPool([1] * k),
    "manual": lambda dim, modality: manual(modality),
    "softpool": lambda dim, modality: SoftPool(),
    "adapool": lambda dim, modality: AdaPool(),
    "lip": lambda dim, modality: LIP(dim),
    "selfattn": lambda dim, modality: SelfAttention(dim),
    "gcn": lambda dim, modality: GCN(dim),
    "seq2seq": lambda dim, modality: Seq2Seq(dim),
    "gpo": lambda dim, modality: GPO(),
    "dsrn": lambda dim, modality, relations=True: DSRN(dim, relations=relations and modality == "image"),
    "adpool": lambda dim, modality, **options: AdPool(dim, **options),
}


def build_pooling(name: str, dim: int, modality: str = "image", **options: object) -> nn.Module:
    """Build any aggregator by name.

    Args:
        name: One of `POOLINGS`, or `package.module:Name` of a class or function, which is given `dim` and `modality` if
            it has such parameters.
        dim: D, of the features.
        modality: "image" or "text"; matters to "manual" only.
        options: For "adpool" (see `AdPool`), and `k` for "kmax".

    Returns:
        A module that takes features (B, N, D) and a mask (B, N), and returns (B, D).

    Raises:
        ValueError: If there is no such aggregator, or it cannot use the options.

    >>> build_pooling("adpool", 4, variant="official")(torch.ones(2, 3, 4)).shape
    torch.Size([2, 4])
    """
    if not is_reference(name):
        check_choice(name, list(POOLINGS), "pooling")
    try:
        if is_reference(name):
            return call_with(import_object(name), {"dim": dim, "modality": modality}, options)
        return POOLINGS[name](dim, modality, **options)
    except TypeError as error:
        raise ValueError(f"pooling {name} cannot use the options {options}: {error}") from error
