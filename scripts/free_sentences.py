"""How well models find photos of the gallery by sixty free sentences, whose fitting photos were chosen by eye.

    python scripts/free_sentences.py --model assets/models/grid-minilm --model assets/models/grid-bigru

tells for each kind of sentence how often a fitting photo comes first, and how often one is among the first five.
Several models are one ensemble; without `--model` every shipped model is measured in turn. `--list` shows each sentence
with its first photo. The sentences are in `assets/free_sentences.json`.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vse_demo.model import load_model
from vse_demo.retrieval import Gallery
from vse_demo.shipped import MODELS, index_gallery, load_shipped

FILE = Path(__file__).resolve().parent.parent / "assets" / "free_sentences.json"
FEW = 5  # photos that a user sees at once
TOTAL = "total"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", metavar="FOLDER", help="several are an ensemble")
    parser.add_argument("--list", action="store_true", help="each sentence, its first photo, and whether it fits")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()

    entries = json.loads(FILE.read_text(encoding="utf-8"))["sentences"]
    reports: dict[str, dict[str, Any]] = {}
    for name, gallery in shipped_galleries() if chosen.model is None else [model_gallery(chosen.model)]:
        ranked = [[hit.item for hit in gallery.search_images(entry["sentence"], FEW)] for entry in entries]
        reports[name] = {"counts": count_found(ranked, entries)}
        if chosen.list:
            reports[name]["sentences"] = first_images(ranked, entries)
        if not chosen.json:
            print(as_text(name, reports[name]), flush=True)
    if chosen.json:
        print(json.dumps(reports, indent=2, ensure_ascii=False))


def shipped_galleries() -> Iterator[tuple[str, Gallery]]:
    """Every shipped model by its name, with the photos as it sees them."""
    for name in MODELS:
        yield name, load_shipped(name)


def model_gallery(folders: Sequence[Path]) -> tuple[str, Gallery]:
    """The model of a folder, or the ensemble of several, with all photos of the gallery, encoded now."""
    return " + ".join(map(str, folders)), index_gallery(load_model(folders))


def count_found(
    ranked: Sequence[Sequence[str]], entries: Sequence[dict[str, Any]], few: int = FEW
) -> dict[str, dict[str, int]]:
    """For each kind, and in total: how many sentences there are, how many have a fitting photo first, and among `few`.

    `ranked` are the names of the photos that were found for each of the `entries`, best first.
    """
    kinds = [*dict.fromkeys(entry["kind"] for entry in entries), TOTAL]
    counts = {kind: {"sentences": 0, "first": 0, "among": 0} for kind in kinds}
    for names, entry in zip(ranked, entries, strict=True):
        fits = [name in entry["photos"] for name in names[:few]]
        for kind in (entry["kind"], TOTAL):
            counts[kind]["sentences"] += 1
            counts[kind]["first"] += any(fits[:1])
            counts[kind]["among"] += any(fits)
    return counts


def first_images(ranked: Sequence[Sequence[str]], entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each sentence with the photo that came first, and whether it fits."""
    return [
        {"kind": entry["kind"], "sentence": entry["sentence"], "first": names[0], "fits": names[0] in entry["photos"]}
        for names, entry in zip(ranked, entries, strict=True)
    ]


def as_text(name: str, report: dict[str, Any]) -> str:
    """A report as a table, after the sentences if it has them."""
    lines = [
        f"{'yes' if row['fits'] else 'no':4}{row['first']:9}{row['kind']:9}{row['sentence']}"
        for row in report.get("sentences", [])
    ]
    lines.append(f"{'':10}{'sentences':>10}{'first':>10}{f'among {FEW}':>10}")
    for kind, counts in report["counts"].items():
        lines.append(f"{kind:10}{counts['sentences']:10}{counts['first']:10}{counts['among']:10}")
    return "\n".join([name, *lines, ""])


if __name__ == "__main__":
    main()
