"""Training: one plain loop, its settings, its log, and checkpoints that survive a kill.

A run folder holds `config.json` and the tokenizer (written first), `metrics.jsonl` (a row per step
and a row per validation, written as they happen), `last.safetensors` (everything needed to go on)
and `best/` (the best model so far, as `VSE.save_pretrained` writes it).

All randomness of a step comes from the seed and the number of the step. So a run that was killed and
resumed draws the same batches and the same dropout, and ends with the same weights.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm.auto import tqdm

from vse_demo.batches import Batch, CaptionGroups, Pairs, drop_cells, drop_words, epoch_batches, kept_cells
from vse_demo.data import CaptionedImages, Dataset, open_dataset, read_captions, read_image
from vse_demo.evaluation import Metrics, evaluate
from vse_demo.features import CachedCells
from vse_demo.files import FileError, read_json, write_atomic, write_json
from vse_demo.layers import add_tensors, check_choice
from vse_demo.model import VSE, ModelConfig, load_tokenizer
from vse_demo.objectives import build_objective
from vse_demo.text import (
    SubwordTokenizer,
    Tokenizer,
    TransformerText,
    WordTokenizer,
    pad_tokens,
    read_word_vectors,
)
from vse_demo.vision import random_view, to_pixels

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
    ramp_steps: int = 0  # it rises from 0 over so many steps
    weight_decay: float = 0.0  # decoupled, as in AdamW
    average: float = 0.0  # decay of a running average of the weights, which is what is judged; 0 for none
    pretrained_rate: float = 0.1  # learning rate of pretrained parts, as a share of the others'
    warmup_epochs: int = 1  # a fine-tuned image backbone stays frozen for so long
    finetune_image: bool = False  # train the image backbone too
    finetune_text: bool = False  # train the transformer too
    cell_dropout: float = 0.2  # share of a picture's cells left out in a step
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
        for name in ("cell_dropout", "word_dropout", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")


def train(
    config: TrainConfig | None,
    data: str | Path,
    out: str | Path,
    resume: bool = False,
    cache: Path | None = None,
    device: str = "cpu",
    tensorboard: bool = False,
) -> Metrics:
    """Train on the train split of a folder, choose by its validation split; the best metrics.

    The model is in `out`/best. With `resume`, the run in `out` goes on with the settings it began with.
    """
    run = Run(Path(out))
    dataset = open_dataset(data)
    train_split, val_split = dataset.split("train"), dataset.split(validation_name(dataset))
    if resume:
        trainer = run.resume(device)
    elif config is None:
        raise ValueError("a new run needs a config")
    else:
        run.refuse_to_overwrite()
        torch.manual_seed(config.seed)
        groups = caption_groups(config, train_split)
        model, config = build_model(config, [caption for group in groups for caption in group])
        trainer = Trainer(model.to(device), config)
        run.start(trainer)
    model, config = trainer.model, trainer.config
    held_out = Pairs.make(val_split, model, config.finetune_image, cache)
    pairs = Pairs.make(train_split, model, config.finetune_image, cache, config.mirror)
    log = run.open_log(trainer.step, tensorboard)
    first = 0
    if config.text_epochs:
        texts = CaptionGroups.make(caption_groups(config, train_split), model.tokenizer)
        for _ in run_epochs(trainer, run, log, texts, config.text_epochs, first):
            run.save_checkpoint(trainer)
        first = config.text_epochs * len(trainer.epoch_batches(texts, 0))
    for epoch in run_epochs(trainer, run, log, pairs, config.epochs, first):
        metrics = validate(trainer.judged, held_out)
        log.write({"step": trainer.step, "epoch": epoch, **flatten(metrics)})
        if metrics["rsum"] > trainer.best_rsum:
            trainer.best = metrics
            trainer.judged.save_pretrained(run.folder / "best", metrics={"validation": metrics})
        run.save_checkpoint(trainer)
    assert trainer.best is not None
    return trainer.best


def run_epochs(
    trainer: "Trainer", run: "Run", log: "Log", data: Pairs | CaptionGroups, epochs: int, first: int
) -> Iterator[int]:
    """Train on `data` from where the trainer is, if these epochs begin at step `first`; the number of epochs done.

    Nothing is yielded for epochs that an earlier run has finished.
    """
    config, per_epoch = trainer.config, len(trainer.epoch_batches(data, 0))
    total, unit = epochs * per_epoch, " steps on text" if isinstance(data, CaptionGroups) else " steps"
    with tqdm(total=total, initial=min(total, trainer.step - first), unit=unit) as bar:
        while trainer.step < first + total:
            epoch, done = divmod(trainer.step - first, per_epoch)
            trainer.objective.start_epoch(epoch)
            for batch in trainer.epoch_batches(data, epoch)[done:]:
                rate = learning_rate(config, trainer.step - first, epochs, per_epoch)
                row = trainer.train_step(data, batch, epoch, rate)
                log.write(row)
                bar.update()
                bar.set_postfix(loss=f"{row['loss']:.3f}", K=int(row["k"]), best=f"{trainer.best_rsum:.1f}")
                if trainer.step % config.checkpoint_steps == 0 and (trainer.step - first) % per_epoch:
                    run.save_checkpoint(trainer)
            yield epoch + 1


def caption_groups(config: TrainConfig, data: CaptionedImages) -> list[list[str]]:
    """All training captions, picture by picture, those without a picture last."""
    groups = [data.captions_of(image) for image in range(len(data))]
    return groups + (read_captions(Path(config.more_captions)) if config.more_captions else [])


def learning_rate(config: TrainConfig, step: int, epochs: int, per_epoch: int) -> float:
    """Of one step, counted from 0, of so many epochs."""
    rate = config.learning_rate * min(1.0, (step + 1) / max(1, config.ramp_steps))
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
        self.average: AveragedModel | None = None
        if config.average:
            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.average), use_buffers=True)
        self.step = 0
        self.best: Metrics | None = None

    @property
    def judged(self) -> VSE:
        """The model that is validated and saved: the running average, if there is one."""
        return cast(VSE, self.average.module) if self.average is not None else self.model

    @property
    def best_rsum(self) -> float:
        return self.best["rsum"] if self.best else 0.0

    def epoch_batches(self, data: Pairs | CaptionGroups, epoch: int) -> list[Batch]:
        random = np.random.default_rng([self.config.seed, epoch])
        return epoch_batches(data.owner, self.config.batch_size, self.config.captions_per_image, random)

    def train_step(self, data: Pairs | CaptionGroups, batch: Batch, epoch: int, rate: float) -> dict[str, float]:
        """Learn from one batch; the row for the log. Of captions alone, one stands for each picture."""
        random = np.random.default_rng([self.config.seed, 1, self.step])
        torch.manual_seed(int(random.integers(2**63)))  # dropout inside a transformer
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        if isinstance(data, CaptionGroups):
            images = self.model.embed_tokens(*self.tokens(data, data.partners(batch, random), random))
        else:
            images = self.model.embed_cells(self.cells(data, batch, epoch, random))
        texts = self.model.embed_tokens(*self.tokens(data, batch.captions, random))
        loss = self.objective(images, texts, batch.owner.to(images.device))
        if not loss.isfinite():
            raise FloatingPointError(f"the loss became {loss.item()} at step {self.step}: try a lower learning rate")
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.step += 1
        return {"step": self.step, "epoch": epoch, "loss": loss.item(), "lr": rate, **self.objective.statistics}

    def cells(self, pairs: Pairs, batch: Batch, epoch: int, random: np.random.Generator) -> Tensor:
        generator = torch.Generator().manual_seed(int(random.integers(2**63)))
        if isinstance(pairs.images, CachedCells):
            pictures, rate = np.array(batch.pictures), self.config.cell_dropout
            kept = kept_cells(len(pictures), pairs.images.rows.shape[1], rate, generator).numpy()
            cells = pairs.images.pick(pictures, kept)
            if pairs.mirrored is not None:
                flipped = random.random(len(pictures)) < 0.5
                cells[flipped] = pairs.mirrored.pick(pictures[flipped], kept[flipped])
            return cells.to(self.model.device)
        backbone = self.model.image_encoder.backbone
        assert backbone is not None
        views = [random_view(read_image(pairs.images[index]), generator) for index in batch.pictures]
        with torch.set_grad_enabled(epoch >= self.config.warmup_epochs):
            cells = backbone(to_pixels(views, backbone.image_size).to(self.model.device))
        return drop_cells(cells, self.config.cell_dropout, generator)

    def tokens(
        self, data: Pairs | CaptionGroups, captions: Sequence[int], random: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        sentences = [
            drop_words(data.sentences[index], self.config.word_dropout, self.model.tokenizer, random)
            for index in captions
        ]
        tokens, mask = pad_tokens(sentences)
        return tokens.to(self.model.device), mask.to(self.model.device)


@torch.inference_mode()
def validate(model: VSE, pairs: Pairs, batch_size: int = 128) -> Metrics:
    """Recalls of a whole split, nothing dropped."""
    model.eval()
    images = []
    for start in range(0, len(pairs.images), batch_size):
        numbers = range(start, min(start + batch_size, len(pairs.images)))
        if isinstance(pairs.images, CachedCells):
            images.append(model.embed_cells(pairs.images[numbers].to(model.device)).cpu())
        else:
            images.append(model.encode_images([pairs.images[number] for number in numbers]))
    texts = []
    for start in range(0, len(pairs.sentences), batch_size):
        tokens, mask = pad_tokens(pairs.sentences[start : start + batch_size])
        texts.append(model.embed_tokens(tokens.to(model.device), mask.to(model.device)).cpu())
    return evaluate(torch.cat(images), torch.cat(texts), torch.from_numpy(pairs.owner))


def build_model(config: TrainConfig, captions: Sequence[str]) -> tuple[VSE, TrainConfig]:
    """A new model with its pretrained parts, and the config with what was read from them."""
    tokenizer: Tokenizer
    if config.model.text == "bert":
        if not config.text_backbone:
            raise ValueError("text = bert needs text_backbone: a folder with a transformers model, or a hub name")
        text_config = TransformerText.read_config(config.text_backbone)
        config = replace(config, model=replace(config.model, text_config=text_config))
        tokenizer = SubwordTokenizer.from_pretrained(config.text_backbone)
    else:
        tokenizer = WordTokenizer.from_captions(captions, config.min_word_count)
    model = VSE(config.model, tokenizer)
    if isinstance(model.text_encoder, TransformerText):
        model.text_encoder.load_weights(config.text_backbone)
        if not config.finetune_text:
            model.text_encoder.freeze_backbone()
    elif config.word_vectors and isinstance(tokenizer, WordTokenizer):
        vectors = read_word_vectors(Path(config.word_vectors), tokenizer.words)
        if not model.text_encoder.load_word_vectors(tokenizer, vectors):
            raise FileError(f"{config.word_vectors} has no vector for any word of the captions")
    if model.image_encoder.backbone is not None:
        if not config.backbone_weights:
            raise ValueError(
                f"backbone_weights is not set: give a .safetensors file for {config.model.backbone}, "
                "a saved model that has it, 'hub' to download ImageNet weights, or 'random' to start from nothing"
            )
        if config.backbone_weights != "random":
            model.image_encoder.backbone.load_weights(config.backbone_weights)
        if not config.finetune_image:
            model.image_encoder.freeze_backbone()
    return model, config


def validation_name(dataset: Dataset) -> str:
    """`val`, or `dev` as precomputed data call it."""
    return "dev" if "val" not in dataset.splits and "dev" in dataset.splits else "val"


class Run:
    """The folder of one training run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config_file = folder / "config.json"
        self.metrics_file = folder / "metrics.jsonl"
        self.checkpoint_file = folder / "last.safetensors"

    def refuse_to_overwrite(self) -> None:
        if self.config_file.exists():
            raise FileError(f"{self.folder} holds a run already: --resume continues it, another --out starts a new one")

    def start(self, trainer: Trainer) -> None:
        """Write all that a resumed run needs; the config comes last and makes it a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        trainer.model.tokenizer.save(self.folder)
        self.save_checkpoint(trainer)
        write_json(self.config_file, asdict(trainer.config))

    def resume(self, device: str) -> Trainer:
        """The trainer as it was at the last checkpoint."""
        content = read_json(self.config_file)
        try:
            config = TrainConfig(**{**content, "model": ModelConfig(**content["model"])})
            model = VSE(config.model, load_tokenizer(config.model, self.folder))
            trainer = Trainer(model.to(device), config)
        except FileError:
            raise
        except (TypeError, KeyError, ValueError, AttributeError, RuntimeError) as error:
            raise FileError(f"{self.config_file} is not the config of a run: {error}") from error
        self.load_checkpoint(trainer)
        return trainer

    def open_log(self, step: int, tensorboard: bool) -> "Log":
        return Log(self.metrics_file, step, self.folder / "tensorboard" if tensorboard else None)

    def save_checkpoint(self, trainer: Trainer) -> None:
        """Weights, optimizer and place in the run, in one file that appears whole."""
        names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in trainer.model.state_dict().items()}
        for parameter, state in trainer.optimizer.state.items():
            tensors |= {f"adam.{key}.{names[id(parameter)]}": value.contiguous() for key, value in state.items()}
        if trainer.average is not None:
            tensors |= {f"average.{name}": tensor.contiguous() for name, tensor in trainer.average.state_dict().items()}
        metadata = {"step": str(trainer.step), "best": json.dumps(trainer.best)}
        metadata["digest"] = self.digest(trainer, tensors, metadata)
        write_atomic(self.checkpoint_file, save(tensors, metadata))

    def digest(self, trainer: Trainer, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
        """A fingerprint of all that a run goes on from: settings, tokenizer, weights, place."""
        settings = json.dumps([asdict(trainer.config), metadata["step"], metadata["best"]], sort_keys=True)
        digest = hashlib.blake2b(settings.encode(), digest_size=16)
        digest.update((self.folder / trainer.model.tokenizer.FILE).read_bytes())
        add_tensors(digest, tensors)
        return digest.hexdigest()

    def load_checkpoint(self, trainer: Trainer) -> None:
        """Go back to the last checkpoint."""
        try:
            with safe_open(self.checkpoint_file, "pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if metadata["digest"] != self.digest(trainer, tensors, metadata):
                raise ValueError("it, config.json or the tokenizer is not as it was saved")
            trainer.model.load_state_dict(_part(tensors, "model."))
            if trainer.average is not None:
                trainer.average.load_state_dict(_part(tensors, "average."))
            for name, parameter in trainer.model.named_parameters():
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"adam.{key}.{name}" in tensors]
                if keys:
                    trainer.optimizer.state[parameter] = {key: tensors[f"adam.{key}.{name}"] for key in keys}
            trainer.step, trainer.best = int(metadata["step"]), json.loads(metadata["best"])
        except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"{self.checkpoint_file} is not a checkpoint of this run: {error}") from error


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Log:
    """Rows of a metrics file, each written as it comes; rows after `step` are of a run that was killed."""

    def __init__(self, path: Path, step: int, tensorboard: Path | None):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        steps = [_row_step(line) for line in lines]
        broken = sum(math.isnan(of_row) for of_row in steps[:-1])  # the last one may well be cut off
        if broken:
            warnings.warn(f"{path}: {broken} broken rows are left out", stacklevel=2)
        write_atomic(path, "".join(f"{line}\n" for line, of_row in zip(lines, steps, strict=True) if of_row <= step))
        self.path = path
        self.board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(tensorboard), purge_step=step + 1)

    def write(self, row: Mapping[str, float]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self.board:
            for name, value in row.items():
                if name != "step":
                    self.board.add_scalar(name, value, row["step"])


def _row_step(line: str) -> float:
    """NaN for what is no row."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return math.nan


def flatten(metrics: Metrics) -> dict[str, float]:
    """Metrics as one row: i2t_r1, …, t2i_medr, rsum."""
    ways = (("i2t", metrics["i2t"]), ("t2i", metrics["t2i"]))
    row = {f"{way}_{key}": float(value) for way, figures in ways for key, value in figures.items()}  # type: ignore[arg-type]
    return {**row, "rsum": metrics["rsum"]}
