"""Two encoders and an interaction: items stay sets of features, and a similarity needs both sides."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from vse_demo.data.images import ImageLike, Images, as_images
from vse_demo.data.layouts import CaptionedImages
from vse_demo.encoders.tokenizers import Tokenizer
from vse_demo.evaluation import Metrics, check_folds, evaluate, evaluate_pairs
from vse_demo.interaction.base import FeatureSets, all_similarities
from vse_demo.interaction.registry import build_interaction
from vse_demo.losses.base import Objective
from vse_demo.losses.terms import LossTerms
from vse_demo.model.config import ModelConfig, read_config
from vse_demo.model.dual import DualEncoder
from vse_demo.model.ensemble import load_model
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.model.vse import VSE
from vse_demo.utils.files import FileError, recover_folder
from vse_demo.utils.progress import in_batches
from vse_demo.utils.tensors import evaluation_mode


class InteractionModel(DualEncoder):
    """Images and sentences as sets of features, compared by any of `INTERACTIONS`.

    There are no vectors to search: all pairs have to be compared. It orders what another model found
    (`vse_demo.retrieval.rerank`), and is trained, evaluated, saved and loaded like any model.

    Example:
        >>> from vse_demo.encoders import WordTokenizer
        >>> config = ModelConfig(dim=8, vision="region", region_dim=4, word_dim=4, interaction="scan")
        >>> model = InteractionModel(config, WordTokenizer(["a", "dog"]))
        >>> import numpy as np
        >>> model.similarity([np.ones((3, 4))], ["a dog", "a cat"]).shape
        torch.Size([1, 2])
    """

    interacts: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer):
        super().__init__(config, tokenizer)
        self.interaction = build_interaction(config.interaction, config.dim, **config.interaction_options)

    def embed_image_features(self, features: Tensor, mask: Tensor | None = None) -> FeatureSets:
        """Features or regions (B, N, C) -> sets of features that can be compared; without a mask all N are real."""
        if mask is None:
            mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        return self.interaction.image_sets(FeatureSets(self.image_encoder(features, mask), mask))

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> FeatureSets:
        """Padded token numbers (C, M) -> sets of features that can be compared."""
        return self.interaction.text_sets(FeatureSets(self.text_encoder(tokens, mask), mask))

    def loss_terms(self, objective: Objective, images: FeatureSets, texts: FeatureSets, image_ids: Tensor) -> LossTerms:
        """The loss of a batch, in float32, as the interaction has it."""
        images = images._replace(features=images.features.float())
        texts = texts._replace(features=texts.features.float())
        return self.interaction.loss_terms(objective, images, texts, image_ids)

    def measure(self, images: Sequence[FeatureSets], texts: Sequence[FeatureSets], image_ids: Tensor) -> Metrics:
        """Recalls of a split, given the feature sets of its batches; every pair is compared."""
        return self.evaluate(
            [item for batch in images for item in batch.items()],
            [item for batch in texts for item in batch.items()],
            image_ids,
        )

    def evaluate(
        self, images: list[Tensor], texts: list[Tensor], image_ids: Tensor, folds: int = 1, progress: bool = False
    ) -> Metrics:
        """Recalls of what `encode_images` and `encode_texts` return, as `vse_demo.evaluate` has them."""

        def compare(some_texts: Tensor, some_images: Tensor) -> Tensor:
            left, right = [images[number] for number in some_images], [texts[number] for number in some_texts]
            return all_similarities(self.interaction, left, right, progress, self.device)

        with evaluation_mode(self):
            return evaluate_pairs(compare, len(images), image_ids, folds)

    @torch.inference_mode()
    def encode_images(self, images: Images | ImageLike, batch_size: int = 32, progress: bool = False) -> list[Tensor]:
        """The features (N, dim) of each image, on the CPU; arguments as for `VSE.encode_images`."""
        with evaluation_mode(self):
            items = []
            for batch in in_batches(as_images(images), batch_size, "images", progress):
                features = self.read_image_features(batch).to(self.image_encoder.projection.linear.weight)
                items += self.embed_image_features(features).items()
            return items

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str] | str, batch_size: int = 128, progress: bool = False) -> list[Tensor]:
        """The features (M, dim) of each sentence, on the CPU; arguments as for `VSE.encode_texts`."""
        found: dict[int, Tensor] = {}
        with evaluation_mode(self):
            for numbers, tokens, mask in self.text_batches(texts, batch_size, progress):
                found.update(zip(numbers, self.embed_tokens(tokens, mask).items(), strict=True))
        return [found[number] for number in range(len(found))]

    def similarity(self, images: Images | ImageLike, texts: Sequence[str] | str) -> Tensor:
        """Of every image with every sentence: (images, sentences)."""
        sets = self.encode_images(images), self.encode_texts(texts)
        with evaluation_mode(self):
            return all_similarities(self.interaction, *sets, device=self.device).T


def new_model(config: ModelConfig, tokenizer: Tokenizer) -> DualEncoder:
    """A new model of the kind that a config describes."""
    return (InteractionModel if config.interaction else VSE)(config, tokenizer)


def measure(
    model: EmbeddingModel | InteractionModel, data: CaptionedImages, folds: int = 1, progress: bool = False
) -> Metrics:
    """Recalls of a model of either kind on a split; folds as for `vse_demo.evaluate`."""
    return measure_versions(model, data, [data.captions], folds, progress)[0]


def measure_versions(
    model: EmbeddingModel | InteractionModel,
    data: CaptionedImages,
    versions: Sequence[Sequence[str]],
    folds: int = 1,
    progress: bool = False,
) -> list[Metrics]:
    """Recalls for each version of the captions, misspelt ones for instance; images are encoded once."""
    check_folds(len(data), folds)  # before the long part
    image_ids = torch.from_numpy(data.image_ids)
    if isinstance(model, InteractionModel):
        sets = model.encode_images(data.images, progress=progress)
        return [
            model.evaluate(sets, model.encode_texts(captions, progress=progress), image_ids, folds, progress)
            for captions in versions
        ]
    images = model.encode_images(data.images, progress=progress)
    return [
        evaluate(images, model.encode_texts(captions, progress=progress), image_ids, folds) for captions in versions
    ]


def load_any(
    names: str | Path | Sequence[str | Path], device: str | torch.device = "cpu"
) -> EmbeddingModel | InteractionModel:
    """What `load_model` loads, or a single `InteractionModel`."""
    single = names if isinstance(names, str | Path) else names[0] if len(names) == 1 else ""
    if single and holds_interaction(single):
        return InteractionModel.from_pretrained(single, device)
    return load_model(names, device)


def holds_interaction(folder: str | Path) -> bool:
    """Whether a folder holds an `InteractionModel`, which `load_model` cannot load; False if it holds no model."""
    try:
        return bool(read_config(recover_folder(Path(folder))).interaction)
    except FileError:
        return False
