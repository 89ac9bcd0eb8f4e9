"""A SQLite ledger as one more file, consistent while others write to it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from parked.errors import LedgerUnavailable, OutputFailed
from parked.ledger.newfile import new_file
from parked.ledger.sqlite_file import DEFAULT_MODE, connect, interruptibly, patiently

# What only the writing of the copy can meet, since the ledger itself is only read meanwhile.
_FULL: Final = "the disk is full"
WRITE_FAULTS: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR_WRITE: "the disk reports an I/O error, or the file may not grow that large",
    sqlite3.SQLITE_IOERR_FSYNC: "the disk reports an I/O error",
    sqlite3.SQLITE_IOERR_TRUNCATE: "the disk reports an I/O error",
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,
    sqlite3.SQLITE_IOERR_SHMMAP: "its file system has no shared memory, which a ledger needs",
}

NOT_WRITTEN: Final = "the copy can't be written: {}; nothing of it is left"


def write_copy(connection: sqlite3.Connection, file: Path) -> None:
    """Write the ledger as one snapshot into an empty file; others read and write meanwhile.

    VACUUM INTO, not SQLite's backup, which copies pages as they are: with what is left of erased texts in their free
    space, and with a damage that nobody has noticed yet. `connection` has no transaction open.

    Raises:
        OutputFailed: the file can't be written.
    """

    def write() -> None:
        os.truncate(file, 0)
        connection.execute("VACUUM INTO ?", (str(file),))

    try:
        interruptibly(connection, lambda: patiently(write))
    except sqlite3.Error as exc:
        why = WRITE_FAULTS.get(exc.sqlite_errorcode)
        if why is None:
            raise
        raise OutputFailed(NOT_WRITTEN.format(why)) from exc
    # It doesn't take this over. An older parked finds in the file what it would have made.
    with faults_of_copy(), closing(connect(file)) as copy:
        copy.execute("PRAGMA journal_mode = WAL")


@contextmanager
def faults_of_copy() -> Iterator[None]:
    """While nothing but a copy that is being made is written or read.

    Raises:
        OutputFailed: it can't be.
    """
    try:
        yield
    except sqlite3.Error as exc:
        why = WRITE_FAULTS.get(exc.sqlite_errorcode, "the disk reports an I/O error")
        raise OutputFailed(NOT_WRITTEN.format(why)) from exc


def keep_copy(connection: sqlite3.Connection, path: Path, step: int) -> Path:
    """Write the copy that is made before a breaking step, beside the ledger; return where it is.

    Raises:
        LedgerUnavailable: it can't be written, so that the step must not be made.
    """
    names = (Path(f"{path}.before-{step:04}{'' if n == 1 else f'.{n}'}") for n in count(1))
    file = next(name for name in names if not os.path.lexists(name))
    try:
        with new_file(file, mode=DEFAULT_MODE) as partial:
            write_copy(connection, partial)
    except OutputFailed as exc:
        raise LedgerUnavailable(f"the ledger {path} is not upgraded, since no copy of it can be kept: {exc}") from exc
    return file
