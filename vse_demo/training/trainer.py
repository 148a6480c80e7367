"""One training step, and validation."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vse_demo.data.images import read_image
from vse_demo.data.transforms import random_view, to_pixels
from vse_demo.encoders.feature_cache import CachedFeatures
from vse_demo.encoders.tokenizers import pad_tokens
from vse_demo.evaluation import Metrics, evaluate
from vse_demo.losses.registry import build_objective
from vse_demo.model.vse import VSE
from vse_demo.training.batches import (
    Batch,
    CaptionPairDataset,
    PairDataset,
    drop_features,
    drop_words,
    epoch_batches,
    kept_features,
)
from vse_demo.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, epochs: int, per_epoch: int) -> float:
    """Of one step, counted from 0, of so many epochs."""
    rate = config.learning_rate * min(1.0, (step + 1) / max(1, config.warmup_steps))
    if config.schedule == "cosine":
        return rate * (1 + math.cos(math.pi * step / (epochs * per_epoch))) / 2
    return rate * 0.1 ** (step // per_epoch // config.decay_epochs)


class Trainer:
    """A model, its objective and its optimizer, one step at a time."""

    def __init__(self, model: VSE, config: TrainConfig):
        self.model, self.config = model, config
        self.objective = build_objective(config.objective, **config.objective_options)
        backbones = [model.image_encoder.backbone, getattr(model.text_encoder, "backbone", None)]
        for backbone, trained in zip(backbones, (config.finetune_image, config.finetune_text), strict=True):
            if backbone is not None:
                backbone.requires_grad_(trained)
        pretrained = [p for backbone in backbones if backbone is not None for p in backbone.parameters()]
        theirs = {id(parameter) for parameter in pretrained}
        groups = [
            {"params": [p for p in model.parameters() if id(p) not in theirs], "share": 1.0},
            {"params": [p for p in pretrained if p.requires_grad], "share": config.pretrained_rate},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)
        self.ema: AveragedModel | None = None
        if config.ema_decay:
            self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema_decay), use_buffers=True)
        self.step = 0
        self.best: Metrics | None = None

    @property
    def eval_model(self) -> VSE:
        """The model that is validated and saved: the running average, if there is one."""
        return cast(VSE, self.ema.module) if self.ema is not None else self.model

    @property
    def best_rsum(self) -> float:
        return self.best["rsum"] if self.best else 0.0

    def epoch_batches(self, data: PairDataset | CaptionPairDataset, epoch: int) -> list[Batch]:
        random = np.random.default_rng([self.config.seed, epoch])
        return epoch_batches(data.image_ids, self.config.batch_size, self.config.captions_per_image, random)

    def train_step(
        self, data: PairDataset | CaptionPairDataset, batch: Batch, epoch: int, rate: float
    ) -> dict[str, float]:
        """Learn from one batch; the row for the log. Of captions alone, one stands for each picture."""
        random = np.random.default_rng([self.config.seed, 1, self.step])
        torch.manual_seed(int(random.integers(2**63)))  # dropout inside a transformer
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        if isinstance(data, CaptionPairDataset):
            images = self.model.embed_tokens(*self.tokens(data, data.partners(batch, random), random))
        else:
            images = self.model.embed_image_features(self.cells(data, batch, epoch, random))
        texts = self.model.embed_tokens(*self.tokens(data, batch.captions, random))
        terms = self.objective(images, texts, batch.image_ids)
        loss = terms.loss
        if not loss.isfinite():
            raise FloatingPointError(f"the loss became {loss.item()} at step {self.step}: try a lower learning rate")
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        self.step += 1
        return {"step": self.step, "epoch": epoch, "lr": rate, **terms.as_floats()}

    def cells(self, pairs: PairDataset, batch: Batch, epoch: int, random: np.random.Generator) -> Tensor:
        generator = torch.Generator().manual_seed(int(random.integers(2**63)))
        if isinstance(pairs.images, CachedFeatures):
            images, rate = np.array(batch.images), self.config.feature_dropout
            kept = kept_features(len(images), pairs.images.rows.shape[1], rate, generator).numpy()
            cells = pairs.images.pick(images, kept)
            if pairs.mirrored is not None:
                flipped = random.random(len(images)) < 0.5
                cells[flipped] = pairs.mirrored.pick(images[flipped], kept[flipped])
            return cells.to(self.model.device)
        backbone = self.model.image_encoder.backbone
        assert backbone is not None
        views = [random_view(read_image(pairs.images[index]), generator) for index in batch.images]
        with torch.set_grad_enabled(epoch >= self.config.freeze_epochs):
            cells = backbone(to_pixels(views, backbone.image_size).to(self.model.device))
        return drop_features(cells, self.config.feature_dropout, generator)

    def tokens(
        self, data: PairDataset | CaptionPairDataset, captions: Sequence[int], random: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        sentences = [
            drop_words(data.sentences[index], self.config.word_dropout, self.model.tokenizer, random)
            for index in captions
        ]
        tokens, mask = pad_tokens(sentences)
        return tokens.to(self.model.device), mask.to(self.model.device)


@torch.inference_mode()
def validate(model: VSE, pairs: PairDataset, batch_size: int = 128) -> Metrics:
    """Recalls of a whole split, nothing dropped."""
    model.eval()
    images = []
    for start in range(0, len(pairs.images), batch_size):
        numbers = range(start, min(start + batch_size, len(pairs.images)))
        if isinstance(pairs.images, CachedFeatures):
            images.append(model.embed_image_features(pairs.images[numbers].to(model.device)).cpu())
        else:
            images.append(model.encode_images([pairs.images[number] for number in numbers]))
    texts = []
    for start in range(0, len(pairs.sentences), batch_size):
        tokens, mask = pad_tokens(pairs.sentences[start : start + batch_size])
        texts.append(model.embed_tokens(tokens.to(model.device), mask.to(model.device)).cpu())
    return evaluate(torch.cat(images), torch.cat(texts), torch.from_numpy(pairs.image_ids))
