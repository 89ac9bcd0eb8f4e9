"""How the schema of a ledger grows: numbered scripts, only ever added, each applied in one transaction with its note.

The first line of a script says whether programs that don't know it can go on using the ledger: `-- additive`, or
`-- breaking`. A new ledger runs them all, so that it can't differ from one that was upgraded.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from parked.errors import LedgerMissing, LedgerTooNew, LedgerUnavailable
from parked.ledger.statements import SQL_FOLDER, split
from parked.version import __version__


class Upgrade(Enum):
    """Which missing steps may be applied to a ledger that is there already."""

    NONE = auto()
    ADDITIVE = auto()
    ALL = auto()


class Schema(Protocol):
    """A database as its migrations see it, on a connection of its own."""

    @property
    def where(self) -> str: ...  # how people are told which ledger
    @property
    def missing(self) -> str: ...  # what to say if there is no ledger in it, and none may be made
    def applied(self) -> dict[int, bool] | None:
        """The steps that ran, and whether each was additive; None if there is no ledger in it."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction, committed at its end, while nobody else migrates."""
        ...

    def run(self, statement: str) -> None: ...
    def note(self, number: int, *, additive: bool, title: str, applied_by: str) -> None: ...
    def give_name(self, name: str) -> None: ...
    def users(self) -> list[str]:
        """The owners that are neither ended nor lost, for people: `host pid 7 (0.1)`."""
        ...

    def keep_copy(self, step: int) -> Path | None:
        """Inside the transaction, before anything is changed: keep the ledger as it is, and return the file.

        None: whoever runs the server sees to its backups.
        """
        ...


class Migration(NamedTuple):
    number: int
    title: str
    additive: bool
    statements: tuple[str, ...]


class Upgraded(NamedTuple):
    created: bool  # there was nothing: the ledger was made here
    steps: tuple[Migration, ...]  # that were applied
    copy: Path | None = None  # the ledger as it was before them, where one was breaking


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


def bring_up_to_date(schema: Schema, *, create: bool, upgrade: Upgrade, steps: Sequence[Migration]) -> Upgraded:
    """Apply what is missing.

    Raises:
        LedgerMissing: there is no ledger, and `create` is False.
        LedgerTooNew: a breaking step ran that this version doesn't know.
        LedgerUnavailable: it is another program's; or steps are missing that may not be applied (now).
    """
    applied = schema.applied()
    if applied is None and not create:
        raise LedgerMissing(schema.missing)
    if applied is not None:
        lacking = _lacking(steps, applied, schema)
        if not lacking:
            return Upgraded(False, ())
        _refuse(lacking, upgrade, schema)
    copy: Path | None = None
    try:
        with schema.transaction():
            applied = schema.applied()  # another process may have been faster
            lacking = _lacking(steps, applied or {}, schema)
            if applied is not None and not all(step.additive for step in lacking):
                _refuse(lacking, upgrade, schema)  # nor did anybody come meanwhile
                copy = schema.keep_copy(lacking[0].number)
            return apply(schema, steps)._replace(copy=copy)
    except BaseException:
        if copy is not None:  # nothing has happened, so there is no before
            copy.unlink(missing_ok=True)
        raise


def apply(schema: Schema, steps: Sequence[Migration]) -> Upgraded:
    """Apply what is missing, inside a transaction. A new ledger gets its word."""
    applied = schema.applied()
    lacking = _lacking(steps, applied or {}, schema)
    for step in lacking:
        for statement in step.statements:
            schema.run(statement)
        schema.note(step.number, additive=step.additive, title=step.title, applied_by=__version__)
    if applied is None:
        schema.give_name(new_name())
    return Upgraded(applied is None, tuple(lacking))


def new_name() -> str:
    """A word that tells this ledger from others in metrics."""
    return "".join(random.SystemRandom().choices(string.ascii_lowercase, k=6))


def _lacking(steps: Sequence[Migration], applied: Mapping[int, bool], schema: Schema) -> list[Migration]:
    known = {step.number for step in steps}
    if any(number not in known and not additive for number, additive in applied.items()):
        raise LedgerTooNew(
            f"the ledger {schema.where} was changed by a newer parked than {__version__}; upgrade parked to use it"
        )
    return [step for step in steps if step.number not in applied]


def _refuse(lacking: Sequence[Migration], upgrade: Upgrade, schema: Schema) -> None:
    breaking = any(not step.additive for step in lacking)
    if upgrade is Upgrade.NONE or (breaking and upgrade is Upgrade.ADDITIVE):
        raise LedgerUnavailable(
            f"the ledger {schema.where} was made by an older parked; upgrade it with `parked migrate`"
        )
    # Whoever goes on with the older version would find another ledger under its hands.
    if breaking and (users := schema.users()):
        raise LedgerUnavailable(
            f"the ledger {schema.where} is to be changed in a way that older programs can't follow, and is still used"
            f" by {', '.join(users)}; end them first, then run `parked migrate`"
        )
