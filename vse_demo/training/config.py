"""The recipe of a training run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vse_demo.model.config import ModelConfig
from vse_demo.utils.checks import check_choice
from vse_demo.utils.objects import reference_of
from vse_demo.utils.settings import setting

SCHEDULES = ("step", "cosine")
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class TrainConfig:
    """The recipe; the defaults are the paper's.

    Raises:
        ValueError: if a value cannot be meant; the message says which values can.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    objective: str = setting("adopt", "any name of OBJECTIVES, or package.module:Name")
    objective_options: Mapping[str, Any] = setting(dict, "of the objective, as in variant=paper fixed_k=3")
    epochs: int = setting(25, "an epoch shows every caption once")
    patience: int = setting(0, "stop when validation has not risen for so many epochs; 0 for never")
    text_epochs: int = setting(0, "epochs before these on captions alone: two captions of one image are a pair")
    more_captions: str = setting(
        "", "file in Karpathy's layout whose train captions join text_epochs; its images need not be there"
    )
    mirror: bool = setting(False, "show cached images mirrored every other time")
    batch_size: int = setting(128, "images per batch; negatives come from the same batch")
    accumulate: int = setting(
        1, "batches per step: their gradients are averaged, and negatives never come from another batch"
    )
    captions_per_image: int = setting(1, "of one image in a batch")
    learning_rate: float = setting(5e-4, "of all parts that are not pretrained")
    schedule: str = setting("step", "of the learning rate: step, or cosine, which falls to 0 over the whole run")
    decay_epochs: int = setting(15, "with step, it falls to a tenth every so many epochs")
    warmup_steps: int = setting(0, "it rises from 0 over so many steps")
    weight_decay: float = setting(0.0, "decoupled, as in AdamW")
    ema_decay: float = setting(0.0, "decay of a running average of the weights, which is then validated; 0 for none")
    pretrained_rate: float = setting(0.1, "learning rate of pretrained parts, as a share of the others'")
    freeze_epochs: int = setting(1, "a fine-tuned image backbone stays frozen for so many epochs")
    frozen_stages: int = setting(0, "first stages of a fine-tuned image backbone that stay frozen; the stem is one")
    finetune_image: bool = setting(False, "train the image backbone too")
    finetune_text: bool = setting(False, "train the transformer too")
    feature_dropout: float = setting(0.2, "share of an image's features left out in a step")
    word_dropout: float = setting(0.2, "share of words left out or masked in a step")
    typos: float = setting(0.0, "share of captions that get one typo in a step")
    unknown_words: float = setting(
        0.0, "share of words of which a step shows only the n-grams; for a bigru with ngram_buckets"
    )
    clip: float = setting(2.0, "largest norm of a gradient")
    precision: str = setting("fp32", "of the encoders' forward pass: fp32, bf16, or fp16 (on CUDA only)")
    min_word_count: int = setting(4, "rarer words are unknown words")
    backbone_weights: str = setting(
        "",
        ".safetensors file in timm's naming, grid-minilm, grid-bigru or the folder of a model (with its backbone and "
        'size), "hub" or "random"',
    )
    word_vectors: str = setting("", "file of pretrained word vectors for a bigru (GloVe text, or safetensors)")
    text_backbone: str = setting("", "folder or hub name of a transformers encoder, for text = bert")
    checkpoint_steps: int = setting(500, "between checkpoints within an epoch")
    seed: int = setting(0, "of the weights, the batches and all that is dropped")

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", reference_of(self.objective))  # of a class
        for name in ("epochs", "accumulate", "captions_per_image", "decay_epochs", "checkpoint_steps"):
            _at_least(self, name, 1)
        for name in (
            "patience",
            "text_epochs",
            "warmup_steps",
            "weight_decay",
            "pretrained_rate",
            "freeze_epochs",
            "frozen_stages",
        ):
            _at_least(self, name, 0)
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("feature_dropout", "word_dropout", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        for name in ("typos", "unknown_words"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if self.unknown_words and not self.model.ngram_buckets:
            raise ValueError("unknown_words shows the n-grams of words, and ngram_buckets is 0: try 20000")
        if self.more_captions and not self.text_epochs:
            raise ValueError("more_captions are read in text_epochs, and text_epochs is 0")
        if self.frozen_stages and not self.finetune_image:
            raise ValueError("frozen_stages are those of a fine-tuned image backbone, and finetune_image is off")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2, not {self.batch_size}: negatives are other images")
        check_choice(self.schedule, SCHEDULES, "schedule")
        check_choice(self.precision, PRECISIONS, "precision")


def _at_least(config: TrainConfig, name: str, least: int) -> None:
    if not getattr(config, name) >= least:
        raise ValueError(f"{name} must be at least {least}, not {getattr(config, name)}")
