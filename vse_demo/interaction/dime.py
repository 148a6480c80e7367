"""DIME: four ways to refine the features of one side in view of the other, and routers that mix them for each pair."""

import torch
from torch import Tensor, nn

from vse_demo.interaction.attention import attend, focus, pair_products
from vse_demo.interaction.base import FeatureSets, Interaction
from vse_demo.layers import RowNorm
from vse_demo.utils.checks import check_choice
from vse_demo.utils.tensors import l2_normalize

CELLS = 4
CLOSED = 1e-4  # gates that sum to less than this let nothing through


class DIME(Interaction):
    """Dynamic modality interaction.

    Qu et al., SIGIR 2021. Layers of four cells that refine the features of one side (section 3.3): rectified identity,
    intra-modal reasoning (self-attention), cross-modal refinement (scale and shift by what a feature attends to on the
    other side) and global-local guidance (a gate by the other side's global vector). A router beside each cell turns
    its mean input into a gate for each cell of the next layer, ReLU(tanh(MLP)) (section 3.4); gates are divided by
    their sum over the cells. The refined features, normalised over the batch, give mean plus maximum, and its cosine
    with the other side's global vector is the similarity.

    What the paper leaves open is as in the authors' code: the bias of a router begins at 1.5 so all gates are open,
    closed gates pass the identity, and the last layer divides by the sum of its gates. Ours: a side's global vector
    is the unit mean of its unit features (theirs comes from encoders of their own); self-attention has one head and no
    feed-forward layers after it; routers are smaller; their leaky ReLU is SCAN's ReLU; and the regularisation of paths
    is left out, because it needs similarities of captions from another model.

    Args:
        dim: D.
        direction: `t2i` refines words, `i2t` refines image features.
        layers: Of cells; 1 has no routing but that of its output.
        hidden: Units of a router.
        sharpness: λ of the attention between the sides.
    """

    def __init__(self, dim: int, direction: str = "i2t", layers: int = 3, hidden: int = 64, sharpness: float = 4.0):
        super().__init__()
        self.direction = check_choice(direction, ("i2t", "t2i"), "direction")
        paths = [CELLS] * (layers - 1) + [1]
        self.layers = nn.ModuleList(RoutedLayer(dim, outputs, hidden, sharpness) for outputs in paths)
        self.norm = RowNorm(dim)

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        queries, contexts = (texts, images) if self.direction == "t2i" else (images, texts)
        start = l2_normalize(queries.features.masked_fill(~queries.mask.unsqueeze(-1), 0)).unsqueeze(1)  # (Q, 1, n, D)
        context = FeatureSets(
            l2_normalize(contexts.features.masked_fill(~contexts.mask.unsqueeze(-1), 0)), contexts.mask
        )
        whole = l2_normalize(context.features.sum(1))  # (K, D)
        refined = [start] * CELLS
        for layer in self.layers:
            refined = [each * queries.mask[:, None, :, None] for each in layer(refined, queries.mask, context, whole)]
        mask = queries.mask.unsqueeze(1).expand(-1, len(whole), -1)  # (Q, K, n)
        rows = self.norm(refined[0].flatten(0, 1), mask.flatten(0, 1)).view_as(refined[0])
        hidden = ~mask.unsqueeze(-1)
        mean = rows.masked_fill(hidden, 0).sum(2) / mask.sum(2, keepdim=True)
        pooled = l2_normalize(mean + rows.masked_fill(hidden, -torch.inf).amax(2))  # (Q, K, D)
        similarities = (pooled * whole).sum(-1)
        return similarities if self.direction == "t2i" else similarities.T

    def values_per_pair(self, words: int, cells: int, dim: int) -> int:
        return 18 * (words if self.direction == "t2i" else cells) * dim


class RoutedLayer(nn.Module):
    """Four cells and their routers: four inputs (Q, K or 1, n, D) -> as many outputs as the next layer has cells."""

    def __init__(self, dim: int, outputs: int, hidden: int, sharpness: float):
        super().__init__()
        self.reason = nn.MultiheadAttention(dim, 1, batch_first=True)
        self.scale, self.shift = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.refine = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.guide = nn.Linear(dim, dim)
        self.routers = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, outputs)) for _ in range(CELLS)
        )
        for router in self.routers:
            nn.init.constant_(router[2].bias, 1.5)  # type: ignore[index]
        self.outputs, self.sharpness = outputs, sharpness

    def forward(self, inputs: list[Tensor], mask: Tensor, contexts: FeatureSets, whole: Tensor) -> list[Tensor]:
        identity, related, crossed, guided = inputs
        results = [
            identity.relu(),
            self.within(related, mask),
            self.across(crossed, contexts),
            self.guidance(guided, mask, whole),
        ]
        gates = [self.gates(router, each, mask) for router, each in zip(self.routers, inputs, strict=True)]
        shape = torch.broadcast_shapes(*(gate.shape for gate in gates))
        stacked = torch.stack([gate.expand(shape) for gate in gates])  # (cells, Q, K or 1, outputs)
        if self.outputs == 1:
            return [self.last(results, inputs, stacked[..., 0])]
        shares = stacked / (stacked.sum(0) + 1e-8)
        skipped = (stacked.sum(0) < CLOSED).to(stacked.dtype)
        return [
            sum(share[..., path, None, None] * result for share, result in zip(shares, results, strict=True))
            + skipped[..., path, None, None] * results[0]
            for path in range(self.outputs)
        ]

    def last(self, results: list[Tensor], inputs: list[Tensor], gates: Tensor) -> Tensor:
        """The mean of results by their gates (cells, Q, K); a closed cell passes its input."""
        closed = (gates < CLOSED / CELLS).to(gates.dtype)
        parts = [
            gate[..., None, None] * result + shut[..., None, None] * given
            for gate, shut, result, given in zip(gates, closed, results, inputs, strict=True)
        ]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0) / (gates + closed).sum(0)[..., None, None]

    def gates(self, router: nn.Module, features: Tensor, mask: Tensor) -> Tensor:
        """How far each path is open, from 0 to 1: (Q, K or 1, outputs)."""
        real = mask[:, None, :, None]
        mean = features.masked_fill(~real, 0).sum(2) / mask.sum(1)[:, None, None]
        return router(mean).tanh().relu()

    def within(self, features: Tensor, mask: Tensor) -> Tensor:
        """Intra-modal reasoning: self-attention, added to its input."""
        rows = features.flatten(0, 1)
        hidden = ~mask.unsqueeze(1).expand(features.shape[:3]).flatten(0, 1)
        return features + self.reason(rows, rows, rows, key_padding_mask=hidden, need_weights=False)[0].view_as(
            features
        )

    def across(self, features: Tensor, contexts: FeatureSets) -> Tensor:
        """Cross-modal refinement by what each feature attends to on the other side."""
        found = attend(focus(pair_products(features, contexts.features), contexts, self.sharpness), contexts.features)
        return features + self.refine(features * self.scale(found).tanh() + self.shift(found))

    def guidance(self, features: Tensor, mask: Tensor, whole: Tensor) -> Tensor:
        """Global-local guidance: features are scaled by how well they go with the other side as a whole."""
        fit = (self.guide(features) * whole[None, :, None, :]).masked_fill(~mask[:, None, :, None], 0)
        return features * (1 + nn.functional.normalize(fit, dim=2))
