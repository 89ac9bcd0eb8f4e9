"""An index that may outgrow memory: an unnamed SQLite database, private to its process and gone with it."""

from __future__ import annotations

import sqlite3
from typing import Final

from parked.errors import OutputFailed

# 1,000,000 ids need about 100 MB; what doesn't fit in here goes to an unlinked file of mode 0600 in TMPDIR. A run has
# two such indexes; with 1 MiB each, 200,000 jobs took as long as with 8 MiB.
CACHE_KIB: Final = 2048


def spilling_index(schema: str) -> sqlite3.Connection:
    """Return a connection to an empty database with these tables. For one thread; closing it drops everything.

    All is one transaction that never ends, so that a row costs no commit.

    Raises:
        OutputFailed: no folder for temporary files can be written.
    """
    try:
        index = sqlite3.connect("", isolation_level=None)
        index.execute("PRAGMA journal_mode = OFF")
        index.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        index.execute("BEGIN")
        for statement in schema.split(";"):
            index.execute(statement)
    except sqlite3.OperationalError as exc:
        raise OutputFailed(f"can't make a temporary index ({exc}); is the folder in TMPDIR writable?") from exc
    return index
