"""`vse-demo embed`: vectors of images or sentences in a file, for other programs."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from vse_demo.cli.flags import Verbs, add_backend_flag, add_layout_flag, add_model_flags, data_folder
from vse_demo.utils.files import FileError

SUFFIXES = (".npy", ".parquet")


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("embed", help="write the vectors of images or sentences to a .npy or .parquet file")
    add_model_flags(verb)
    add_backend_flag(verb)
    source = verb.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=data_folder, help="folder with images, or default")
    source.add_argument("--texts", type=Path, help="file with a sentence on each line")
    add_layout_flag(verb)
    verb.add_argument("--split", help="one split only (default: all of them)")
    verb.add_argument(
        "--out", type=Path, required=True,
        help=".npy, rows in the order of the names or lines; or .parquet, with the columns item and vector",
    )  # fmt: skip
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Encode and write the file whole or not at all."""
    from vse_demo.model import load_model

    if chosen.out.suffix not in SUFFIXES:
        raise ValueError(f"--out must end in {' or '.join(SUFFIXES)}, and {chosen.out} does not")
    if chosen.out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError("a .parquet file needs pyarrow, which is not installed: pip install pyarrow, or write .npy")
    names = _read_lines(chosen.texts) if chosen.texts else []
    files = {} if chosen.texts else _find_images(chosen)
    model = load_model(chosen.model, chosen.device, chosen.backend, lazy=True)
    if chosen.texts:
        vectors = model.encode_texts(names, progress=True)
    else:
        names = sorted(files)
        vectors = model.encode_images([files[name] for name in names], progress=True)
    _write(chosen.out, names, vectors.numpy())
    print(f"{chosen.out}: {len(names)} vectors of {model.dim} dimensions")


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as text: {error}") from error
    empty = next((number for number, line in enumerate(lines, start=1) if not line.strip()), None)
    if empty is not None or not lines:
        raise FileError(f"{path}: line {empty or 1} is empty; each line must be a sentence")
    return lines


def _find_images(chosen: argparse.Namespace) -> dict[str, Any]:
    """The images of a data set by name; rows of precomputed regions too."""
    from vse_demo.data import open_dataset

    dataset = open_dataset(chosen.data, chosen.layout)
    splits = [dataset.split(name) for name in ([chosen.split] if chosen.split else dataset.splits)]
    return {name: image for split in splits for name, image in zip(split.names, split.images, strict=True)}


def _write(path: Path, names: list[str], vectors: object) -> None:
    import io

    import numpy as np

    from vse_demo.utils.files import write_atomic

    stream = io.BytesIO()
    array = np.asarray(vectors, dtype=np.float32)
    if path.suffix == ".npy":
        np.save(stream, array, allow_pickle=False)
    else:
        import pyarrow as pa
        import pyarrow.parquet

        rows = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        pyarrow.parquet.write_table(pa.table({"item": names, "vector": rows}), stream)
    write_atomic(path, stream.getvalue())
