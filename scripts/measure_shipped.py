"""Measure the shipped models: both validation sets, spelt right and misspelt, the gallery, free sentences, calibration.

    python scripts/measure_shipped.py --flickr data/flickr30k --coco data/coco

writes `assets/runs/shipped.json`, from which the README, docs/scores.md and lesson 7 have their figures. Nothing is
chosen by it.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from free_sentences import FEW, FILE, count_found
from torch import Tensor

from vse_demo import Ensemble, evaluate, open_dataset
from vse_demo.data import CaptionedImages, merge_duplicates, with_typos
from vse_demo.evaluation import Metrics
from vse_demo.model import load_model
from vse_demo.retrieval import Gallery
from vse_demo.shipped import MODELS, load_shipped
from vse_demo.utils.files import read_json, write_json
from vse_demo.utils.paths import shipped
from vse_demo.utils.runtime import tune_process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr", type=Path, required=True, help="Flickr30K in Karpathy's layout")
    parser.add_argument("--coco", type=Path, required=True, help="MS-COCO in Karpathy's layout")
    parser.add_argument("--out", type=Path, default=shipped("runs") / "shipped.json")
    chosen = parser.parse_args()
    tune_process()
    found: dict[str, dict[str, Any]] = {name: {} for name in MODELS}
    for key, folder in (("flickr30k", chosen.flickr), ("coco", chosen.coco)):
        data = merge_duplicates(open_dataset(folder).split("val"))
        versions = {key: data.captions, f"{key}, a typo in each caption": with_typos(data.captions, 1)}
        for name, figures in measure_all(data, versions).items():
            found[name] |= figures
    for name in MODELS:
        found[name] |= measure_gallery(name)
    write_json(chosen.out, found)
    print(f"{chosen.out}: " + ", ".join(f"{name} {each['flickr30k']['rsum']:.1f}" for name, each in found.items()))


def measure_all(data: CaptionedImages, versions: dict[str, list[str]]) -> dict[str, dict[str, Metrics]]:
    """Recalls of every shipped model for each version of the captions."""
    members = MODELS["ensemble"]
    model, image_ids = load_model("ensemble"), torch.from_numpy(data.image_ids)
    images = by_member(model, model.encode_images(data.images, progress=True))
    found: dict[str, dict[str, Metrics]] = {name: {} for name in MODELS}
    for key, captions in versions.items():
        texts = by_member(model, model.encode_texts(captions, progress=True))
        for name, parts in MODELS.items():
            ours = [members.index(part) for part in parts]
            sides = (Ensemble.join([side[number] for number in ours]) for side in (images, texts))
            found[name][key] = evaluate(*sides, image_ids)
    return found


def by_member(model: Ensemble, vectors: Tensor) -> list[Tensor]:
    """What each member of an ensemble says, of the vectors that it joins: images are seen once for all."""
    return [len(model.members) ** 0.5 * part for part in vectors.split([member.dim for member in model.members], 1)]


def measure_gallery(name: str) -> dict[str, Any]:
    """Recalls on the photographs that come along, free sentences that find a fitting one, and who is told none is."""
    gallery, asked = load_shipped(name), read_json(FILE)
    entries = asked["sentences"]
    ranked = [[hit.item for hit in gallery.search_images(entry["sentence"], FEW)] for entry in entries]
    recalls = evaluate(gallery.image_vectors, gallery.caption_vectors, torch.from_numpy(gallery.image_ids))
    told = {"captions": told_that_nothing_is_close(gallery, gallery.caption_vectors)}
    told["elsewhere"] = told_that_nothing_is_close(gallery, gallery.model.encode_texts(asked["elsewhere"]))
    return {"gallery": recalls, "free sentences": count_found(ranked, entries), "told that nothing is close": told}


def told_that_nothing_is_close(gallery: Gallery, texts: Tensor) -> float:
    """The share of sentences, by their vectors, whose first photo has too low a score."""
    table = gallery.model.calibration.table("t2i", len(gallery))
    best = (texts.float() @ gallery.image_vectors.float().T).amax(1)
    return sum(map(table.nothing_is_close, best.tolist())) / len(texts)


if __name__ == "__main__":
    main()
