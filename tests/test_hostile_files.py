"""Files that are broken, foreign or hostile: each read is as good as before or refused, and what was good stays."""

import functools
import json
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from support import paint
from test_retrieval import write_format_2

from vse_demo import VSE, Gallery, ModelConfig, TrainConfig, open_dataset, train
from vse_demo.app.folder import cached_gallery
from vse_demo.cli import main
from vse_demo.data import content_digest, read_image
from vse_demo.encoders import (
    ImageEncoder,
    SubwordTokenizer,
    TransformerText,
    WordTokenizer,
    cached_features,
    read_word_vectors,
)
from vse_demo.retrieval import read_models
from vse_demo.retrieval.shards import KINDS
from vse_demo.training import Log, Run
from vse_demo.utils.files import FileError, verify_checksums

pytestmark = pytest.mark.slow

WORDS = ["red", "green", "blue", "left", "right"]


def make_model(bert_folder: Path | None = None, ngram_buckets: int = 0) -> VSE:
    torch.manual_seed(0)
    sizes = {"dim": 12, "backbone": "test_efficientnet", "image_size": 64}
    if bert_folder is None:
        config = ModelConfig(**sizes, word_dim=8, ngram_buckets=ngram_buckets)
        return VSE(config, WordTokenizer(WORDS, ngram_buckets)).eval()
    settings = TransformerText.read_config(str(bert_folder))
    tokenizer = SubwordTokenizer.from_pretrained(str(bert_folder))
    return VSE(ModelConfig(**sizes, text="bert", text_config=settings), tokenizer).eval()


@dataclass
class Store:
    """Something on disk, and what reading it gives."""

    folder: Path
    read: Callable[[Path], Any]
    heals: bool = False  # what is broken is made again, and the answer is the same

    @functools.cached_property
    def good(self) -> list[Any]:
        return self.read(self.folder)


def ask(model: VSE) -> list[Any]:
    return [model.encode_texts(["red on the left", "green"]), model.encode_images([paint(3)])]


def contents(gallery: Gallery) -> list[Any]:
    return [gallery.names, gallery.captions, gallery.image_ids, gallery.image_vectors, gallery.caption_vectors]


def state(run: Path) -> list[Any]:
    """What a resumed run goes on from."""
    trainer = Run(run).resume("cpu")
    adam = [value for each in trainer.optimizer.state.values() for value in each.values()]
    return [trainer.config, trainer.step, trainer.best, *trainer.model.state_dict().values(), *adam]


@pytest.fixture(scope="module")
def stores(
    tmp_path_factory: pytest.TempPathFactory, write_karpathy: Callable[..., Path], bert_folder: Path
) -> dict[str, Store]:
    place = tmp_path_factory.mktemp("stores")
    model, data = make_model(), write_karpathy(place / "data")
    model.save_pretrained(place / "model")
    make_model(bert_folder).save_pretrained(place / "bert")
    make_model(ngram_buckets=50).save_pretrained(place / "ngrams")
    test = open_dataset(data).split("test")
    gallery = Gallery.build(model, test, progress=False)
    gallery.save(place / "gallery", models=[place / "model"])
    (place / "old gallery").mkdir()
    write_format_2(gallery, place / "old gallery")
    settings = TrainConfig(
        ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4),
        epochs=1, batch_size=4, min_word_count=1, backbone_weights="random", ema_decay=0.5,
    )  # fmt: skip
    train(settings, data, place / "run", cache=place / "cells of the run")
    shutil.rmtree(place / "run" / "best")
    torch.manual_seed(0)
    encoder = ImageEncoder(8, "grid", "test_efficientnet", 64)
    encoder.freeze_backbone()
    cached_features(encoder, test.images, place / "cells")
    cached_gallery(model, open_dataset(data), root=place / "cache")
    return {
        "model": Store(place / "model", lambda folder: ask(VSE.from_pretrained(folder))),
        "ngrams": Store(place / "ngrams", lambda folder: ask(VSE.from_pretrained(folder))),
        "bert": Store(place / "bert", lambda folder: ask(VSE.from_pretrained(folder))),
        "gallery": Store(place / "gallery", lambda folder: contents(Gallery.load(folder, model)) + read_models(folder)),
        "old gallery": Store(place / "old gallery", lambda folder: contents(Gallery.load(folder, model))),
        "run": Store(place / "run", state),
        "cells": Store(place / "cells", lambda folder: [cached_features(encoder, test.images, folder)[range(4)]], True),
        "cache": Store(
            place / "cache", lambda folder: contents(cached_gallery(model, open_dataset(data), root=folder)), True
        ),
    }  # fmt: skip


FILES = [
    ("model", "config.json"), ("model", "vocabulary.json"), ("model", "model.safetensors"), ("model", "SHA256SUMS"),
    ("ngrams", "config.json"), ("ngrams", "vocabulary.json"), ("ngrams", "model.safetensors"),
    ("bert", "config.json"), ("bert", "tokenizer.json"), ("bert", "model.safetensors"),
    ("gallery", "gallery.json"), *(("gallery", f"shard-0001.{kind}") for kind in KINDS[:-1]),
    ("run", "config.json"), ("run", "vocabulary.json"), ("run", "last.safetensors"),
    ("cells", "rows.f16"), ("cells", "rows.txt"),
    ("cache", "gallery.json"), *(("cache", f"shard-0001.{kind}") for kind in KINDS[:-1]),
]  # fmt: skip


def same(one: list[Any], other: list[Any]) -> bool:
    """To the last bit, or nearly so for what was computed again."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if isinstance(a, (torch.Tensor, np.ndarray)):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-5):
                return False
        elif a != b:
            return False
    return True


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Store], Path]]:
    """`spare(store)`: a copy to break, in a folder where a pickle that is read would leave a trace."""
    monkeypatch.chdir(tmp_path)
    yield lambda store: shutil.copytree(store.folder, tmp_path / "copy")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("damage", hostile.DAMAGES)
@pytest.mark.parametrize(("name", "file"), FILES)
def test_a_damaged_file_is_refused_or_answers_as_before(
    stores: dict[str, Store], spare: Callable[[Store], Path], name: str, file: str, damage: str
) -> None:
    store = stores[name]
    copy = spare(store)
    [path] = copy.rglob(file)
    path.write_bytes(hostile.DAMAGES[damage](path.read_bytes()))
    try:
        answer = store.read(copy)
    except FileError as error:
        assert not store.heals
        assert str(copy) in str(error)  # noqa: PT017 - it says where, if it is refused at all
    else:
        assert same(answer, store.good)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_a_missing_file_or_a_folder_in_its_place_is_named(
    stores: dict[str, Store], spare: Callable[[Store], Path], name: str, file: str
) -> None:
    store = stores[name]
    copy = spare(store)
    [path] = copy.rglob(file)
    path.unlink()
    if store.heals or file == "SHA256SUMS":
        assert same(store.read(copy), store.good)
        return
    with pytest.raises(FileError, match=file):
        store.read(copy)
    path.mkdir()
    with pytest.raises(FileError, match=file):
        store.read(copy)


def test_another_bit_in_a_weight_is_found_by_its_checksum(stores: dict[str, Store], spare: Callable[..., Path]) -> None:
    copy = spare(stores["model"])
    tensors = load_file(copy / "model.safetensors")
    tensors["image_encoder.projection.linear.bias"][0] += 1e-3
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(FileError, match=r"model\.safetensors is not as it was saved: get or make it again"):
        VSE.from_pretrained(copy)
    (copy / "SHA256SUMS").unlink()
    VSE.from_pretrained(copy)


def test_checksums_are_those_of_sha256sum_and_leave_the_card_alone(
    stores: dict[str, Store], spare: Callable[..., Path]
):
    copy = spare(stores["model"])
    lines = (copy / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["config.json", "model.safetensors", "vocabulary.json"]
    (copy / "README.md").write_text("My own words")
    (copy / "more.txt").write_text("More")
    verify_checksums(copy)


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname"])
def test_checksums_of_files_elsewhere_tell_nothing(
    stores: dict[str, Store], spare: Callable[..., Path], name: str
) -> None:
    copy = spare(stores["model"])
    (copy / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    with pytest.raises(FileError) as caught:
        VSE.from_pretrained(copy)
    assert "0000" not in str(caught.value)


# Rows of a log


def test_broken_rows_of_a_log_are_left_out_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [json.dumps({"step": step, "loss": 1.0}).encode() for step in range(1, 6)]
    bad = [b"{", b"null", b"[1]", b'{"loss": 1}', b'{"step": "x"}', b'{"step": null}', b"\xff\xfe", b"[" * 9999, b""]
    path.write_bytes(b"\n".join([*bad, *rows, b'{"step": 6, "lo']))
    with pytest.warns(UserWarning, match=f"{len(bad)} broken rows are left out"):
        Log(path, 4, None)
    assert path.read_bytes() == b"".join(row + b"\n" for row in rows[:4])


# Data of one's own


@pytest.mark.parametrize("damage", hostile.DAMAGES)
@pytest.mark.parametrize("layout", ["karpathy", "captions", "hub table", "hub archive", "regions", "region captions"])
def test_damaged_data_are_refused_or_well_formed(
    request: pytest.FixtureRequest, spare: Callable[..., Path], layout: str, damage: str
) -> None:
    fixture, file = {
        "karpathy": ("karpathy_folder", "dataset_tiny.json"),
        "captions": ("karpathy_folder", "captions.json"),
        "hub table": ("hub_copy_folder", "flickr_annotations_30k.csv"),
        "hub archive": ("hub_copy_folder", "flickr30k-images.zip"),
        "regions": ("precomp_folder", "test_ims.npy"),
        "region captions": ("precomp_folder", "test_caps.txt"),
    }[layout]
    copy = spare(Store(request.getfixturevalue(fixture), open_dataset))
    if layout == "captions":
        (copy / "dataset_tiny.json").unlink()
        (copy / file).write_text(json.dumps({"12.jpg": ["red and black"], "13.jpg": ["blue"]}))
    (copy / file).write_bytes(hostile.DAMAGES[damage]((copy / file).read_bytes()))
    try:
        dataset = open_dataset(copy)
        splits = [dataset.split(name) for name in dataset.splits]
    except FileError:
        return
    for split in splits:
        assert all(isinstance(caption, str) and caption for caption in split.captions)
        assert all(isinstance(name, str) for name in split.names)
        assert len(split.images) == len(split.names)
        assert not len(split.image_ids) or 0 <= split.image_ids.min() <= split.image_ids.max() < len(split)
        for image in split.images if not isinstance(split.images, np.ndarray) else []:
            for read in (content_digest, read_image):
                try:
                    read(image)
                except FileError as error:
                    assert image.name in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "record",
    [
        {"filename": "x" * 5000 + ".jpg", "sentences": []},
        {"filename": "a\0b.jpg", "sentences": []},
        {"filename": "\ud800.jpg", "sentences": []},
        {"filename": ["0.jpg"], "sentences": []},
        {"filename": "0.jpg", "sentences": [], "split": 7},
        {"filename": "0.jpg", "sentences": [], "split": None},
        {"filename": "0.jpg", "sentences": [], "split": ["train"]},
        {"filename": "0.jpg", "sentences": {"raw": "a"}},
        {"filename": "0.jpg", "sentences": [{"raw": {"a": 1}}]},
        {"filename": ".", "sentences": []},
        {"filename": "..", "sentences": []},
        {"filename": "", "sentences": []},
    ],
    ids=lambda record: str(record)[:60],
)
def test_odd_records_are_refused(karpathy_folder: Path, record: dict[str, object]) -> None:
    (karpathy_folder / "dataset_tiny.json").write_text(json.dumps({"images": [record]}))
    with pytest.raises(FileError):
        [open_dataset(karpathy_folder).split(name) for name in open_dataset(karpathy_folder).splits]


def test_a_data_set_that_names_a_photo_twice_counts_it_twice(karpathy_folder: Path) -> None:
    records = [{"filename": "0.jpg", "sentences": [{"raw": text}]} for text in ("one", "two")]
    (karpathy_folder / "dataset_tiny.json").write_text(json.dumps({"images": records}))
    assert open_dataset(karpathy_folder).split("all").names == ["0.jpg", "0.jpg"]


# Archives


def write_archive(folder: Path, *members: str, names: list[str]) -> None:
    """The Hugging Face copy with these members, and a table that names these pictures."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "flickr30k-images.zip", "w") as archive:
        for number, member in enumerate(members):
            archive.writestr(member, hostile.encoded(paint(number), "JPEG"))
    rows = "".join(f'"[""a dog""]",train,{name}\n' for name in names)
    (folder / "flickr_annotations_30k.csv").write_text("raw,split,filename\n" + rows)


SLIPS = ["../../evil.jpg", "/tmp/evil.jpg", "..\\..\\evil.jpg", "a/../../../evil.jpg", "//host/evil.jpg", "a//evil.jpg"]


@pytest.mark.parametrize("member", SLIPS)
def test_an_archive_that_would_slip_out_is_refused_and_writes_nothing(tmp_path: Path, member: str) -> None:
    write_archive(tmp_path / "data", "good.jpg", member, names=["good.jpg"])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileError, match="which would lie outside it"):
        open_dataset(tmp_path / "data").split("train")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "a/../b.jpg", "", "."])
def test_a_table_that_names_files_elsewhere_finds_none(tmp_path: Path, name: str) -> None:
    write_archive(tmp_path / "data", "images/a.jpg", names=[name])
    with pytest.raises(FileError, match=r"1 of 1 images are not in .*flickr30k-images\.zip"):
        open_dataset(tmp_path / "data").split("train")


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    write_archive(tmp_path / "data", names=["link.jpg"])
    with zipfile.ZipFile(tmp_path / "data" / "flickr30k-images.zip", "w") as archive:
        link = zipfile.ZipInfo("images/link.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(FileError, match=r"link\.jpg is not an image"):
        read_image(open_dataset(tmp_path / "data").split("train").images[0])


@pytest.mark.parametrize(("offset", "value"), [(6, 1), (8, 99)], ids=["encrypted", "unknown compression"])
def test_a_member_that_cannot_be_unpacked_is_named(tmp_path: Path, offset: int, value: int) -> None:
    write_archive(tmp_path / "data", "images/a.jpg", names=["a.jpg"])
    path = tmp_path / "data" / "flickr30k-images.zip"
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, offset, value)
    struct.pack_into("<H", content, content.index(b"PK\x01\x02") + offset + 2, value)
    path.write_bytes(content)
    image = open_dataset(tmp_path / "data").split("train").images[0]
    for read in (content_digest, read_image):
        with pytest.raises(FileError, match=r"a\.jpg cannot be read"):
            read(image)


# Hostile on purpose


def test_pickles_under_any_name_are_not_opened(
    stores: dict[str, Store], spare: Callable[..., Path], tmp_path: Path
) -> None:
    copy, trap = spare(stores["model"]), hostile.Pickle(tmp_path / "unpickled")
    torch.save({"state_dict": trap}, copy / "model.safetensors")
    with pytest.raises(FileError, match="cannot be read as safetensors"):
        VSE.from_pretrained(copy)
    np.save(copy / "train_ims.npy", np.array([trap], dtype=object), allow_pickle=True)
    (copy / "train_caps.txt").write_text("a dog\n")
    with pytest.raises(FileError, match="cannot read 'train'"):
        open_dataset(copy).split("train")
    torch.save(trap, copy / "vectors.pt")
    with pytest.raises(FileError, match="cannot be read as word vectors"):
        read_word_vectors(copy / "vectors.pt", ["dog"])
    for weights in ("pytorch_model.bin", "backbone.pth"):
        torch.save(trap, copy / weights)
        with pytest.raises(FileError, match=r"is not a \.safetensors file: other formats can run code"):
            make_model().image_encoder.backbone.load_weights(str(copy / weights))


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8 + b"{}",
        struct.pack("<Q", 2**40) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 64) + b'{"a":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,4]}}  ',
        struct.pack("<Q", 62) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,999999999]}}',
        struct.pack("<Q", 12) + b'{"a":{"a":1}}',
    ],
    ids=["endless", "a terabyte", "nothing", "a large shape", "beyond the end", "odd"],
)
def test_lying_headers_are_refused(stores: dict[str, Store], spare: Callable[..., Path], header: bytes) -> None:
    copy = spare(stores["old gallery"])
    (copy / "gallery.safetensors").write_bytes(header)
    with pytest.raises(FileError, match=r"gallery\.safetensors"):
        Gallery.load(copy, make_model())


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 10**9}, {"dim": True}, {"dim": 12.0}, {"dim": [12]}, {"image_size": 10**6}, {"word_dim": -1},
        {"ngram_buckets": -1}, {"ngram_buckets": 10**9}, {"ngram_buckets": "many"}, {"ngram_buckets": None},
        {"ngram_buckets": 8}, {"ngram_buckets": True},
        {"vision": "../../x"}, {"vision": ["grid"]},
        {"backbone": "hf-hub:someone/model"}, {"backbone": "local-dir:/tmp"},
        {"backbone": {"a": 1}}, {"pooling": None}, {"pooling_options": [1]}, {"pooling_options": {"no": 1}},
        {"text": "bert", "text_config": {"model_type": "no"}}, {"projection": 3}, {"text": None},
    ],
    ids=str,
)  # fmt: skip
def test_odd_settings_describe_no_model(
    stores: dict[str, Store], spare: Callable[..., Path], change: dict[str, Any]
) -> None:
    copy = spare(stores["model"])
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(FileError):
        VSE.from_pretrained(copy)


@pytest.mark.parametrize(
    "settings",
    [{}, {"model_type": 5}, {"model_type": "gpt9"}, [], {"model_type": "bert", "hidden_size": "x"},
     {"model_type": "bert", "hidden_size": 7, "num_attention_heads": 3}, {"auto_map": {"AutoModel": "evil--x.Y"}}],
    ids=str,
)  # fmt: skip
def test_odd_transformers_describe_no_model(
    stores: dict[str, Store], spare: Callable[..., Path], settings: object
) -> None:
    copy = spare(stores["bert"])
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**content, "text_config": settings}))
    with pytest.raises(FileError, match="describes no model"):
        VSE.from_pretrained(copy)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16, torch.bool])
def test_vectors_of_another_kind_are_refused(
    stores: dict[str, Store], spare: Callable[..., Path], dtype: torch.dtype
) -> None:
    copy = spare(stores["old gallery"])
    tensors = load_file(copy / "gallery.safetensors")
    (copy / "gallery.safetensors").write_bytes(save({**tensors, "image_vectors": tensors["image_vectors"].to(dtype)}))
    with pytest.raises(FileError, match=r"'image_vectors' in gallery\.safetensors are not all numbers"):
        Gallery.load(copy, make_model())


@pytest.mark.parametrize("content", ["null", "[]", "[1]", '{"a": 1}', '"model"', '["nowhere"]'])
def test_a_search_with_odd_models_says_so(
    stores: dict[str, Store], spare: Callable[..., Path], capsys: pytest.CaptureFixture[str], content: str
) -> None:
    copy = spare(stores["old gallery"])
    (copy / "models.json").write_text(content)
    assert main(["search", "red", "--gallery", str(copy)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_regions_must_be_numbers(precomp_folder: Path) -> None:
    for odd in (np.array([["a"], ["b"]]), np.ones((2, 3), dtype=complex), np.zeros((2, 1), dtype="M8[s]")):
        np.save(precomp_folder / "test_ims.npy", odd)
        with pytest.raises(FileError, match=r"test_ims\.npy holds no numbers"):
            open_dataset(precomp_folder).split("test")


def test_a_gallery_of_a_later_version_is_refused(stores: dict[str, Store], spare: Callable[..., Path]) -> None:
    copy = spare(stores["gallery"])
    content = json.loads((copy / "gallery.json").read_text())
    (copy / "gallery.json").write_text(json.dumps({**content, "format": 4}))
    with pytest.raises(FileError, match="is not a gallery of format 3"):
        Gallery.load(copy, make_model())


def test_a_sound_store_is_read_without_a_warning(stores: dict[str, Store]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for store in stores.values():
            store.read(store.folder)
