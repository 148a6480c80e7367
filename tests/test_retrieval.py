"""Search: exact, incremental, and the same after a round trip to disk."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from vse_demo import VSE, CaptionedImages, Gallery, ModelConfig, open_dataset
from vse_demo.encoders import WordTokenizer
from vse_demo.retrieval import top_k
from vse_demo.utils.files import FileError


def make_model(seed: int = 0) -> VSE:
    torch.manual_seed(seed)
    config = ModelConfig(dim=12, backbone="test_efficientnet", image_size=64, word_dim=8)
    return VSE(config, WordTokenizer(["red", "green", "blue", "left", "right", "side", "the"])).eval()


@pytest.fixture
def test_split(karpathy_folder: Path) -> CaptionedImages:
    return open_dataset(karpathy_folder).split("test")


@pytest.fixture
def saved(tmp_path: Path, test_split: CaptionedImages) -> Path:
    """A folder with a saved gallery of four pictures."""
    Gallery.build(make_model(), test_split, progress=False).save(tmp_path / "gallery")
    return tmp_path / "gallery"


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 9), st.integers(1, 50), st.integers(0, 99))
def test_top_k_is_what_sorting_everything_gives(vectors: int, queries: int, k: int, chunk: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    q, v = random.normal(size=(queries, 5)), random.normal(size=(vectors, 5))
    scores, numbers = top_k(torch.from_numpy(q), torch.from_numpy(v), k, chunk)
    expected = np.argsort(-(q @ v.T), axis=1)[:, :k]
    assert np.array_equal(numbers.numpy(), expected)
    assert np.allclose(scores.numpy(), np.take_along_axis(q @ v.T, expected, 1))


def test_a_search_ranks_by_similarity(test_split: CaptionedImages) -> None:
    model = make_model()
    gallery = Gallery.build(model, test_split, progress=False)
    hits = gallery.search_images("red on the left side", k=4)
    expected = model.similarity(test_split.images, ["red on the left side"])[:, 0]
    assert [hit.index for hit in hits] == expected.argsort(descending=True).tolist()
    assert [hit.item for hit in hits] == [test_split.names[hit.index] for hit in hits]
    assert [hit.score for hit in hits] == pytest.approx(expected.sort(descending=True).values.tolist(), abs=1e-6)


def test_a_picture_finds_captions(test_split: CaptionedImages) -> None:
    gallery = Gallery.build(make_model(), test_split, progress=False)
    hits = gallery.search_captions(test_split.images[0], k=3)
    assert len(hits) == 3
    assert all(gallery.captions[hit.index] == hit.item for hit in hits)
    assert hits[0].score >= hits[1].score >= hits[2].score


def test_k_larger_than_the_gallery_gives_all_and_below_1_is_refused(test_split: CaptionedImages) -> None:
    gallery = Gallery.build(make_model(), test_split, progress=False)
    assert len(gallery.search_images("red", k=99)) == 4
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        gallery.search_images("red", k=0)


def test_an_empty_gallery_finds_nothing() -> None:
    assert Gallery(make_model()).search_images("red") == []


def test_adding_piece_by_piece_is_the_same_as_building_at_once(karpathy_folder: Path) -> None:
    dataset, model = open_dataset(karpathy_folder), make_model()
    parts = Gallery(model)
    assert [parts.add(dataset.split(name), progress=False) for name in ("val", "test", "val")] == [4, 4, 0]
    whole = Gallery.build(model, dataset.split("val"), progress=False)
    assert parts.names[:4] == whole.names
    assert torch.allclose(parts.image_vectors[:4], whole.image_vectors, atol=1e-6)
    assert parts.image_ids.tolist() == [image for image in range(8) for _ in range(5)]


def test_a_copy_under_another_name_is_not_a_new_picture(images: list[Path]) -> None:
    (images[0].parent / "copy.jpg").write_bytes(images[0].read_bytes())
    gallery = Gallery.build(make_model(), open_dataset(images[0].parent).split("all"), progress=False)
    assert len(gallery) == 10


def test_a_saved_gallery_answers_the_same(saved: Path, test_split: CaptionedImages) -> None:
    gallery, again = Gallery.build(make_model(), test_split, progress=False), Gallery.load(saved, make_model())
    assert again.search_images("the red side") == gallery.search_images("the red side")
    assert again.search_captions(test_split.images[1]) == gallery.search_captions(test_split.images[1])
    assert again.image_ids.tolist() == gallery.image_ids.tolist()


def test_a_gallery_in_half_precision_answers_nearly_the_same(test_split: CaptionedImages, tmp_path: Path) -> None:
    model = make_model()
    gallery = Gallery.build(model, test_split)
    gallery.save(tmp_path / "whole")
    gallery.save(tmp_path / "half", half=True)
    again = Gallery.load(tmp_path / "half", model)
    assert torch.allclose(again.image_vectors, gallery.image_vectors, atol=1e-3)
    assert torch.allclose(again.caption_vectors.norm(dim=1), torch.ones(len(gallery.captions)), atol=1e-6)
    sizes = [(tmp_path / name / "gallery.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.7 * sizes[1]


def test_saving_again_replaces_the_gallery_and_keeps_what_else_is_there(saved: Path) -> None:
    (saved / "photos").mkdir()
    (saved / "photos" / "thesis.tex").write_text("years of work")
    gallery = Gallery.load(saved, make_model())
    gallery.keep(gallery.names[:2])
    gallery.save(saved)
    assert len(Gallery.load(saved, make_model())) == 2
    assert (saved / "photos" / "thesis.tex").read_text() == "years of work"


def test_a_gallery_does_not_overwrite_what_it_has_not_written(tmp_path: Path) -> None:
    (tmp_path / "gallery.json").write_text("[1, 2, 3]")
    with pytest.raises(FileError, match=r"gallery\.json was not saved by this program: choose another folder"):
        Gallery(make_model()).save(tmp_path)
    assert (tmp_path / "gallery.json").read_text() == "[1, 2, 3]"


def test_a_gallery_of_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(FileError, match="was encoded by another model: index it again"):
        Gallery.load(saved, make_model(seed=1))


def edit(folder: Path, **changes: object) -> None:
    about = json.loads((folder / "gallery.json").read_text())
    (folder / "gallery.json").write_text(json.dumps({**about, **changes}))


def point_outside(folder: Path) -> None:
    tensors = load_file(folder / "gallery.safetensors")
    tensors["image_ids"][0] = 4
    save_file(tensors, folder / "gallery.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "gallery.json").unlink(), "gallery.json is missing"),
        (lambda folder: edit(folder, format=3), "not a gallery of format 2"),
        (lambda folder: edit(folder, names=["a"]), "'image_vectors' in gallery.safetensors does not fit"),
        (lambda folder: edit(folder, captions=[1]), "'captions' must be a list of strings"),
        (lambda folder: edit(folder, digests=[]), "a caption or a digest belongs to no image"),
        (point_outside, "a caption or a digest belongs to no image"),
        (lambda folder: (folder / "gallery.safetensors").write_bytes(b"no"), "cannot be read"),
    ],
)
def test_a_broken_gallery_says_what_is_wrong(saved: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(saved)
    with pytest.raises(FileError, match=message):
        Gallery.load(saved, make_model())
