"""How the schema of a ledger grows: numbered scripts, only ever added, each applied in one transaction with its note.

The first line of a script says whether programs that don't know it can go on using the ledger: `-- additive`, or
`-- breaking`. A new ledger runs them all, so that it can't differ from one that was upgraded.
"""

from __future__ import annotations

import random
import sqlite3
import string
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from parked.errors import LedgerMissing, LedgerTooNew, LedgerUnavailable
from parked.ledger.sqlite_file import APPLICATION_ID, CREATORS, patiently
from parked.ledger.statements import SQL_FOLDER, load, split
from parked.version import __version__


class Migration(NamedTuple):
    number: int
    title: str
    additive: bool
    statements: tuple[str, ...]


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The scripts of `sql/migrations/<dialect>/`, named `0001_title.sql`, in order."""
    return tuple(_read(file) for file in sorted((SQL_FOLDER / "migrations" / dialect).glob("*.sql")))


def _read(file: Path) -> Migration:
    number, _, title = file.stem.partition("_")
    script = file.read_text("utf-8")
    mark = script.partition("\n")[0]
    if mark not in ("-- additive", "-- breaking"):
        raise ValueError(f"the first line of {file.name} must be '-- additive' or '-- breaking', got {mark!r}")
    return Migration(int(number), title.replace("_", " "), mark == "-- additive", tuple(split(script)))


def bring_up_to_date(
    connection: sqlite3.Connection,
    path: Path,
    *,
    create: bool,
    upgrade: bool,
    now: float,
    steps: Sequence[Migration] | None = None,
) -> bool:
    """Apply what is missing; return True if the file was empty, so that the ledger was made here.

    Raises:
        LedgerMissing: the file is empty, and `create` is False.
        LedgerTooNew: a breaking step ran that this version doesn't know.
        LedgerUnavailable: the file is another program's, or steps are missing and `upgrade` is False.
    """
    if steps is None:
        steps = migrations("sqlite")
    # Patiently: whoever closes a ledger last locks it for a moment, to take its WAL in.
    applied = patiently(lambda: _applied(connection, path))
    if applied is not None and not _missing(steps, applied, path):
        return False
    if applied is None and not create:
        raise LedgerMissing(f"the file {path} is empty, so there is no ledger in it; {CREATORS}")
    if applied is not None and not upgrade:
        raise LedgerUnavailable(f"the ledger {path} was made by an older parked; upgrade it with `parked migrate`")
    # Taken by an empty file only. Two payloads of 2 KB don't fit into SQLite's 4 KB: this saves a third of the disk.
    connection.execute("PRAGMA page_size = 8192")
    patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))  # kept by the file; not in a transaction
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        applied = _applied(connection, path)  # another process may have been faster
        for step in _missing(steps, applied or {}, path):
            for statement in step.statements:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO schema_version (number, additive, title, applied_at, applied_by) VALUES (?, ?, ?, ?, ?)",
                (step.number, step.additive, step.title, now, __version__),
            )
        if applied is None:
            connection.execute(load("sqlite")["name_ledger"], {"name": new_name(), "now": now})
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return applied is None


def new_name() -> str:
    """A word that tells this ledger from others in metrics."""
    return "".join(random.SystemRandom().choices(string.ascii_lowercase, k=6))


def _applied(connection: sqlite3.Connection, path: Path) -> dict[int, bool] | None:
    """The steps that ran, and whether each was additive; None for an empty file."""
    if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
        return {
            number: bool(additive)
            for number, additive in connection.execute("SELECT number, additive FROM schema_version")
        }
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 3")]
    if tables:
        raise LedgerUnavailable(
            f"{path} is a database of another program (it has the table {tables[0]!r}); name another file for the"
            " ledger, or take over a dead_letter table with `parked import`"
        )
    return None


def _missing(steps: Sequence[Migration], applied: dict[int, bool], path: Path) -> list[Migration]:
    known = {step.number for step in steps}
    if any(number not in known and not additive for number, additive in applied.items()):
        raise LedgerTooNew(
            f"the ledger {path} was changed by a newer parked than {__version__}; upgrade parked to use it"
        )
    return [step for step in steps if step.number not in applied]
