"""Galleries of ten thousand to a million vectors, in a folder and in PostgreSQL: filling, memory, search, recall.

    python -m benchmarks.galleries build PLACE [--sizes 10000 100000 1000000] [--like GALLERY]
    python -m benchmarks.galleries measure PLACE --out assets/galleries.json
    python -m benchmarks.galleries draw assets/galleries.json assets/figures/galleries.png

`--like` names a gallery of photographs in a folder (`vse-demo index`); vectors are made like theirs, and queries are
its captions. Without it they are random around random centres. All stores are searched in turn by one process.
"""

import argparse
import contextlib
import json
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psycopg
import torch
from psycopg import sql
from safetensors.torch import load, save
from torch import Tensor

from benchmarks.postgres_server import PostgresServer
from benchmarks.run import machine
from vse_demo.retrieval import Entry, Gallery, Store, top_k
from vse_demo.retrieval.postgres import PostgresGallery
from vse_demo.utils.files import read_json, write_atomic, write_json
from vse_demo.utils.tensors import l2_normalize

QUERIES, K = 200, 5
QUERIES_FILE = "queries.safetensors"
FOLDER, HNSW, EXACT = "folder, exact", "PostgreSQL, HNSW", "PostgreSQL, exact"
BLOCK = 10_000  # vectors that are written at a time
NEIGHBOURS = 50  # of a photograph, towards which others like it lie
LONGEST = 15.0  # seconds for all searches of a store
SERVER = {"shared_buffers": "4GB", "max_wal_size": "8GB", "jit": "off"}
SIZE = operator.itemgetter("images")
Found = list[set[str]]  # digests, for each query


class Named:
    """A model that encodes nothing: galleries only ask for its name and size."""

    def __init__(self, dim: int):
        self.dim = dim

    def fingerprint(self) -> str:
        return f"vectors of {self.dim}"


class Source(Protocol):
    """Where vectors come from."""

    dim: int

    def images(self, count: int, seed: int) -> Tensor:
        """Some unit vectors; the same ones for the same seed."""

    def queries(self, count: int) -> Tensor:
        """What is searched for."""


@dataclass
class Random:
    """Around a thousand random centres, so that neighbours exist; they say nothing about pictures."""

    dim: int = 512

    def images(self, count: int, seed: int) -> Tensor:
        random = torch.Generator().manual_seed(seed)
        centres = torch.randn(1000, self.dim, generator=torch.Generator().manual_seed(0))
        chosen = torch.randint(0, 1000, (count,), generator=random)
        return l2_normalize(centres[chosen] + 1.5 * torch.randn(count, self.dim, generator=random))

    def queries(self, count: int) -> Tensor:
        return self.images(count, 999_999)


class LikePhotos:
    """Like those of a gallery: each a photograph's, moved towards one of its neighbours, and as far as such neighbours
    are apart into a direction in which two others differ. Queries are captions, which no vector was made of."""

    def __init__(self, folder: Path):
        about = read_json(folder / "gallery.json")
        model = Named(about["dim"])
        model.fingerprint = lambda: about["model"]  # type: ignore[method-assign]
        gallery = Gallery.load(folder, model)  # type: ignore[arg-type]
        self.dim, self.photos, self.captions = model.dim, gallery.image_vectors, gallery.caption_vectors
        self.near = top_k(self.photos, self.photos, NEIGHBOURS + 1)[1][:, 1:]

    def images(self, count: int, seed: int) -> Tensor:
        random = torch.Generator().manual_seed(seed)

        def pairs() -> tuple[Tensor, Tensor]:
            photos = torch.randint(len(self.photos), (count,), generator=random)
            other = torch.randint(NEIGHBOURS, (count,), generator=random)
            return self.photos[photos], self.photos[self.near[photos, other]]

        (photo, neighbour), (one, other) = pairs(), pairs()
        share = 0.5 * torch.rand(count, 1, generator=random)
        return l2_normalize(photo + share * (neighbour - photo) + 0.5 * (one - other))

    def queries(self, count: int) -> Tensor:
        chosen = torch.randperm(len(self.captions), generator=torch.Generator().manual_seed(0))[:count]
        return self.captions[chosen]


def own_memory() -> float:
    """Megabytes of this process that are not of a mapped file (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def fill(store: Store, source: Source, count: int) -> dict[str, float]:
    """Put images into a store: seconds that it took, without making them, and memory that it needed."""
    seconds, before, most = 0.0, own_memory(), 0.0
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        entries = [Entry(f"{n:032x}", f"{n % 100}/{n}.jpg") for n in range(start, start + size)]
        vectors = source.images(size, 1 + start // BLOCK)
        begin = time.perf_counter()
        store.put(entries, vectors, torch.empty(0, source.dim))
        seconds += time.perf_counter() - begin
        most = max(most, own_memory())
    return {"fill s": seconds, "memory of filling MB": most - before}


def build(place: Path, sizes: Sequence[int], like: Path | None) -> None:
    """Fill a folder and a schema of a database for each size, build the indexes, and keep what that took."""
    source: Source = LikePhotos(like) if like else Random()
    place.mkdir(parents=True)
    write_atomic(place / QUERIES_FILE, save({"queries": source.queries(QUERIES)}))
    rows: dict[str, Any] = {}
    with running_server(place) as server:
        for count in sizes:
            folder = fill(Gallery.open(place / f"folder-{count}", Named(source.dim)), source, count)
            with contextlib.closing(in_database(server, count, source.dim)) as gallery:
                database = fill(gallery, source, count)
                begin = time.perf_counter()
                gallery.build_indexes()
                database["index s"] = time.perf_counter() - begin
            rows[str(count)] = {FOLDER: folder, HNSW: database}
            print(json.dumps({count: rows[str(count)]}), flush=True)
            write_json(place / "built.json", {"vectors": "photographs" if like else "random", "built": rows})


def measure(place: Path) -> Iterator[dict[str, Any]]:
    """A row for each size and kind of search: time of one search, recall at 5 against the folder (exact)."""
    about, queries = read_json(place / "built.json"), load((place / QUERIES_FILE).read_bytes())["queries"]
    dim = queries.shape[1]
    with running_server(place) as server:
        for size, built in about["built"].items():
            begin = time.perf_counter()
            folder = Gallery.load(place / f"folder-{size}", Named(dim))
            opened = time.perf_counter() - begin
            with (
                contextlib.closing(in_database(server, int(size), dim)) as indexed,
                contextlib.closing(in_database(server, int(size), dim, exact=True)) as exact,
            ):
                stores: dict[str, Store] = {FOLDER: folder, HNSW: indexed, EXACT: exact}
                times, found = search_in_turn(stores, queries)
            for name in stores:
                row = {"vectors": about["vectors"], "images": int(size), "store": name, **built.get(name, {})}
                low, middle, high = np.quantile(times[name], [0.05, 0.5, 0.95]) * 1000
                row |= {"p5 ms": low, "p50 ms": middle, "p95 ms": high, "searches": len(times[name])}
                row |= {"recall@5": recall(found[name], found[FOLDER]), "open s": opened if name == FOLDER else None}
                yield row


def search_in_turn(stores: Mapping[str, Store], queries: Tensor) -> tuple[dict[str, list[float]], dict[str, Found]]:
    """Search all stores for one query after another: seconds of each search, and what was found.

    Every store has searched for everything before, so that all it needs is in memory. One that takes long searches for
    a part of the queries only.
    """
    times: dict[str, list[float]] = {name: [] for name in stores}
    found: dict[str, Found] = {name: [] for name in stores}
    asked = dict.fromkeys(stores, len(queries))
    for name, store in stores.items():
        store.nearest_images(queries[:1], K)
        begin = time.perf_counter()
        store.nearest_images(queries[:1], K)
        asked[name] = min(len(queries), max(5, int(LONGEST / (time.perf_counter() - begin))))
        store.nearest_images(queries[: asked[name]], K)
    for number, query in enumerate(queries):
        for name, store in stores.items():
            if number < asked[name]:
                begin = time.perf_counter()
                hits = store.nearest_images(query[None], K)[0]
                times[name].append(time.perf_counter() - begin)
                found[name].append({hit.digest for hit in hits})
    return times, found


def recall(found: Found, right: Found) -> float:
    """The share of the nearest that was found."""
    return float(np.mean([len(here & there) / K for here, there in zip(found, right, strict=False)]))


@contextlib.contextmanager
def running_server(place: Path) -> Iterator[PostgresServer]:
    """The server of this place, made if it is not there, while the block runs."""
    (place / "server").mkdir(exist_ok=True)
    server = PostgresServer(place / "server", **SERVER)
    server.start()
    try:
        yield server
    finally:
        server.stop("fast")


def in_database(server: PostgresServer, count: int, dim: int, exact: bool = False) -> PostgresGallery:
    """The gallery of a size, in a schema of its own."""
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(f"of_{count}")))
    address = f"{server.address}?options=-csearch_path%3Dof_{count}%2Cpublic"
    return PostgresGallery(address, Named(dim), exact=exact)  # type: ignore[arg-type]


def keep(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Put rows into a file, in place of those of the same vectors, size and store."""
    key = operator.itemgetter("vectors", "images", "store")
    before = read_json(file)["rows"] if file.exists() else []
    whole = {key(row): row for row in [*before, *rows]}
    write_json(file, {"machine": machine(), "rows": [whole[one] for one in sorted(whole)]})


def draw(rows: Sequence[dict[str, Any]], figure: Path) -> None:
    """Speed and recall against size, of vectors like those of photographs."""
    from matplotlib.figure import Figure

    from vse_demo.plots.style import PALETTE

    canvas = Figure(figsize=(8.6, 3.4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for name, colour in zip((FOLDER, HNSW, EXACT), PALETTE, strict=False):
        of = sorted((row for row in rows if row["store"] == name and row["vectors"] == "photographs"), key=SIZE)
        sizes = [row["images"] for row in of]
        left.fill_between(sizes, [row["p5 ms"] for row in of], [row["p95 ms"] for row in of], color=colour, alpha=0.2)
        left.plot(sizes, [row["p50 ms"] for row in of], "o-", color=colour, label=name)
        right.plot(sizes, [row["recall@5"] for row in of], "o-", color=colour, label=name)
    left.set(xscale="log", yscale="log", xlabel="images", ylabel="ms", title="One search: median, 5 to 95 %")
    right.set(xscale="log", ylim=(0.9, 1.005), xlabel="images", title="Recall@5")
    right.axhline(0.98, color="grey", linestyle=":")
    left.legend(frameon=False)
    canvas.savefig(figure, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    builder = verbs.add_parser("build", help="fill galleries; a million takes minutes")
    builder.add_argument("place", type=Path, help="a new folder")
    builder.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    builder.add_argument("--like", type=Path, metavar="GALLERY", help="photographs and captions, in a folder")
    measurer = verbs.add_parser("measure", help="search what was built")
    measurer.add_argument("place", type=Path)
    measurer.add_argument("--out", type=Path, help="put the rows into this file")
    drawer = verbs.add_parser("draw", help="speed and recall against size")
    drawer.add_argument("rows", type=Path, help="what measure --out has written")
    drawer.add_argument("figure", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.verb == "build":
        build(chosen.place, chosen.sizes, chosen.like)
    elif chosen.verb == "measure":
        rows = []
        for row in measure(chosen.place):
            print(json.dumps(row), flush=True)
            rows.append(row)
        if chosen.out:
            keep(rows, chosen.out)
    else:
        draw(read_json(chosen.rows)["rows"], chosen.figure)


if __name__ == "__main__":
    main()
