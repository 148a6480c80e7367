"""Small data sets and models that the tests share. All are made from seeds; nothing is fetched."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from support import COLOURS, captions_of, environment, halves_of, paint

os.environ["HF_HUB_OFFLINE"] = "1"  # before any test imports huggingface_hub: none may look outside

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script starts with &: programs inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("repeatable", derandomize=True, deadline=None)  # the same examples every time
settings.load_profile("repeatable")

KARPATHY_SPLITS = {"train": 8, "val": 4, "test": 4}  # pictures
REGION_DIM = 16


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's own cache of features."""
    monkeypatch.setenv("VSE_DEMO_CACHE", str(tmp_path_factory.getbasetemp() / "features"))


@pytest.fixture(scope="session")
def picture_captions() -> Callable[[int], list[str]]:
    """`picture_captions(seed)`: the five captions of picture number `seed`."""
    return captions_of


@pytest.fixture(scope="session")
def save_picture() -> Callable[..., Path]:
    """`save_picture(path, seed=0, size=(48, 40))`: write picture number `seed`, in the format of the suffix."""

    def save(path: Path, seed: int = 0, size: tuple[int, int] = (48, 40)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        paint(seed, size).save(path)
        return path

    return save


@pytest.fixture
def images(tmp_path: Path, save_picture: Callable[..., Path]) -> list[Path]:
    """Ten JPEG files `0.jpg` … `9.jpg` in the folder `pictures`, of different sizes."""
    return [save_picture(tmp_path / "pictures" / f"{seed}.jpg", seed, (40 + seed, 60 - seed)) for seed in range(10)]


@pytest.fixture(scope="session")
def write_karpathy(save_picture: Callable[..., Path]) -> Callable[..., Path]:
    """`write_karpathy(folder, splits={"train": 8, …})`: a data set in Karpathy's layout, five captions a picture."""

    def write(folder: Path, splits: Mapping[str, int] = KARPATHY_SPLITS) -> Path:
        records = []
        for seed, split in enumerate(split for split, count in splits.items() for _ in range(count)):
            save_picture(folder / "images" / f"{seed}.jpg", seed)
            sentences = [{"raw": caption} for caption in captions_of(seed)]
            records.append({"filename": f"{seed}.jpg", "split": split, "imgid": seed, "sentences": sentences})
        (folder / "dataset_tiny.json").write_text(json.dumps({"images": records, "dataset": "tiny"}))
        return folder

    return write


@pytest.fixture
def karpathy_folder(tmp_path: Path, write_karpathy: Callable[..., Path]) -> Path:
    """`dataset_tiny.json` and `images/`: 8 train, 4 val and 4 test pictures with five captions each."""
    return write_karpathy(tmp_path / "karpathy")


@pytest.fixture
def precomp_folder(tmp_path: Path) -> Path:
    """`{train,dev,test}_ims.npy` (n, 36, 16) and `_caps.txt`: 8, 4 and 4 pictures with five captions each."""
    folder = tmp_path / "precomp"
    folder.mkdir()
    random = np.random.default_rng(0)
    codes = {name: random.normal(size=REGION_DIM) for name in COLOURS}
    for split, seeds in (("train", range(8)), ("dev", range(8, 12)), ("test", range(12, 16))):
        centres = [[codes[name] for name in halves_of(seed) for _ in range(18)] for seed in seeds]
        regions = np.array(centres) + random.normal(0, 0.3, (len(seeds), 36, REGION_DIM))
        np.save(folder / f"{split}_ims.npy", regions.astype(np.float32))
        lines = [caption for seed in seeds for caption in captions_of(seed)]
        (folder / f"{split}_caps.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def hub_copy_folder(tmp_path: Path) -> Path:
    """Flickr30K's Hugging Face copy in small, a caption table and a zip: 4 train, 2 val and 2 test pictures."""
    folder = tmp_path / "hub_copy"
    folder.mkdir()
    splits = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    with (folder / "flickr_annotations_30k.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["raw", "sentids", "split", "filename", "img_id"])
        for seed, split in enumerate(splits):
            writer.writerow([json.dumps(captions_of(seed)), "[0, 1, 2, 3, 4]", split, f"{seed}.jpg", seed])
    with zipfile.ZipFile(folder / "flickr30k-images.zip", "w") as archive:
        for seed in range(len(splits)):
            stream = io.BytesIO()
            paint(seed).save(stream, "JPEG")
            archive.writestr(f"flickr30k-images/{seed}.jpg", stream.getvalue())
            archive.writestr(f"__MACOSX/flickr30k-images/{seed}.jpg", b"what macOS adds")
    return folder


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer BERT of 16 dimensions with a WordPiece tokenizer, as transformers would save it."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*COLOURS, "the", "left", "right", "and", "is", "on", "side", "field", "something", *letters, *".,:'"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *(f"##{letter}" for letter in letters)]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, numbers[name]) for name in ("[CLS]", "[SEP]")]
    )
    folder = tmp_path_factory.mktemp("bert")
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_encoder():
    """An `ImageEncoder` of a frozen, random `test_efficientnet`: images at 64 px -> 4 features -> 8 dimensions."""
    from vse_demo.encoders import ImageEncoder

    torch.manual_seed(0)
    encoder = ImageEncoder(8, "grid", "test_efficientnet", 64)
    encoder.freeze_backbone()
    return encoder.eval()


@pytest.fixture(scope="session")
def start_python() -> Callable[..., subprocess.Popen]:
    """`start_python("-m", "vse_demo.cli", …, NAME="value")`: Python in a process of its own, with that environment."""

    def start(*arguments: object, **more: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**more),
        )

    return start


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Chromium, which CI must have, with a camera that shows a test pattern."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("no browser: apt-get install chromium")
        pytest.skip("no browser: apt-get install chromium")
    with sync_playwright() as playwright:
        camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", *camera])
        yield browser
        browser.close()
