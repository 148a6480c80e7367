"""Test the paper's claims where training has settled: a run goes on until validation has not risen for five epochs.

    python scripts/grid_features.py --data data/flickr30k --out runs/settled/flickr30k --train 2000 --dev 500
    python scripts/settled.py train --out runs/settled --word-vectors word_vectors.safetensors
    python scripts/settled.py report --out runs/settled --assets assets/runs/settled

`train` goes through the settings in groups, in a group the first seed of all before the second, and through all data
sets in `--out`, the first before the second. Stopped and started again, it goes on where it was. `report` may be called
at any time: it adds the runs that have ended to those that the folder has already, and writes `results.csv` (every
run), `curves.csv` (every validation), `configs.json` and the page.
"""

import argparse
import csv
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import p_value, paired, portable, verdict, write_table  # beside this file: the early runs
from grid_features import data_sets

from vse_demo.training import make_config, train
from vse_demo.utils.files import read_json, write_atomic, write_json
from vse_demo.utils.runtime import tune_process

# The paper's recipe but for the size: batches of 128 pairs, Adam at 5e-4, a tenth after 15 epochs, at most 25 epochs.
BUDGET: dict[str, Any] = {
    "vision": "region", "region_dim": 1280, "dim": 128, "projection": "linear", "min_word_count": 2,
    "epochs": 25, "patience": 5,
}  # fmt: skip
SEEDS = (0, 1, 2)
RUN = ("data", "setting", "seed")
Run = tuple[str, str, int]
AGGREGATORS = ("max", "manual", "softpool", "adapool", "lip", "selfattn")


@dataclass(frozen=True)
class Setting:
    """What is changed in the authors' VSE+2AD, and what that is called on the page."""

    name: str
    label: str
    changes: dict[str, Any]


def pooled(**options: Any) -> dict[str, Any]:
    """AdPool by the authors' code with these options."""
    return {"pooling_options": options}


GROUPS = [
    [
        Setting("full", "VSE+2AD, authors' code", {}),
        Setting("mean", "mean pooling instead of AdPool", {"pooling": "mean"}),
        Setting("hard-warm", "hard triplet after 5 epochs with every negative",
                {"objective": "vse++", "objective_options": {"sum_epochs": 5}}),
        Setting("k-all", "all negatives", {"objective_options": {"fixed_k": 127}}),
    ],
    [
        Setting("full-paper", "VSE+2AD, paper's equations",
                {"pooling_options": {"variant": "paper"}, "objective_options": {"variant": "paper"}}),
        Setting("gpo", "GPO instead of AdPool", {"pooling": "gpo"}),
        Setting("vse++", "hard triplet, schedule of VSE++", {"objective": "vse++"}),
        Setting("contrast", "K by our own formula", {"objective_options": {"variant": "contrast"}}),
    ],
    [
        Setting("no-token", "no token level", pooled(token=False)),
        Setting("no-embedding", "no embedding level", pooled(embedding=False)),
        Setting("from-mean", "token level alone, started at the mean (ours)", pooled(embedding=False, init="mean")),
        Setting("k-1", "K = 1", {"objective_options": {"fixed_k": 1}}),
    ],
    [
        *(Setting(name, f"{name} instead of AdPool", {"pooling": name}) for name in AGGREGATORS),
        *(Setting(f"balance-{weight}", f"fixed balance, {weight} for the token level",
                  pooled(balance=[weight, 1 - weight])) for weight in (0.25, 0.5, 0.75)),
    ],
]  # fmt: skip
DRAWN = ("full", "full-paper", "mean", "k-all", "contrast", "hard-warm", "vse++")
SETTINGS = {setting.name: setting for group in GROUPS for setting in group}

CLAIMS = [  # what is claimed, the setting that should be better, the one that should be worse
    ("AdPool is better than mean pooling", "full", "mean"),
    ("AdPool is better than GPO", "full", "gpo"),
    ("AdPool's token level helps", "full", "no-token"),
    ("AdPool's embedding level helps", "full", "no-embedding"),
    ("The authors' code is better than the paper's equations", "full", "full-paper"),
    ("AdOpt is better than the hard triplet loss after a warm start", "full", "hard-warm"),
    ("AdOpt is better than the schedule of VSE++", "full", "vse++"),
    ("AdOpt is better than all negatives", "full", "k-all"),
    ("AdOpt is better than K = 1", "full", "k-1"),
    ("Ours: K by contrast is better than the authors' K", "contrast", "full"),
    ("Ours: a token level that starts at the mean is better than mean pooling", "from-mean", "mean"),
    ("Ours: it is better than AdPool", "from-mean", "full"),
    *((f"AdPool is better than {name}", "full", name) for name in AGGREGATORS),
    *((f"A learned balance is better than {weight}", "full", f"balance-{weight}") for weight in (0.25, 0.5, 0.75)),
]  # fmt: skip


def main() -> None:
    """Run the chosen verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    trainer = verbs.add_parser("train")
    trainer.add_argument("--word-vectors", default="", help="that every text encoder starts from")
    trainer.add_argument("--data", nargs="+", help="names of data sets in --out (default: all)")
    trainer.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="settings to train")
    trainer.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    reporter = verbs.add_parser("report")
    reporter.add_argument("--assets", type=Path, required=True, help="folder for the evidence")
    for verb in (trainer, reporter):
        verb.add_argument("--out", type=Path, required=True, help="folder of the features and the runs")
    chosen = parser.parse_args()
    tune_process()
    if chosen.verb == "train":
        train_all(chosen.out, chosen.data or data_sets(chosen.out), chosen.only, chosen.seeds, chosen.word_vectors)
    else:
        report(chosen.out, chosen.assets)


def planned(only: list[str], seeds: list[int]) -> Iterator[tuple[Setting, int]]:
    """Every run of a data set, group by group, seed by seed."""
    for group in GROUPS:
        for seed in seeds:
            yield from ((setting, seed) for setting in group if setting.name in only)


def train_all(out: Path, names: list[str], only: list[str], seeds: list[int], word_vectors: str) -> None:
    """Train what is not trained yet."""
    runs = [(name, setting, seed) for name in names for setting, seed in planned(only, seeds)]
    for number, (name, setting, seed) in enumerate(runs, start=1):
        folder = out / "runs" / name / f"{setting.name}-{seed}"
        done = folder / "done.json"  # written last
        if done.exists():
            continue
        resume = (folder / "config.json").exists()
        config = make_config("vse+2ad", {**BUDGET, **setting.changes, "seed": seed, "word_vectors": word_vectors})
        start = time.process_time()
        best = train(None if resume else config, out / name, folder, resume, progress=False)
        write_json(done, {"best": best, "cpu_seconds": None if resume else round(time.process_time() - start)})
        print(f"{number} of {len(runs)}: {name} {setting.name}-{seed} RSUM {best['rsum']:.1f}", flush=True)
        for large in (folder / "last.safetensors", *(folder / "best").glob("*.safetensors")):
            large.unlink()


def report(out: Path, assets: Path) -> None:
    """Add what proves the tables, for the runs that have ended, to what a folder has of other runs; write the page."""
    results = {run_of(row): row for row in read_rows(assets / "results.csv")}
    curves = {(*run_of(row), row["epoch"]): row for row in read_rows(assets / "curves.csv")}
    about = read_json(assets / "configs.json") if results else {"photos": {}, "runs": {}}
    for name in data_sets(out):
        about["photos"][name] = {split: count_photos(out / name, split) for split in ("train", "dev")}
        for setting, seed in planned(list(SETTINGS), list(SEEDS)):
            folder = out / "runs" / name / f"{setting.name}-{seed}"
            if (folder / "done.json").exists():
                run = (name, setting.name, seed)
                results[run], validations = summarize(run, folder)
                curves = {key: row for key, row in curves.items() if run_of(row) != run}
                curves |= {(*run, row["epoch"]): row for row in validations}
                about["runs"][f"{name}/{folder.name}"] = portable(read_json(folder / "config.json"))
    if not results:
        raise SystemExit(f"no run in {out} has ended: run the train verb first")
    assets.mkdir(parents=True, exist_ok=True)
    rows = in_order(results.values())
    write_table(assets / "results.csv", rows)
    write_table(assets / "curves.csv", in_order(curves.values()))
    write_json(assets / "configs.json", about)
    draw_curves(assets / "curves.png", in_order(curves.values()))
    write_atomic(assets / "README.md", page(assets))
    print(f"{len(rows)} runs: {assets / 'README.md'}")


def summarize(run: Run, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a finished run, and one for each of its validations."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps, validations = ([row for row in rows if key in row] for key in ("loss", "rsum"))
    best = max(validations, key=lambda row: row["rsum"])
    key = dict(zip(RUN, run, strict=True))
    line = {
        **key, **{column: round(best[column], 2) for column in ("rsum", "i2t_r1", "t2i_r1")},
        "best_epoch": best["epoch"], "epochs": validations[-1]["epoch"],
        "last_rsum": round(validations[-1]["rsum"], 2),
        "last_k": steps[-1].get("k"), "last_alignment": round(steps[-1]["alignment"], 3),
        "cpu_seconds": read_json(folder / "done.json")["cpu_seconds"],
    }  # fmt: skip
    return line, [{**key, "epoch": row["epoch"], "rsum": round(row["rsum"], 2)} for row in validations]


def run_of(row: Mapping[str, Any]) -> Run:
    """Which run a row is of."""
    return row["data"], row["setting"], row["seed"]


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Flickr30K first, runs as they are planned; rows of one run stay as they are."""
    places = {(setting.name, seed): place for place, (setting, seed) in enumerate(planned(list(SETTINGS), list(SEEDS)))}
    return sorted(rows, key=lambda row: (row["data"] != "flickr30k", row["data"], places[row["setting"], row["seed"]]))


def draw_curves(path: Path, curves: list[dict[str, Any]]) -> None:
    """RSUM by epoch of some settings, mean and range over seeds, a panel for each data set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["data"] for row in curves))
    figure, panels = plt.subplots(1, len(names), figsize=(8 * len(names), 4.8), squeeze=False, layout="constrained")
    for axes, name in zip(panels[0], names, strict=True):
        for number, setting in enumerate(DRAWN):
            rsums: dict[int, list[float]] = {}  # of each epoch, over seeds
            for row in curves:
                if (row["data"], row["setting"]) == (name, setting):
                    rsums.setdefault(row["epoch"], []).append(row["rsum"])
            epochs = [epoch for epoch, each in rsums.items() if len(each) == len(rsums[1])]  # that all runs have
            means = [statistics.mean(rsums[epoch]) for epoch in epochs]
            low, high = ([pick(rsums[epoch]) for epoch in epochs] for pick in (min, max))
            axes.plot(epochs, means, f"C{number}", label=SETTINGS[setting].label)
            axes.fill_between(epochs, low, high, color=f"C{number}", alpha=0.1, lw=0)
        axes.set(title=name, xlabel="epoch", ylabel="RSUM on held-out photos")
        axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def count_photos(folder: Path, split: str) -> int:
    """Of a split of a data set: each has five captions."""
    return len((folder / f"{split}_caps.txt").read_text().splitlines()) // 5


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, numbers as numbers; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    words = ("data", "setting")
    return [{k: v if k in words else json.loads(v.replace("None", "null")) for k, v in row.items()} for row in rows]


INTRODUCTION = """\
# The paper's claims, where training has settled

Written by `scripts/settled.py report` from `results.csv` (every run), `curves.csv` (every validation) and
`configs.json`. The [early runs](../README.md) stop after 446 steps, with the hard triplet still collapsed. Here a run
goes on until validation has not risen for five epochs (25 at most), with the paper's batches of 128, Adam at 5e-4 and
a tenth of it after 15 epochs; the longest run ended after {longest}. The rest is small: 36 vectors a photo from one
frozen network (the backbone of `grid-minilm` after the first of its two runs, which has learned from both data sets), a
BiGRU from pretrained word vectors, a linear projection, d = {dim}. AdPool and AdOpt are by the authors' code unless a
row says otherwise. RSUM is of the best epoch, chosen on the photos it is measured on, for every setting alike.

![RSUM by epoch, the mean over seeds and their range, as long as all runs go on](curves.png)
"""


def page(assets: Path) -> str:
    """The page from the files in a folder: verdicts and a table for each data set."""
    results, stored = read_rows(assets / "results.csv"), read_json(assets / "configs.json")
    dim, longest = next(iter(stored["runs"].values()))["model"]["dim"], max(row["epochs"] for row in results)
    lines = [INTRODUCTION.format(dim=dim, longest=longest)]
    for name in dict.fromkeys(row["data"] for row in results):
        mine = [row for row in results if row["data"] == name]
        photos = "{train} photos to learn from, {dev} held out".format(**stored["photos"][name])
        lines += [f"## {name}", "", f"{photos}; {len(mine)} runs.", "", *verdicts(mine), *table(mine)]
        run = {row["setting"] for row in mine}
        missing = [setting.label for setting in SETTINGS.values() if setting.name not in run]
        if missing:
            lines += ["**Not run:** " + "; ".join(missing) + ".", ""]
    return "\n".join(lines)


def verdicts(results: list[dict[str, Any]]) -> list[str]:
    """A row for each claim that two seeds at least can speak to."""
    lines = ["| claim | difference in RSUM | seeds | p | here |", "|---|---|---|---|---|"]
    for claim, better, worse in CLAIMS:
        differences = paired(results, better, worse)
        if len(differences) == 1:
            lines.append(f"| {claim} | {differences[0]:+.1f} | 1 | | one run says nothing |")
        elif differences:
            p = p_value(differences)
            shown = f"{p:.3f}" if p >= 0.001 else "< 0.001"
            lines.append(
                f"| {claim} | {spread(differences, '+')} | {len(differences)} | {shown} | {verdict(differences)} |"
            )
    return [
        *lines,
        "",
        "Differences are taken seed by seed; p is that of a paired t-test (Student's t, two-sided), not corrected for",
        "the number of claims: where nothing differs, one of twenty would still fall below 0.05.",
        "",
    ]


def table(results: list[dict[str, Any]]) -> list[str]:
    """All settings of a data set."""
    lines = ["| setting | RSUM | i2t R@1 | t2i R@1 | best epoch | K at the end | alignment at the end | runs |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for setting in SETTINGS.values():
        rows = [row for row in results if row["setting"] == setting.name]
        if rows:
            means = {key: statistics.mean(row[key] or 0 for row in rows) for key in
                     ("i2t_r1", "t2i_r1", "best_epoch", "last_k", "last_alignment")}  # fmt: skip
            cells = [setting.label, spread([row["rsum"] for row in rows])]
            cells += [f"{means[key]:.1f}" for key in ("i2t_r1", "t2i_r1", "best_epoch")]
            cells += [f"{means['last_k']:.0f}", f"{means['last_alignment']:.2f}", str(len(rows))]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def spread(values: list[float], sign: str = "") -> str:
    """Mean ± standard deviation; a single value alone."""
    if len(values) == 1:
        return f"{values[0]:{sign}.1f}"
    return f"{statistics.mean(values):{sign}.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
