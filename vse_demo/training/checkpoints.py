"""The folder of a run: its settings, what it learns from, and checkpoints that survive a kill."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vse_demo.data.layouts import CaptionedImages
from vse_demo.evaluation import Metrics
from vse_demo.model.config import PARTS, ModelConfig, check_stored_part
from vse_demo.model.interaction import new_model
from vse_demo.model.storage import load_tokenizer
from vse_demo.training.config import TrainConfig
from vse_demo.training.distributed import World
from vse_demo.training.log import Log, NoLog, OnRow
from vse_demo.training.trainer import Trainer
from vse_demo.utils.files import FileError, read_json, write_atomic, write_json
from vse_demo.utils.tensors import update_digest

SAMPLE = 64  # images whose regions are compared when a run goes on, evenly spaced


class Run:
    """The folder of one training run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config_file = folder / "config.json"
        self.metrics_file = folder / "metrics.jsonl"
        self.checkpoint_file = folder / "last.safetensors"
        self.data_file = folder / "data.json"

    def refuse_to_overwrite(self) -> None:
        """Raise a FileError if there is a run in the folder."""
        if self.config_file.exists():
            raise FileError(f"{self.folder} holds a run already: --resume continues it, another --out starts a new one")

    def start(self, trainer: Trainer, data: CaptionedImages, held_out: CaptionedImages) -> None:
        """Write all that a resumed run needs; the config comes last and makes it a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.data_file, describe_data(data, held_out))
        trainer.model.tokenizer.save(self.folder)
        self.save_checkpoint(trainer)
        write_json(self.config_file, asdict(trainer.config))

    def discard(self, trainer: Trainer) -> None:
        """Take back what `start` has written, for a run that could not make its first step."""
        tokenizer = self.folder / trainer.model.tokenizer.FILE
        for file in (self.config_file, self.metrics_file, self.checkpoint_file, self.data_file, tokenizer):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is something else in it, or there is no folder
            self.folder.rmdir()

    def check_data(self, data: CaptionedImages, held_out: CaptionedImages) -> None:
        """Raise a FileError if the run began with other data; one of an older version cannot tell, or not all of it."""
        if not self.data_file.exists():
            return
        before, now = read_json(self.data_file), describe_data(data, held_out)
        before = before if isinstance(before, dict) else {}
        for which, old, new in (
            ("training", before, {name: now[name] for name in now if name != "validation"}),
            ("validation", before.get("validation", now["validation"]), now["validation"]),
        ):
            if not _same_data(old, new):
                raise FileError(
                    f"{self.folder} began with other {which} data: {_in_words(old)}; --data has {_in_words(new)}, and "
                    "their names, words or regions differ. Resume with the data of the run, or start a new one"
                )

    def resume(self, device: str, compiled: bool = False, chunk: int = 0, world: World | None = None) -> Trainer:
        """The trainer as it was at the last checkpoint, on a device.

        A checkpoint says nothing of how its steps were computed: any number of processes can go on from it.

        Raises:
            FileError: if the folder holds no run, or its files are not as they were written.
        """
        content = read_json(self.config_file)
        try:
            config = TrainConfig(**{**content, "model": ModelConfig(**content["model"])})
            for part in PARTS:
                check_stored_part(self.config_file, part, getattr(config.model, part))
            check_stored_part(self.config_file, "objective", config.objective)
            model = new_model(config.model, load_tokenizer(config.model, self.folder))
            trainer = Trainer(model.to(device), config, compiled, chunk, world)
        except FileError:
            raise
        except (TypeError, KeyError, ValueError, AttributeError, RuntimeError) as error:
            raise FileError(f"{self.config_file} is not the config of a run: {error}") from error
        self.load_checkpoint(trainer)
        return trainer

    def open_log(self, step: int, tensorboard: bool, on_row: OnRow | None = None) -> Log:
        """The log, without rows after `step`."""
        return Log(self.metrics_file, step, self.folder / "tensorboard" if tensorboard else None, on_row)

    def is_over(self, patience: int) -> bool:
        """Whether the validations in the log have not risen for so many epochs; with 0 never."""
        rows = map(json.loads, self.metrics_file.read_text().splitlines()) if self.metrics_file.exists() else ()
        rsums = [row["rsum"] for row in rows if "rsum" in row]
        return bool(patience and rsums) and len(rsums) - 1 - rsums.index(max(rsums)) >= patience

    def save_best(self, trainer: Trainer, metrics: Metrics) -> None:
        """Keep the model that is validated as the best so far."""
        trainer.eval_model.save_pretrained(self.folder / "best", metrics={"validation": metrics})

    def save_checkpoint(self, trainer: Trainer) -> None:
        """Weights, optimizer and place in the run, in one file that appears whole."""
        names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in trainer.model.state_dict().items()}
        for parameter, state in trainer.optimizer.state.items():
            tensors |= {f"adam.{key}.{names[id(parameter)]}": value.contiguous() for key, value in state.items()}
        if trainer.ema is not None:
            tensors |= {f"ema.{name}": tensor.contiguous() for name, tensor in trainer.ema.state_dict().items()}
        metadata = {"step": str(trainer.step), "best": json.dumps(trainer.best)}
        if trainer.scaler.is_enabled():
            metadata["scaler"] = json.dumps(trainer.scaler.state_dict())
        metadata["digest"] = self.digest(trainer, tensors, metadata)
        write_atomic(self.checkpoint_file, save(tensors, metadata))

    def digest(self, trainer: Trainer, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
        """A fingerprint of all that a run goes on from: settings, tokenizer, weights, place."""
        place = [metadata[name] for name in ("step", "best", "scaler") if name in metadata]
        settings = json.dumps([asdict(trainer.config), *place], sort_keys=True)
        digest = hashlib.blake2b(settings.encode(), digest_size=16)
        digest.update((self.folder / trainer.model.tokenizer.FILE).read_bytes())
        update_digest(digest, tensors)
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
            if trainer.ema is not None:
                trainer.ema.load_state_dict(_part(tensors, "ema."))
            for name, parameter in trainer.model.named_parameters():
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"adam.{key}.{name}" in tensors]
                state = {key: tensors[f"adam.{key}.{name}"] for key in keys}
                if state:  # Adam counts steps on the CPU, the rest is where the parameter is
                    moved = {key: state[key].to(parameter.device) for key in keys if key != "step"}
                    trainer.optimizer.state[parameter] = {**state, **moved}
            if "scaler" in metadata:
                trainer.scaler.load_state_dict(json.loads(metadata["scaler"]))
            trainer.step, trainer.best = int(metadata["step"]), json.loads(metadata["best"])
        except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"{self.checkpoint_file} is not a checkpoint of this run: {error}") from error


class WatchedRun(Run):
    """A run that another process writes: this one can resume it, and leaves the folder as it is."""

    def start(self, trainer: Trainer, data: CaptionedImages, held_out: CaptionedImages) -> None:
        """Leave it to the other process, as all that follows."""

    def discard(self, trainer: Trainer) -> None:
        pass

    def open_log(self, step: int, tensorboard: bool, on_row: OnRow | None = None) -> Log:
        return NoLog()

    def save_best(self, trainer: Trainer, metrics: Metrics) -> None:
        pass

    def save_checkpoint(self, trainer: Trainer) -> None:
        pass


def describe_data(data: CaptionedImages, held_out: CaptionedImages) -> dict[str, Any]:
    """Of training and validation data: how many images and captions, a digest of their names and words, the regions."""
    return {**_describe_split(data), "validation": _describe_split(held_out)}


def _describe_split(data: CaptionedImages) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    for text in (*data.names, *data.captions):
        digest.update(text.encode() + b"\n")
    digest.update(data.image_ids.astype("<i8").tobytes())
    known = {"images": len(data), "captions": len(data.captions), "digest": digest.hexdigest()}
    return {**known, "regions": _describe_regions(data.images)} if isinstance(data.images, np.ndarray) else known


def _describe_regions(regions: np.ndarray) -> dict[str, Any]:
    """Shape, type, and a digest of some: all of them may be tens of gigabytes."""
    some = regions[np.linspace(0, len(regions) - 1, min(len(regions), SAMPLE)).astype(int)]
    digest = hashlib.blake2b(np.ascontiguousarray(some).data, digest_size=16)
    return {"shape": list(regions.shape), "dtype": regions.dtype.str, "digest": digest.hexdigest()}


def _same_data(before: Any, now: Mapping[str, Any]) -> bool:
    """Whether a split is what was written of it; earlier versions did not write of regions."""
    return (
        isinstance(before, dict)
        and "digest" in before
        and all(before.get(name, now[name]) == now[name] for name in now)
    )


def _in_words(split: Any) -> str:
    known = split if isinstance(split, dict) else {}
    regions = known.get("regions")
    more = f" with regions {regions.get('shape')} of {regions.get('dtype')}" if isinstance(regions, dict) else ""
    return f"{known.get('images')} images and {known.get('captions')} captions{more}"


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
