"""The schema of a SQLite ledger, as `migrations` sees it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from parked.errors import LedgerUnavailable
from parked.ledger.sqlite_copy import keep_copy
from parked.ledger.sqlite_file import APPLICATION_ID, CREATORS, NO_SHARED_MEMORY, connect, patiently
from parked.ledger.statements import load


class SqliteSchema:
    """See `Schema`. `clock` says when a step was applied, in UTC epoch seconds."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, clock: Callable[[], float]) -> None:
        self.where = str(path)
        self._path = path
        self.missing = f"the file {path} is empty, so there is no ledger in it; {CREATORS}"
        self._connection = connection
        self._clock = clock
        self._sql = load("sqlite")

    def applied(self) -> dict[int, bool] | None:
        # Patiently: whoever closes a ledger last locks it for a moment, to take its WAL in.
        return patiently(self._applied)

    def _applied(self) -> dict[int, bool] | None:
        if self._connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            return {number: bool(additive) for number, additive in self._connection.execute(self._sql["applied_steps"])}
        tables = [name for (name,) in self._connection.execute(self._sql["tables"])]
        if tables:
            raise LedgerUnavailable(
                f"{self.where} is a database of another program (it has the table {tables[0]!r}); name another file for"
                " the ledger, or take over a dead_letter table with `parked import`"
            )
        return None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        # Taken by an empty file only. Two payloads of 2 KB don't fit into SQLite's 4 KB: this saves a third of disk.
        self._connection.execute("PRAGMA page_size = 8192")
        self.see_to_wal()
        patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # A full disk has rolled it back already; whatever else goes wrong here, the first error is the one to tell.
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def see_to_wal(self) -> None:
        """The file keeps that it is in WAL mode; one that `.recover` or another tool wrote isn't.

        Raises:
            LedgerUnavailable: it can't be, where it is.
        """
        (mode,) = patiently(lambda: self._connection.execute("PRAGMA journal_mode").fetchone())
        if mode != "wal":
            (mode,) = patiently(lambda: self._connection.execute("PRAGMA journal_mode = WAL").fetchone())
        if mode != "wal":
            raise LedgerUnavailable(f"the ledger {self.where} {NO_SHARED_MEMORY}")

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def note(self, number: int, *, additive: bool, title: str, applied_by: str) -> None:
        values = {"number": number, "additive": additive, "title": title, "by": applied_by, "now": self._clock()}
        self._connection.execute(self._sql["note_step"], values)

    def give_name(self, name: str) -> None:
        self._connection.execute(self._sql["name_ledger"], {"name": name, "now": self._clock()})

    def keep_copy(self, step: int) -> Path:
        with closing(connect(self._path)) as connection:
            return keep_copy(connection, self._path, step)

    def users(self) -> list[str]:
        return [f"{host} pid {pid} ({version})" for host, pid, version in self._connection.execute(self._sql["users"])]
