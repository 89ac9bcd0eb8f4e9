"""A private PostgreSQL for tests, and a private PgBouncer before it: real ones, on loopback, gone at the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "test"
READY_WITHIN_S = 30.0


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


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


class Postgres:
    """A server that trusts everybody on loopback."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._bin = binaries()
        self._options = options
        self._env = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        # initdb and postgres refuse root.
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
            self._who = {"user": "postgres", "extra_groups": [], "cwd": folder}
        command: list[str | Path] = [
            self._bin / "initdb",
            "-D",
            folder / "data",
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=self._env, **self._who)
        self.start()

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
            "fsync": "off",
            "max_connections": "200",
            "log_min_messages": "panic",
        }
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

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str, *, user: str = USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

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


@contextmanager
def running(*options: str) -> Iterator[Postgres]:
    # Not in pytest's folders: those are closed to the user that the server runs as.
    folder = Path(tempfile.mkdtemp(prefix="parked-postgres-"))
    try:
        server = Postgres(folder, *options)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
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
