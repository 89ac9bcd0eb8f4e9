"""A ledger on PostgreSQL: one statement for all rows of a kind in a batch, and many processes at a time.

Read committed is enough. Every row that a move is decided from is locked until the commit: jobs in the order of their
ids, an owner before its jobs. Counters come last, in the order of their key, and each process has its own slot of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from enum import Enum
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from parked.errors import LedgerUnavailable, SettingsError
from parked.job import State
from parked.ledger import operations as op
from parked.ledger.books import COUNTED, SET_BY_THE_LATEST, Books, first_wanted, is_meant
from parked.ledger.codec import ERASED, Body, TextKind
from parked.ledger.migrations import Upgrade, Upgraded, apply, bring_up_to_date, migrations
from parked.ledger.moves import ANOTHER_MODEL, AttemptState, Change
from parked.ledger.operations import JobRow
from parked.ledger.postgres_schema import PostgresSchema, begin, set_up
from parked.ledger.postgres_scrubbing import scrub
from parked.ledger.postgres_server import ANOTHER_SESSION, BEGIN_READING, MAY_NOT_FILL, PATIENCE_S, Server
from parked.ledger.reading import SqlReader
from parked.ledger.rows import (
    ACCEPTED,
    CLOSED,
    FOUND,
    MOVED,
    REKEY,
    REKEYED_BODY,
    REKEYED_MESSAGE,
    accepted_columns,
    attempt_state,
    closing_columns,
    found_columns,
    gate_columns,
    job_row,
    moved_columns,
    owner_row,
    pause_rows,
    rekeyed_columns,
)
from parked.ledger.statements import load
from parked.ledger.store import ConnectionLost, Contended, InDoubt, Undelivered
from parked.ledger.tables import USED_BEFORE, Explained, Row, take_over
from parked.ledger.vault import PLAIN_VAULT, Vault

SQL: Final = load("postgres")

SLOTS: Final = 16  # of the counters; a process counts in that of its owner's id
PAGE_ROWS: Final = 500  # of a long answer, fetched at a time

PAUSE_S: Final = 0.2  # between two questions whether a commit went through

# A session keeps a plan until the statistics change. One that was made when the tables had a page each reads all of
# them, also when they have grown: of 10,000 jobs a move took 72 ms, and the more the longer. A new ledger grows fastest
# at first.
PLANNED_FOR_S: Final = (1.0, 10.0)  # at first, then twice as long each time, and at last
PLAN_ANEW: Final = b"DISCARD PLANS"

# Nobody but this transaction writes; whoever wants to waits.
LOCKING_OUT: Final = (
    b"LOCK TABLE parked.owners, parked.replays, parked.jobs, parked.payloads, parked.answers, parked.attempts,"
    b" parked.counters, parked.gates, parked.pauses, parked.leases, parked.marks IN SHARE ROW EXCLUSIVE MODE"
)
IS_UNDER_WAY: Final = b"SELECT pg_xact_status(%s::text::xid8) = 'in progress'"
# Who lets a pair of pipeline and model in as a label is alone with it until the commit.
LETTING_IN: Final = b"SELECT pg_advisory_xact_lock(1885434475, 2)"
ALONE_WITH_RUNS: Final = b"SELECT pg_advisory_xact_lock(1885434475, 3)"

SORTING: Final = {
    sorts: (
        f"SELECT set_config('enable_sort', '{sorts}', true), set_config('enable_incremental_sort', '{sorts}', true)"
    ).encode()
    for sorts in (False, True)
}

# Operations that leave the pending jobs as they are, and a claim.
CLAIMED_BESIDE: Final = (op.Answer, op.Park, op.Retried, op.Claim)

Asked = psycopg.Cursor[tuple[Any, ...]]  # what was asked; its answer is waited for when it is read

_TEXTS: Final = {name: text.encode() for name, text in SQL.items()}


@contextmanager
def unsorted(connection: psycopg.Connection[tuple[Any, ...]]) -> Iterator[None]:
    """What is asked in here is read in the order of an index, in which its first rows are its answer.

    Where statistics are absent, or from before an outage, the planner takes 100,000 waiting jobs for one and would read
    them by any index and sort: claims and scrapes would grow with the jobs that wait.
    """
    connection.execute(SORTING[False])
    yield
    connection.execute(SORTING[True])  # if it fails, the transaction has ended, and what was set in it


class PostgresStore(Books):
    """The write side. Opened and used by one thread at a time. Without a `clock` the server's time is stored."""

    outlives_errors = False
    refusals = (psycopg.Error, UnicodeError)  # the last before the server has seen it

    def __init__(self, server: Server, *, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._server = server
        self._clock = clock
        self._connection = server.connect_to_write()
        self._begun: Asked | None = None
        self._set_up: tuple[float, str] | None = None  # our or the server's time, and the transaction's id; once known
        self._planned_at, self._planned_for_s = time.monotonic(), PLANNED_FOR_S[0]
        self._witness: JobRow | None = None  # a job that this transaction takes on or starts
        self._slot = 0
        self._pipeline = ExitStack()
        self._owners: dict[int, Asked | bool] = {}  # those asked for in this transaction; whether they live, if known
        self._payloads: list[tuple[list[op.Started], Asked]] = []  # where what is asked for is to be put
        self._heads: tuple[list[tuple[op.Lane, int]], bool, Asked] | None = None  # asked for beforehand

    # --- the transaction ---

    def begin(self) -> None:
        # What nobody waits for is sent along with the next question, or with the commit. A way to the server and back
        # costs as much as a statement, and nothing else happens here meanwhile.
        self._pipeline = ExitStack()
        if psycopg.Pipeline.is_supported():
            self._pipeline.enter_context(self._connection.pipeline())
        self._begun, self._set_up = begin(self._connection), None
        if time.monotonic() - self._planned_at >= self._planned_for_s:
            self._connection.execute(PLAN_ANEW, prepare=False)
            self._planned_at = time.monotonic()
            self._planned_for_s = min(2 * self._planned_for_s, PLANNED_FOR_S[1])
        self._begin_anew()
        self._owners.clear()
        self._payloads.clear()
        self._heads = None
        self._witness = None

    def expect(self, operations: Sequence[op.Operation]) -> None:
        """A claim beside nothing but outcomes, as in a run that is under way, needs nothing that they leave behind."""
        claims = [each for each in operations if isinstance(each, op.Claim)]
        if len(claims) != 1 or not all(isinstance(each, CLAIMED_BESIDE) for each in operations):
            return
        (claim,) = claims
        self.ask_for_owner(claim.owner_id)  # before its jobs
        if self._lanes_are_fresh():
            wanted = first_wanted([lane for lane in self._lanes if is_meant(lane, claim)], claim)
            self._heads = (wanted, claim.far_end, self._ask_for_heads(wanted, claim.far_end))

    @property
    def now(self) -> float:
        return self._known()[0]

    def moment(self) -> float:
        return time.monotonic() if self._clock is None else self._clock()

    def _known(self) -> tuple[float, str]:
        if self._set_up is None:
            assert self._begun is not None
            now, transaction = set_up(self._begun)
            self._set_up = (now if self._clock is None else self._clock(), transaction)
        return self._set_up

    def commit(self) -> None:
        self._settle()
        if counted := self.counter_rows():
            rows = [_given(COUNTED, row) for row in counted]
            self._do("count", counters=json.dumps(rows), latest=list(SET_BY_THE_LATEST), slot=self._slot)
        if self._witness is not None:
            self._known()  # it can't be asked for once the connection is lost
        try:
            self._connection.execute(b"COMMIT", prepare=False)
            self._pipeline.close()
        except psycopg.Error as exc:
            # The answer was lost, not necessarily the commit: jobs that it started would be held by nobody. What starts
            # nothing may be done once more, it comes to the same.
            if not self._is_broken(exc) or self._witness is None or not self._was_committed(self._witness):
                raise
            # What else was asked for was lost with it.
            self._payloads = [(started, self._ask_for_payloads(started)) for started, _ in self._payloads]
        for started, answer in self._payloads:
            bodies = {id: Body._make(body) for id, *body in answer}
            started[:] = [one._replace(payload=bodies[one.row.id]) for one in started]

    def _is_broken(self, exc: psycopg.Error) -> bool:
        return self._connection.closed or isinstance(self.explain(exc), ConnectionLost)

    def _was_committed(self, witness: JobRow) -> bool:
        """Look over a new connection, once there is one, whether the witness is as this transaction left it.

        The transaction's id tells only whether it is still under way: a server that crashed gives the ids of what it
        had not written down to others, and so does a standby that was promoted.

        Raises:
            InDoubt: the server didn't come back in time.
        """
        with suppress(psycopg.Error):
            self._pipeline.close()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                self._connection.close()
                self._connection = self._server.connect_to_write()
                if not self._is_under_way():
                    found = self.jobs_by_id([witness.id]).get(witness.id)
                    return found is not None and _bears_witness(found, witness)
            except (LedgerUnavailable, psycopg.OperationalError):
                pass
            time.sleep(PAUSE_S)
        raise InDoubt(
            f"the ledger {self._server.where} went away in a commit, and didn't come back to say how it ended"
        )

    def _is_under_way(self) -> bool:
        try:
            row = self._connection.execute(IS_UNDER_WAY, [self._known()[1]]).fetchone()
        except psycopg.errors.InvalidParameterValue:  # an id that this server hasn't given out yet
            return False
        return row is not None and bool(row[0])

    def rollback(self) -> None:
        self._unlearn()
        with suppress(psycopg.Error):  # the error that ends this transaction, said once more
            self._pipeline.close()
        with suppress(psycopg.OperationalError):  # then it is gone by itself
            self._connection.execute(b"ROLLBACK", prepare=False)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._pipeline.close()
        self._connection.close()

    def explain(self, exc: Exception) -> Exception:
        if isinstance(exc, psycopg.Error) and exc.sqlstate in ANOTHER_SESSION:
            self._connection.prepare_threshold = None
            return Contended(f"a pooler before {self._server.where} gave a transaction another session")
        if isinstance(exc, psycopg.errors.DivisionByZero) and self._goes_by_memory:
            return Contended(f"another process has moved a job in {self._server.where} that this one holds")
        return self._server.explain(exc)

    # --- the primitives of Books ---

    def last_place(self) -> int:
        return int(self._value("last_place"))

    def insert_jobs(self, jobs: Sequence[JobRow], payloads: Sequence[Body]) -> list[int | None]:
        given = [_given(ACCEPTED, accepted_columns(job)) | {"payload_hash": job.payload_hash.hex()} for job in jobs]
        by_place = {place: id for id, place in self._do("accept", jobs=json.dumps(given))}
        ids = [by_place.get(job.place) for job in jobs]
        new = [(id, body) for id, body in zip(ids, payloads, strict=True) if id is not None]
        if new:
            self._witness = JobRow(new[-1][0], *jobs[ids.index(new[-1][0])][1:])
            self._do("keep_payload", jobs=[id for id, _ in new], now=self.now, **_bodies(body for _, body in new))
        return ids

    def known_jobs(self, rows: Sequence[op.Accept | op.TakeOver]) -> dict[tuple[str, str, str], JobRow]:
        if not rows:
            return {}
        found = self._jobs(
            "job_by_key",
            job_ids=[row.job_id for row in rows],
            pipelines=[row.pipeline for row in rows],
            batches=[row.batch for row in rows],
        )
        return {(job.pipeline, job.batch, job.job_id): job for job in found}

    def add_calls_elsewhere(self, calls: Mapping[int, int]) -> None:
        some = {id: n for id, n in calls.items() if n}
        if some:
            self._do("called_elsewhere", ids=list(some), calls=list(some.values()))

    def jobs_by_id(self, ids: Sequence[int]) -> dict[int, JobRow]:
        return {job.id: job for job in self._jobs("jobs_by_id", ids=list(ids))} if ids else {}

    def jobs_with_attempts(
        self, attempts: Sequence[tuple[int, int | None]]
    ) -> dict[int, tuple[JobRow, AttemptState | None]]:
        if not attempts:
            return {}
        ids, numbers = map(list, zip(*attempts, strict=True))
        jobs = self._jobs("jobs_by_id", ids=ids)
        rows = self._do("attempt", ids=ids, numbers=numbers)
        standing = {job: attempt_state(columns) for job, *columns in rows}
        return {job.id: (job, standing.get(job.id)) for job in jobs}

    def lanes(self) -> list[op.Lane]:
        with unsorted(self._connection):
            found = self._do("lanes", now=self.now)
        return [op.Lane._make(row) for row in found]

    def heads(self, wanted: Sequence[tuple[op.Lane, int]], *, far_end: bool) -> list[JobRow]:
        asked, self._heads = self._heads, None
        if asked is not None and asked[:2] == (wanted, far_end):
            answer = asked[2]
        else:
            answer = self._ask_for_heads(wanted, far_end)
        return list(map(job_row, answer))

    def _ask_for_heads(self, wanted: Sequence[tuple[op.Lane, int]], far_end: bool) -> Asked:
        with unsorted(self._connection):
            return self._do(
                "tails" if far_end else "heads",
                pipelines=[lane.pipeline for lane, _ in wanted],
                callers=[lane.caller for lane, _ in wanted],
                checkers=[lane.checker for lane, _ in wanted],
                models=[lane.model for lane, _ in wanted],
                limits=[limit for _, limit in wanted],
                now=None if self._clock is None else self._clock(),  # of the server: it needn't be waited for
            )

    def mend_payloads(self, mends: Sequence[tuple[JobRow, op.Mend]]) -> None:
        if not mends:
            return
        jobs = [job.id for job, _ in mends]
        revisions = [job.revision for job, _ in mends]
        self._do(
            "mend_payload",
            jobs=jobs,
            revisions=revisions,
            models=[row.model for _, row in mends],
            notes=[row.note for _, row in mends],
            codecs=[row.payload and row.payload.codec for _, row in mends],
            key_ids=[row.payload and row.payload.key_id for _, row in mends],
            bodies=[row.payload and row.payload.data for _, row in mends],
            now=self.now,
        )
        self._do("mend_job", jobs=jobs, revisions=revisions)

    def give_models(self, given: Sequence[tuple[JobRow, JobRow]]) -> None:
        jobs, revisions = [job.id for job, _ in given], [was.revision for was, _ in given]
        models, nothing = [job.model for _, job in given], [None] * len(given)
        self._do("keep_model", jobs=jobs, was=[was.model for was, _ in given])
        self._do(
            "mend_payload",
            jobs=jobs,
            revisions=revisions,
            models=models,
            notes=[ANOTHER_MODEL] * len(given),
            codecs=nothing,
            key_ids=nothing,
            bodies=nothing,
            now=self.now,
        )
        self._do(
            "give_model",
            jobs=jobs,
            revisions=revisions,
            models=models,
            strikes=[job.strikes for _, job in given],
            not_befores=[job.not_before for _, job in given],
        )

    def add_payloads(self, started: list[op.Started]) -> None:
        if started:
            self._payloads.append((started, self._ask_for_payloads(started)))

    def _ask_for_payloads(self, started: Sequence[op.Started]) -> Asked:
        return self._do("payloads", ids=[one.row.id for one in started])

    def has_answer(self, id: int) -> bool:
        return self._value("has_answer", job=id) is not None

    def has_texts(self, id: int) -> bool:
        return self._value("has_texts", job=id) is not None

    def held_by(self, owner_id: int) -> list[int]:
        return [id for (id,) in self._do("held_by", owner_id=owner_id)]

    def open_attempts_of(self, owner_id: int) -> list[tuple[int, AttemptState]]:
        return [(job, attempt_state(columns)) for job, *columns in self._do("open_attempts_of", owner_id=owner_id)]

    def ask_for_owner(self, owner_id: int) -> None:
        if owner_id not in self._owners:
            self._owners[owner_id] = self._do("owner_alive", id=owner_id)

    def owner_alive(self, owner_id: int) -> bool:
        self.ask_for_owner(owner_id)
        found = self._owners[owner_id]
        if not isinstance(found, bool):
            found = self._owners[owner_id] = found.fetchone() is not None
        return found

    def trigger(self, replay_id: int) -> str:
        return str(self._value("trigger", id=replay_id))

    def write_changes(self, changes: Sequence[Change]) -> None:
        # One statement doesn't see the attempts that it opens itself.
        at_once = [change for change in changes if change.opened is not None and change.closed is not None]
        if at_once:
            self._write_changes([change._replace(closed=None) for change in at_once])
            rest = [change._replace(was=change.row, opened=None) for change in at_once]
            changes = sorted(
                [*rest, *(change for change in changes if change not in at_once)], key=attrgetter("row.id")
            )
        self._write_changes(changes)

    def _write_changes(self, changes: Sequence[Change]) -> None:
        moved = [
            _given(MOVED, moved_columns(change.row), id=change.row.id)
            | dict(zip(FOUND, found_columns(change.was), strict=True))
            for change in changes
            if change.row is not change.was
        ]
        opened = [change.row for change in changes if change.opened is not None]
        closed = [
            _given(CLOSED, closing_columns(change.closed), job=change.row.id, number=change.closed.number)
            for change in changes
            if change.closed is not None
        ]
        answers = [
            (change.row.id, change.answered_by, change.answer) for change in changes if change.answer is not None
        ]
        self._witness = next((row for row in opened if row.owner_id is not None), self._witness)
        self._do(
            "move_job",
            moved=json.dumps(moved),
            opened=json.dumps([_opened_row(row) for row in opened]),
            closed=json.dumps(closed),
            answered=json.dumps(
                [
                    {"job": job, "attempt": number, "codec": body.codec, "key_id": body.key_id}
                    for job, number, body in answers
                ]
            ),
            bodies=[body.data for _, _, body in answers],
            now=self.now,
        )

    def forgive_attempts(self, rows: Sequence[op.Forgive]) -> None:
        if rows:
            self._do("forgive_attempt", jobs=[row.id for row in rows], numbers=[row.attempt for row in rows])

    def make_deliverable(self, ids: Sequence[int]) -> None:
        self._do("make_deliverable", jobs=list(ids), now=self.now)

    def note_deliveries(self, rows: Sequence[op.NoteDelivery]) -> None:
        if rows:
            self._do(
                "note_delivery",
                jobs=[row.id for row in rows],
                faults=[row.fault for row in rows],
                waits_s=[row.wait_s for row in rows],
                now=self.now,
            )

    def erase_texts(self, why: Mapping[int, str]) -> None:
        if why:
            for name in ("erase_payloads", "erase_answer", "erase_messages", "note_erasure"):
                self._do(name, jobs=list(why), whys=list(why.values()), codec=ERASED, now=self.now)

    def rekey_texts(self, rows: Sequence[op.Rekey]) -> None:
        for kind, statement in REKEY.items():
            given = [rekeyed_columns(row) for row in rows if row.kind is kind]
            if given:
                names = REKEYED_MESSAGE if kind is TextKind.MESSAGES else REKEYED_BODY
                self._do(statement, **dict(zip(names, map(list, zip(*given, strict=True)), strict=True)))
        hashes = [row for row in rows if row.hash != row.was_hash]
        if hashes:
            self._do(
                "rekey_identities",
                hash=[row.hash for row in hashes],
                job=[row.job for row in hashes],
                was_hash=[row.was_hash for row in hashes],
            )

    def forget_jobs(self, ids: Sequence[int]) -> list[int]:
        return [id for (id,) in self._do("forget_jobs", ids=list(ids))] if ids else []

    def counted_pairs(self) -> list[tuple[str, str]]:
        self._connection.execute(LETTING_IN)
        return [(pipeline, model) for pipeline, model in self._do("counted_pairs")]

    # --- what isn't about jobs ---

    def hand_out(self, rows: Sequence[op.HandOut]) -> list[None]:
        self._do("hand_out", jobs=[id for row in rows for id in row.ids], now=self.now)
        return [None] * len(rows)

    def register(self, rows: Sequence[op.Register]) -> list[int]:
        ids = [int(self._value("register", **row.facts._asdict(), now=self.now)) for row in rows]
        self._count_as(ids[0])
        return ids

    def beat(self, rows: Sequence[op.Beat]) -> list[op.Beats]:
        self._count_as(rows[0].owner_id)
        mine = [self._hit("beat", id=row.owner_id, now=self.now) for row in rows]
        alive = [owner_row(columns) for columns in self._do("owners_alive")]
        return [
            op.Beats(beat, {owner.id: owner for owner in alive if owner.id != row.owner_id})
            for row, beat in zip(rows, mine, strict=True)
        ]

    def _count_as(self, owner_id: int) -> None:
        self._slot = owner_id % SLOTS

    def lose(self, rows: Sequence[op.Lose]) -> list[list[JobRow]]:
        return [
            [
                job
                for id, beat in sorted(row.beats.items())
                if self._hit("lose", id=id, beat=beat, now=self.now)
                for job in self.orphan_jobs_of(id)
            ]
            for row in rows
        ]

    def leave(self, rows: Sequence[op.Leave]) -> list[list[JobRow]]:
        return [
            self.orphan_jobs_of(row.owner_id) if self._hit("leave", id=row.owner_id, now=self.now) else []
            for row in rows
        ]

    def alone_with_runs(self) -> None:
        self._connection.execute(ALONE_WITH_RUNS)

    def other_run(self, pipeline: str, owner_id: int) -> op.OwnerRow | None:
        found = self._do("other_run", pipeline=pipeline, owner_id=owner_id).fetchone()
        return None if found is None else owner_row(found)

    def note_run(self, owner_id: int, run: op.Run) -> bool:
        return self._hit("note_run", owner_id=owner_id, pipeline=run.pipeline, **run.called._asdict(), now=self.now)

    def end_run(self, owner_id: int) -> None:
        self._do("end_run", owner_id=owner_id)

    def open_replay(self, rows: Sequence[op.OpenReplay]) -> list[int]:
        return [int(self._value("open_replay", **row._asdict(), now=self.now)) for row in rows]

    def close_replay(self, rows: Sequence[op.CloseReplay]) -> list[None]:
        for row in rows:
            self._do("close_replay", **row._asdict(), now=self.now)
        return [None] * len(rows)

    def set_mark(self, rows: Sequence[op.SetMark]) -> list[None]:
        for row in rows:
            self._do("set_mark", name=row.name, value=json.dumps(row.value), now=self.now)
        return [None] * len(rows)

    def take_lease(self, rows: Sequence[op.TakeLease]) -> list[bool]:
        return [self._hit("take_lease", **row._asdict(), now=self.now) for row in rows]

    def set_gate(self, values: Mapping[str, Any]) -> None:
        self._do("set_gate", **values)

    def gates(self) -> list[tuple[Any, ...]]:
        return gate_columns(self._do("gates"))

    def pauses(self) -> list[op.PauseRow]:
        return pause_rows(self._do("pauses"))

    def take_probe(self, row: op.ClaimProbe) -> bool:
        return self._hit("claim_probe", **row._asdict(), now=self.now)

    def last_probe(self, model: str) -> float | None:
        last: float | None = self._value("last_probe", model=model)
        return last

    def note_pause(self, row: op.SetPause, *, fault_began_at: float, until: float | None) -> None:
        values = {
            "pipeline": row.pipeline, "model": row.model, "reason": row.reason, "owner_id": row.owner_id,
            "fault_began_at": fault_began_at, "until": until, "now": self.now,
        }  # fmt: skip
        self._do("set_pause", **values)

    def end_pause(self, row: op.ClearPause, *, began_at: float) -> bool:
        return self._hit("clear_pause", pipeline=row.pipeline, model=row.model, began_at=began_at)

    # --- asking the connection ---

    def _do(self, statement: str, /, **values: Any) -> Asked:
        return self._connection.execute(_TEXTS[statement], values, binary=True)

    def _value(self, statement: str, /, **values: Any) -> Any:
        row = self._do(statement, **values).fetchone()
        return None if row is None else row[0]

    def _jobs(self, statement: str, /, **values: Any) -> Iterator[JobRow]:
        return map(job_row, self._do(statement, **values))

    def _hit(self, statement: str, /, **values: Any) -> bool:
        """Whether a change found its row."""
        return self._do(statement, **values).fetchone() is not None


def _bears_witness(found: JobRow, witness: JobRow) -> bool:
    """Whether a job's row comes from the transaction that left it so."""
    if witness.owner_id is None:
        return (found.job_id, found.pipeline, found.batch, found.accepted_at) == (
            witness.job_id, witness.pipeline, witness.batch, witness.accepted_at
        )  # fmt: skip
    # Only this process starts jobs under its id, one transaction after the other.
    return (found.owner_id, found.calls) == (witness.owner_id, witness.calls)


def _given(names: Iterable[str], values: Iterable[Any], **more: int) -> dict[str, Any]:
    """A row as it is sent: a column that is missing in JSON is NULL."""
    more.update((name, value) for name, value in zip(names, values, strict=True) if value is not None)
    return more


def _opened_row(row: JobRow) -> dict[str, Any]:
    return {
        "job": row.id, "number": row.calls, "replay_id": row.replay_id, "owner_id": row.owner_id,
        "revision": row.revision,
    }  # fmt: skip


def _bodies(bodies: Iterable[Body]) -> dict[str, list[Any]]:
    """Bodies as an array a column."""
    given = list(bodies)
    return {
        "codecs": [body.codec for body in given],
        "key_ids": [body.key_id for body in given],
        "bodies": [body.data for body in given],
    }


class PostgresReader(SqlReader):
    """The read side, on a connection of its own."""

    dialect = "postgres"
    sql = SQL

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], *, vault: Vault = PLAIN_VAULT) -> None:
        """In a transaction."""
        self._connection = connection
        self._streams = count()
        super().__init__(vault)

    @classmethod
    def of(cls, server: Server, *, vault: Vault = PLAIN_VAULT) -> Self:
        connection = server.connect()
        try:
            connection.execute(BEGIN_READING, prepare=False)
            return cls(connection, vault=vault)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def ask(self, sql: str, values: Mapping[str, Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(sql.encode(), values, binary=True)

    def stream(self, sql: str, values: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        cursor = self._connection.cursor(f"parked_{next(self._streams)}")
        try:
            cursor.itersize = PAGE_ROWS
            cursor.execute(sql.encode(), values, binary=True)
            for row in cursor:  # noqa: UP028 - `yield from` would close the cursor by itself, and raise what it met
                yield row
        finally:
            # The server may be gone, and whoever asked, too: then this runs where nobody can take an error.
            try:
                cursor.close()
            except psycopg.Error:
                self._connection.close()
                cursor.close()

    def oldest(self, state: State) -> dict[tuple[str, str], float]:
        with unsorted(self._connection):
            return super().oldest(state)

    def forgettable(self, before: float, *, after: int, limit: int) -> list[int]:
        with unsorted(self._connection):
            return super().forgettable(before, after=after, limit=limit)

    def undelivered(self, *, since: float, now: float, limit: int) -> list[Undelivered]:
        with unsorted(self._connection):
            return super().undelivered(since=since, now=now, limit=limit)

    def size_bytes(self) -> int:
        return int(self._value("room"))

    def many(self, values: Iterable[Any]) -> list[Any]:
        return [value.value if isinstance(value, Enum) else value for value in values]

    def pattern(self, text: str) -> str:
        return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")


class PostgresTarget:
    """See `Target`."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        connection.execute(_TEXTS["forget_name"])

    def fill(self, table: str, rows: Iterable[Row]) -> None:
        with self._connection.cursor() as cursor, cursor.copy(_TEXTS[f"fill_{table}"]) as copy:
            for row in rows:
                copy.write_row(self.kept(row))

    def kept(self, row: Row) -> Row:
        """A text of PostgreSQL can't hold NUL. Names have none, bodies are bytes: it may be in what a server said."""
        return tuple(value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in row)

    def go_on_from(self, last_ids: Mapping[str, int]) -> None:
        values = {"owners": 0, "replays": 0, "jobs": 0} | dict(last_ids)
        self._connection.execute(_TEXTS["go_on_from"], values)

    def reader(self) -> PostgresReader:
        return PostgresReader(self._connection)


class PostgresDatabase:
    """See `Database`."""

    def __init__(self, server: Server, *, vault: Vault = PLAIN_VAULT, clock: Callable[[], float] | None = None) -> None:
        self.url = server.url
        self.where = server.where
        self._server = server
        self._vault = vault
        self._clock = clock

    def prepare(self, *, create: bool, upgrade: bool) -> bool:
        return self._bring_up_to_date(create=create, upgrade=Upgrade.ADDITIVE if upgrade else Upgrade.NONE).created

    def check_place(self) -> None:
        """A server is there for many machines."""

    def migrate(self) -> Upgraded:
        return self._bring_up_to_date(create=True, upgrade=Upgrade.ALL)

    def _bring_up_to_date(self, *, create: bool, upgrade: Upgrade) -> Upgraded:
        with closing(self._server.connect()) as connection:
            schema = PostgresSchema(connection, self.where)
            return bring_up_to_date(schema, create=create, upgrade=upgrade, steps=migrations("postgres"))

    def store(self) -> PostgresStore:
        return PostgresStore(self._server, clock=self._clock)

    def reader(self) -> PostgresReader:
        return PostgresReader.of(self._server, vault=self._vault)

    def look(self, *, patience_s: float) -> PostgresReader:
        # The server's own patience ends first: else it would go on for nobody.
        begin_looking = BEGIN_READING + f"; SET LOCAL statement_timeout = {round(1000 * patience_s)}".encode()
        connection = self._server.connect(silence_s=patience_s + 1)
        try:
            connection.execute(begin_looking, prepare=False)
            schema = PostgresSchema(connection, self.where)
            bring_up_to_date(schema, create=False, upgrade=Upgrade.NONE, steps=migrations("postgres"))
            return PostgresReader(connection, vault=self._vault)
        except BaseException:
            connection.close()
            raise

    def scrub(self) -> bool:
        return scrub(self._server)

    def write_copy(self, file: Path) -> None:
        from parked.ledger.sqlite import SqliteDatabase
        from parked.ledger.sqlite_copy import faults_of_copy

        self.prepare(create=False, upgrade=False)
        copy = SqliteDatabase(file, mode=None, clock=time.time, monotonic=time.monotonic)
        with faults_of_copy(), closing(self.reader()) as source, copy.to_be_filled() as target:
            take_over(Explained(source, self.explain), target, where=str(file))

    @contextmanager
    def alone(self) -> Iterator[None]:
        with closing(self._server.connect()) as connection:
            begin(connection)
            connection.execute(LOCKING_OUT)
            yield  # closing the connection ends the transaction

    @contextmanager
    def to_be_filled(self) -> Iterator[PostgresTarget]:
        with closing(self._server.connect()) as connection:
            schema = PostgresSchema(connection, self.where, denied=MAY_NOT_FILL)
            with schema.transaction():
                apply(schema, migrations("postgres"))
                connection.execute(LOCKING_OUT)
                if connection.execute(_TEXTS["anything"]).fetchone() is not None:
                    raise SettingsError(f"the ledger {self.where} {USED_BEFORE} an empty database, or make one")
                yield PostgresTarget(connection)

    def explain(self, exc: Exception) -> Exception:
        return self._server.explain(exc)
