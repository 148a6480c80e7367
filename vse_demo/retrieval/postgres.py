"""A gallery in PostgreSQL with pgvector: shared by many, larger than memory; the same methods as a folder's.

Rows are keyed by the digests of images. Vectors are half precision, searched through an HNSW index once it has been
built, or exactly. A password is read from the address, from PGPASSWORD or from ~/.pgpass, and is in no message.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vse_demo.model.names import lasting_name
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.entries import Entry, Hit, Where, escape_path, unescape_path
from vse_demo.retrieval.store import Store, check_k
from vse_demo.utils.files import FileError

try:
    import psycopg
    from pgvector import HalfVector, Vector
    from pgvector.psycopg import register_vector
    from psycopg import sql
    from psycopg.types.json import Jsonb

    from vse_demo.retrieval import schema
except ImportError as error:  # the extra is not installed
    raise FileError(f"a gallery in PostgreSQL needs more packages: pip install 'vse_demo[search]' ({error})") from error

PREFIXES = ("postgresql://", "postgres://")
TRIES = 4  # of something that failed because the connection was lost
BLOCK = 10_000  # images that are read at a time
INDEX_FROM = 10_000  # images from which on an index is built; fewer are searched exactly in milliseconds
CANCELLED = "57014"  # the state of a statement that took longer than the server allows, or that somebody ended
Result = TypeVar("Result")
COLUMNS = sql.SQL("i.digest, i.name, i.source, i.path, i.split, i.metadata")


class PostgresGallery(Store):
    """Images and captions in the tables of a database; see `Store`.

    Args:
        address: `postgresql://user@host:port/database`. Other options of PostgreSQL can follow, as in
            `?sslmode=require` or `?options=-csearch_path%3Dmine`, a schema.
        model: The one that encodes; a gallery of another model is refused.
        models: Names of the model, for `read_models`.
        exact: Search without the index.
        wait: Seconds before a lost connection is tried again; doubled each time.
        create: Make a gallery if there is none.

    Raises:
        FileError: If the database cannot be reached or used, or holds no gallery; the message says why.
    """

    def __init__(
        self,
        address: str,
        model: EmbeddingModel,
        models: Sequence[object] = (),
        exact: bool = False,
        wait: float = 0.5,
        create: bool = True,
    ):
        self.model, self.exact, self.wait = model, exact, wait
        self.server = Server(address, wait)
        about = {
            "model": model.fingerprint(), "dim": model.dim, "models": [lasting_name(str(name)) for name in models],
        }  # fmt: skip

        def prepare(connection: Any) -> dict[str, Any]:
            if not create:
                check_gallery(connection, self.server.place)
            elif not schema.exists(connection):
                schema.create(connection, about)
                register_vector(connection)
            self.citus = schema.has_citus(connection)
            return schema.read_about(connection, self.server.place)

        if self.server.run(prepare)["model"] != about["model"]:
            raise FileError(f"the gallery in {self.server.place} was encoded by another model: use another schema")

    def __len__(self) -> int:
        return self.count()

    def count_captions(self) -> int:
        """How many captions there are."""
        return int(self.server.run(lambda c: c.execute("SELECT count(*) FROM vse_captions").fetchone()[0]))

    def count(self, where: Where | None = None) -> int:
        """How many images a filter lets through."""
        condition, values = schema.condition(where)
        query = sql.SQL("SELECT count(*) FROM vse_images i WHERE {}").format(condition)
        return int(self.server.run(lambda c: c.execute(query, values).fetchone()[0]))

    def entries(self) -> Iterator[Entry]:
        """All images by their digests, without their vectors."""
        last = ""
        while some := self._after(last, BLOCK):
            yield from some
            last = some[-1].digest

    def sample(self, count: int, where: Where | None = None) -> list[Entry]:
        """Some images, always the same: those of the first digests."""
        return self._after("", count, where)

    def _after(self, digest: str, count: int, where: Where | None = None) -> list[Entry]:
        """The images that follow a digest."""
        condition, values = schema.condition(where)
        return self._entries(sql.SQL("i.digest > %s AND {}").format(condition), [digest, *values], count)

    def lookup(self, digests: Collection[str]) -> dict[str, Entry]:
        """Those of these images that are here, by their digests, without their vectors."""
        return {entry.digest: entry for entry in self._entries(sql.SQL("i.digest = ANY(%s)"), [list(digests)])}

    def _entries(self, condition: sql.Composable, values: Sequence[Any], count: int | None = None) -> list[Entry]:
        """The images of a condition, by their digests."""
        query = sql.SQL(
            "SELECT {}, array(SELECT c.caption FROM vse_captions c WHERE c.digest = i.digest ORDER BY c.position) "
            "FROM vse_images i WHERE {} ORDER BY i.digest LIMIT %s"
        ).format(COLUMNS, condition)
        return [_entry(row) for row in self.server.run(lambda c: c.execute(query, [*values, count]).fetchall())]

    def put(self, entries: Sequence[Entry], image_vectors: Tensor, caption_vectors: Tensor) -> None:
        """Write images, all of them or none; one that is there already is replaced."""
        if not (image_vectors.isfinite().all() and caption_vectors.isfinite().all()):
            raise ValueError("the model has made vectors that are not numbers")
        images, captions = (vectors.half().numpy() for vectors in (image_vectors, caption_vectors))
        owners = [(entry.digest, number, text) for entry in entries for number, text in enumerate(entry.captions)]

        def write(connection: Any) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                schema.queue_writers(connection)
                digests = [entry.digest for entry in entries]
                cursor.execute("DELETE FROM vse_images WHERE digest = ANY(%s)", [digests])
                columns = "digest, name, source, path, split, metadata, vector"
                with cursor.copy(f"COPY vse_images ({columns}) FROM STDIN WITH (FORMAT binary)") as copy:
                    copy.set_types(["text"] * 5 + ["jsonb", "halfvec"])
                    for entry, vector in zip(entries, images, strict=True):
                        place = escape_path(entry.source), escape_path(entry.path)
                        text = (entry.digest, entry.name, *place, entry.split)
                        copy.write_row((*text, Jsonb(dict(entry.metadata)), HalfVector(vector)))
                columns = "digest, position, caption, vector"
                with cursor.copy(f"COPY vse_captions ({columns}) FROM STDIN WITH (FORMAT binary)") as copy:
                    copy.set_types(["text", "int4", "text", "halfvec"])
                    for owner, vector in zip(owners, captions, strict=True):
                        copy.write_row((*owner, HalfVector(vector)))

        self.server.run(write)

    def discard(self, digests: Collection[str]) -> int:
        """Forget the images of these digests, with their captions; return how many there were."""

        def delete(connection: Any) -> int:
            with connection.transaction():
                schema.queue_writers(connection)
                done = connection.execute("DELETE FROM vse_images WHERE digest = ANY(%s)", [list(digests)])
                return int(done.rowcount)

        return self.server.run(delete) if digests else 0

    def fetch(self, digests: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
        """The vectors of images that are here (I, D), and those of the captions of each."""

        def read(connection: Any) -> tuple[dict[str, Any], list[Any]]:
            images = connection.execute("SELECT digest, vector FROM vse_images WHERE digest = ANY(%s)", [list(digests)])
            captions = connection.execute(
                "SELECT digest, vector FROM vse_captions WHERE digest = ANY(%s) ORDER BY digest, position",
                [list(digests)],
            )
            return dict(images.fetchall()), captions.fetchall()

        images, captions = self.server.run(read)
        of_image: dict[str, list[Any]] = {digest: [] for digest in digests}
        for digest, vector in captions:
            of_image[digest].append(vector)
        return self._vectors([images[digest] for digest in digests]), [
            self._vectors(of_image[digest]) for digest in digests
        ]

    def nearest_images(self, queries: Tensor, k: int = 5, where: Where | None = None) -> list[list[Hit]]:
        """The k images nearest to each query (Q, D), best first."""
        return self._nearest(
            sql.SQL("SELECT i.number, i.name, {score}, {columns} FROM vse_images i"), "i", queries, k, where
        )

    def nearest_captions(self, queries: Tensor, k: int = 5, where: Where | None = None) -> list[list[Hit]]:
        """The k captions nearest to each query (Q, D), best first."""
        select = sql.SQL(
            "SELECT t.number, t.caption, {score}, {columns} "
            "FROM vse_captions t JOIN vse_images i ON i.digest = t.digest"
        )
        return self._nearest(select, "t", queries, k, where)

    def _nearest(self, select: sql.SQL, table: str, queries: Tensor, k: int, where: Where | None) -> list[list[Hit]]:
        column = sql.Identifier(table, "vector")
        score = sql.SQL("-({}::vector <#> %s)").format(column)
        condition, values = schema.condition(where)
        matching = sql.SQL("{} WHERE {}").format(select.format(score=score, columns=COLUMNS), condition)
        by_index = sql.SQL("{} ORDER BY {} <#> %s LIMIT %s").format(matching, column)
        exactly = sql.SQL("{} ORDER BY {}::vector <#> %s LIMIT %s").format(matching, column)

        def search(connection: Any) -> list[list[Any]]:
            found = []
            with connection.transaction(), connection.cursor() as cursor:
                schema.prepare_search(cursor, check_k(k), self.exact, self.citus)
                for vector in queries.float().cpu().numpy():
                    rows: list[Any] = []
                    if not self.exact:
                        rows = cursor.execute(by_index, [Vector(vector), *values, HalfVector(vector), k]).fetchall()
                    if self.exact or (where and len(rows) < k):  # a rare filter: the index gives up after some vectors
                        rows = cursor.execute(exactly, [Vector(vector), *values, Vector(vector), k]).fetchall()
                    found.append(rows)
            return found

        return [[_hit(row) for row in rows] for rows in self.server.run(search)]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Many may write at once; an index is built when there is enough to search."""
        yield
        if len(self) >= INDEX_FROM and self.server.run(schema.lacks_indexes):
            self.build_indexes()

    def build_indexes(self) -> None:
        """Build the HNSW indexes, if they are not there: minutes for a million vectors."""
        self.server.run(schema.build_indexes)

    def close(self) -> None:
        """Close the connection."""
        self.server.close()

    def _vectors(self, stored: Sequence[Any]) -> Tensor:
        rows = [vector.to_numpy().astype(np.float32) for vector in stored]
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, self.model.dim)


def read_models(address: str) -> list[str]:
    """The names of the model that encoded a gallery, as far as it was told."""
    server = Server(address)

    def read(connection: Any) -> list[str]:
        check_gallery(connection, server.place)
        return list(schema.read_about(connection, server.place)["models"])

    with contextlib.closing(server):
        models = server.run(read)
    if not models:
        raise FileError(f"the gallery in {server.place} does not say which model encoded it: name it with --model")
    return models


def check_gallery(connection: Any, place: str) -> None:
    """Raise an error if a database holds no gallery."""
    if not schema.exists(connection):
        raise FileError(f"there is no gallery in {place}: make one with vse-demo index")


class Server:
    """A connection to a database that is made again when it is lost, and closed when nobody holds this any longer.

    Args:
        address: See `PostgresGallery`.
        wait: Seconds before the second try; doubled each time.
    """

    def __init__(self, address: str, wait: float = 0.5):
        try:
            self._options = psycopg.conninfo.conninfo_to_dict(address)
        except psycopg.Error:
            raise FileError(
                "this is no address of a database; it should be like postgresql://user@host:5432/database"
            ) from None
        option = self._options.get
        self.place = (
            f"postgresql://{option('user', '')}@{option('host', '')}:{option('port', 5432)}/{option('dbname', '')}"
        )
        self.wait = wait
        self._connection: Any = None
        self._end: Callable[[], Any] = lambda: None  # of the connection
        self._reached = False  # once at least
        self._lock = threading.RLock()

    def run(self, action: Callable[[Any], Result]) -> Result:
        """Do something with the connection; again, from its beginning, if the connection was lost on the way.

        Raises:
            FileError: If that does not help.
        """
        with self._lock:
            for number in range(TRIES):
                try:
                    return action(self._connected())
                except (
                    psycopg.errors.UniqueViolation,
                    psycopg.errors.SerializationFailure,
                    psycopg.errors.DeadlockDetected,
                ) as problem:
                    failed: psycopg.Error = problem  # by one who writes without the queue
                except psycopg.OperationalError as problem:
                    failed = problem
                    if not self._is_lost(problem):
                        break
                    self.close()
                except psycopg.Error as problem:
                    failed = problem
                    break
                if number + 1 < TRIES:
                    time.sleep(self.wait * 2**number)
            raise FileError(f"{self.place}: {self._sentence(failed)}") from None

    def close(self) -> None:
        """Close the connection; the next action makes another."""
        with contextlib.suppress(psycopg.Error):
            self._end()
        self._connection = None

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            options = {"connect_timeout": 10, "application_name": "vse_demo", **self._options}
            self._connection = psycopg.connect(psycopg.conninfo.make_conninfo("", **options), autocommit=True)
            self._end = weakref.finalize(self, self._connection.close)
            with contextlib.suppress(psycopg.ProgrammingError):  # there is no pgvector yet
                register_vector(self._connection)
            self._reached = True
        return self._connection

    def _is_lost(self, problem: psycopg.Error) -> bool:
        """Whether trying again may help: the server is away or starting, not a wrong password or a full disk."""
        state = problem.sqlstate
        return self._reached and (state is None or (state[:2] in ("08", "57") and state != CANCELLED))

    def _sentence(self, problem: psycopg.Error) -> str:
        """What went wrong, in one line, without the password."""
        text = " ".join(str(problem).split())
        if password := self._options.get("password"):
            text = text.replace(str(password), "…")
        if isinstance(problem, psycopg.errors.DiskFull) and "/PostgreSQL." in text:  # how its shared memory is called
            return (
                "the server's shared memory (/dev/shm) is too small: give it more, as in docker run --shm-size=9g, or "
                f"let one process build the index (max_parallel_maintenance_workers = 0) ({text})"
            )
        if isinstance(problem, psycopg.errors.QueryCanceled):
            return f"the server ended what was asked of it, and it was not tried again ({text})"
        if isinstance(problem, psycopg.errors.DiskFull):
            return f"the server's disk is full; what was written before is safe ({text})"
        if isinstance(problem, psycopg.errors.InsufficientPrivilege):
            return f"this user may not do that: see docs/galleries.md for the rights that are needed ({text})"
        if isinstance(problem, psycopg.errors.FeatureNotSupported | psycopg.errors.UndefinedFile) and "vector" in text:
            return f"the server has no pgvector: install it there, see github.com/pgvector/pgvector ({text})"
        if isinstance(problem, psycopg.OperationalError):
            return f"the database cannot be reached or used: {text}"
        return text


def _entry(row: Sequence[Any]) -> Entry:
    digest, name, source, path, split, metadata, captions = row
    return Entry(digest, name, tuple(captions), unescape_path(source), unescape_path(path), split, metadata)


def _hit(row: Sequence[Any]) -> Hit:
    number, item, score, *about = row
    entry = _entry([*about, ()])
    return Hit(number, item, float(score), entry.name, entry.file, entry.digest)
