"""The schema of a PostgreSQL ledger, as `migrations` sees it: all tables stand in the schema `parked`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

from parked.errors import LedgerUnavailable
from parked.ledger.postgres_server import BEGIN, GRANTS, SET_UP
from parked.ledger.sqlite_file import CREATORS
from parked.ledger.statements import load

MIGRATING: Final = b"SELECT pg_advisory_xact_lock(1885434475, 1)"  # "park" in ASCII: one migrates at a time
SCHEMA_EXISTS: Final = b"SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'parked'"
CREATE_SCHEMA: Final = b"CREATE SCHEMA parked"

MAY_NOT_UPGRADE: Final = (
    "may not create or upgrade the ledger in {where}; have a role that may run `parked migrate` once"
)


class PostgresSchema:
    """See `Schema`."""

    def __init__(
        self, connection: psycopg.Connection[tuple[Any, ...]], where: str, *, denied: str = MAY_NOT_UPGRADE
    ) -> None:
        """`denied` is what to say, about `{where}`, to a role that lacks a right in a transaction."""
        self.where = where
        self._denied = denied
        self.missing = f"there is no ledger in {where}; {CREATORS}"
        self._connection = connection
        self._sql = {name: text.encode() for name, text in load("postgres").items()}
        self._now = 0.0  # the server's clock, UTC epoch seconds; set when the transaction begins

    def applied(self) -> dict[int, bool] | None:
        tables = [name for (name,) in self._connection.execute(self._sql["tables"])]
        if not tables:
            return None
        if tables[0] != "schema_version":
            raise LedgerUnavailable(
                f"the schema 'parked' of {self.where} is another program's (it has the table {tables[0]!r}); name"
                " another database for the ledger"
            )
        return dict(self._connection.execute(self._sql["applied_steps"]).fetchall())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Raises:
        LedgerUnavailable: the role may not create or change tables.
        """
        self._now, _ = set_up(begin(self._connection))
        try:
            self._connection.execute(MIGRATING)
            if self._connection.execute(SCHEMA_EXISTS).fetchone() is None:
                self._connection.execute(CREATE_SCHEMA)
            yield
            self._connection.execute(b"COMMIT")
        except psycopg.errors.InsufficientPrivilege as exc:
            self._roll_back()
            raise LedgerUnavailable(f"this role {self._denied.format(where=self.where)} ({GRANTS})") from exc
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with suppress(psycopg.Error):  # the connection is gone: then the transaction is, too
            self._connection.execute(b"ROLLBACK")

    def run(self, statement: str) -> None:
        self._connection.execute(statement.encode())

    def note(self, number: int, *, additive: bool, title: str, applied_by: str) -> None:
        values = {"number": number, "additive": additive, "title": title, "by": applied_by, "now": self._now}
        self._connection.execute(self._sql["note_step"], values)

    def give_name(self, name: str) -> None:
        self._connection.execute(self._sql["name_ledger"], {"name": name, "now": self._now})

    def keep_copy(self, step: int) -> None:
        return None

    def users(self) -> list[str]:
        return [f"{host} pid {pid} ({version})" for host, pid, version in self._connection.execute(self._sql["users"])]


def begin(connection: psycopg.Connection[tuple[Any, ...]]) -> psycopg.Cursor[tuple[Any, ...]]:
    """Begin a transaction that writes; in a pipeline nothing is waited for. `set_up` takes what is returned."""
    connection.execute(BEGIN, prepare=False)
    return connection.execute(SET_UP)


def set_up(answer: psycopg.Cursor[tuple[Any, ...]]) -> tuple[float, str]:
    """Return the server's time (UTC epoch seconds) and the transaction's id."""
    row = answer.fetchone()
    assert row is not None
    return row[0], row[1]
