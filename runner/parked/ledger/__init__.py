"""The ledger: where every job is, durably, until somebody deals with it. Open one with `open_ledger`."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from parked import owners
from parked.arguments import check_seconds, check_whole_number
from parked.errors import LedgerUnavailable, OwnerLost
from parked.ledger.databases import locate
from parked.ledger.migrations import Upgraded
from parked.ledger.operations import (
    Beat,
    EnterRun,
    JobRow,
    Leave,
    LeaveRun,
    Lose,
    Operation,
    Outcome,
    OwnerRow,
    Register,
    Release,
    Run,
)
from parked.ledger.pulse import Pulse
from parked.ledger.store import Database, Reader
from parked.ledger.vault import PLAIN_VAULT, Vault, vault_of
from parked.ledger.writer import Channel, Ticket, Writer

__all__ = ["Channel", "Ledger", "Ticket", "full_name", "look_into", "migrate", "open_ledger"]


def open_ledger(
    url: str | None = None,
    *,
    create: bool = True,
    migrate: bool = True,
    role: str = "runner",
    mode: int | None = None,
    write_patience_s: float | None = None,
    vault: Vault | None = None,
    clock: Callable[[], float] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Ledger:
    """Open a ledger: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://user@host/database`.

    With `create`, one that is missing is made: a SQLite file with this `mode`, or the schema `parked` where the role
    may. `migrate` upgrades an older one, on PostgreSQL by additive steps only. `role` says what this process is to the
    others (`runner`, `replay`, `sidecar`). An outcome that can't be written is tried again for `write_patience_s`.
    `clock` gives UTC epoch seconds, which are stored; None: this machine's for SQLite, the server's for PostgreSQL.
    `vault` says how texts are kept. What else is None comes from the settings: `PARKED_LEDGER` (`sqlite:///parked.db`),
    `PARKED_LEDGER_MODE` (0600), `PARKED_WRITE_PATIENCE_S` (900), `PARKED_STORE` (plain) and its keys.

    Raises:
        SettingsError: the URL is none that parked understands, or a setting is wrong.
        LedgerMissing: there is none, and `create` is False.
        LedgerTooNew: a newer parked has changed it in a way that this version can't follow.
        LedgerUnavailable: it can't be read and written.
    """
    if url is None or mode is None or write_patience_s is None or vault is None:
        from parked.settings import Settings, warn_unknown

        warn_unknown()
        settings = Settings.load()
        url = settings.ledger if url is None else url
        mode = settings.ledger_mode if mode is None else mode
        write_patience_s = settings.write_patience_s if write_patience_s is None else write_patience_s
        vault = vault_of(settings) if vault is None else vault
    check_whole_number("mode", mode, at_least=0)
    check_seconds("write_patience_s", write_patience_s, zero=True)
    database = locate(url, mode=mode, vault=vault, clock=clock, monotonic=monotonic)
    try:
        created = database.prepare(create=create, upgrade=migrate)
        database.check_place()
    except Exception as exc:
        raise database.explain(exc) from exc
    return Ledger(database, vault, created=created, role=role, write_patience_s=write_patience_s, monotonic=monotonic)


@contextmanager
def look_into(url: str, *, patience_s: float, vault: Vault = PLAIN_VAULT) -> Iterator[Reader]:
    """Ask questions of one consistent snapshot of a ledger that is there: for whoever only asks, and now and then.

    It is neither made nor upgraded, and nothing is written. A server that takes longer than `patience_s` for one answer
    is left; a file answers or fails by itself, since nobody waits longer than 30 s for a lock of it. What is encrypted
    is read with the keys of `vault`.

    Raises:
        SettingsError: the URL is none that parked understands.
        LedgerMissing: there is none.
        LedgerTooNew: a newer parked has changed it in a way that this version can't follow.
        LedgerUnavailable: it can't be read, or was made by an older parked.
    """
    database = locate(url, vault=vault)
    with _asking(database, lambda: database.look(patience_s=patience_s)) as reader:
        yield reader


@contextmanager
def _asking(database: Database, open_reader: Callable[[], Reader]) -> Iterator[Reader]:
    try:
        reader = open_reader()
        try:
            yield reader
        finally:
            reader.close()
    except Exception as exc:
        explained = database.explain(exc)
        if explained is exc:
            raise
        raise explained from exc


def migrate(url: str, *, mode: int | None = None) -> Upgraded:
    """Make a ledger that is missing, or apply all that an older one lacks, also what older programs can't follow.

    Raises:
        SettingsError: the URL is none that parked understands.
        LedgerTooNew: a newer parked has changed it in a way that this version can't follow.
        LedgerUnavailable: it can't be reached or changed, or older programs are still using it.
    """
    database = locate(url, mode=mode)
    try:
        return database.migrate()
    except Exception as exc:
        raise database.explain(exc) from exc


def full_name(url: str) -> str:
    """Return by which name people are shown the ledger that a URL names, there or not; never a password.

    Raises:
        SettingsError: the URL is none that parked understands.
        LedgerUnavailable: the extra for its database isn't installed.
    """
    return locate(url).where


class Ledger:
    """An open ledger. It belongs to this process: a forked child that uses it gets a writer and an owner of its own.

    Usable from all threads. Closing it hands back nothing: release jobs first, or they count as orphaned.
    """

    def __init__(
        self,
        database: Database,
        vault: Vault,
        *,
        created: bool,
        role: str,
        write_patience_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.url = database.url
        self.where = database.where  # for people: the full name, never a password
        self.created = created  # whether it was made by this call
        self.write_patience_s = write_patience_s
        self.vault = vault
        self._database = database
        self._name: str | None = None
        self._role = role
        self._run: Run | None = None  # that this process has entered
        self._pulse = Pulse(monotonic=monotonic)
        self._registering = threading.RLock()  # reentrant: a signal's handler may close what its thread registers with
        self._writer = Writer(
            database.store,
            pulse=self._pulse,
            patience_s=write_patience_s,
            monotonic=monotonic,
            kept=vault.kept if vault.changes_operations else None,
        )
        _open.add(self)

    # --- writing ---

    def record(self, operation: Operation) -> Any:
        """Apply an operation and return its result, once it is synced to disk.

        Raises:
            LedgerUnavailable: nothing was taken on. (An outcome waits up to `write_patience_s` before that.)
            ParkedError: what the operation says.

        Whatever else ends the waiting, an interrupt say: jobs that the operation starts are handed back.
        """
        ticket = Ticket(operation)
        try:
            self.hand_in((ticket,))
            return ticket.wait()
        except BaseException:
            self.forsake(ticket)
            raise

    def hand_back(self, release: Release) -> Ticket | None:
        """Hand a job back without waiting. None if the ledger was closed meanwhile: then it has left its jobs."""
        try:
            return self.submit(release)
        except LedgerUnavailable:
            return None

    def submit(self, operation: Operation, channel: Channel | None = None) -> Ticket:
        """Hand an operation in without waiting. A channel is told when it is done, else `Ticket.wait`."""
        return self._writer.submit(operation, channel)

    def submit_many(self, operations: Iterable[Operation], channel: Channel | None = None) -> list[Ticket]:
        return self._writer.submit_many(operations, channel)

    def hand_in(self, tickets: Sequence[Ticket], *, look: bool = True) -> None:
        """The same for tickets that were made before: whoever is interrupted meanwhile can still forsake them.

        Without `look` they lie there until `look` is called, or more comes.
        """
        self._writer.hand_in(tickets, look=look)

    def forsake(self, ticket: Ticket) -> None:
        """Wait for an operation no more: jobs that it starts are handed back once it is committed."""
        self._writer.forsake(ticket)

    def look(self) -> None:
        """Have what was handed in applied."""
        self._writer.look()

    def scrub(self) -> bool:
        """Rewrite the ledger, so that no copy of what was erased is left in its files; writers wait meanwhile.

        Returns False if somebody went on reading for 30 s what was there before: then some may be left beside it.

        Raises:
            LedgerUnavailable: there isn't room for a second copy, or others write all the time.
        """
        try:
            return self._database.scrub()
        except Exception as exc:
            raise self._database.explain(exc) from exc

    @property
    def stalled(self) -> bool:
        """Whether an outcome waits for a ledger that is away. No call may be started meanwhile."""
        return self._writer.stalled

    @property
    def unwritten(self) -> list[Outcome]:
        """The outcomes that would be lost if the process ended now; their jobs would become orphans."""
        return self._writer.unwritten

    # --- this process as an owner ---

    @property
    def owner_id(self) -> int:
        """This process's id as an owner. It is registered on first use, and anew after it was declared lost: ask again
        for each job, and after `OwnerLost`.
        """
        with self._registering:
            owner_id = self._pulse.owner_id
            if owner_id is None:
                facts = owners.facts(self._role)
                owner_id = self.record(Register(facts))
                if self._run is not None:  # it was declared lost, and goes on
                    self.record(EnterRun(owner_id, self._run))
                self._pulse.begin(owner_id, facts)
                self._writer.look()
            return owner_id

    def enter_run(self, run: Run, *, alone: bool = False) -> OwnerRow | None:
        """Note that this process takes up what is pending of a pipeline until it leaves.

        With `alone` only if no other living owner does so: else that one is returned.
        """
        while True:
            try:
                other: OwnerRow | None = self.record(EnterRun(self.owner_id, run, alone))
            except OwnerLost:
                continue
            if other is None:
                self._run = run
            return other

    def leave_run(self, *, unless_waiting: bool = False, closed: tuple[str, ...] = ()) -> bool:
        """Take up nothing any more; returns whether it is so.

        With `unless_waiting` it isn't if due jobs wait for this run and for a model that isn't among the `closed` ones.
        """
        if self._run is None:
            return True
        left: bool = self.record(LeaveRun(self.owner_id, self._run if unless_waiting else None, closed))
        if left:
            self._run = None
        return left

    def sweep(self) -> list[JobRow]:
        """Beat, look at the other owners, and park the jobs of those that are lost; return these.

        The writer's thread does the same every 5 s while this process is an owner.
        """
        assert self.owner_id
        return self._pulse.beat(self._record_pulse)

    def _record_pulse(self, operation: Beat | Lose) -> Any:
        return self.record(operation)

    # --- asking ---

    @property
    def name(self) -> str:
        """The short random word that names this ledger in metrics."""
        if self._name is None:
            with self.ask() as reader:
                self._name = reader.name
        return self._name

    @contextmanager
    def ask(self) -> Iterator[Reader]:
        """Ask questions of one consistent snapshot, on a connection that only asks. Don't keep it open for long."""
        with _asking(self._database, self._database.reader) as reader:
            yield reader

    # --- the end ---

    def close(self) -> None:
        """Write what waits, leave as an owner, and close. Blocks while outcomes wait for a ledger that is away."""
        if self not in _open:
            return
        _open.discard(self)
        try:
            with self._registering:  # who registers just now leaves as well, and nobody between leaving and the end
                if self._pulse.owner_id is not None:
                    with suppress(LedgerUnavailable):  # it was closed before, and that interrupted
                        self._writer.submit(Leave(self._pulse.owner_id))
                    self._pulse.owner_id = None
                self._writer.close()
        except BaseException:  # Ctrl-C, say: whoever closes it again, at the latest the program's end, does the rest
            _open.add(self)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- forks ---

    def _before_fork(self) -> None:
        self._registering.acquire()
        self._writer.before_fork()

    def _after_fork_in_parent(self) -> None:
        self._writer.after_fork_in_parent()
        self._registering.release()

    def _after_fork_in_child(self) -> None:
        self._registering = threading.RLock()
        self._pulse.forget()
        self._run = None
        self._writer.after_fork_in_child()


_open: set[Ledger] = set()  # of this process; a ledger lives until it is closed
_forking: list[Ledger] = []  # those that stand still while one thread forks
_fork = threading.Lock()


def _before_fork() -> None:
    _fork.acquire()
    _forking.extend(_open)
    for ledger in _forking:
        ledger._before_fork()


def _after_fork_in_parent() -> None:
    for ledger in _forking:
        ledger._after_fork_in_parent()
    _forking.clear()
    _fork.release()


def _after_fork_in_child() -> None:
    for ledger in _forking:
        ledger._after_fork_in_child()
    _forking.clear()
    _fork.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    """A program that ends without closing its ledgers still writes what it handed in."""
    for ledger in tuple(_open):
        ledger.close()
