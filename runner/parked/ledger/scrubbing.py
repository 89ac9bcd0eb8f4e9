"""Removing the copies of erased texts that SQLite leaves behind in its files."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from parked.ledger.sqlite_file import PATIENCE_S, connect, interruptibly, patiently

WAL_PATIENCE_MS: Final = 5_000  # how long one try keeps writers waiting for readers of old pages


def scrub(path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> bool:
    """Rewrite the database and empty its WAL; False if others went on reading old pages for 30 s: the WAL stays.

    `secure_delete` isn't enough: when SQLite moves rows from a full page to its neighbour, their bytes stay behind in
    what is now free space of the page, until another row takes it (measured: of 3,000 texts that were erased with it
    on, 130 were still in the file). Writers wait meanwhile, about 10 s for each GB; readers don't.
    """
    connection = connect(path)
    try:
        interruptibly(connection, lambda: patiently(lambda: connection.execute("VACUUM"), monotonic=monotonic))
        deadline = monotonic() + PATIENCE_S
        while not _empty_wal(connection):
            if monotonic() >= deadline:
                return False
    finally:
        connection.close()
    return True


def _empty_wal(connection: sqlite3.Connection) -> bool:
    """Take the whole WAL in and cut it to nothing.

    With SQLite's own patience: a TRUNCATE that gets the write lock is safe from the defect that `SqliteStore` works
    around, and one that doesn't wait for it becomes a PASSIVE one, which isn't.
    """
    connection.execute(f"PRAGMA busy_timeout = {WAL_PATIENCE_MS}")
    try:
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.OperationalError:  # another process takes the WAL in just now
        return False
    return busy == 0
