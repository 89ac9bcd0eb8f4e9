"""A ledger taken elsewhere: kept as a file while it is in use, or moved into another database.

A copy goes by the same word in metrics: it is the same ledger at another time, or in another place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from parked.errors import LedgerTooNew, LedgerUnavailable, SettingsError
from parked.job import State
from parked.ledger import Ledger, open_ledger
from parked.ledger.databases import locate
from parked.ledger.newfile import new_file
from parked.ledger.operations import OwnerRow
from parked.ledger.postgres_server import GRANTS, MAY_NOT_FILL
from parked.ledger.sqlite import SqliteReader
from parked.ledger.sqlite_copy import faults_of_copy
from parked.ledger.sqlite_file import DEFAULT_MODE
from parked.ledger.store import Database, Denied, Filters, Reader
from parked.ledger.tables import Explained, take_over
from parked.owners import BEAT_S, LOST_AFTER_S

LOOK_AGAIN_S: Final = 1.0


class Kept(NamedTuple):
    """What a backup holds."""

    ledger: str  # its full name
    file: Path
    bytes: int
    jobs: int


class Moved(NamedTuple):
    """What a copy holds; both sides by their full names."""

    source: str
    target: str
    rows: dict[str, int]  # by table


def backup(url: str, file: Path) -> Kept:
    """Write a ledger that may be in use, as it is at one moment, into a SQLite file of mode 0600.

    Raises:
        SettingsError: the URL is none that parked understands, or the file is there already.
        LedgerMissing: there is no ledger.
        LedgerUnavailable: it can't be read, or is damaged.
        OutputFailed: the file can't be written; nothing of it is left.
    """
    database = locate(url)
    file = file.absolute()
    with new_file(file, mode=DEFAULT_MODE) as partial:
        with _explained(database):
            database.write_copy(partial)
        with faults_of_copy(), closing(SqliteReader.of(partial)) as reader:
            jobs = reader.count(Filters(), states=tuple(State))
        size = partial.stat().st_size
    return Kept(database.where, file, size, jobs)


def copy(
    source_url: str,
    target_url: str,
    *,
    mode: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> Moved:
    """Take all of a ledger that nobody uses over into an empty database or a missing file, checked on both sides.

    `mode` is that of a SQLite file which is made.

    Raises:
        SettingsError: a URL is none that parked understands, both name the same, or the target was used before.
        LedgerMissing: there is no source.
        LedgerTooNew: a newer parked has changed the source: some of it would be left behind.
        LedgerUnavailable: the source is in use or its law doesn't hold, or one of both can't be read or written. There
            is nothing in the target then.
    """
    source, target = locate(source_url), locate(target_url, mode=mode)
    if source.where == target.where:
        raise SettingsError(f"{source.where} can't be copied into itself; name another database")
    with open_ledger(source_url, create=False, role="copy") as ledger:
        _wait_until_unused(ledger, sleep=sleep, monotonic=monotonic)
    with _explained(target), target.to_be_filled() as filling:
        with _explained(source), source.alone(), closing(source.reader()) as reader:
            _check_source(reader, source)
            with _explained(target, fills=True):  # first: by the source, a disk that the target fills would be its own
                rows = take_over(Explained(reader, source.explain), filling, where=target.where)
        if filling.reader().imbalances(thorough=True):
            raise LedgerUnavailable(f"the copy in {target.where} was given up: it doesn't account for every job")
    return Moved(source.where, target.where, rows)


def _check_source(reader: Reader, source: Database) -> None:
    """See, once nobody can write any more, that all of the source can be taken over."""
    _refuse_used(source.where, [owner for owner in reader.owners() if _is_alive(owner)])
    if reader.unknown_steps():
        raise LedgerTooNew(f"the ledger {source.where} was changed by a newer parked; upgrade parked to copy it")
    if reader.imbalances(thorough=True):
        raise LedgerUnavailable(
            f"the ledger {source.where} doesn't account for every job, so it is not copied; `parked audit` names them"
        )


def _wait_until_unused(ledger: Ledger, *, sleep: Callable[[float], None], monotonic: Callable[[], float]) -> None:
    """Wait for those that are no more to be declared lost, as all that write do; refuse whoever beats."""
    until = monotonic() + LOST_AFTER_S + 2 * BEAT_S
    first_beats: dict[int, int] = {}
    while True:
        ledger.sweep()
        with ledger.ask() as reader:
            others = [owner for owner in reader.owners() if _is_alive(owner) and owner.id != ledger.owner_id]
        if not others:
            return
        beating = [owner for owner in others if owner.beat != first_beats.setdefault(owner.id, owner.beat)]
        if beating or monotonic() >= until:
            _refuse_used(ledger.where, beating or others)
        sleep(LOOK_AGAIN_S)


def _refuse_used(where: str, owners: list[OwnerRow]) -> None:
    if owners:
        users = ", ".join(f"{owner.facts.host} pid {owner.facts.pid} ({owner.facts.role})" for owner in owners)
        raise LedgerUnavailable(
            f"the ledger {where} is still used by {users}; end them first. For a copy of a ledger in use there is"
            " `parked backup`"
        )


def _is_alive(owner: OwnerRow) -> bool:
    return owner.ended_at is None and owner.lost_at is None


@contextmanager
def _explained(database: Database, *, fills: bool = False) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        explained = database.explain(exc)
        if fills and isinstance(explained, Denied) and explained is not exc:
            explained = LedgerUnavailable(f"this role {MAY_NOT_FILL.format(where=database.where)} ({GRANTS})")
        if explained is exc:
            raise
        raise explained from exc
