"""Commands in processes of their own, quick to start and told where to die, on either database."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from parked.job import State
from parked.ledger import Ledger, open_ledger
from parked.ledger.operations import JobRow
from parked.ledger.store import AttemptRow, Filters
from torture.nursery import Ended, Nursery, Started

PATIENCE_S = 60.0


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so that other processes bring about."""
    deadline, pause = time.monotonic() + PATIENCE_S, 0.01
    while not is_so():
        assert time.monotonic() < deadline, "it never came so"
        time.sleep(pause)


@dataclass
class Command:
    """A process of the nursery."""

    nursery: Commands
    name: str
    pid: int = 0
    status: int | None = None

    @property
    def said(self) -> str:
        log: Path = self.nursery.log(self.name)
        return log.read_text("utf-8", "replace")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, how)

    def end(self) -> int:
        """Wait for its end."""
        return self.nursery.end(self)


class Commands(Nursery):  # type: ignore[misc]  # mypy knows the modules of tests by longer names
    """Starts commands, and waits for what becomes of them."""

    def __init__(self, folder: Path, **env: str) -> None:
        super().__init__(folder, **env)
        self._commands: dict[str, Command] = {}
        self.env: dict[str, str] = {}

    def run(self, *words: str, die_at: str | None = None) -> Command:
        """Run a command to its end; with `die_at`, it must die there."""
        command = self.begin(*words, points=[die_at] if die_at else [])
        status = command.end()
        assert (status == -signal.SIGKILL) == (die_at is not None), f"{words} ended with {status}: {command.said}"
        return command

    def begin(self, *words: str, points: list[str] | None = None, **env: str) -> Command:
        command = Command(self, f"{words[1]}.{len(self._commands) + 1}")
        self._commands[command.name] = command
        self.start(command.name, list(words), self.env | env, points=points or [])
        while not command.pid:
            self._hear()
        return command

    def end(self, command: Command) -> int:
        while command.status is None:
            self._hear()
        return command.status

    def _hear(self) -> None:
        for news in self.hear():
            command = self._commands.get(news.name)
            if command is None:
                continue  # of an earlier test
            match news:
                case Started(pid=pid):
                    command.pid = pid
                case Ended(status=status):
                    command.status = status

    def on(self, url: str, api_url: str, folder: Path, **more: str) -> Commands:
        """From now on, on this ledger, with the simulator where the SDK looks for the API."""
        names = ("PATH", "HOME", "LANG", "TZ", "SSL_CERT_FILE")
        kept = {name: value for name, value in os.environ.items() if name in names}
        self.env = kept | {"PARKED_LEDGER": url, "GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": api_url} | more
        self.folder = folder
        return self

    def forget(self) -> None:
        """Kill what an earlier test has left."""
        for command in self._commands.values():
            if command.status is None:
                command.kill()
                command.end()
        self._commands.clear()


@pytest.fixture(scope="session")
def all_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.close()


@pytest.fixture
def commands(all_commands: Commands, url_on_each_database: str, simulator: Any, tmp_path: Path) -> Iterator[Commands]:
    """On an empty database, with the simulator."""
    yield all_commands.on(url_on_each_database, simulator.url, tmp_path)
    all_commands.forget()


@dataclass
class Books:
    """What a test reads of the ledger, which other processes write."""

    url: str
    open: list[Ledger] = field(default_factory=list)

    @property
    def ledger(self) -> Ledger:
        if not self.open:
            self.open.append(open_ledger(self.url, create=False, role="test"))
        return self.open[0]

    def jobs(self) -> dict[str, JobRow]:
        with self.ledger.ask() as reader:
            return {row.job_id: row for row in reader.jobs(Filters(), states=[s for s in State if s != "forgotten"])}

    def job(self, job_id: str = "job-0") -> JobRow:
        return self.jobs()[job_id]

    def state(self, job_id: str = "job-0") -> tuple[str, str | None]:
        """With its class."""
        row = self.job(job_id)
        return row.state.value, row.error_class

    def attempts(self, job_id: str = "job-0") -> list[AttemptRow]:
        with self.ledger.ask() as reader:
            return reader.attempts(self.job(job_id).id)

    def counted(self, metric: str) -> dict[tuple[str, str], float]:
        with self.ledger.ask() as reader:
            return {(row.a, row.b): row.value for row in reader.counters(metric) if row.value}

    def close(self) -> None:
        """The law of conservation holds at the end, whatever a test did."""
        for ledger in self.open:
            with ledger.ask() as reader:
                assert reader.imbalances(thorough=True) == []
            ledger.close()
        self.open.clear()


@pytest.fixture
def make_books() -> type[Books]:
    return Books


@pytest.fixture
def books(url_on_each_database: str) -> Iterator[Books]:
    books = Books(url_on_each_database)
    yield books
    books.close()


@pytest.fixture
def table(tmp_path: Path) -> Callable[[int], str]:
    """Returns a function that makes a file as `parked import` takes it over, with so many rows."""

    def make(rows: int) -> str:
        file = tmp_path / "dead_letter.db"
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(
                "CREATE TABLE dead_letter (job_id TEXT, payload TEXT, model TEXT, error_class TEXT, error_message TEXT,"
                " attempts INTEGER, parked_at TEXT)"
            )
            row = ('{"contents": "x"}', "m", "exhausted:503", "Overloaded.", 4, "2026-03-02 02:07")
            connection.executemany(
                "INSERT INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?)", [(f"job-{n}", *row) for n in range(rows)]
            )
        return str(file)

    return make
