"""The photographs that come with the package: whole, captioned, attributed, free."""

import csv
import itertools
import json
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import HANGS, serve

from vse_demo.data import open_dataset, read_image
from vse_demo.utils.files import read_json
from vse_demo.utils.paths import shipped

GALLERY = shipped("gallery")
RECORDS = read_json(GALLERY / "captions.json")["images"]
LICENCES = {
    "Unsplash License", "Pexels License", "Public Domain", "CC0-1.0",
    "CC-BY-2.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-SA-4.0",
}  # fmt: skip


def test_there_are_enough_photographs_and_half_show_people() -> None:
    assert len(RECORDS) >= 240
    assert 0.4 <= np.mean([record["people"] for record in RECORDS]) <= 0.7


@pytest.mark.slow
def test_every_photo_decodes_and_is_of_the_promised_size() -> None:
    for record in RECORDS:
        image = read_image(GALLERY / "images" / record["filename"])
        assert 300 <= max(image.size) <= 512, record["filename"]
    assert sum(path.stat().st_size for path in (GALLERY / "images").iterdir()) < 15e6


def test_every_photo_has_five_distinct_captions_of_6_to_20_words() -> None:
    for record in RECORDS:
        captions = [sentence["raw"] for sentence in record["sentences"]]
        assert len(set(captions)) == 5, record["filename"]
        assert all(6 <= len(caption.split()) <= 20 for caption in captions), record["filename"]
        assert all(re.fullmatch(r"[A-Z0-9].*\.", caption) for caption in captions), record["filename"]


def test_no_caption_stands_twice() -> None:
    counts = Counter(sentence["raw"].lower() for record in RECORDS for sentence in record["sentences"])
    assert counts.most_common(1)[0][1] == 1


def test_splits_are_about_60_15_25_and_share_their_subjects() -> None:
    sizes = Counter(record["split"] for record in RECORDS)
    for split, share in (("train", 0.60), ("val", 0.15), ("test", 0.25)):
        assert sizes[split] / len(RECORDS) == pytest.approx(share, abs=0.02)
    common = [subject for subject, count in Counter(record["subject"] for record in RECORDS).items() if count >= 10]
    for subject in common:
        assert {record["split"] for record in RECORDS if record["subject"] == subject} == set(sizes)


def gradient_hash(path: Path) -> np.ndarray:
    """256 bits: is each pixel of a 17 × 16 thumbnail brighter than its neighbour?"""
    small = np.asarray(Image.open(path).convert("L").resize((17, 16), Image.Resampling.LANCZOS), dtype=int)
    return (small[:, 1:] > small[:, :-1]).ravel()


@pytest.mark.slow
def test_no_two_photos_are_nearly_the_same() -> None:
    hashes = {record["filename"]: gradient_hash(GALLERY / "images" / record["filename"]) for record in RECORDS}
    for (one, a), (other, b) in itertools.combinations(hashes.items(), 2):
        assert (a != b).sum() > 40, (one, other)


def test_every_photo_is_attributed_under_a_licence_that_allows_it() -> None:
    with (GALLERY / "ATTRIBUTION.csv").open(newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert set(rows) == {record["filename"] for record in RECORDS}
    for row in rows.values():
        assert all(row[key].strip() for key in ("title", "author", "licence", "source", "changes")), row
        assert row["licence"] in LICENCES, row


def test_nothing_lies_in_the_folder_that_is_not_listed() -> None:
    found = {path.relative_to(GALLERY).as_posix() for path in GALLERY.rglob("*") if path.is_file()}
    listed = {f"images/{record['filename']}" for record in RECORDS}
    assert found == listed | {"captions.json", "ATTRIBUTION.csv", "LICENSE", "README.md"}


def test_it_is_the_default_data_set() -> None:
    dataset = open_dataset()
    assert sorted(dataset.splits) == ["test", "train", "val"]
    assert sum(len(dataset.split(name)) for name in dataset.splits) == len(RECORDS)


@pytest.mark.slow
def test_an_installed_wheel_finds_it_too_and_starts_the_demo(tmp_path: Path) -> None:
    project, source = GALLERY.parent.parent, tmp_path / "source"  # a copy: building leaves files behind
    for part in ("vse_demo", "assets", "notebooks"):
        shutil.copytree(project / part, source / part)
    for part in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(project / part, source / part)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(build, check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 100_000_000
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = (
        "from vse_demo.data import open_dataset; d = open_dataset(); print(d.folder, len(d.split('train')))\n"
        "from vse_demo.cli import main; main(['lessons', '--out', 'copied'])"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin"}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    folder, count = run.stdout.splitlines()[0].split()
    assert folder == str(tmp_path / "site" / "vse_demo" / "assets" / "gallery")
    assert int(count) == 166
    assert len(list((tmp_path / "copied").glob("*.ipynb"))) == len(
        list((project / "notebooks" / "student").glob("*.ipynb"))
    )
    start = tmp_path / "start.py"
    start.write_text(
        "import sys; from vse_demo import cli\n"
        f"assert cli.__file__.startswith({str(tmp_path / 'site')!r})\n"
        "cli.main(['app', *sys.argv[1:]])"
    )
    with serve(tmp_path / "log", program=start, PYTHONPATH=str(tmp_path / "site")) as server:
        question = urllib.request.Request(f"{server.address}/find_images", b"sentence=a+dog&k=1")
        [best] = json.load(urllib.request.urlopen(question, timeout=HANGS))
        assert best["author"]
        with urllib.request.urlopen(server.address, timeout=HANGS) as page:
            assert b"gradio" in page.read()
