"""Coverage-guided fuzzing of all that reads files: each answers, or raises a FileError; nothing else, and soon.

    pip install atheris            # not part of the tests: it takes minutes
    python scripts/fuzz_readers.py CORPUS -max_total_time=600

The first byte of an input chooses the reader. Findings land in the current folder as `crash-…` files;
what was found so far is kept as cases in tests/hostile.py and tests/test_hostile_files.py.
"""

import contextlib
import io
import json
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["vse_demo", "PIL"]):
    import numpy as np
    from PIL import Image

    from vse_demo.data import content_digest, open_dataset, read_captions, read_image
    from vse_demo.encoders import RowFile, SubwordTokenizer, WordTokenizer, read_word_vectors
    from vse_demo.encoders.backbone import _read_weights
    from vse_demo.model import read_config
    from vse_demo.retrieval import read_models
    from vse_demo.training import Log
    from vse_demo.utils.files import FileError, read_json, verify_checksums

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-"))
TABLE = 'raw,split,filename\n"[""a dog""]",train,a.jpg\n'


def write(name: str, content: bytes, **others: str | bytes) -> Path:
    """A fresh folder with this file, and others."""
    folder = PLACE / name.replace(".", "_")
    folder.mkdir(exist_ok=True)
    for other, text in others.items():
        (folder / other.replace("__", ".")).write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / name).write_bytes(content)
    return folder / name


def read_splits(folder: Path) -> None:
    dataset = open_dataset(folder)
    for name in dataset.splits:
        split = dataset.split(name)
        assert len(split.images) == len(split.names)
        for image in [] if isinstance(split.images, np.ndarray) else split.images[:2]:
            for read in (content_digest, read_image):
                with contextlib.suppress(FileError):
                    read(image)


def read_log(path: Path) -> None:
    Log(path, 5, None)


def read_rows(path: Path) -> None:
    rows = RowFile(path.parent, (1, 2))
    rows.drop_partial_rows()
    rows.sound(rows.names())


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


REGIONS = npy(np.ones((2, 3, 4), np.float32))
PHOTO = {"a__jpg": b""}  # a name to find
READERS: list[Callable[[bytes], object]] = [
    lambda content: read_image(write("a.jpg", content)),
    lambda content: read_splits(write("dataset_a.json", content, **PHOTO).parent),
    lambda content: read_splits(write("captions.json", content, **PHOTO).parent),
    lambda content: read_splits(write("flickr_annotations_30k.csv", content).parent),
    lambda content: read_splits(write("flickr30k-images.zip", content, flickr_annotations_30k__csv=TABLE).parent),
    lambda content: read_splits(write("train_ims.npy", content, train_caps__txt="a\nb\n").parent),
    lambda content: read_splits(write("train_caps.txt", content, train_ims__npy=REGIONS).parent),
    lambda content: read_captions(write("more.json", content)),
    lambda content: read_json(write("a.json", content)),
    lambda content: read_config(write("config.json", content).parent),
    lambda content: read_models(write("models.json", content).parent),
    lambda content: WordTokenizer.load(write("vocabulary.json", content).parent),
    lambda content: SubwordTokenizer.load(write("tokenizer.json", content).parent),
    lambda content: read_word_vectors(write("vectors.txt", content), ["dog", "a"]),
    lambda content: read_word_vectors(write("vectors.safetensors", content), ["dog", "a"]),
    lambda content: _read_weights(write("weights.safetensors", content)),
    lambda content: verify_checksums(write("SHA256SUMS", content, a="a").parent),
    lambda content: read_log(write("metrics.jsonl", content)),
    lambda content: read_rows(write("rows.txt", content, rows__f16=bytes(64))),
]


def fuzz_one(content: bytes) -> None:
    if content:
        with contextlib.suppress(FileError):
            READERS[content[0] % len(READERS)](content[1:])


def seeds(corpus: Path) -> None:
    """A good input for each reader to start from, made of the tests' own small files."""
    photo, archive = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (8, 6), "red").save(photo, "PNG")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("images/a.jpg", photo.getvalue())
    records = {"images": [{"filename": "a.jpg", "split": "train", "sentences": [{"raw": "a dog"}]}]}
    tensors = b'\x40\0\0\0\0\0\0\0{"vectors":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    ' + bytes(4)
    texts = [
        photo.getvalue(), json.dumps(records), '{"a.jpg": ["a dog"]}', TABLE, archive.getvalue(), REGIONS,
        "a\nb\n", json.dumps(records), "[1]", '{"model_type": "vse_demo", "format": 1, "dim": 8}', '["model"]',
        '["dog"]', '{"version": "1.0", "model": {"type": "WordPiece", "vocab": {"[UNK]": 0}}}', "dog 1 2\na 1 2\n",
        tensors, tensors, "ca978112  a\n", '{"step": 1}\n', "0" * 32 + " 00000000\n",
    ]  # fmt: skip
    corpus.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (corpus / f"seed-{number}").write_bytes(bytes([number]) + (text if isinstance(text, bytes) else text.encode()))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    places = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    for place in places[:1]:
        seeds(place)
    atheris.Setup(sys.argv, fuzz_one)
    atheris.Fuzz()
