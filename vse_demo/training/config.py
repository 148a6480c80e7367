"""The recipe of a training run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vse_demo.model.config import ModelConfig
from vse_demo.utils.checks import check_choice

SCHEDULES = ("step", "cosine")


@dataclass(frozen=True)
class TrainConfig:
    """The recipe; the defaults are the paper's."""

    model: ModelConfig = field(default_factory=ModelConfig)
    objective: str = "adopt"  # any name of OBJECTIVES
    objective_options: Mapping[str, Any] = field(default_factory=dict)  # e.g. {"variant": "paper"}
    epochs: int = 25  # an epoch shows every caption once
    text_epochs: int = 0  # epochs before these on captions alone: two captions of one picture are a pair
    more_captions: str = ""  # file in Karpathy's layout whose train captions join text_epochs; its pictures need not be
    mirror: bool = False  # show cached pictures mirrored every other time
    batch_size: int = 128  # pictures per step
    captions_per_image: int = 1  # of one picture in a step
    learning_rate: float = 5e-4
    schedule: str = "step"  # of the learning rate: step, or cosine, which falls to 0 over the whole run
    decay_epochs: int = 15  # with step, it falls to a tenth every so many epochs
    warmup_steps: int = 0  # it rises from 0 over so many steps
    weight_decay: float = 0.0  # decoupled, as in AdamW
    ema_decay: float = 0.0  # decay of a running average of the weights, which is what is judged; 0 for none
    pretrained_rate: float = 0.1  # learning rate of pretrained parts, as a share of the others'
    freeze_epochs: int = 1  # a fine-tuned image backbone stays frozen for so long
    finetune_image: bool = False  # train the image backbone too
    finetune_text: bool = False  # train the transformer too
    feature_dropout: float = 0.2  # share of a picture's cells left out in a step
    word_dropout: float = 0.2  # share of words left out or masked in a step
    clip: float = 2.0  # largest norm of a gradient
    min_word_count: int = 4  # rarer words are unknown words
    backbone_weights: str = ""  # .safetensors file in timm's naming, folder of a model, "hub" or "random"
    word_vectors: str = ""  # file of pretrained word vectors for a bigru (GloVe text, or safetensors)
    text_backbone: str = ""  # folder or hub name of a transformers encoder, for text = bert
    checkpoint_steps: int = 500  # between checkpoints within an epoch
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "captions_per_image", "decay_epochs", "checkpoint_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.more_captions and not self.text_epochs:
            raise ValueError("more_captions are read in text_epochs, and text_epochs is 0")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2, not {self.batch_size}: negatives are other pictures")
        check_choice(self.schedule, SCHEDULES, "schedule")
        for name in ("feature_dropout", "word_dropout", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
