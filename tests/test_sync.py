"""A store is made equal to a folder, whatever has happened to the folder, and to the program."""

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import paint
from test_retrieval import make_model

from vse_demo import VSE, Ensemble, Gallery, open_dataset
from vse_demo.app.collection import open_service
from vse_demo.cli import main
from vse_demo.retrieval import Store, replicate, sync, sync_stores
from vse_demo.retrieval.entries import escape_path, unescape_path
from vse_demo.utils.files import FileError

NAMES = [f"{letter}.png" for letter in "abcd"]
CONTENTS = 5


class Folder:
    """A folder of pictures in memory and on disk: what a person does to it in a file manager."""

    def __init__(self, place: Path):
        self.place = place
        self.captions: dict[str, list[str]] | None = None
        self.write("a.png", 0)

    def write(self, name: str, content: int) -> None:
        paint(content, (16, 12)).save(self.place / name)

    def do(self, step: str, name: str, other: str, content: int) -> None:
        here, there = self.place / name, self.place / other
        if step == "write":  # a new picture, or another one under an old name
            self.write(name, content)
        elif step == "break":
            here.write_bytes(b"no picture")
        elif step == "caption":
            self.captions = {**(self.captions or {}), name: [f"the {content} side", "red"][: content % 3]}
        elif step == "uncaption" and self.captions is not None:
            self.captions.pop(name, None)
        elif here.exists() and step == "delete" and len(list(self.place.glob("*.png"))) > 1:
            here.unlink()
        elif here.exists() and step == "rename":
            here.replace(there)
        elif here.exists() and step == "copy" and name != other:
            shutil.copy(here, there)
        elif here.exists() and there.exists() and step == "swap" and name != other:
            middle = self.place / "middle"
            here.rename(middle)
            there.rename(here)
            middle.rename(there)
        captions = self.place / "captions.json"
        if self.captions:
            captions.write_text(json.dumps(self.captions))
        else:
            captions.unlink(missing_ok=True)


def holds(store: Store) -> dict[str, tuple[object, ...]]:
    """What a store holds, whatever the order: the entry of each name, and its vectors to half precision."""
    entries = list(store.entries())
    images, captions = store.fetch([entry.digest for entry in entries])
    assert len({entry.name for entry in entries}) == len(entries)
    return {
        entry.name: (entry, image, texts)
        for entry, image, texts in zip(entries, images, captions, strict=True)
    }  # fmt: skip


def assert_equal(one: Store, other: Store) -> None:
    first, second = holds(one), holds(other)
    assert {name: entry for name, (entry, *_) in first.items()} == {name: entry for name, (entry, *_) in second.items()}
    for name, (_, image, texts) in first.items():
        assert torch.allclose(image, second[name][1], atol=2e-3)
        assert torch.allclose(texts, second[name][2], atol=2e-3)
    query = one.model.encode_texts(["the red side"])
    for find in ("nearest_images", "nearest_captions"):
        scores = [[hit.score for hit in getattr(each, find)(query, 99)[0]] for each in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=2e-3)


STEPS = st.tuples(
    st.sampled_from(["write", "delete", "rename", "swap", "copy", "break", "caption", "uncaption", "sync", "reopen"]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.integers(0, CONTENTS - 1),
)


@settings(max_examples=30)
@given(st.lists(STEPS, max_size=12))
def test_after_any_sequence_of_changes_a_gallery_equals_one_built_from_scratch(
    steps: list[tuple[str, str, str, int]],
) -> None:
    model = make_model()
    with tempfile.TemporaryDirectory() as place:
        mine = Path(place) / "mine"
        mine.mkdir()
        folder, gallery = Folder(mine), Gallery.open(Path(place) / "gallery", model)
        for step, name, other, content in steps:
            if step == "sync":
                gallery.sync(mine, progress=False)
            elif step == "reopen":
                gallery = Gallery.open(Path(place) / "gallery", model)
            else:
                folder.do(step, name, other, content)
        gallery.sync(mine, progress=False)
        fresh = Gallery(model)
        fresh.sync(mine, progress=False)
        assert_equal(gallery, fresh)
        assert_equal(Gallery.load(Path(place) / "gallery", model, check=True), fresh)
        again = gallery.sync(mine, progress=False)
        assert (again.added, again.changed, again.removed, again.unchanged) == (0, 0, 0, len(fresh))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "mine").mkdir()
    return Folder(tmp_path / "mine")


def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images have been encoded, call by call."""
    calls: list[int] = []
    original = VSE.read_image_features

    def counted(self: VSE, images: list[object]) -> torch.Tensor:
        calls.append(len(images))
        return original(self, images)

    monkeypatch.setattr(VSE, "read_image_features", counted)
    return calls


def test_renamed_pictures_and_new_captions_are_not_encoded_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(NAMES):
        folder.write(name, number)
    gallery = Gallery(make_model())
    assert gallery.sync(folder.place, progress=False).added == 4
    calls = encodings(monkeypatch)
    folder.do("swap", "a.png", "b.png", 0)
    folder.do("caption", "c.png", "", 2)
    done = gallery.sync(folder.place, progress=False)
    assert (done.added, done.changed, done.removed, done.unchanged) == (0, 4, 0, 0)  # now the split has another name
    assert done.unlisted == 3
    assert calls == []
    assert "which the caption file does not name" in str(done)


def test_broken_and_missing_files_are_returned_with_the_reason(folder: Folder) -> None:
    folder.do("caption", "gone.png", "", 1)
    folder.do("break", "b.png", "", 0)
    (folder.place / "c.png").write_bytes(b"")
    done = Gallery(make_model()).sync(folder.place, progress=False)
    assert done.added == 1
    assert set(done.broken) == {"gone.png", "b.png", "c.png"}
    assert done.broken["gone.png"] == "gone.png is missing"
    assert done.broken["b.png"].startswith("b.png is not an image that this program reads")
    assert done.broken["c.png"] == "c.png is empty"


def test_a_broken_file_whose_name_is_no_utf8_is_in_the_report(folder: Folder, tmp_path: Path) -> None:
    (folder.place / os.fsdecode(b"caf\xe9.png")).write_bytes(b"no image")
    make_model().save_pretrained(tmp_path / "model")
    flags = ["--model", tmp_path / "model", "--data", folder.place, "--gallery", tmp_path / "gallery"]
    assert main([*map(str, ["index", *flags, "--report", tmp_path / "report.json"])]) == 0
    [(name, reason)] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["broken"].items()
    assert name == r"caf\udce9.png"
    assert "is not an image that this program reads" in reason


@settings(max_examples=300)
@given(st.text(st.sampled_from("\\u005cd8e9\ud800\udce9\udfff\U0001f600/ä"), max_size=12))
def test_a_path_comes_back_from_its_text(path: str) -> None:
    escape_path(path).encode()
    assert unescape_path(escape_path(path)) == path


def test_a_broken_picture_is_counted_once(folder: Folder) -> None:
    for number, name in enumerate(NAMES):
        folder.write(name, number)
    folder.do("caption", "a.png", "", 1)
    folder.do("break", "b.png", "", 0)
    done = Gallery(make_model()).sync(folder.place, progress=False)
    assert (done.added, done.unlisted, list(done.broken)) == (3, 2, ["b.png"])


def test_several_models_are_served_by_one_pass_over_the_pictures(
    karpathy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = make_model(0), make_model(1)
    other.image_encoder.backbone.load_state_dict(one.image_encoder.backbone.state_dict())  # the same eyes
    both = Ensemble([one, other])
    calls = encodings(monkeypatch)
    galleries = [Gallery(model) for model in (one, other, both)]
    reports = sync_stores(galleries, open_dataset(karpathy_folder), progress=False)
    assert [done.added for done in reports] == [16] * 3
    assert sum(calls) == 16
    for gallery in galleries:
        alone = Gallery(gallery.model)
        alone.sync(karpathy_folder, progress=False)
        assert torch.allclose(gallery.image_vectors, alone.image_vectors, atol=1e-5)
        assert torch.allclose(gallery.caption_vectors, alone.caption_vectors, atol=1e-5)


def test_a_run_that_is_stopped_goes_on_where_it_was(
    karpathy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "SAVE_EVERY", 4)
    monkeypatch.setattr(sync, "BATCH", 2)

    def stop(done: int, total: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Gallery.open(tmp_path / "gallery", make_model()).sync(karpathy_folder, progress=False, report=stop)
    assert len(Gallery.load(tmp_path / "gallery", make_model())) == 8
    told: list[tuple[int, int]] = []
    gallery = Gallery.open(tmp_path / "gallery", make_model())
    done = gallery.sync(karpathy_folder, progress=False, report=lambda *step: told.append(step))
    assert (done.added, done.unchanged) == (8, 8)
    assert told == [(2, 8), (4, 8), (6, 8), (8, 8)]
    fresh = Gallery(make_model())
    fresh.sync(karpathy_folder, progress=False)
    assert_equal(gallery, fresh)


def test_one_split_leaves_the_others_alone(karpathy_folder: Path) -> None:
    gallery = Gallery(make_model())
    gallery.sync(karpathy_folder, ["val"], progress=False)
    gallery.sync(karpathy_folder, ["test"], progress=False)
    assert sorted(gallery.names) == sorted(f"{number}.jpg" for number in range(8, 16))
    (karpathy_folder / "images" / "9.jpg").unlink()
    assert gallery.sync(karpathy_folder, ["test"], progress=False).removed == 0
    done = gallery.sync(karpathy_folder, ["val"], progress=False)
    assert (done.removed, list(done.broken)) == (1, ["9.jpg"])


def test_a_second_folder_does_not_push_out_the_first(tmp_path: Path, save_picture: Callable[..., Path]) -> None:
    for number in range(4):
        save_picture(tmp_path / ("one" if number < 2 else "two") / f"{number}.png", number)
    gallery = Gallery(make_model())
    gallery.sync(tmp_path / "one", progress=False)
    gallery.sync(tmp_path / "two", progress=False)
    assert sorted(gallery.names) == [f"{number}.png" for number in range(4)]
    assert gallery.search_images("red", k=1, where={"name": "3.png"})[0].file == str(tmp_path / "two" / "3.png")
    (tmp_path / "one").rename(tmp_path / "three")  # the same pictures somewhere else
    done = gallery.sync(tmp_path / "three", progress=False)
    assert (done.added, done.changed, len(gallery)) == (0, 2, 4)


def test_a_folder_that_has_moved_is_still_the_same_one(folder: Folder) -> None:
    for number, name in enumerate(NAMES):
        folder.write(name, number)
    gallery = Gallery(make_model())
    gallery.sync(folder.place, progress=False)
    moved = Folder(folder.place.rename(folder.place.parent / "moved"))
    (moved.place / "b.png").unlink()
    done = gallery.sync(moved.place, progress=False)
    assert (done.added, done.changed, done.removed, done.kept) == (0, 3, 1, {})
    assert sorted(gallery.names) == ["a.png", "c.png", "d.png"]


def test_what_is_kept_of_other_folders_is_told_also_of_one_that_is_away(tmp_path: Path) -> None:
    gallery, places = Gallery(make_model()), [tmp_path / name for name in ("disk", "mine")]
    for number, place in enumerate(places):
        place.mkdir()
        folder = Folder(place)
        folder.write("b.png", 1 + number)
        gallery.sync(place, progress=False)
    done = gallery.sync(places[1], progress=False)  # the first has a picture that the second has, and one more
    assert (done.removed, done.kept) == (0, {str(places[0]): 1})
    assert str(done).endswith(f"0 removed, 1 kept from {places[0]}")
    shutil.rmtree(places[0])
    done = gallery.sync(places[1], progress=False)
    assert (done.removed, len(gallery)) == (0, 3)
    assert str(done).endswith(f"1 kept from {places[0]} (gone)")


def test_pictures_of_an_archive_and_regions_can_be_synced(hub_copy_folder: Path, precomp_folder: Path) -> None:
    gallery = Gallery(make_model())
    assert gallery.sync(hub_copy_folder, progress=False).added == 8
    assert len(gallery.captions) == 40
    assert zipfile.Path(hub_copy_folder / "flickr30k-images.zip", "flickr30k-images/0.jpg").exists()
    assert next(gallery.entries()).path == "flickr30k-images.zip/flickr30k-images/0.jpg"


def test_a_replica_is_equal_and_nothing_is_encoded(
    karpathy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    source, target = Gallery.open(tmp_path / "one", model), Gallery.open(tmp_path / "other", model)
    source.sync(karpathy_folder, progress=False)
    calls, told = encodings(monkeypatch), []
    replicate(source, target, lambda *step: told.append(step))
    assert_equal(source, target)
    assert told == [(16, 16)]
    source.remove(["3.jpg"])
    target.remove(["4.jpg"])
    replicate(source, target)
    assert_equal(source, target)
    assert calls == []
    with pytest.raises(FileError, match="only be copied to one of the same model"):
        replicate(source, Gallery(make_model(1)))


def test_the_app_searches_a_gallery_that_is_there_already(
    karpathy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model().save_pretrained(tmp_path / "model")
    gallery = Gallery.open(tmp_path / "gallery", VSE.from_pretrained(tmp_path / "model"), [tmp_path / "model"])
    gallery.sync(karpathy_folder, progress=False)
    (karpathy_folder / "images" / "3.jpg").unlink()
    calls = encodings(monkeypatch)
    service = open_service(karpathy_folder, gallery=str(tmp_path / "gallery"))
    found = service.find_images(service.encode_text("red on the left"), 99)
    assert {result.item for result in found} == {f"{number}.jpg" for number in range(16) if number != 3}
    assert calls == []
