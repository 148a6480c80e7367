"""The models that come with the package: light, whole, in step with their indexes, and good."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support import ROOT

from vse_demo import VSE, evaluate
from vse_demo.data import open_dataset
from vse_demo.shipped import MODELS, RUNS, gallery_file, gallery_photo, load_shipped, read_evidence, read_log
from vse_demo.utils.files import CHECKSUMS, FileError
from vse_demo.utils.paths import shipped

pytestmark = pytest.mark.slow

FOLDERS = sorted({part for parts in MODELS.values() for part in parts})


@pytest.fixture(scope="module")
def galleries():
    return {name: load_shipped(name) for name in MODELS}


def test_the_weights_are_light_and_in_half_precision():
    files = [shipped("models") / folder / "model.safetensors" for folder in FOLDERS]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 95e6
    assert sum(sizes) < 120e6
    for file in files:
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                part = stored.get_slice(name)
                assert len(part.get_shape()) < 2 or part.get_dtype() == "F16", name


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_card_says_where_a_model_comes_from_and_how_good_it_is(folder):
    card = (shipped("models") / folder / "README.md").read_text()
    for word in ("EfficientNet-Lite2", "Apache-2.0", "Flickr30K", '"rsum"', "research use"):
        assert word in card
    assert "had seen Flickr30K and COCO captions in its own training" in card


@pytest.mark.parametrize("name", MODELS)
def test_an_index_is_what_its_model_computes(galleries, name):
    gallery, dataset = galleries[name], open_dataset()
    assert len(gallery) == sum(len(dataset.split(split)) for split in dataset.splits)
    some = [0, 100, 275]
    images = gallery.model.encode_images([gallery_photo(gallery.names[index]) for index in some])
    texts = gallery.model.encode_texts([gallery.captions[index] for index in some])
    assert torch.allclose(images, gallery.image_vectors[some], atol=2e-3)
    assert torch.allclose(texts, gallery.caption_vectors[some], atol=2e-3)
    assert gallery_file(gallery.names[0]).is_file()


@pytest.mark.parametrize("name", MODELS)
def test_a_sentence_finds_its_photo_among_276_it_has_never_seen(galleries, name):
    gallery = galleries[name]
    metrics = evaluate(gallery.image_vectors, gallery.caption_vectors, torch.from_numpy(gallery.image_ids))
    assert metrics["t2i"]["r10"] > 55  # 3.6 by chance
    assert metrics["i2t"]["r10"] > 60


def test_the_ensemble_is_better_than_its_members(galleries):
    rsum = {
        name: evaluate(each.image_vectors, each.caption_vectors, torch.from_numpy(each.image_ids))["rsum"]
        for name, each in galleries.items()
    }
    assert rsum["ensemble"] > max(rsum["grid-minilm"], rsum["grid-bigru"])


def test_the_table_of_the_readme_is_what_was_measured():
    """By `scripts/measure_shipped.py`."""
    table, found = (ROOT / "README.md").read_text(), read_evidence("shipped")
    for name, figures in found.items():
        row = next(line for line in table.splitlines() if line.startswith("|") and f"`{name}`" in line)
        for data in ("flickr30k", "coco"):
            ways = " · ".join(
                "/".join(f"{figures[data][way][r]:.1f}" for r in ("r1", "r5", "r10")) for way in ("i2t", "t2i")
            )
            assert f"| {ways} · **{figures[data]['rsum']:.1f}** |" in row
        assert f"| {figures['gallery']['rsum']:.1f} |" in row
    first, among = (
        [found[name]["free sentences"]["total"][key] for name in ("grid-bigru", "grid-minilm", "ensemble")]
        for key in ("first", "among")
    )
    told = "a fitting photo comes first for {}, {} and {}, and is among five for {}, {} and {}."
    assert told.format(*first, *among) in table.replace("\n", " ")
    for figures in found.values():  # a typo costs at most a tenth
        assert figures["flickr30k, a typo in each caption"]["rsum"] > 0.9 * figures["flickr30k"]["rsum"]


def test_what_a_score_means_is_told_as_it_was_measured():
    """By `scripts/ship_model.py` and `scripts/measure_shipped.py`."""
    page, found = (ROOT / "docs" / "scores.md").read_text(), read_evidence("shipped")
    names = ("grid-minilm", "grid-bigru", "ensemble")
    calibrations = [load_shipped(name).model.calibration for name in names]
    for gallery in (30, 100, 300, 1964):
        cells = []
        for calibration in calibrations:
            for table in (calibration.table(way, gallery) for way in ("t2i", "i2t")):
                cells.append(f"{table.score_for(0.5):.2f} · {table.nothing_below:.2f} · {table.misses:.0%}")
        assert f"| {gallery:,} | {' | '.join(cells)} |".replace("%", " %") in page
    told = [found[name]["told that nothing is close"] for name in names]
    shares = "{:.0%} (`grid-minilm`), {:.0%} (`grid-bigru`) and {:.0%} (`ensemble`)"
    words = page.replace("\n", " ").replace(" %", "%")
    assert shares.format(*(each["captions"] for each in told)) in words
    assert "{}, {} and {} are told".format(*(round(16 * each["elsewhere"]) for each in told)) in words


@pytest.mark.parametrize("name", MODELS)
def test_what_was_measured_on_the_gallery_is_what_the_index_gives(galleries, name):
    gallery = galleries[name]
    now = evaluate(gallery.image_vectors, gallery.caption_vectors, torch.from_numpy(gallery.image_ids))
    assert now["rsum"] == pytest.approx(read_evidence("shipped")[name]["gallery"]["rsum"], abs=0.5)


def test_a_model_in_half_precision_ranks_as_it_was_measured():
    """The figures in the evidence were measured on the shipped files; here they must at least be of them."""
    for preset, folder in ((RUNS["grid-minilm"], "grid-minilm"), (RUNS["grid-bigru"], "grid-bigru")):
        evidence = json.loads((shipped("runs") / f"{preset}.json").read_text())
        model = VSE.from_pretrained(shipped("models") / folder)
        assert evidence["config"]["model"]["dim"] == model.dim
        best = max(row["rsum"] for row in evidence["validation"])
        assert evidence["shipped"]["rsum"] == pytest.approx(best, abs=2)


def test_logs_are_columns_of_numbers():
    log = read_log(RUNS["grid-minilm"])
    assert set(log) >= {"step", "loss", "k", "alignment", "uniformity", "lr"}
    assert (np.diff(log["step"]) > 0).all()
    assert log["loss"][-20:].mean() < log["loss"][:20].mean()
    assert log["k"][-20:].mean() < log["k"][:20].mean()
    with pytest.raises(FileError, match=r"has no run 'nothing'; it has .*shipped-bigru"):
        read_log("nothing")


def test_an_unknown_model_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown shipped model 'clip'; choose one of grid-minilm"):
        load_shipped("clip")


def test_no_photo_or_caption_of_flickr30k_is_shipped():
    """Only the vocabulary of the BiGRU comes from its captions: single words."""
    words = json.loads((shipped("models") / "grid-bigru" / "vocabulary.json").read_text())
    assert not [word for word in words if " " in word]
    suffixes = {path.suffix for path in Path(shipped("models")).rglob("*") if path.is_file() and path.name != CHECKSUMS}
    assert suffixes <= {".json", ".safetensors", ".md"}
