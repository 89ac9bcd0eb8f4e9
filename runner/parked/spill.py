"""An index that may outgrow memory: an unnamed SQLite database, private to its process and gone with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from parked.errors import OutputFailed

# 1,000,000 ids need about 100 MB; what doesn't fit in here goes to an unlinked file of mode 0600 in TMPDIR. A run has
# two such indexes; with 1 MiB each, 200,000 jobs took as long as with 8 MiB.
CACHE_KIB: Final = 2048


class SpillingIndex:
    """An empty database with these tables. For one thread; closing it drops everything.

    All is one transaction that never ends, so that a row costs no commit. Every method raises `OutputFailed` if the
    folder for temporary files can't be written.
    """

    def __init__(self, schema: str) -> None:
        with _told():
            self._connection = sqlite3.connect("", isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = OFF")
            self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._connection.execute("BEGIN")
            for statement in schema.split(";"):
                self._connection.execute(statement)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        with _told():
            return self._connection.execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with _told():
            self._connection.executemany(sql, rows)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise OutputFailed(
            f"can't keep an index of what was read in the folder for temporary files ({exc}); make room there, or name"
            " another in TMPDIR"
        ) from exc
