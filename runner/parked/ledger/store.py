"""What a database has to do for parked: three protocols, one implementation a database.

`Database` is where a ledger is kept. `Store` writes, set by set: all its methods run inside the one transaction that
the writer opened. `Reader` only asks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from parked.errors import LedgerUnavailable
from parked.job import State
from parked.ledger import operations as op
from parked.ledger.codec import Body, TextKind
from parked.ledger.labels import Labels
from parked.ledger.migrations import Upgraded
from parked.ledger.operations import JobRow, OwnerRow
from parked.ledger.tables import Row, Target


class Denied(LedgerUnavailable):
    """The database has no such right for this role or user. It is there; somebody has to grant it."""


class Contended(LedgerUnavailable):
    """The database broke a transaction off, because another one stood in its way. The same may work at once."""


class ConnectionLost(LedgerUnavailable):
    """The connection ended, and nothing of the transaction happened. Over a new one the same may work at once."""


class InDoubt(LedgerUnavailable):
    """The answer to a commit was lost, and with it whether it went through. Nobody can be asked now."""


class Database(Protocol):
    """Where a ledger is kept, there or not. Nothing is connected by naming it."""

    @property
    def url(self) -> str: ...  # to open it by, from any folder; may hold a password
    @property
    def where(self) -> str: ...  # its full name, for people: never a password
    def check_place(self) -> None:
        """See that it may be used from this machine, once it was prepared. See `machines.check_at_open`."""
        ...

    def prepare(self, *, create: bool, upgrade: bool) -> bool:
        """See that there is a ledger that this process can use; return True if it was made here.

        Raises:
            LedgerMissing: there is none, and `create` is False.
            LedgerTooNew: a newer parked has changed it in a way that this version can't follow.
            LedgerUnavailable: it can't be used.
        """
        ...

    def migrate(self) -> Upgraded:
        """Make it, or apply all that is missing, breaking steps too."""
        ...

    def store(self) -> Store: ...
    def reader(self) -> Reader: ...  # once it was prepared
    def look(self, *, patience_s: float) -> Reader:
        """A reader for who has prepared nothing and only asks. See `look_into`."""
        ...

    def scrub(self) -> bool: ...  # see `Ledger.scrub`
    def write_copy(self, file: Path) -> None:
        """Write all of it, as it is at one moment, into an empty file, which becomes a SQLite ledger.

        Others go on meanwhile. What was erased isn't in it.

        Raises:
            LedgerMissing: there is none.
            OutputFailed: the file can't be written.
        """
        ...

    def alone(self) -> AbstractContextManager[None]: ...  # nobody else writes as long as it is open
    def to_be_filled(self) -> AbstractContextManager[Target]:
        """Make it, and yield it to be filled; only what got to the end of the context is there afterwards.

        Raises:
            SettingsError: there is one that something was done with.
        """
        ...

    def explain(self, exc: Exception) -> Exception: ...  # what the database's own exception means to parked


class Store(Protocol):
    """The write side. Each method takes all waiting operations of one kind and answers them in their order.

    A result that is an exception is raised to the one who sent that operation; an exception that is raised fails the
    whole batch, which the writer then rolls back and applies one by one. In one call no two operations are about the
    same job.
    """

    @property
    def outlives_errors(self) -> bool: ...  # whether its connection is to be kept when the surroundings fail
    @property
    def refusals(self) -> tuple[type[Exception], ...]: ...  # by which it refuses what it is to write
    def begin(self) -> None: ...
    def expect(self, operations: Sequence[op.Operation]) -> None:
        """These are going to come in this transaction: what they ask can be asked for already."""
        ...

    def commit(self) -> None: ...  # writes the gathered counters first
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    def explain(self, exc: Exception) -> Exception: ...  # what the database's own exception means to parked

    def accept(self, rows: Sequence[op.Accept]) -> Sequence[op.Accepted | Exception]: ...
    def take_over(self, rows: Sequence[op.TakeOver]) -> Sequence[op.Accepted | Exception]: ...
    def start(self, rows: Sequence[op.Start]) -> Sequence[op.Started | op.Held | Exception]: ...
    def claim(self, rows: Sequence[op.Claim]) -> Sequence[op.Claimed | Exception]: ...
    def finish(self, rows: Sequence[op.Answer | op.Park]) -> Sequence[JobRow | Exception]: ...
    def retried(self, rows: Sequence[op.Retried]) -> Sequence[JobRow | Exception]: ...
    def release(self, rows: Sequence[op.Release]) -> Sequence[JobRow | Exception | None]: ...  # None: not started
    def orphan(self, rows: Sequence[op.Orphan]) -> Sequence[JobRow | Exception]: ...
    def forgive(self, rows: Sequence[op.Forgive]) -> Sequence[JobRow | Exception]: ...
    def discard(self, rows: Sequence[op.Discard]) -> Sequence[JobRow | Exception]: ...
    def restore(self, rows: Sequence[op.Restore]) -> Sequence[JobRow | Exception]: ...
    def mend(self, rows: Sequence[op.Mend]) -> Sequence[JobRow | Exception]: ...
    def erase(self, rows: Sequence[op.Erase]) -> Sequence[JobRow | Exception]: ...
    def rekey(self, rows: Sequence[op.Rekey]) -> Sequence[None]: ...
    def forget(self, rows: Sequence[op.Forget]) -> Sequence[int]: ...
    def hand_out(self, rows: Sequence[op.HandOut]) -> Sequence[None]: ...
    def note_delivery(self, rows: Sequence[op.NoteDelivery]) -> Sequence[None]: ...
    def register(self, rows: Sequence[op.Register]) -> Sequence[int]: ...
    def beat(self, rows: Sequence[op.Beat]) -> Sequence[op.Beats]: ...
    def lose(self, rows: Sequence[op.Lose]) -> Sequence[list[JobRow]]: ...
    def leave(self, rows: Sequence[op.Leave]) -> Sequence[list[JobRow]]: ...
    def enter_run(self, rows: Sequence[op.EnterRun]) -> Sequence[OwnerRow | Exception | None]: ...
    def leave_run(self, rows: Sequence[op.LeaveRun]) -> Sequence[bool]: ...
    def open_replay(self, rows: Sequence[op.OpenReplay]) -> Sequence[int]: ...
    def close_replay(self, rows: Sequence[op.CloseReplay]) -> Sequence[None]: ...
    def set_mark(self, rows: Sequence[op.SetMark]) -> Sequence[None]: ...
    def take_lease(self, rows: Sequence[op.TakeLease]) -> Sequence[bool]: ...
    def consult(self, rows: Sequence[op.Consult]) -> Sequence[op.Consulted]: ...
    def claim_probe(self, rows: Sequence[op.ClaimProbe]) -> Sequence[float]: ...
    def set_pause(self, rows: Sequence[op.SetPause]) -> Sequence[None]: ...
    def clear_pause(self, rows: Sequence[op.ClearPause]) -> Sequence[bool]: ...


class Filters(NamedTuple):
    """Which jobs; None means any. All that are given must hold."""

    pipeline: str | None = None
    batch: str | None = None
    model: str | None = None
    error_class: str | None = None  # `exhausted:429`, or with a wildcard `exhausted:*`
    reason: str | None = None
    fingerprint: str | None = None
    job_ids: tuple[str, ...] = ()
    since: float | None = None  # epoch seconds; when it was parked (of other states: accepted)
    until: float | None = None

    def __bool__(self) -> bool:
        return self != Filters()


class AttemptRow(NamedTuple):
    """One call of the model. `ended_at` is None while it is open; `kind` is None once it ended with an answer."""

    number: int  # 1-based
    replay_id: int | None
    owner_id: int | None
    strike: bool
    started_at: float
    ended_at: float | None
    duration_s: float | None
    answered: bool
    interrupted: bool  # closed by somebody else, or by a drain: it may have been sent
    kind: str | None
    reason: str | None
    scope: str | None
    status: int | None
    rule: str
    fingerprint: str | None
    quota_id: str | None
    message: str
    retry_after_s: float | None
    tokens_in: int | None
    tokens_out: int | None
    response_id: str | None
    trace_id: str | None
    span_id: str | None
    revision: int  # of the payload that was sent; 0: as it was accepted
    model: str | None  # that was called; None: the job's own
    message_key_id: str | None = None  # of a message that is still encrypted


class AnswerRow(NamedTuple):
    job: JobRow
    body: Body
    answered_at: float
    handed_out_at: float | None


class Undelivered(NamedTuple):
    """The answer of a recovered job that is to be handed to a function of the user's."""

    answer: AnswerRow
    tries: int  # so far, in vain


class Erasure(NamedTuple):
    """That a job's texts were removed for good."""

    at: float
    why: str


class Revision(NamedTuple):
    """What a job sends, or sent before that was replaced."""

    number: int  # 0: as it was accepted
    model: str | None  # None: the job's own
    stored_at: float
    note: str | None  # why it stands for the one before


class KeptPace(NamedTuple):
    """How fast a model was called last, after a refusal had told how much it takes."""

    model: str
    per_s: float
    learnt_at: float  # when a refusal last set it


class CounterRow(NamedTuple):
    """One label set of one family (`counters.py` says what `a` and `b` mean), summed over slots.

    `pipeline` and `model` are what a job counts under (`Reader.labels`).
    """

    metric: str
    pipeline: str
    model: str
    a: str
    b: str
    value: float
    first_at: float
    trace_id: str | None
    span_id: str | None
    example_value: float | None
    example_at: float | None


class Cause(NamedTuple):
    """Parked jobs that share a fingerprint; those that were erased are a cause of their own."""

    fingerprint: str | None
    error_class: str
    reason: str
    jobs: int
    first_parked_at: float
    last_parked_at: float
    example: JobRow
    erased: bool = False  # nothing is left of them to send


class CauseCount(NamedTuple):
    """A cause as it is counted for a summary."""

    fingerprint: str | None
    error_class: str
    reason: str
    erased: bool
    jobs: int
    new: int  # of them parked since a time
    first_parked_at: float
    last_parked_at: float
    example: int  # the id of the latest of them

    def with_more(self, other: CauseCount) -> CauseCount:
        """The two as one cause."""
        return self._replace(
            jobs=self.jobs + other.jobs,
            new=self.new + other.new,
            first_parked_at=min(self.first_parked_at, other.first_parked_at),
            last_parked_at=max(self.last_parked_at, other.last_parked_at),
            example=max(self.example, other.example),
        )


class Sent(NamedTuple):
    """What a job sends: as it was accepted, or as it was mended for its replays."""

    row: JobRow
    payload: Body
    model: str | None  # None: the job's own


class Imbalance(NamedTuple):
    """A place where the law of conservation does not hold: what the counters say and what the rows say."""

    pipeline: str
    what: str  # e.g. `parked`, `accepted`, or `parked_now permanent:400`
    counted: float
    found: float
    job_ids: tuple[str, ...] = ()  # where single rows can be named


class KeyUse(NamedTuple):
    """How many texts of a kind are encrypted with a key."""

    what: str  # a `TextKind`; `pending`: of the payloads, those that pending jobs send
    key_id: str | None  # None: they are plain
    number: int


class KeptText(NamedTuple):
    """A text as it is kept."""

    kind: TextKind
    job: int
    number: int  # of the payload's revision, or of the message's attempt
    body: Body
    payload_hash: bytes | None  # the job's identity, of a payload that was accepted; else None


class BodiesRead(NamedTuple):
    number: int
    broken: list[Imbalance]
    locked: list[Imbalance]  # encrypted with keys that aren't there


class Reader(Protocol):
    """The read side: one consistent snapshot, on a connection that only asks. Close it soon."""

    @property
    def name(self) -> str: ...  # the short random word that names this ledger in metrics
    def close(self) -> None: ...

    def jobs_by_key(self, job_id: str, *, pipeline: str | None, batch: str | None) -> list[JobRow]: ...
    def jobs(
        self, filters: Filters, *, states: Sequence[State], limit: int | None = None, newest_first: bool = False
    ) -> Iterator[JobRow]:
        """In order of place; with `newest_first`, by the time they were parked (of other states: accepted)."""
        ...

    def count(self, filters: Filters, *, states: Sequence[State]) -> int: ...
    def causes(self, filters: Filters) -> list[Cause]: ...
    def cause_counts(self, *, since: float | None) -> list[CauseCount]:
        """All causes, and how many jobs of each were parked since then (None: none); reads no row of a job."""
        ...

    def job(self, id: int) -> JobRow: ...
    def payload(self, id: int) -> Body: ...
    def jobs_with_payloads(self, ids: Sequence[int]) -> list[Sent]:
        """Those of these jobs that there are, in order of place."""
        ...

    def identities(self, pipeline: str, batch: str, job_ids: Sequence[str]) -> dict[str, bytes]:
        """The payload hashes of those of these jobs that are known."""
        ...

    def answer_bodies(self, ids: Sequence[int]) -> dict[int, Body]:
        """The answers of those of these jobs that have one; no erased ones, here and below."""
        ...

    def answer(self, id: int) -> AnswerRow | None: ...
    def answers(self, filters: Filters, *, only_new: bool = False) -> Iterator[AnswerRow]:
        """By the time they were answered; `since` and `until` of the filters mean that time here."""
        ...

    def undelivered(self, *, since: float, now: float, limit: int) -> list[Undelivered]:
        """Answers of recovered jobs that are due to be delivered, the longest due first.

        Of those answered before `since`, only what was not handed out either.
        """
        ...

    def unreadable(self, state: State, *, pipeline: str | None = None) -> dict[int, str]:
        """The jobs in this state, of a pipeline or (None) of all, whose payload can't be read here: {id: why}.

        Erased ones, which their rows tell of, are not among them.
        """
        ...

    def keys_used(self) -> list[KeyUse]:
        """With which keys texts are encrypted. Looks at every row, but at no text."""
        ...

    def identity_keys(self) -> dict[str, int]:
        """With which keys payload hashes were made: {key id: jobs}. Looks at every job."""
        ...

    def kept_otherwise(
        self, kind: TextKind, key_id: str | None, *, after: tuple[int, int], limit: int
    ) -> Iterable[KeptText]:
        """Texts that aren't encrypted with this key (None: that are encrypted), behind a job and number, in order."""
        ...

    def erasure(self, id: int) -> Erasure | None: ...
    def forgettable(self, before: float, *, after: int, limit: int) -> list[int]:
        """Jobs that finished before that time and may be forgotten, behind the id `after`, by id."""
        ...

    def erased_with_texts(self) -> frozenset[int]:
        """The jobs that were erased and got a text again, so that they have to be erased again; by id."""
        ...

    def attempts(self, id: int) -> list[AttemptRow]: ...
    def revisions(self, id: int) -> list[Revision]: ...
    def counters(self, *metrics: str) -> list[CounterRow]:
        """All label sets of these families; of all families if none is named."""
        ...

    def oldest(self, state: State) -> dict[tuple[str, str], float]:
        """When the oldest job came into that state: {(pipeline, error class or ''): epoch seconds}; a look-up each."""
        ...

    def labels(self) -> Labels:
        """What jobs count under."""
        ...

    def states(self) -> dict[tuple[str, State], int]:
        """Rows counted by pipeline and state, over a covering index."""
        ...

    def imbalances(self, *, thorough: bool = False) -> list[Imbalance]:
        """Counters against rows; thorough: also every row against its attempts, payload and answer."""
        ...

    def read_bodies(self) -> BodiesRead:
        """Read every payload and answer, and find those that can't be read, or aren't what was accepted."""
        ...

    def owners(self) -> list[OwnerRow]: ...  # all there ever were
    def owners_alive(self) -> list[OwnerRow]: ...  # those that are neither ended nor lost
    def owners_counted(self, *, since: float) -> tuple[int, int]: ...  # alive now, and declared lost since
    def mark(self, name: str) -> Any: ...  # the JSON value; None if it was never set
    def marks(self, beginning: str) -> dict[str, Any]: ...  # by name, those whose names begin so
    def clock(self) -> float: ...  # the database's, UTC epoch seconds; SQLite's is this machine's
    def newest(self) -> float | None: ...  # when something last happened, as far as a few look-ups tell
    def lacking_rights(self) -> list[str]:
        """What this role may not do that a program which runs jobs has to: `insert jobs`."""
        ...

    def version(self) -> str: ...  # of the database
    def leases(self) -> dict[str, OwnerRow]: ...  # task -> who holds it
    def size_bytes(self) -> int: ...  # on the disk: of the file and its WAL, or of the tables with their indexes
    def pauses(self) -> list[op.PauseRow]:
        """Those that hold back a job: a pending one or, if it was a sidecar that paused and lives, a parked one."""
        ...

    def first_that_met(self, reason: str, *, pipeline: str) -> tuple[str, str] | None:
        """Id and batch of the pending job, first in line, of which a call has failed for this reason."""
        ...

    def paces(self) -> list[KeptPace]:
        """By model; also those that are too old to be gone by."""
        ...

    def gates(self) -> list[tuple[str, str | None, float | None]]:
        """Each known gate: model, why it was closed, and until when, in epoch seconds."""
        ...

    def rows(self, table: str) -> Generator[Row]: ...  # this and the next: see `Rows`
    def last_ids(self) -> dict[str, int]: ...
    def unknown_steps(self) -> list[int]:
        """The migrations that ran and that this version of parked doesn't know."""
        ...
