"""One training step: inputs -> encoders -> pooling -> loss -> optimizer -> a row for the log; and validation."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vse_demo.encoders.feature_cache import CachedFeatures
from vse_demo.encoders.tokenizers import pad_tokens
from vse_demo.evaluation import Metrics, evaluate
from vse_demo.losses.registry import build_objective
from vse_demo.losses.terms import LossTerms, mean_terms
from vse_demo.model.vse import VSE
from vse_demo.training.batches import Batch, CaptionPairDataset, PairDataset, drop_features, epoch_batches
from vse_demo.training.config import TrainConfig
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

    Raises:
        ValueError: if the objective, its options or the precision cannot be used.
    """

    def __init__(self, model: VSE, config: TrainConfig, compiled: bool = False):
        self.model, self.config = model, config
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
        self.inputs = InputMaker(model.tokenizer, config.word_dropout, config.feature_dropout, size, config.seed)
        wrap = torch.compile if compiled else lambda function: function
        self.embed_features, self.embed_tokens = wrap(model.embed_image_features), wrap(model.embed_tokens)
        self.backbone = None if backbone is None else wrap(backbone)
        self.step = 0
        self.best: Metrics | None = None

    @property
    def eval_model(self) -> VSE:
        """The model that is validated and saved: the running average, if there is one."""
        return cast(VSE, self.ema.module) if self.ema is not None else self.model

    @property
    def best_rsum(self) -> float:
        """Of the best validation so far; 0 before the first."""
        return self.best["rsum"] if self.best else 0.0

    def epoch_steps(self, data: PairDataset | CaptionPairDataset, epoch: int) -> list[list[Batch]]:
        """The steps of an epoch, each of `accumulate` batches; what does not fill a last step is left out."""
        random = np.random.default_rng([self.config.seed, epoch])
        batches = epoch_batches(data.image_ids, self.config.batch_size, self.config.captions_per_image, random)
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
        torch.manual_seed(inputs.seed)  # of what is dropped inside the model
        dtype = PRECISION_TYPES[self.config.precision]
        with torch.autocast(self.model.device.type, dtype, enabled=dtype != torch.float32):
            images = self.embed_images(inputs, epoch)
            texts = self.embed_tokens(inputs.tokens, inputs.mask)
        terms = self.objective(images.float(), texts.float(), inputs.image_ids)
        self.scaler.scale(terms.loss / share).backward()
        return terms

    def embed_images(self, inputs: BatchInputs, epoch: int) -> Tensor:
        """The image side of a batch (B, D). Of captions alone, one stands for each image."""
        if inputs.partners is not None:
            return self.embed_tokens(*inputs.partners)
        features = inputs.features
        if features is None:
            assert self.backbone is not None
            assert inputs.pixels is not None
            with torch.set_grad_enabled(epoch >= self.config.freeze_epochs):
                features = self.backbone(inputs.pixels.float() / 255)
            features = drop_features(features, self.config.feature_dropout)
        return self.embed_features(features)


def _make_optimizer(model: VSE, config: TrainConfig) -> torch.optim.AdamW:
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
def validate(model: VSE, pairs: PairDataset, batch_size: int = 128) -> Metrics:
    """Recalls of a whole split, nothing dropped; the model is in evaluation mode afterwards."""
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
