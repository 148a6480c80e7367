"""`vse-demo train`: a flag for each setting of a model and of its training."""

import argparse
from dataclasses import fields
from pathlib import Path

from vse_demo.cli.flags import Verbs, add_import_flag, add_layout_flag, add_setting, data_folder
from vse_demo.cli.output import print_metrics

EXAMPLES = """\
presets:
  vse++, vse-infty, vse+2ad (default)    the methods, with the paper's sizes and schedule
  vse+2ad-paper                          VSE+2AD by the paper's equations; vse+2ad is by the authors' code
  region-bigru, grid-bigru, patch-bigru  VSE+2AD as published, for a GPU: precomputed regions,
  region-bert, grid-bert, patch-bert     a ResNet-101 at 512 px or a ViT-B/16; a BiGRU or BERT-base
  small-bigru, small-minilm              for two CPU cores: a frozen mobile backbone, an hour on 6,000 photos
{competitors}

A BiGRU on the grid features of a frozen CNN, on a laptop:

  vse-demo train --data data/flickr30k --out runs/first --backbone-weights hub \\
      --dim 256 --captions-per-image 5 --epochs 10

Fine-tuning a backbone on a GPU:

  vse-demo train --data data/coco --out runs/grid --preset grid-bert --device cuda \\
      --workers 8 --precision bf16 --frozen-stages 2

The same on four GPUs, with the mathematics of one; on CPUs leave out --device:

  torchrun --nproc_per_node 4 -m vse_demo train --data data/coco --out runs/grid \\
      --preset grid-bert --device cuda --batch-size 512
"""


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("train", help="train a model", formatter_class=argparse.RawDescriptionHelpFormatter)
    verb.add_late = add_flags
    verb.set_defaults(run=run)


def add_flags(verb: argparse.ArgumentParser) -> None:
    """Add the flags: those of a run, and one for each setting of a model and its training."""
    from vse_demo.interaction import INTERACTIONS
    from vse_demo.losses import OBJECTIVES
    from vse_demo.model import ModelConfig
    from vse_demo.pooling import POOLINGS
    from vse_demo.training import COMPETITORS, PRESETS, WORKERS, TrainConfig

    competitors = "\n".join(f"  {name:38} {text}" for name, (text, _) in COMPETITORS.items())
    verb.epilog = EXAMPLES.format(competitors=competitors)
    verb.add_argument("--data", type=data_folder, required=True, help="folder with train and val splits, or default")
    add_layout_flag(verb)
    add_import_flag(verb)
    verb.add_argument("--out", type=Path, required=True, help="folder of the run")
    verb.add_argument("--preset", help=f"{', '.join(PRESETS)}: see below")
    verb.add_argument("--resume", action="store_true", help="continue the run in --out with its own settings and data")
    verb.add_argument("--cache", type=Path, help="folder for features of frozen backbones (default: $VSE_DEMO_CACHE)")
    verb.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: cpu)")
    verb.add_argument(
        "--workers",
        type=int,
        default=WORKERS,
        help=f"processes that decode images where the backbone is trained too (default: {WORKERS})",
    )
    verb.add_argument(
        "--chunk", type=int, default=0, help="images that are computed together, for batches larger than memory"
    )
    verb.add_argument("--compile", action="store_true", help="run the encoders through torch.compile")
    verb.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard")
    names = {"POOLINGS": list(POOLINGS), "OBJECTIVES": list(OBJECTIVES), "INTERACTIONS": list(INTERACTIONS)}
    for title, config in (("model", ModelConfig), ("training", TrainConfig)):
        group = verb.add_argument_group(title)
        for entry in fields(config):
            text = entry.metadata.get("help")
            if text is not None:  # the rest is not for the command line
                for name, choices in names.items():
                    text = text.replace(f"any name of {name}", ", ".join(choices))
                add_setting(group, entry.name, entry.default, text.replace("%", "%%"))


def run(chosen: argparse.Namespace) -> None:
    """Train, or go on with a run; print the best metrics."""
    from vse_demo.data import open_dataset
    from vse_demo.model import ModelConfig
    from vse_demo.training import TrainConfig, is_first_process, make_config, train

    names = [entry.name for config in (ModelConfig, TrainConfig) for entry in fields(config)]
    given = {name: value for name in names if (value := getattr(chosen, name, None)) is not None}
    overrides = {name: dict(value) if isinstance(value, list) else value for name, value in given.items()}
    if chosen.resume and (overrides or chosen.preset):
        flags = [f"--{name.replace('_', '-')}" for name in overrides] or ["--preset"]
        raise ValueError(f"--resume keeps the settings of the run; leave out {', '.join(flags)}")
    metrics = train(
        None if chosen.resume else make_config(chosen.preset or "vse+2ad", overrides),
        open_dataset(chosen.data, chosen.layout) if chosen.layout else chosen.data,
        chosen.out,
        chosen.resume,
        chosen.cache,
        chosen.device,
        chosen.tensorboard,
        chosen.workers,
        chosen.compile,
        chunk=chosen.chunk,
    )
    if is_first_process():
        print_metrics(metrics)
        print(f"the best model is in {chosen.out / 'best'}")
