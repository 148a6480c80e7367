"""Build `assets/gallery/` from a folder of candidate photographs.

    python scripts/build_gallery.py --candidates DIR

`assets/gallery/captions.json` is the choice: which candidate became which photo, its split, its
subject and its five captions, all written by hand. This script adds what follows from it: the
pictures, scaled to 512 px, and `ATTRIBUTION.csv`, from the candidates' `manifest.json`.
"""

import argparse
import csv
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote

from PIL import Image

GALLERY = Path(__file__).parent.parent / "assets" / "gallery"
LONG_SIDE = 512
LICENCES = (
    "Unsplash License", "Pexels License", "Public Domain", "CC0-1.0",
    "CC-BY-2.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-SA-4.0",
)  # fmt: skip


def shrink(source: Path, target: Path) -> str:
    """Write a picture as JPEG, its long side at most 512 px; what was changed."""
    with Image.open(source) as image:
        picture = image.convert("RGB")
    before = picture.size
    picture.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS)
    picture.save(target, "JPEG", quality=92, optimize=True)
    scaled = f"scaled from {before[0]} x {before[1]} to {picture.width} x {picture.height}, "
    return (scaled if picture.size != before else "") + "compressed as JPEG"


def origin(about: dict[str, str]) -> str:
    """The page of the photo, or the file of the package that it came in."""
    return about["source"] or f"{about['package']}: {about['path_in_package']}"


def title(source: str) -> str:
    """The title that the source gives, as far as its address shows it."""
    if commons := re.search(r"File:(.+?)(?:\.\w+)?$", unquote(source)):
        return commons[1].replace("_", " ")
    last = source.rstrip("/").rsplit("/", 1)[-1]
    host = re.search(r"//(?:www\.)?([^/]+)", source)
    return f"Photo {last} on {host[1]}" if host else last


def licence(stated: str) -> str:
    [known] = [name for name in LICENCES if stated.startswith(name)]
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=Path, required=True, help="folder with manifest.json and photos/")
    candidates = parser.parse_args().candidates
    manifest = {record["file"]: record for record in json.loads((candidates / "manifest.json").read_text())}
    images = GALLERY / "images"
    images.mkdir(exist_ok=True)
    for old in images.glob("*.jpg"):
        old.unlink()
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["file", "title", "author", "licence", "source", "changes"])
    for record in json.loads((GALLERY / "captions.json").read_text())["images"]:
        about = manifest[record["candidate"]]
        changes = shrink(candidates / "photos" / record["candidate"], images / record["filename"])
        source = origin(about)
        rows.writerow([record["filename"], title(source), about["author"], licence(about["licence"]), source, changes])
    (GALLERY / "ATTRIBUTION.csv").write_text(table.getvalue())
    size = sum(path.stat().st_size for path in images.iterdir()) / 1e6
    print(f"{len(list(images.iterdir()))} photos, {size:.1f} MB")


if __name__ == "__main__":
    main()
