"""One training step: inputs -> encoders -> pooling -> loss -> optimizer -> a row for the log; and validation."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vse_demo.encoders.feature_cache import CachedFeatures
from vse_demo.encoders.tokenizers import pad_tokens
from vse_demo.evaluation import Metrics
from vse_demo.losses.registry import build_objective
from vse_demo.losses.terms import LossTerms, mean_terms
from vse_demo.model.dual import DualEncoder
from vse_demo.model.vse import VSE
from vse_demo.training.batches import (
    Batch,
    CaptionPairDataset,
    PairDataset,
    batch_images,
    epoch_batches,
    keep_features,
    kept_features,
)
from vse_demo.training.chunks import ChunkedModel
from vse_demo.training.config import TrainConfig
from vse_demo.training.distributed import World
from vse_demo.training.loader import BatchInputs, InputMaker, StepDataset
from vse_demo.training.setup import first_stages

PRECISION_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def learning_rate(config: TrainConfig, step: int, epochs: int, per_epoch: int) -> float:
    """The learning rate of one step, counted from 0, of `epochs` epochs of `per_epoch` steps each."""
    rate = config.learning_rate * min(1.0, (step + 1) / max(1, config.warmup_steps))
    if config.schedule == "cosine":
        return rate * (1 + math.cos(math.pi * step / (epochs * per_epoch))) / 2
    return rate * 0.1 ** (step // per_epoch // config.decay_epochs)


class Trainer:
    """A model, its loss and its optimizer, one step at a time.

    Args:
        model: is trained in place, on the device it is on.
        config: the recipe.
        compiled: run the encoders through `torch.compile`.
        chunk: images, or captions, that are computed together; 0 for the whole batch. It changes nothing but the
            memory and the time that a step takes.
        world: the processes that train together; each step is the same however many there are.

    Raises:
        ValueError: if the objective, its options or the precision cannot be used.
    """

    def __init__(
        self,
        model: DualEncoder,
        config: TrainConfig,
        compiled: bool = False,
        chunk: int = 0,
        world: World | None = None,
    ):
        self.model, self.config, self.world = model, config, world or World()
        if chunk < 0:
            raise ValueError(f"chunk must be at least 1, or 0 for whole batches, not {chunk}")
        if compiled and (chunk or self.world.size > 1):
            raise ValueError("--compile is for one process that computes whole batches: leave it out")
        if model.interacts and (chunk or self.world.size > 1):
            raise ValueError(
                f"interaction {config.model.interaction!r} compares the features of both sides, not embeddings: "
                "it is trained by one process on whole batches"
            )
        self.objective = build_objective(config.objective, **config.objective_options)
        if config.precision == "fp16" and model.device.type != "cuda":
            raise ValueError(f"precision fp16 needs a CUDA device, and this is {model.device}: try bf16")
        self.optimizer = _make_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(model.device.type, enabled=config.precision == "fp16")
        self.ema: AveragedModel | None = None
        if config.ema_decay:
            self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema_decay), use_buffers=True)
        backbone = model.image_encoder.backbone
        size = 0 if backbone is None else backbone.image_size
        self.inputs = InputMaker(
            model.tokenizer, config.word_dropout, config.feature_dropout, size, config.seed, config.typos,
            config.unknown_words, self.world.share,
        )  # fmt: skip
        self.world.share_statistics(model)
        wrap = torch.compile if compiled else lambda function: function
        self.embed_features, self.embed_tokens = wrap(model.embed_image_features), wrap(model.embed_tokens)
        self.backbone = None if backbone is None else wrap(backbone)
        if chunk:
            chunks = ChunkedModel(cast(VSE, model), chunk)
            self.embed_features, self.embed_tokens = chunks.embed_image_features, chunks.embed_tokens
            self.backbone = None if backbone is None else chunks.backbone
        self.step = 0
        self.best: Metrics | None = None

    @property
    def eval_model(self) -> DualEncoder:
        """The model that is validated and saved: the running average, if there is one."""
        return cast(DualEncoder, self.ema.module) if self.ema is not None else self.model

    @property
    def best_rsum(self) -> float:
        """Of the best validation so far; 0 before the first."""
        return self.best["rsum"] if self.best else 0.0

    def epoch_steps(self, data: PairDataset | CaptionPairDataset, epoch: int) -> list[list[Batch]]:
        """The steps of an epoch, each of `accumulate` batches; what does not fill a last step is left out."""
        random = np.random.default_rng([self.config.seed, epoch])
        batches = epoch_batches(data.image_ids, self.config.batch_size, self.config.captions_per_image, random)
        self.world.check_batches(batches)
        size = self.config.accumulate
        return [batches[first : first + size] for first in range(0, max(1, len(batches) - size + 1), size)]

    def remaining_steps(self, data: PairDataset | CaptionPairDataset, epoch: int, done: int) -> StepDataset:
        """The steps of an epoch that come after the first `done`, if the trainer is there now."""
        steps = self.epoch_steps(data, epoch)[done:]
        return StepDataset(data, steps, self.step * self.config.accumulate, self.inputs)

    def train_step(self, batches: Sequence[BatchInputs], epoch: int, rate: float) -> dict[str, float]:
        """Learn from the mean of the losses of one batch or more.

        Args:
            batches: of this step.
            epoch: counted from 0; decides whether a fine-tuned image backbone is still frozen.
            rate: the learning rate.

        Returns:
            The row for the log.

        Raises:
            FloatingPointError: if the loss is not finite.
        """
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.zero_grad()
        terms = [self.backward(inputs.to(self.model.device), epoch, len(batches)) for inputs in batches]
        self.world.sum_gradients(self.model.parameters())
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        row = mean_terms(terms)  # the only wait for a GPU, but for that of K
        if not math.isfinite(row["loss"]):
            raise FloatingPointError(f"the loss became {row['loss']} at step {self.step}: try a lower learning rate")
        self.step += 1
        return {"step": self.step, "epoch": epoch, "lr": rate, **row}

    def backward(self, inputs: BatchInputs, epoch: int, share: int) -> LossTerms:
        """Add the gradients of one of `share` batches."""
        torch.manual_seed(inputs.seed + self.world.rank)  # of what is dropped inside the model
        dtype = PRECISION_TYPES[self.config.precision]
        with torch.autocast(self.model.device.type, dtype, enabled=dtype != torch.float32):
            images = self.embed_images(inputs, epoch)
            texts = self.embed_tokens(inputs.tokens, inputs.mask)
        images = self.world.gather_images(images, inputs.image_ids)
        texts = self.world.gather_texts(texts, inputs.image_ids)
        terms = self.model.loss_terms(self.objective, images, texts, inputs.image_ids)
        self.scaler.scale(terms.loss / share).backward()
        return terms

    def embed_images(self, inputs: BatchInputs, epoch: int) -> Any:
        """The image side of a batch, for a VSE (B, D). Of captions alone, one stands for each image."""
        if inputs.partners is not None:
            return self.embed_tokens(*inputs.partners)
        features = inputs.features
        if features is None:
            assert self.backbone is not None
            assert inputs.pixels is not None
            with torch.set_grad_enabled(epoch >= self.config.freeze_epochs):
                features = self.backbone(inputs.pixels.float() / 255)
            features = keep_features(features, self.kept_features(inputs, features.shape[1]))
        return self.embed_features(features)

    def kept_features(self, inputs: BatchInputs, features: int) -> Tensor:
        """Which of its features each image keeps in this batch; drawn for the whole batch, whoever computes it."""
        images, generator = batch_images(inputs.image_ids), torch.Generator().manual_seed(inputs.seed)
        kept = kept_features(images, features, self.config.feature_dropout, generator)
        return kept[self.world.share.images(images)]


def _make_optimizer(model: DualEncoder, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over what is trained; `share` of a group is its part of the learning rate."""
    backbones = [model.image_encoder.backbone, getattr(model.text_encoder, "backbone", None)]
    for backbone, trained in zip(backbones, (config.finetune_image, config.finetune_text), strict=True):
        if backbone is not None:
            backbone.requires_grad_(trained)
    if config.frozen_stages and model.image_encoder.backbone is not None:
        for parameter in first_stages(model.image_encoder.backbone, config.frozen_stages):
            parameter.requires_grad_(False)
    pretrained = [p for backbone in backbones if backbone is not None for p in backbone.parameters()]
    theirs = {id(parameter) for parameter in pretrained}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in theirs], "share": 1.0},
        {"params": [p for p in pretrained if p.requires_grad], "share": config.pretrained_rate},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)


@torch.inference_mode()
def validate(model: DualEncoder, pairs: PairDataset, batch_size: int = 128) -> Metrics:
    """Recalls of a whole split, nothing dropped; the model is in evaluation mode afterwards."""
    model.eval()
    images = []
    for start in range(0, len(pairs.images), batch_size):
        numbers = range(start, min(start + batch_size, len(pairs.images)))
        if isinstance(pairs.images, CachedFeatures):
            images.append(model.embed_image_features(pairs.images[numbers].to(model.device)))
        else:
            features = model.read_image_features([pairs.images[number] for number in numbers])
            images.append(model.embed_image_features(features))
    texts = []
    for start in range(0, len(pairs.sentences), batch_size):
        tokens, mask = pad_tokens(pairs.sentences[start : start + batch_size])
        texts.append(model.embed_tokens(tokens.to(model.device), mask.to(model.device)))
    return model.measure(images, texts, torch.from_numpy(pairs.image_ids))
