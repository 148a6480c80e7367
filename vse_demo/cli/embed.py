"""`vse-demo embed`: vectors of images or sentences in a file, for other programs."""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vse_demo.cli.flags import Verbs, add_backend_flag, add_layout_flag, add_model_flags, data_folder
from vse_demo.cli.lines import read_lines
from vse_demo.utils.files import FileError

if TYPE_CHECKING:
    import numpy as np

    from vse_demo.model import EmbeddingModel

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
    verb.add_argument("--split", help="one split only (default: all of them, and images of none)")
    verb.add_argument(
        "--out", type=Path, required=True,
        help=".npy, rows in the order of the lines, or of the names, which are written beside it (.names.txt); "
        "or .parquet, with the columns item and vector",
    )  # fmt: skip
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Encode and write the file whole or not at all; images that cannot be read are left out."""
    from vse_demo.model import load_model
    from vse_demo.utils.files import write_atomic

    if chosen.out.suffix not in SUFFIXES:
        raise ValueError(f"--out must end in {' or '.join(SUFFIXES)}, and {chosen.out} does not")
    if chosen.out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError("a .parquet file needs pyarrow, which is not installed: pip install pyarrow, or write .npy")
    names = _read_sentences(chosen.texts) if chosen.texts else []
    files, left_out = ({}, []) if chosen.texts else _find_images(chosen)
    model = load_model(chosen.model, chosen.device, chosen.backend, lazy=True)
    if chosen.texts:
        vectors = model.encode_texts(names, progress=True).numpy()
    else:
        names, vectors, broken = _encode_images(model, files)
        for reason in left_out + broken:
            print(f"left out: {reason}", file=sys.stderr)
        if not names:
            raise FileError(f"{chosen.data} has no image that can be read")
    _write(chosen.out, names, vectors)
    if chosen.data and chosen.out.suffix == ".npy":
        write_atomic(chosen.out.with_suffix(".names.txt"), "".join(f"{name}\n" for name in names))
    print(f"{chosen.out}: {len(names)} vectors of {model.dim} dimensions")


def _read_sentences(path: Path) -> list[str]:
    lines = read_lines(path)
    empty = next((number for number, line in enumerate(lines, start=1) if not line.strip()), None)
    if empty is not None or not lines:
        raise FileError(f"{path}: line {empty or 1} is empty; each line must be a sentence")
    return lines


def _find_images(chosen: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The images of a data set by name, as index takes them, and what is missing; rows of precomputed regions too."""
    from vse_demo.data import open_dataset

    dataset = open_dataset(chosen.data, chosen.layout)
    found = [dataset.present(name) for name in ([chosen.split] if chosen.split else dataset.splits)]
    parts = [part for part, _ in found] + ([] if chosen.split else [dataset.unlisted()])
    images = {name: image for part in parts for name, image in zip(part.names, part.images, strict=True)}
    return dict(sorted(images.items())), [f"{name} is missing" for _, missing in found for name in missing]


def _encode_images(model: "EmbeddingModel", files: dict[str, Any]) -> tuple[list[str], "np.ndarray", list[str]]:
    """The names and vectors of images, and why others are left out."""
    import torch
    from tqdm.auto import tqdm

    from vse_demo.retrieval.sync import decode_batches

    names, vectors, broken = list[str](), [torch.empty(0, model.dim)], list[str]()
    with tqdm(total=len(files), unit=" images") as bar:
        for images, errors in decode_batches(files):
            names += images
            broken += map(str, errors.values())
            if images:
                vectors.append(model.encode_images(list(images.values())))
            bar.update(len(images) + len(errors))
    return names, torch.cat(vectors).numpy(), broken


def _write(path: Path, names: list[str], vectors: "np.ndarray") -> None:
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
