"""A private PostgreSQL for tests, a private PgBouncer before it, and a Redis: real ones, on loopback, gone at the end.

And where files of tests and servers are kept meanwhile.
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "test"
READY_WITHIN_S = 30.0
# For what is promised within a second, on a machine that does ten other things.
IN_A_SECOND_S = 8.0
MEMORY, ROOM_BYTES = Path("/dev/shm"), 2 << 30


def missing(what: str) -> None:
    """Skip on a laptop, fail in CI: there a missing server would let half of the suite pass unseen."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing; .ci/run installs it", pytrace=False)
    pytest.skip(f"{what} is missing")


def binaries() -> Path:
    """The folder of `initdb` and `postgres`."""
    pg_config = shutil.which("pg_config")
    folders = [Path(subprocess.check_output([pg_config, "--bindir"], text=True).strip())] if pg_config else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = next((folder for folder in folders if (folder / "initdb").exists()), None)
    if found is None:
        missing("PostgreSQL")
    assert found is not None
    return found


def memory() -> Path | None:
    """A folder whose files are kept in memory, if there is one with room; whoever needs no disk is quicker there."""
    there = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    return MEMORY if there else None


def pytest_configure() -> None:
    """Files of tests are kept in memory: most of their time would go into syncs, and none of them takes the power away.

    `PYTEST_DEBUG_TEMPROOT` says otherwise.
    """
    if (folder := memory()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))


def free_port() -> int:
    """A port that still is free when a server comes to listen on it.

    The kernel gives ports from 32768 on to all who ask for any, and tests that run side by side ask all the time.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Postgres:
    """A server that trusts everybody on loopback."""

    def __init__(
        self, folder: Path, *options: str, standby_of: Postgres | None = None, is_durable: bool = False
    ) -> None:
        self.port = free_port()
        self._folder = folder
        self._bin = binaries()
        self._options = options
        self._is_durable = is_durable
        self._env = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        # initdb and postgres refuse root.
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
            self._who = {"user": "postgres", "extra_groups": [], "cwd": folder}
        command = self._initdb() if standby_of is None else self._base_backup(standby_of)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=self._env, **self._who)
        self.start()

    def _initdb(self) -> list[str | Path]:
        folder = self._folder / "data"
        return [self._bin / "initdb", "-D", folder, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"]

    def _base_backup(self, primary: Postgres) -> list[str | Path]:
        source = f"host=127.0.0.1 port={primary.port} user={USER}"
        return [self._bin / "pg_basebackup", "-D", self._folder / "data", "-d", source, "-R", "-c", "fast", "--no-sync"]

    def start(self) -> None:
        self._launch()
        wait_until(self._is_up)

    def _is_up(self) -> bool:
        """What is left of a server that was killed may hold its memory for a moment, and keep the next one from it."""
        if self._process.poll() is not None:
            self._launch()
        return self.is_ready()

    def _launch(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "log_min_messages": "panic",
        }
        settings |= {"fsync": "on"} if self._is_durable else {"fsync": "off", "max_wal_size": "128MB"}
        chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self._folder / "data", "-p", str(self.port), *chosen, *self._options],
            env=self._env,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that `kill` reaches all of it
            **self._who,
        )

    def kill(self) -> None:
        """SIGKILL for the server and all of its processes at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        self._process.send_signal(how)
        self._process.wait()

    def promote(self) -> None:
        """Make a standby the primary."""
        self.run("SELECT pg_promote()")

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str, *, user: str = USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def use_tls(self, *, key: Path, certificate: Path) -> None:
        """Have it speak TLS, too, with a key that only the server may read."""
        for source, name in ((key, "server.key"), (certificate, "server.crt")):
            target = self._folder / "data" / name
            target.touch(0o600)
            target.write_bytes(source.read_bytes())
            if self._who:
                shutil.chown(target, "postgres")
        self.run("ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")

    @contextmanager
    def asking_for_passwords(self, user: str) -> Iterator[None]:
        """While this is open, the server asks that user for a password."""
        file = self._folder / "data" / "pg_hba.conf"
        before = file.read_text("utf-8")
        file.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{before}", "utf-8")
        self.run("SELECT pg_reload_conf()")
        wait_until(lambda: self._is_asked_for(user))
        try:
            yield
        finally:
            file.write_text(before, "utf-8")
            self.run("SELECT pg_reload_conf()")

    def _is_asked_for(self, user: str) -> bool:
        try:
            psycopg.connect(self.url("postgres", user=user)).close()
        except psycopg.OperationalError as exc:
            return "password" in str(exc)
        return False

    def files(self) -> Iterator[bytes]:
        """What stands in the files of all tables."""
        for file in sorted((self._folder / "data" / "base").glob("*/*")):
            yield file.read_bytes()

    def run(self, *statements: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


class Wire:
    """Passes bytes on to a server until it is cut, falls silent, or swallows what the server says of a commit."""

    def __init__(self, port: int) -> None:
        self.to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.lose_next_commit = False  # on its way to the server
        self.swallow_next_commit = False  # the server's answer to it
        self.commits_swallowed = 0
        self.is_down_after_that = False
        self.is_down = False  # who comes now is turned away
        self._speaks = threading.Event()
        self._speaks.set()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def cut(self) -> None:
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def fall_silent(self) -> None:
        """From now on nothing is passed on, either way; connections stay open, and new ones are taken."""
        self._speaks.clear()

    def speak_again(self) -> None:
        self._speaks.set()

    def close(self) -> None:
        self.is_down = True
        self._speaks.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(READY_WITHIN_S)

    def _accept(self) -> None:
        with self._listening, suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.is_down:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                self._threads.append(threading.Thread(target=self._carry, args=(client, server)))
                self._threads[-1].start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        swallows = False
        with client, server, suppress(OSError):
            while True:
                for end in select.select([client, server], [], [])[0]:
                    self._speaks.wait()
                    chunk = end.recv(65536)
                    if not chunk:
                        return
                    if swallows and end is server:  # it has committed
                        self.commits_swallowed += 1
                        self.is_down |= self.is_down_after_that
                        return
                    if end is client and b"COMMIT\0" in chunk:  # not READ COMMITTED
                        if self.lose_next_commit:
                            self.lose_next_commit = False
                            self.is_down |= self.is_down_after_that
                            return
                        swallows, self.swallow_next_commit = self.swallow_next_commit, False
                    (server if end is client else client).sendall(chunk)


class PgBouncer:
    """A pooler in transaction mode: two connections to the server for all who come."""

    def __init__(self, folder: Path, server: Postgres) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            missing("PgBouncer")
        assert program is not None
        self.port = free_port()
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user={USER}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 2\n",
            "utf-8",
        )
        who: dict[str, Any] = {}
        if os.geteuid() == 0:
            for path in (folder, settings):
                shutil.chown(path, "postgres")
            who = {"user": "postgres", "extra_groups": [], "cwd": folder}
        self._process = subprocess.Popen([program, "-q", settings], stderr=subprocess.DEVNULL, **who)
        wait_until(self.is_ready)

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Redis:
    """A broker for Celery: a Redis that keeps nothing on the disk."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            missing("Redis")
        assert program is not None
        self.port = free_port()
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", folder)
        self._process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        wait_until(self._is_ready)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def running(*options: str, standby_of: Postgres | None = None, is_durable: bool = False) -> Iterator[Postgres]:
    """A server of one's own.

    A durable one keeps its files on the disk, and syncs them. To make a ledger costs any other half as much in memory.
    """
    # Not in pytest's folders: those are closed to the user that the server runs as.
    folder = Path(tempfile.mkdtemp(prefix="parked-postgres-", dir=None if is_durable else memory()))
    try:
        server = Postgres(folder, *options, standby_of=standby_of, is_durable=is_durable)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def wait_until(is_so: Callable[[], bool], *, within_s: float = READY_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "the server did not get ready in time"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests of a session. Each test has its one database `ledger` for itself."""
    with running() as server:
        server.run("CREATE DATABASE ledger")
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """A database without a ledger, and nobody connected to it."""
    postgres.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'ledger' AND pid <> pg_backend_pid()",
        "DROP SCHEMA IF EXISTS parked CASCADE",
        database="ledger",
    )
    return postgres.url("ledger")


@pytest.fixture
def roles(postgres: Postgres, postgres_url: str) -> Iterator[None]:
    """The roles of docs/postgres.md, made by its own statements."""
    page = (Path(__file__).parents[1] / "docs" / "postgres.md").read_text("utf-8")
    script = "\n".join(re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    names = re.findall(r"^CREATE ROLE (\w+)", script, re.MULTILINE)
    assert len(names) == 3
    postgres.run(*(statement for statement in script.split(";\n") if statement.strip()), database="ledger")
    yield
    postgres.run(*(f"DROP OWNED BY {name} CASCADE" for name in names), database="ledger")
    postgres.run(*(f"DROP ROLE {name}" for name in names), database="ledger")


# For a test that looks into the file of the ledger.
sqlite_only = pytest.mark.parametrize("url_on_each_database", ["sqlite"], indirect=True)


@pytest.fixture(params=["sqlite", "postgres"])
def url_on_each_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """For modules that test what stands above the ledger; the ledger's own suite runs on both anyway."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/parked.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], bytes]:
    """Returns a function that reads all that the database of a test has on disk, but for PostgreSQL's log of changes.

    Which database that is its parameters say, by whatever name.
    """
    if "postgres" not in request.node.callspec.params.values():
        return lambda: b"".join(file.read_bytes() for file in sorted(tmp_path.glob("parked.db*")))
    server: Postgres = request.getfixturevalue("postgres")

    def read() -> bytes:
        server.run("CHECKPOINT")  # writes what is in memory, and removes what was dropped
        return b"".join(server.files())

    return read


@pytest.fixture
def wire(postgres: Postgres) -> Iterator[Wire]:
    """A way to the same server that a test can break."""
    wire = Wire(postgres.port)
    yield wire
    wire.close()


@pytest.fixture
def pooled_url(postgres: Postgres, postgres_url: str) -> Iterator[str]:
    """The same database through PgBouncer in transaction mode."""
    folder = Path(tempfile.mkdtemp(prefix="parked-pgbouncer-"))
    try:
        pooler = PgBouncer(folder, postgres)
        try:
            yield pooler.url("ledger")
        finally:
            pooler.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """A real OTLP receiver that prints the spans it gets; returns its address and a function that ends it."""
    import rotel

    http, grpc = free_port(), free_port()
    printed: list[str] = []
    process = subprocess.Popen(
        [
            str(Path(rotel.__file__).parent / "rotel-agent"), "start", "--exporter", "blackhole",
            "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
            "--debug-log", "traces", "--debug-log-verbosity", "detailed", "--pid-file", str(tmp_path / "rotel.pid"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    reader = threading.Thread(target=printed.extend, args=(process.stdout,), daemon=True)
    reader.start()
    _wait_for_port(http)

    def received() -> str:
        process.terminate()
        process.wait(20)
        reader.join(20)
        return "".join(printed)

    yield f"http://127.0.0.1:{http}", received
    process.kill()
    process.wait()
    process.stdout.close()


def _wait_for_port(port: int, timeout_s: float = 20.0) -> None:
    ends, pause = time.monotonic() + timeout_s, threading.Event()
    while time.monotonic() < ends:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        pause.wait(0.02)
    raise AssertionError(f"nothing listens on port {port}")
