"""Early interaction in small: words and cells of a pair in one transformer, which says whether they belong together."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vse_demo.interaction.base import FeatureSets, Interaction
from vse_demo.losses.base import Objective
from vse_demo.losses.terms import LossTerms
from vse_demo.utils.tensors import l2_normalize


class Fusion(Interaction):
    """A single-stream cross-encoder in the manner of UNITER and OSCAR.

    Chen et al., ECCV 2020, arXiv:1909.11740; Li et al., ECCV 2020, arXiv:2004.06165. A summary token, the words and
    the image features of a pair, each with an embedding of its kind, go through a transformer; a linear layer on the
    summary gives the logit that they match. It is trained by image-text matching, binary cross-entropy of true pairs
    and hard negatives. These come from the two encoders underneath (as in ALBEF, arXiv:2107.07651): for each text the
    wrong image, and for each image the wrong text, whose mean features are most similar. The same cosines train the
    encoders by whatever objective the recipe names.

    In small: a few layers of our dimension on encoders of ours, from nothing. The originals are BERT-sized and
    pretrained on millions of pairs with further tasks: this shows their kind of similarity, not what they reach.

    Args:
        dim: D.
        layers: Of the transformer; 0 is the ablation, the cosine of the mean features.
        heads: Of its attention; one where they do not divide D.
    """

    def __init__(self, dim: int, layers: int = 2, heads: int = 4):
        super().__init__()
        self.heads = heads if dim % heads == 0 else 1
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, self.heads, 2 * dim, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        if layers:
            self.kinds = nn.Parameter(0.02 * torch.randn(3, dim))  # summary, word, image feature
            self.norm, self.score = nn.LayerNorm(dim), nn.Linear(dim, 1)

    def forward(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        if not self.layers:
            return self.cosines(images, texts)
        size = len(texts.features), len(images.features)
        rows, columns = (numbers.flatten() for numbers in torch.meshgrid(*map(torch.arange, size), indexing="ij"))
        return self.logits(images, texts, rows, columns).view(size)

    def logits(self, images: FeatureSets, texts: FeatureSets, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether text `rows[p]` and image `columns[p]` match, for each of P pairs: (P,)."""
        words, cells = texts.features[rows], images.features[columns]
        summary = self.kinds[0].expand(len(rows), 1, -1)
        tokens = torch.cat([summary, words + self.kinds[1], cells + self.kinds[2]], dim=1)
        real = torch.cat([texts.mask.new_ones(len(rows), 1), texts.mask[rows], images.mask[columns]], dim=1)
        tokens = self.norm(tokens.masked_fill(~real.unsqueeze(-1), 0))
        for layer in self.layers:
            tokens = layer(tokens, src_key_padding_mask=~real)
        return self.score(tokens[:, 0]).squeeze(-1)

    def cosines(self, images: FeatureSets, texts: FeatureSets) -> Tensor:
        """Of the mean features, without interaction: (C, B)."""
        return mean_vectors(texts) @ mean_vectors(images).T

    def loss_terms(self, objective: Objective, images: FeatureSets, texts: FeatureSets, image_ids: Tensor) -> LossTerms:
        cosines = self.cosines(images, texts)
        terms = objective.from_similarities(cosines, image_ids)
        if not self.layers:
            return terms
        image_ids = image_ids.to(cosines.device)
        rows, columns, match = matching_pairs(cosines.detach(), image_ids)
        errors = nn.functional.binary_cross_entropy_with_logits(
            self.logits(images, texts, rows, columns), match, reduction="sum"
        )
        return replace(terms, loss=terms.loss + errors)

    def values_per_pair(self, words: int, cells: int, dim: int) -> int:
        tokens = 1 + words + cells
        return tokens * (6 * dim + 2 * self.heads * tokens)


def mean_vectors(sets: FeatureSets) -> Tensor:
    """The unit mean of each set's features: (B, D)."""
    return l2_normalize(sets.features.masked_fill(~sets.mask.unsqueeze(-1), 0).sum(1))


def matching_pairs(similarities: Tensor, image_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs that matching learns from: every true one, and the hardest wrong one of each text and each image.

    Where a batch has nothing wrong for an item, as with a single image, it gives no wrong pair.

    Args:
        similarities: (C, B).
        image_ids: (C,) the index of each text's image.

    Returns:
        Texts, images, and 1 where they belong together, else 0: (P,) each.
    """
    texts = torch.arange(len(image_ids), device=image_ids.device)
    images = torch.arange(similarities.shape[1], device=image_ids.device)
    true = image_ids.unsqueeze(1) == images  # (C, B)
    wrong = similarities.masked_fill(true, -torch.inf)
    rows = torch.cat([texts, texts, wrong.argmax(0)])
    columns = torch.cat([image_ids, wrong.argmax(1), images])
    match = torch.cat([similarities.new_ones(len(texts)), similarities.new_zeros(len(texts) + len(images))])
    kept = true[rows, columns] == match.bool()
    return rows[kept], columns[kept], match[kept]
