"""Encoding millions of pictures with Ray Data: units -> pictures -> vectors -> a store.

Tasks read the files, actors with a copy of the model decode and encode them, on all cores of a cluster; this process
writes what arrives to the store, in batches that are keyed by the digest of each image's content. So a task that is
repeated, because its worker was killed, or a whole run that is repeated, leaves every image once. Pictures that the
store has already are read, but not decoded.
"""

import hashlib
import io
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from vse_demo.data.images import decode_image
from vse_demo.model.lazy import StoredModel
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.entries import Entry, escape_path, unescape_path
from vse_demo.retrieval.sources import Picture, Unit, count_images, find_units, read_unit
from vse_demo.retrieval.store import Store
from vse_demo.retrieval.sync import BATCH, SAVE_EVERY, SyncReport, path_and_date
from vse_demo.utils.files import FileError
from vse_demo.utils.runtime import keep_memory
from vse_demo.utils.text import sanitize_text

BLOCK_BYTES = 16 * 2**20  # of pictures that go from a task to an actor together
DIGEST = np.dtype("S32")  # as `data.images.content_digest` writes it
LOCAL = "local"  # the address of the cores of this machine
Row = dict[str, Any]


@contextmanager
def ray_cluster(address: str = LOCAL, **options: Any) -> Iterator[Any]:
    """The module `ray`, connected to a cluster while the block runs.

    Args:
        address: `local` starts Ray on the cores of this machine, and stops it at the end; `auto` is the cluster that
            this machine belongs to; otherwise `host:port`, or `ray://host:port`.
        options: More for `ray.init`.

    Raises:
        ValueError: If the address is none, or if Ray is not installed; the message says how to have it.
        ConnectionError: If there is no cluster at the address, none starts here, or it fails while the block runs.
    """
    check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anyone
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # what Ray will do in any case, without its warning
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError("indexing on a cluster needs Ray: pip install 'vse_demo[cluster]'") from error
    where = {"include_dashboard": False} if address == LOCAL else {"address": address}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray has no name for a node that does not start in time
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if address == LOCAL:
            reason = f"Ray did not start on this machine, which may be too busy for it: try again ({reason})"
            raise ConnectionError(reason) from error
        raise ConnectionError(f"no Ray cluster at {address!r}: {reason}") from error
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise ConnectionError(
            f"Ray stopped on the way: {_reason(error)}; what was written before is safe, and the same command goes on"
        ) from error
    finally:
        ray.shutdown()


def _reason(error: Exception) -> str:
    """What went wrong, of all that Ray says: of a task the error that it raised, else the first line."""
    first, *more = str(error).split("\n\nThe above exception was")
    lines = first.strip().splitlines() or [type(error).__name__]
    return sanitize_text(lines[-1] if more or hasattr(error, "traceback_str") else lines[0]).strip()


def check_address(address: str, seconds: float = 20) -> None:
    """Raise an error if nothing answers at an address: Ray itself would wait for minutes.

    Args:
        address: Of a cluster; see `ray_cluster`.
        seconds: To wait for an answer.
    """
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ValueError(f"{address!r} is no address of a Ray cluster: it should be host:port, ray://host:port or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConnectionError(f"no Ray cluster at {address!r}: {reason}") from error


def index_on_cluster(
    store: Store,
    data: Path,
    splits: Sequence[str] | None = None,
    address: str = LOCAL,
    progress: bool = True,
    **options: Any,
) -> SyncReport:
    """Encode the pictures of a source that a store does not have, on all cores of a cluster.

    Unlike `Store.sync` it only adds: what was renamed or is gone is left to a sync.

    Args:
        store: Where the vectors go, written by this process alone.
        data: A folder, a list of files or tar shards (`sources.find_units`), seen by all machines at the same path.
        splits: Of a data set, only these.
        address: Of the cluster; see `ray_cluster`.
        progress: Whether to show a bar, with pictures per second and the time that is left.
        options: More for `ray.init`.

    Returns:
        How many were added and were there already, and which files cannot be read and why.
    """
    units = find_units(data, splits)
    with store.writing(), ray_cluster(address, **options) as ray:
        known = sorted_digests(entry.digest for entry in store.entries())
        rows = encoded_rows(ray, units, store.model, known)
        total = count_images(units) if progress else 0
        with tqdm(total=total, unit=" images", disable=not progress, smoothing=0.05) as bar:
            return _write(store, rows, known, bar)


def encoded_rows(ray: Any, units: Sequence[Unit], model: EmbeddingModel, known: np.ndarray) -> Iterator[list[Row]]:
    """The rows of all pictures as they are done, in no order, some of them at a time."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = BLOCK_BYTES
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    parts = min(len(units), 4 * workers)
    pictures = ray.data.from_items([asdict(unit) for unit in units], override_num_blocks=parts).flat_map(
        PictureReader(partial(ray.get, ray.put(known))),
        num_cpus=0,  # or readers would wait for the cores of the encoders, and these for pictures
        compute=ray.data.TaskPoolStrategy(size=max(1, workers // 2)),
    )
    done = pictures.map_batches(
        PictureEncoder,
        fn_constructor_args=(partial(ray.get, ray.put(model)),),
        batch_size=BATCH,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=workers),  # one that is killed is started again, and its tasks repeated
    )
    for batch in done.iter_batches(batch_size=SAVE_EVERY, prefetch_batches=0, batch_format="numpy"):
        yield [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


@dataclass
class PictureReader:
    """Reads units where a task runs: each picture's bytes, and its digest; no bytes of what is known."""

    load_known: Callable[[], np.ndarray]  # the digests that the store has

    @cached_property
    def known(self) -> np.ndarray:
        """The same, loaded once for all units of a task."""
        return self.load_known()

    def __call__(self, unit: Row) -> Iterator[Row]:
        fields = {**unit, "captions": tuple(unit["captions"])}
        of_unit = Unit(**fields)
        for picture in read_unit(of_unit):
            digest = "" if picture.error else hashlib.blake2b(picture.content, digest_size=16).hexdigest()
            path, metadata = (
                ("", {}) if digest == "" or of_unit.is_shard else path_and_date(of_unit.image(), of_unit.source)
            )
            yield {
                "digest": digest,
                "name": picture.name,
                "captions": "\n".join(picture.captions),
                "source": escape_path(of_unit.source),  # Ray keeps text in UTF-8
                "path": escape_path(path),
                "split": of_unit.split,
                "metadata": json.dumps(metadata),
                "error": _error(picture),
                "content": b"" if holds(self.known, digest) else picture.content,
            }


def sorted_digests(digests: Iterable[str]) -> np.ndarray:
    """Digests as an array: all processes of a machine share one in Ray's memory, of a set each would have a copy."""
    known = np.fromiter(digests, DIGEST)
    known.sort()
    return known


def holds(known: np.ndarray, digest: str) -> bool:
    """Whether a digest is one of `sorted_digests`."""
    wanted = digest.encode()
    place = int(np.searchsorted(known, wanted))
    return place < len(known) and bool(known[place] == wanted)


def _error(picture: Picture) -> str:
    return sanitize_text(picture.error) or ("" if picture.content else f"{picture.name} is empty")


class PictureEncoder:
    """Decodes and encodes pictures and their captions, with a model of its own on one core."""

    def __init__(self, load_model: Callable[[], EmbeddingModel]):
        torch.set_num_threads(1)
        keep_memory()
        self.model = load_model()
        self.smallest = decoding_size(self.model)

    def __call__(self, batch: Row) -> Row:
        images, captions = [], list[str]()
        for number, content in enumerate(batch["content"]):
            if not content or batch["error"][number]:
                continue
            try:
                images.append((number, decode_image(io.BytesIO(content), batch["name"][number], self.smallest)))
                captions += _sentences(batch["captions"][number])
            except FileError as error:
                batch["error"] = batch["error"].astype(object)
                batch["error"][number] = str(error)
        of_images = self.model.encode_images([image for _, image in images]).numpy() if images else ()
        of_captions = (
            self.model.encode_texts(captions).numpy() if captions else np.empty((0, self.model.dim), np.float32)
        )
        vectors, sentences = [b""] * len(batch["name"]), [b""] * len(batch["name"])
        for (number, _), vector in zip(images, of_images, strict=True):
            count = len(_sentences(batch["captions"][number]))
            vectors[number] = vector.tobytes()
            sentences[number], of_captions = of_captions[:count].tobytes(), of_captions[count:]
        kept = {name: column for name, column in batch.items() if name != "content"}
        return {**kept, "vector": np.array(vectors, object), "caption_vectors": np.array(sentences, object)}


def decoding_size(model: EmbeddingModel) -> int:
    """The size that a JPEG needs for a model to see the same: twice the largest side that it looks at, 0 if unknown."""
    sizes = [_image_size(member) for member in getattr(model, "members", [model])]
    return 2 * max(sizes) if all(sizes) else 0


def _image_size(model: EmbeddingModel) -> int:
    if isinstance(model, StoredModel):  # nothing of it is built before it is needed
        return model.config.image_size
    backbone = getattr(getattr(model, "image_encoder", None), "backbone", None)
    return int(getattr(backbone, "image_size", 0))


def _sentences(captions: str) -> list[str]:
    return captions.split("\n") if captions else []


def _write(store: Store, rows: Iterator[list[Row]], known: np.ndarray, bar: Any) -> SyncReport:
    """Put what arrives into the store; of several pictures with the same content the first counts."""
    report, added = SyncReport(), set[str]()
    for some in rows:
        new: dict[str, Row] = {}
        for row in some:
            if row["error"]:
                report.broken[row["name"]] = row["error"]
            elif holds(known, row["digest"]):
                report.unchanged += 1
            elif row["digest"] not in added:
                new.setdefault(row["digest"], row)
        if new:
            images, captions = (_tensor(new.values(), name, store.model.dim) for name in ("vector", "caption_vectors"))
            store.put([_entry(row) for row in new.values()], images, captions)
        added |= new.keys()
        bar.update(len(some))
    report.added = len(added)
    return report


def _tensor(rows: Any, name: str, dim: int) -> torch.Tensor:
    content = bytearray(b"".join(row[name] for row in rows))
    return torch.frombuffer(content, dtype=torch.float32).view(-1, dim) if content else torch.empty(0, dim)


def _entry(row: Row) -> Entry:
    captions = tuple(_sentences(row["captions"]))
    metadata = json.loads(row["metadata"])
    source, path = unescape_path(row["source"]), unescape_path(row["path"])
    return Entry(row["digest"], row["name"], captions, source, path, row["split"], metadata)
