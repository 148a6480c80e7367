"""Train the systems of the paper's main table on one small budget, then write table and figure.

    python scripts/grid_features.py --data data/flickr30k --out runs/compare/flickr30k --dev 100 --test 400
    python scripts/compare.py train --out runs/compare --word-vectors word_vectors.safetensors
    python scripts/compare.py report --out runs/compare --assets assets/runs/compare

`train` goes through all methods, seeds and data sets in `--out`, the quick ones first; stopped and started again, it
goes on where it was. `report` may be called at any time: it measures the speed of what is trained in one process, and
writes a page with the published figures beside ours, `results.csv` (every run) and `compare.png`.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import write_table
from grid_features import data_sets

from vse_demo.data import CaptionedImages, open_dataset
from vse_demo.interaction import all_similarities
from vse_demo.model import InteractionModel, load_any, measure
from vse_demo.retrieval.rerank import CANDIDATES
from vse_demo.training import make_config, train
from vse_demo.training.log import flatten
from vse_demo.utils.files import read_json, write_atomic, write_json
from vse_demo.utils.runtime import tune_process

BUDGET: dict[str, Any] = {
    "vision": "region", "region_dim": 1280, "dim": 128, "projection": "linear", "batch_size": 32, "epochs": 2,
    "schedule": "cosine", "warmup_steps": 50, "learning_rate": 1e-3, "min_word_count": 2,
}  # fmt: skip
SEEDS = (0, 1)


@dataclass(frozen=True)
class Method:
    """A row of the table: a preset, what is changed in it, and which row it is an ablation of."""

    name: str
    preset: str
    changes: dict[str, Any] = field(default_factory=dict)
    ablates: str = ""


METHODS = [  # in the order of their cost
    Method("VSE++", "vse++"),
    Method("VSE+2AD", "vse+2ad"),
    Method("SCAN (t2i)", "scan-t2i"),
    Method("SCAN (t2i) without attention", "scan-t2i", {"interaction_options": {"attention": False}}, "SCAN (t2i)"),
    Method("PVSE", "pvse"),
    Method("PVSE with one embedding", "pvse", {"interaction_options": {"k": 1}}, "PVSE"),
    Method("DSRN", "dsrn"),
    Method("DSRN without relations", "dsrn", {"pooling_options": {"relations": False}}, "DSRN"),
    Method("CVSE", "cvse"),
    Method("CVSE without consensus", "cvse", {"interaction_options": {"consensus": False}}, "CVSE"),
    Method("LIWE", "liwe", {"word_vectors": ""}),
    Method("LIWE with word vectors", "liwe", {"text": "bigru"}, "LIWE"),
    Method("VSE∞", "vse-infty"),
    Method("SCAN (i2t)", "scan-i2t"),
    Method("CAAN", "caan"),
    Method("CAAN without context", "caan", {"interaction_options": {"inter": False, "intra": False}}, "CAAN"),
    Method("IMRAM", "imram"),
    Method("IMRAM with one step", "imram", {"interaction_options": {"steps": 1}}, "IMRAM"),
    Method("Fusion", "fusion"),
    Method("Fusion without layers", "fusion", {"interaction_options": {"layers": 0}}, "Fusion"),
    Method("DIME (t2i)", "dime-t2i"),
    Method("DIME (t2i) with one layer", "dime-t2i", {"interaction_options": {"layers": 1}}, "DIME (t2i)"),
    Method("DIME (i2t)", "dime-i2t"),
]
FIRST_STAGE = METHODS[1]  # VSE+2AD
COLLAPSED, DRAWN_FROM = 50, 200  # RSUM


def main() -> None:
    """Run the chosen verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    trainer = verbs.add_parser("train")
    trainer.add_argument("--word-vectors", default="", help="that every text encoder starts from")
    trainer.add_argument("--only", nargs="+", help="names of methods (default: all)")
    reporter = verbs.add_parser("report")
    reporter.add_argument("--assets", type=Path, required=True, help="folder for table and figure")
    for verb in (trainer, reporter):
        verb.add_argument("--out", type=Path, required=True, help="folder of the features and the runs")
    chosen = parser.parse_args()
    tune_process()
    if chosen.verb == "train":
        train_all(chosen.out, chosen.word_vectors, chosen.only)
    else:
        report(chosen.out, chosen.assets)


def folder_of(out: Path, data: str, method: Method, seed: int) -> Path:
    """Where a run is kept."""
    return out / "runs" / f"{data}-{method.name.replace(' ', '_')}-{seed}"


def planned(out: Path, only: list[str] | None = None) -> Iterator[tuple[str, Method, int]]:
    """Every run: the quick methods first, each with both seeds on all data sets."""
    methods = [method for method in METHODS if only is None or method.name in only]
    return ((data, method, seed) for method in methods for data in data_sets(out) for seed in SEEDS)


def train_all(out: Path, word_vectors: str, only: list[str] | None) -> None:
    """Train what is not trained yet, and evaluate it on photos that nothing was chosen on."""
    for data, method, seed in planned(out, only):
        folder = folder_of(out, data, method, seed)
        done = folder / "result.json"  # written last
        if done.exists():
            continue
        settings = {**BUDGET, "word_vectors": word_vectors, "seed": seed, **method.changes}
        start, resume = time.process_time(), (folder / "config.json").exists()
        train(None if resume else make_config(method.preset, settings), out / data, folder, resume, progress=False)
        model, test = load_any(folder / "best"), open_dataset(out / data).split("test")
        found = flatten(measure(model, test))
        first, second = folder_of(out, data, FIRST_STAGE, seed) / "best", None
        if isinstance(model, InteractionModel) and first.exists():
            second = rerank_r1(load_any(first), model, test)
        seconds = None if resume else round(time.process_time() - start)
        about = {"data": data, "method": method.name, "seed": seed, "cpu_seconds": seconds}
        write_json(done, {**about, **found, "rerank_r1": second})
        print(f"{folder.name} RSUM {found['rsum']:.1f}", flush=True)
        (folder / "last.safetensors").unlink(missing_ok=True)


def rerank_r1(first: Any, second: InteractionModel, data: CaptionedImages) -> float:
    """Recall@1 of sentences where `first` finds candidates and `second` puts them in order."""
    found = first.encode_texts(data.captions) @ first.encode_images(data.images).T
    images, texts = second.encode_images(data.images), second.encode_texts(data.captions)
    right = 0
    for number, candidates in enumerate(found.topk(min(CANDIDATES, len(images)), dim=1).indices.tolist()):
        scores = all_similarities(second.interaction, [images[image] for image in candidates], [texts[number]])
        right += candidates[int(scores.argmax())] == data.image_ids[number]
    return 100 * right / len(texts)


def report(out: Path, assets: Path) -> None:
    """Write the table, the figure and the numbers behind them."""
    results = [
        {key: round(value, 2) if isinstance(value, float) else value for key, value in read_json(path).items()}
        for path in sorted(out.glob("runs/*/result.json"))
    ]
    if not results:
        raise SystemExit(f"{out} has no finished run: use the train verb first")
    speeds = measure_speeds(out)
    assets.mkdir(parents=True, exist_ok=True)
    write_table(assets / "results.csv", results)
    write_atomic(assets / "README.md", page(out, results, speeds))
    draw(assets / "compare.png", results, speeds)
    print(f"{len(results)} runs: {assets / 'README.md'}")


def measure_speeds(out: Path, queries: int = 10) -> dict[str, tuple[float, int]]:
    """Of each trained method: images that a sentence is compared with in a second, and parameters.

    A query is a caption that is encoded by itself and compared with every reported image, whose features are encoded
    beforehand. All methods are measured in turn, three times, and the best time counts.
    """
    models: dict[str, Any] = {}
    for data, method, seed in planned(out):
        folder = folder_of(out, data, method, seed)
        if method.name not in models and (folder / "result.json").exists():
            models[method.name] = load_any(folder / "best")
    split = open_dataset(out / data_sets(out)[0]).split("test")
    best = dict.fromkeys(models, float("inf"))
    images = {name: model.encode_images(list(split.images)) for name, model in models.items()}
    for _ in range(3):
        for name, model in models.items():
            start = time.perf_counter()
            for caption in split.captions[:queries]:
                text = model.encode_texts([caption])
                if isinstance(model, InteractionModel):
                    all_similarities(model.interaction, images[name], text)
                else:
                    text @ images[name].T
            best[name] = min(best[name], time.perf_counter() - start)
    return {
        name: (queries * len(split) / best[name], sum(weight.numel() for weight in model.parameters()))
        for name, model in models.items()
    }


RECALLS = [f"{way}_{recall}" for way in ("t2i", "i2t") for recall in ("r1", "r5", "r10")]


def page(out: Path, results: list[dict[str, Any]], speeds: dict[str, tuple[float, int]]) -> str:
    """The Markdown of the page."""
    slowest = min(speed for speed, _ in speeds.values())
    lines = [INTRODUCTION.format(**BUDGET, seeds=len(SEEDS))]
    for data in data_sets(out):
        splits = {name: len(open_dataset(out / data).split(name)) for name in ("train", "dev", "test")}
        lines += [
            f"## {data}", "",
            "{train:,} photos to learn from, {dev} to choose the epoch, {test} reported.".format(**splits), "",
            "| method | runs | images R@1 | R@5 | R@10 | captions R@1 | R@5 | R@10 | RSUM | published | items/s | "
            "parameters |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        ]  # fmt: skip
        for method in METHODS:
            runs = runs_of(results, data, method.name)
            if not runs:
                lines.append(f"| {method.name} | 0 |" + " |" * 10)
                continue
            recalls = " | ".join(f"{statistics.mean(run[name] for run in runs):.1f}" for name in RECALLS)
            published = PUBLISHED.get(method.name, {}).get(data, "")
            speed, parameters = speeds[method.name]
            lines.append(
                f"| {method.name} | {len(runs)} | {recalls} | {spread([run['rsum'] for run in runs])} | {published} "
                f"| {speed / slowest:.1f}× | {parameters / 1e6:.2f} M |"
            )
        lines += ["", *collapsed(results, data)]
    return "\n".join([*lines, *checks(out, results), *second_stages(results, speeds), *NOT_RUN]) + "\n"


def collapsed(results: list[dict[str, Any]], data: str) -> list[str]:
    """A line that names the methods that this budget says nothing about."""
    names = [
        method.name for method in METHODS
        if any(run["rsum"] < COLLAPSED for run in runs_of(results, data, method.name))
    ]  # fmt: skip
    return [f"Still near the collapsed start, where all vectors are alike: {', '.join(names)}.", ""] if names else []


def runs_of(results: list[dict[str, Any]], data: str, method: str) -> list[dict[str, Any]]:
    """The finished runs of a method on a data set."""
    return [result for result in results if (result["data"], result["method"]) == (data, method)]


def spread(values: list[float]) -> str:
    """Mean ± standard deviation; the mean alone of a single run."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def checks(out: Path, results: list[dict[str, Any]]) -> list[str]:
    """A line for each method and its ablation, seed by seed."""
    lines = [
        "## Does a method beat its own ablation here?",
        "",
        "| method | ablation | data | RSUM, seed by seed | |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        for data in data_sets(out) if method.ablates else ():
            whole = {run["seed"]: run["rsum"] for run in runs_of(results, data, method.ablates)}
            cut = {run["seed"]: run["rsum"] for run in runs_of(results, data, method.name)}
            both = sorted(set(whole) & set(cut))
            wins = sum(whole[seed] > cut[seed] for seed in both)
            verdict = (
                "not run"
                if not both
                else f"yes, {wins} of {len(both)}"
                if wins == len(both)
                else (f"no, {wins} of {len(both)}")
            )
            figures = ", ".join(f"{whole[seed]:.1f} against {cut[seed]:.1f}" for seed in both)
            lines.append(f"| {method.ablates} | {method.name} | {data} | {figures} | {verdict} |")
    return [*lines, ""]


def second_stages(results: list[dict[str, Any]], speeds: dict[str, tuple[float, int]]) -> list[str]:
    """What it gains to let a method order the candidates that VSE+2AD finds."""
    lines = [
        f"## Two stages: VSE+2AD finds {CANDIDATES}, another orders them",
        "",
        "| orders | data | images R@1 of VSE+2AD | in two stages | alone | milliseconds a sentence |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for method in METHODS:
        for data in dict.fromkeys(result["data"] for result in results):
            runs = [run for run in runs_of(results, data, method.name) if run["rerank_r1"] is not None]
            first = {run["seed"]: run["t2i_r1"] for run in runs_of(results, data, FIRST_STAGE.name)}
            if runs and not method.ablates:
                before = statistics.mean(first[run["seed"]] for run in runs)
                after, alone = (statistics.mean(run[key] for run in runs) for key in ("rerank_r1", "t2i_r1"))
                cost = 1000 * CANDIDATES / speeds[method.name][0]
                lines.append(f"| {method.name} | {data} | {before:.1f} | {after:.1f} | {alone:.1f} | {cost:.1f} |")
    return [*lines, ""]


def draw(path: Path, results: list[dict[str, Any]], speeds: dict[str, tuple[float, int]]) -> None:
    """Quality against speed, a panel for each data set; ablations are left out, and who has not left the start."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted({result["data"] for result in results}, reverse=True)
    figure, panels = plt.subplots(1, len(names), figsize=(6.5 * len(names), 4.8), squeeze=False, layout="constrained")
    slowest = min(speed for speed, _ in speeds.values())
    for axes, data in zip(panels[0], names, strict=True):
        far = []
        for method in METHODS:
            runs = runs_of(results, data, method.name)
            if not runs or method.ablates:
                continue
            speed, quality = speeds[method.name][0] / slowest, statistics.mean(run["rsum"] for run in runs)
            if quality < DRAWN_FROM:
                far.append(f"{method.name} {quality:.0f}")
                continue
            axes.scatter(speed, quality, color="#c0392b" if method is FIRST_STAGE else "#2c6fbb", s=36, zorder=3)
            right, below = speed > 100, "t2i" in method.name  # where the name goes: to the left of it, below its twin
            axes.annotate(
                method.name, (speed, quality), xytext=(-6 if right else 6, -10 if below else 3), fontsize=8,
                textcoords="offset points", ha="right" if right else "left",
            )  # fmt: skip
        axes.set(xscale="log", xlabel="items compared per second (1 = the slowest)", ylabel="RSUM", title=data)
        axes.margins(x=0.15, y=0.12)
        axes.grid(alpha=0.3)
        if far:
            axes.text(0.02, 0.02, "far below: " + ", ".join(far), transform=axes.transAxes, fontsize=8, color="#666666")
    figure.savefig(path, dpi=110)
    plt.close(figure)


INTRODUCTION = """\
# Every system on one budget

Written by `scripts/compare.py`; `results.csv` has every run. **This is a small budget**: it says how methods compare
after a few hundred steps on a few photos, not what they reach in full training. Published figures stand beside ours to
be looked up, not to be compared with: other features, many times the photos and steps, other splits.

**Budget, the same for all.** 36 features of each photo from one frozen network (the backbone of `grid-minilm`, which
has learned from both data sets), a BiGRU that starts from pretrained word vectors, a linear projection, d = {dim},
batches of {batch_size} pairs, {epochs} epochs, Adam at {learning_rate:g} on a cosine, {seeds} seeds. Each method has
its own similarity and its own loss (VSE+2AD AdOpt, VSE++ and VSE∞ the hardest negative after a first epoch of all, the
others the hardest negative). Recalls are of photos on which nothing was chosen. Mean ± standard deviation over runs.

**items/s**: photos that one sentence is compared with in a second, its encoding included and that of the photos not;
all methods measured in turn in one process on one core, as a multiple of the slowest.

![Quality against speed](compare.png)
"""

PUBLISHED = {  # RSUM in the paper's main table, BiGRU and regions (DSRN and DIME: BERT); Flickr30K 1K, COCO 5-fold 1K
    "VSE++": {"flickr30k": 442.3, "coco": 490.5},
    "VSE∞": {"flickr30k": 498.1, "coco": 520.5},
    "VSE+2AD": {"flickr30k": 503.7, "coco": 527.8},
    "SCAN (i2t)": {"flickr30k": 452.2, "coco": 493.9},
    "SCAN (t2i)": {"flickr30k": 446.2, "coco": 500.5},
    "CAAN": {"flickr30k": 478.6, "coco": 515.6},
    "IMRAM": {"flickr30k": 484.2, "coco": 516.6},
    "LIWE": {"flickr30k": 474.3, "coco": 507.6},
    "CVSE": {"flickr30k": 476.7, "coco": 496.4},
    "PVSE": {"coco": 492.8},
    "DSRN": {"flickr30k": 507.6, "coco": 523.5},
    "DIME (i2t)": {"flickr30k": 504.0, "coco": 521.8},
    "DIME (t2i)": {"flickr30k": 507.2, "coco": 519.5},
}
NOT_RUN = [
    "## What is not here", "",
    "ViLBERT, UNITER, OSCAR, ALIGN, CLIP and MVP are pretrained on millions of pairs; their weights are not ours to",
    "train (published RSUM on COCO 5K: 406.9, 454.4, 479.9, 500.4, 500.9, 502.6; VSE+2AD 475.9). `Fusion` is a small",
    "relative of UNITER and OSCAR. A BERT-family text encoder was not compared.",
    "A row with 0 runs was planned and not trained.",
]  # fmt: skip


if __name__ == "__main__":
    main()
