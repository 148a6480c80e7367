"""Training: one plain loop, its log, and checkpoints that survive a kill.

A run folder holds `config.json`, `data.json` and the tokenizer (written first), `metrics.jsonl` (a row per
step and a row per validation, written as they happen; `uniformity` is the paper's, log of the mean of
exp(similarity), whatever the loss), `last.safetensors` (everything needed to go on) and `best/` (the best
model so far, as `VSE.save_pretrained` writes it).

All randomness of a step comes from the seed and the number of the step. So a run that was killed and
resumed draws the same batches and the same dropout, and ends with the same weights. Started by torchrun, several
processes share the batches of a run (see `distributed`): the first one validates and writes, for all of them.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from tqdm.auto import tqdm

from vse_demo.data.layouts import CaptionedImages, Dataset, merge_duplicates, open_dataset
from vse_demo.evaluation import Metrics
from vse_demo.training.batches import CaptionPairDataset, PairDataset
from vse_demo.training.checkpoints import Run, WatchedRun
from vse_demo.training.config import TrainConfig
from vse_demo.training.distributed import join_world
from vse_demo.training.loader import load_steps
from vse_demo.training.log import Log, OnRow, flatten
from vse_demo.training.setup import build_model, caption_groups
from vse_demo.training.trainer import Trainer, learning_rate, validate
from vse_demo.utils.tensors import check_device

WORKERS = min(2, os.cpu_count() or 1)


def train(
    config: TrainConfig | None,
    data: str | Path | Dataset,
    out: str | Path,
    resume: bool = False,
    cache: Path | None = None,
    device: str = "cpu",
    tensorboard: bool = False,
    workers: int = WORKERS,
    compiled: bool = False,
    on_row: OnRow | None = None,
    progress: bool = True,
    chunk: int = 0,
) -> Metrics:
    """Train on the train split of a folder and keep the model that is best on its validation split.

    Args:
        config: the recipe of a new run; None with `resume`.
        data: folder with the data set, or a `Dataset` in a layout of your own.
        out: folder of the run; the model is in `out`/best.
        resume: go on with the run in `out`, with the settings and the data it began with.
        cache: folder for features of frozen backbones; without it, the user's own.
        device: as PyTorch names it.
        tensorboard: also log for TensorBoard.
        workers: processes that decode images, where the backbone is trained too. Their number changes nothing else.
        compiled: run the encoders through `torch.compile`.
        on_row: is called with each row of the log as it is written: one per step (`loss`, `k`, `alignment`, …) and one
            per validation (`rsum`, `t2i_r1`, …), each with `step` and `epoch`. What it raises ends the run, which can
            be resumed.
        progress: whether to show bars.
        chunk: images, or captions, that are computed together, for batches larger than memory; 0 for all of a batch.
            It changes nothing but the memory and the time that a step takes.

    Returns:
        The metrics of the best validation. Copies of an image count once.

    Raises:
        ValueError: if settings, device and data do not go together.
        FileError: if a file is missing or broken, or `out` is in use.
        FloatingPointError: if training diverges.
        ConnectionError: if another process of the run ends.
    """
    check_device(device)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    train_split = dataset.split("train")
    val_split = merge_duplicates(dataset.split(validation_name(dataset)))
    with join_world(device) as world:
        run = Run(Path(out)) if world.leads else WatchedRun(Path(out))
        finish = partial(
            _run, run=run, train_split=train_split, val_split=val_split, cache=cache, tensorboard=tensorboard,
            workers=workers, on_row=on_row, progress=progress and world.leads,
        )  # fmt: skip
        if resume:
            run.check_data(train_split, val_split)
            return finish(run.resume(world.device, compiled, chunk, world))
        if config is None:
            raise ValueError("a new run needs a config")
        run.refuse_to_overwrite()
        world.wait()  # or the first process would write before all have seen that there is no run
        torch.manual_seed(config.seed)
        groups = caption_groups(config, train_split)
        model, config = build_model(config, [caption for group in groups for caption in group])
        world.copy_weights(model.to(world.device))
        trainer = Trainer(model, config, compiled, chunk, world)
        try:
            run.start(trainer, train_split, val_split)
            return finish(trainer)
        except Exception:
            if trainer.step == 0:  # nothing is lost, and the folder does not block the next try
                run.discard(trainer)
            raise


def _run(
    trainer: Trainer,
    run: Run,
    train_split: CaptionedImages,
    val_split: CaptionedImages,
    cache: Path | None,
    tensorboard: bool,
    workers: int,
    on_row: OnRow | None,
    progress: bool,
) -> Metrics:
    """Train from where the trainer is to the end of its recipe."""
    model, config = trainer.model, trainer.config
    tokenizer, encoder, live = model.tokenizer, model.image_encoder, config.finetune_image
    held_out = PairDataset.make(val_split, tokenizer, encoder, live, cache, progress=progress)
    pairs = PairDataset.make(train_split, tokenizer, encoder, live, cache, config.mirror, progress)
    log = run.open_log(trainer.step, tensorboard, on_row)
    first = 0
    if config.text_epochs:
        texts = CaptionPairDataset.make(caption_groups(config, train_split), tokenizer)
        for _ in run_epochs(trainer, run, log, texts, config.text_epochs, first, progress=progress):
            run.save_checkpoint(trainer)
        first = config.text_epochs * len(trainer.epoch_steps(texts, 0))
    epochs = run_epochs(trainer, run, log, pairs, config.epochs, first, workers, progress)
    is_over = partial(trainer.world.from_first, partial(run.is_over, config.patience))
    for epoch in () if is_over() else epochs:
        metrics = trainer.world.from_first(partial(validate, trainer.eval_model, held_out))
        log.write({"step": trainer.step, "epoch": epoch, **flatten(metrics)})
        if trainer.best is None or metrics["rsum"] > trainer.best["rsum"]:
            trainer.best = metrics
            run.save_best(trainer, metrics)
        run.save_checkpoint(trainer)
        if is_over():
            break
    assert trainer.best is not None  # a recipe has at least one epoch
    return trainer.best


def run_epochs(
    trainer: Trainer,
    run: Run,
    log: Log,
    data: PairDataset | CaptionPairDataset,
    epochs: int,
    first: int,
    workers: int = 0,
    progress: bool = True,
) -> Iterator[int]:
    """Train on `data` from where the trainer is.

    Args:
        trainer: makes the steps.
        run: its checkpoints are written within long epochs.
        log: takes a row for each step.
        data: to learn from.
        epochs: how many in all.
        first: the step of the whole run at which these epochs begin.
        workers: processes that decode images.
        progress: whether to show a bar.

    Yields:
        The number of epochs done, after each of them; nothing for those that an earlier run has finished.
    """
    config, per_epoch = trainer.config, len(trainer.epoch_steps(data, 0))
    total, unit = epochs * per_epoch, " steps on text" if isinstance(data, CaptionPairDataset) else " steps"
    pin_memory = trainer.model.device.type == "cuda"
    with tqdm(total=total, initial=min(total, trainer.step - first), unit=unit, disable=not progress) as bar:
        while trainer.step < first + total:
            epoch, done = divmod(trainer.step - first, per_epoch)
            trainer.objective.start_epoch(epoch)
            for batches in load_steps(trainer.remaining_steps(data, epoch, done), workers, pin_memory):
                rate = learning_rate(config, trainer.step - first, epochs, per_epoch)
                row = trainer.train_step(batches, epoch, rate)
                log.write(row)
                bar.update()
                bar.set_postfix(loss=f"{row['loss']:.3f}", K=int(row.get("k", 0)), best=f"{trainer.best_rsum:.1f}")
                if trainer.step % config.checkpoint_steps == 0 and (trainer.step - first) % per_epoch:
                    run.save_checkpoint(trainer)
            yield epoch + 1


def validation_name(dataset: Dataset) -> str:
    """`val`, or `dev` as precomputed data call it."""
    return "dev" if "val" not in dataset.splits and "dev" in dataset.splits else "val"
