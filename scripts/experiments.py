"""Test the paper's claims: train every small model of its tables on one budget, then write the evidence.

    python scripts/experiments.py train --data data/flickr30k --pretrained pretrained --out runs/claims
    python scripts/experiments.py report --out runs/claims --assets assets/runs

`train` goes through all runs, one after another (about 2 minutes each on one core, once the cells
are extracted); stopped and started again, it goes on where it was. `--only` picks tables. `report`
writes `results.csv`, `configs.json` and a thinned log of each run, and prints the tables.
"""

import argparse
import csv
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vse_demo.files import write_atomic, write_json
from vse_demo.presets import make_config
from vse_demo.training import train

BUDGET: dict[str, Any] = {
    "backbone": "tf_efficientnet_lite2", "image_size": 384, "dim": 256, "projection": "linear",
    "pooling": "adpool", "objective": "adopt", "epochs": 2, "schedule": "cosine", "ramp_steps": 50,
    "learning_rate": 1e-3, "cell_dropout": 0.8, "word_dropout": 0.1,
}  # fmt: skip

ALL_NEGATIVES = 127  # of a batch of 128 pairs


@dataclass(frozen=True)
class Setting:
    """One row of a table: how it differs from the budget, and how often it is run."""

    name: str
    changes: dict[str, Any]
    seeds: int


def random_balance(seed: int) -> list[float]:
    weight = round(float(np.random.default_rng(seed).random()), 3)
    return [weight, round(1 - weight, 3)]


TABLES: dict[str, list[Setting]] = {
    "ablation": [
        Setting("full", {}, 3),
        Setting("no-token-level", {"pooling_options": {"token": False}}, 3),
        Setting("no-embedding-level", {"pooling_options": {"embedding": False}}, 3),
        Setting("no-adpool", {"pooling": "mean"}, 3),
        Setting("no-adopt", {"objective": "hard"}, 3),
    ],
    "objective": [
        Setting("adopt-paper", {"objective_options": {"variant": "paper"}}, 3),
        Setting("k-1", {"objective_options": {"fixed_k": 1}}, 3),
        Setting("k-all", {"objective_options": {"fixed_k": ALL_NEGATIVES}}, 3),
        Setting("vse++", {"objective": "vse++"}, 3),
    ],
    "aggregator": [
        Setting("adpool-official", {"pooling_options": {"variant": "official"}}, 3),
        *(
            Setting(name, {"pooling": name}, 2)
            for name in ("manual", "softpool", "adapool", "gpo", "lip", "selfattn", "gcn", "seq2seq")
        ),
    ],
    "balance": [
        Setting("balance-0.25", {"pooling_options": {"balance": [0.25, 0.75]}}, 2),
        Setting("balance-0.50", {"pooling_options": {"balance": [0.5, 0.5]}}, 2),
        Setting("balance-0.75", {"pooling_options": {"balance": [0.75, 0.25]}}, 2),
        Setting("balance-random", {"pooling_options": {"balance": random_balance}}, 2),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    trainer = verbs.add_parser("train")
    trainer.add_argument("--data", type=Path, required=True, help="Flickr30K in Karpathy's layout")
    trainer.add_argument("--pretrained", type=Path, required=True, help="folder made by scripts/pretrained.py")
    trainer.add_argument("--cache", type=Path, help="folder for extracted cells")
    trainer.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), help="tables to train")
    reporter = verbs.add_parser("report")
    reporter.add_argument("--assets", type=Path, required=True, help="folder for the evidence")
    for verb in (trainer, reporter):
        verb.add_argument("--out", type=Path, required=True, help="folder of the runs")
    chosen = parser.parse_args()
    if chosen.verb == "train":
        train_all(chosen)
    else:
        report(chosen.out, chosen.assets)


def planned(tables: list[str]) -> Iterator[tuple[str, Setting, int]]:
    """Every run, the first seed of all settings before the second."""
    settings = [(table, setting) for table in tables for setting in TABLES[table]]
    for seed in range(max(setting.seeds for _, setting in settings)):
        yield from ((table, setting, seed) for table, setting in settings if seed < setting.seeds)


def train_all(chosen: argparse.Namespace) -> None:
    parts = {
        "backbone_weights": str(chosen.pretrained / "tf_efficientnet_lite2.safetensors"),
        "word_vectors": str(chosen.pretrained / "word_vectors.safetensors"),
    }
    runs = list(planned(chosen.only))
    for number, (_, setting, seed) in enumerate(runs, start=1):
        folder = chosen.out / f"{setting.name}-{seed}"
        done = folder / "seconds.json"  # written last
        if done.exists():
            continue
        print(f"run {number} of {len(runs)}: {folder.name}", flush=True)
        options = {
            key: {name: value(seed) if callable(value) else value for name, value in values.items()}
            if isinstance(values, dict)
            else values
            for key, values in setting.changes.items()
        }
        config = make_config("vse+2ad", {**BUDGET, **options, **parts, "seed": seed})
        start = time.monotonic()
        resume = (folder / "config.json").exists()
        train(None if resume else config, chosen.data, folder, resume, chosen.cache)
        write_json(done, None if resume else round(time.monotonic() - start))
        for large in (folder / "last.safetensors", *(folder / "best").glob("*.safetensors")):
            large.unlink()  # a gigabyte and a half in all, and nobody asks for them


def report(runs: Path, assets: Path) -> None:
    """Keep what proves the tables, and print them."""
    results, configs = [], {}
    for table, setting, seed in planned(list(TABLES)):
        folder = runs / f"{setting.name}-{seed}"
        if not (folder / "seconds.json").exists():
            print(f"{folder} is not finished")
            continue
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        last = [row for row in rows if "rsum" in row][-1]
        seconds = json.loads((folder / "seconds.json").read_text())
        results.append({"table": table, "setting": setting.name, "seed": seed, **last, "seconds": seconds})
        configs[folder.name] = portable(json.loads((folder / "config.json").read_text()))
        write_steps(assets / "steps" / f"{folder.name}.csv", [row for row in rows if "loss" in row])
    assets.mkdir(parents=True, exist_ok=True)
    write_table(assets / "results.csv", results)
    write_json(assets / "configs.json", configs)
    print_tables(results)


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """A config without the paths of one machine."""
    names = ("backbone_weights", "word_vectors", "text_backbone", "more_captions")
    return {**config, **{name: Path(config[name]).name for name in names}}


def write_steps(path: Path, rows: list[dict[str, float]], every: int = 5) -> None:
    """Every fifth step: enough for a curve."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [row for row in rows if row["step"] % every == 0 or row["step"] == 1]
    write_table(path, [{key: float(f"{value:.4g}") for key, value in row.items()} for row in kept])


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    write_atomic(path, "".join(",".join(map(str, line)) + "\n" for line in lines))


def read_results(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [{**row, "rsum": float(row["rsum"]), "seed": int(row["seed"])} for row in csv.DictReader(file)]


def print_tables(results: list[dict[str, Any]]) -> None:
    """RSUM of each setting, and its difference from the full model of the same seed."""
    full = {row["seed"]: row["rsum"] for row in results if row["setting"] == "full"}
    for table in TABLES:
        print(f"\n| {table} | RSUM | against full, same seed | runs |\n|---|---|---|---|")
        settings = dict.fromkeys(row["setting"] for row in results if row["table"] == table)
        for name in settings:
            rows = [row for row in results if row["setting"] == name]
            values = [row["rsum"] for row in rows]
            differences = [row["rsum"] - full[row["seed"]] for row in rows]
            print(f"| {name} | {spread(values)} | {spread(differences, '+')} | {len(rows)} |")


def spread(values: list[float], sign: str = "") -> str:
    mean = format(statistics.mean(values), f"{sign}.1f")
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
