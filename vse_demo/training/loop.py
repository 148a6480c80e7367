"""Training: one plain loop, its settings, its log, and checkpoints that survive a kill.

A run folder holds `config.json` and the tokenizer (written first), `metrics.jsonl` (a row per step
and a row per validation, written as they happen), `last.safetensors` (everything needed to go on)
and `best/` (the best model so far, as `VSE.save_pretrained` writes it).

All randomness of a step comes from the seed and the number of the step. So a run that was killed and
resumed draws the same batches and the same dropout, and ends with the same weights.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm.auto import tqdm

from vse_demo.data.layouts import Dataset, open_dataset
from vse_demo.evaluation import Metrics
from vse_demo.training.batches import CaptionPairDataset, PairDataset
from vse_demo.training.checkpoints import Run
from vse_demo.training.config import TrainConfig
from vse_demo.training.log import Log, flatten
from vse_demo.training.setup import build_model, caption_groups
from vse_demo.training.trainer import Trainer, learning_rate, validate


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
    held_out = PairDataset.make(val_split, model, config.finetune_image, cache)
    pairs = PairDataset.make(train_split, model, config.finetune_image, cache, config.mirror)
    log = run.open_log(trainer.step, tensorboard)
    first = 0
    if config.text_epochs:
        texts = CaptionPairDataset.make(caption_groups(config, train_split), model.tokenizer)
        for _ in run_epochs(trainer, run, log, texts, config.text_epochs, first):
            run.save_checkpoint(trainer)
        first = config.text_epochs * len(trainer.epoch_batches(texts, 0))
    for epoch in run_epochs(trainer, run, log, pairs, config.epochs, first):
        metrics = validate(trainer.eval_model, held_out)
        log.write({"step": trainer.step, "epoch": epoch, **flatten(metrics)})
        if metrics["rsum"] > trainer.best_rsum:
            trainer.best = metrics
            trainer.eval_model.save_pretrained(run.folder / "best", metrics={"validation": metrics})
        run.save_checkpoint(trainer)
    assert trainer.best is not None
    return trainer.best


def run_epochs(
    trainer: "Trainer", run: "Run", log: "Log", data: PairDataset | CaptionPairDataset, epochs: int, first: int
) -> Iterator[int]:
    """Train on `data` from where the trainer is, if these epochs begin at step `first`; the number of epochs done.

    Nothing is yielded for epochs that an earlier run has finished.
    """
    config, per_epoch = trainer.config, len(trainer.epoch_batches(data, 0))
    total, unit = epochs * per_epoch, " steps on text" if isinstance(data, CaptionPairDataset) else " steps"
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


def validation_name(dataset: Dataset) -> str:
    """`val`, or `dev` as precomputed data call it."""
    return "dev" if "val" not in dataset.splits and "dev" in dataset.splits else "val"
