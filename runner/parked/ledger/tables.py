"""What a ledger consists of, table by table, for whoever takes all of it elsewhere: rows out of one, rows into another.

The notes of which migrations ran are none of it: the other ledger has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Protocol

from parked.errors import LedgerUnavailable

if TYPE_CHECKING:
    from parked.ledger.store import Reader

# Each behind those that its rows refer to.
TABLES: Final = (
    "ledger",
    "owners",
    "replays",
    "jobs",
    "payloads",
    "answers",
    "attempts",
    "counters",
    "gates",
    "pauses",
    "leases",
    "marks",
)

# Of a target that something was ever done with; what to name instead follows.
USED_BEFORE: Final = "was used before, and a copy goes into an empty ledger only; name"

Row = tuple[Any, ...]


class Rows(Protocol):
    """A ledger as one snapshot, to be read whole."""

    def rows(self, table: str) -> Generator[Row]:
        """All rows of a table in the order of its key; truth values may be 0 and 1. Counters are summed over slots.

        To be closed before the connection is: what is left of it then would be told to nobody but the terminal.
        """
        ...

    def last_ids(self) -> dict[str, int]:
        """The highest id that `owners`, `replays` and `jobs` ever gave out, where they gave out any."""
        ...


class Target(Protocol):
    """An empty ledger inside the one transaction that made it; what fills it is committed with it, or not at all."""

    def fill(self, table: str, rows: Iterable[Row]) -> None: ...
    def kept(self, row: Row) -> Row:
        """What comes back of a row that was put in here."""
        ...

    def go_on_from(self, last_ids: Mapping[str, int]) -> None:
        """Give none of these ids out again, nor one that was put in here, nor a place in line."""
        ...

    def reader(self) -> Reader:
        """To ask for what was put in so far. Not to be closed."""
        ...


class Explained:
    """Rows whose errors are explained by the database that they come from, and so can't be taken for the target's."""

    def __init__(self, rows: Rows, explain: Callable[[Exception], Exception]) -> None:
        self._rows = rows
        self._explain = explain

    def rows(self, table: str) -> Generator[Row]:
        try:
            yield from self._rows.rows(table)
        except Exception as exc:
            raise self._explain(exc) from exc

    def last_ids(self) -> dict[str, int]:
        try:
            return self._rows.last_ids()
        except Exception as exc:
            raise self._explain(exc) from exc


def take_over(source: Rows, target: Target, *, where: str) -> dict[str, int]:
    """Fill an empty ledger with all that another one holds, and hold every row against its original.

    `where` names the target for people. Returns how many rows of each table there are.

    Raises:
        LedgerUnavailable: a row doesn't come back as it went in.
    """
    for table in TABLES:
        with closing(source.rows(table)) as rows:
            target.fill(table, rows)
    target.go_on_from(source.last_ids())
    counts: dict[str, int] = {}
    copied = target.reader()
    for table in TABLES:
        counts[table] = 0
        with closing(source.rows(table)) as originals, closing(copied.rows(table)) as copies:
            for original, copy in zip_longest(originals, copies):
                if original is None or copy is None or target.kept(original) != copy:
                    raise LedgerUnavailable(
                        f"the copy in {where} was given up: a row of {table} did not come back as it went in"
                    )
                counts[table] += 1
    return counts
