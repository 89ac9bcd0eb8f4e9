"""The group-commit writer: many operations a commit, in order for each job, and no outcome lost."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parked.errors import LedgerUnavailable, TransitionError
from parked.job import State
from parked.ledger import codec, open_ledger
from parked.ledger import operations as op
from parked.ledger.operations import Closing
from parked.ledger.pulse import Pulse
from parked.ledger.sqlite import SqliteStore
from parked.ledger.writer import METHODS, Ticket, Writer, waves
from parked.verdict import Kind, Reason

WAIT_S = 20.0
FAILED = Closing(kind=Kind.RETRYABLE, reason=Reason.SERVER_ERROR, status=500, message="boom")


class Disk:
    """What a test can do to the disk below a store: stop it, fill it, count its syncs."""

    def __init__(self) -> None:
        self.commits = 0
        self.full = False
        self.commits_that_fail = 0
        self.tried = threading.Semaphore(0)  # released at each try
        self.goes_on = threading.Event()
        self.goes_on.set()


def full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


class StoreOnDisk(SqliteStore):
    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path)
        self.disk = disk

    def begin(self) -> None:
        self.disk.tried.release()
        assert self.disk.goes_on.wait(WAIT_S)
        if self.disk.full:
            raise full()
        super().begin()

    def commit(self) -> None:
        if self.disk.commits_that_fail:
            self.disk.commits_that_fail -= 1
            raise full()
        self.disk.commits += 1
        super().commit()


class Now:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def monotonic() -> Now:
    return Now()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "parked.db"
    open_ledger(f"sqlite:///{file}").close()
    return file


@pytest.fixture
def writer(path: Path, disk: Disk, monotonic: Now) -> Iterator[Writer]:
    writer = Writer(
        lambda: StoreOnDisk(path, disk), pulse=Pulse(monotonic=monotonic), patience_s=900.0, monotonic=monotonic
    )
    yield writer
    disk.full = False
    disk.goes_on.set()
    writer.close()


@pytest.fixture
def owner(writer: Writer) -> int:
    facts = op.OwnerFacts("token", "runner", "h", "", "", 1, "", "1")
    id: int = writer.submit(op.Register(facts)).wait(WAIT_S)
    return id


def accept(job_id: str, payload: Any = 1, owner: int | None = None) -> op.Accept:
    return op.Accept("p", "", job_id, "m", codec.encode(payload), codec.identity(payload), start_for=owner)


def answer(row: op.JobRow, owner: int, closing: Closing | None = None) -> op.Answer:
    return op.Answer(row.id, owner, row.calls, codec.encode("42"), closing or Closing())


def test_what_gathers_while_one_commit_syncs_is_committed_together(writer, disk):
    disk.goes_on.clear()
    tickets = [writer.submit(accept("first"))]
    assert disk.tried.acquire(timeout=WAIT_S)
    tickets += [writer.submit(accept(f"job-{n}")) for n in range(100)]

    disk.goes_on.set()
    for ticket in tickets:
        ticket.wait(WAIT_S)

    assert disk.commits == 2


def test_a_batch_ends_at_256_operations(writer, disk):
    tickets = writer.submit_many([accept(f"job-{n}") for n in range(600)])

    tickets[-1].wait(WAIT_S)

    assert disk.commits == 3


def test_a_batch_ends_at_8_megabytes(writer, disk):
    large = "x" * 3_000_000
    tickets = writer.submit_many([accept(f"job-{n}", large) for n in range(4)])

    tickets[-1].wait(WAIT_S)

    assert disk.commits == 2


def test_operations_on_one_job_keep_their_order(writer, owner):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row

    retried, started, answered = writer.submit_many(
        [
            op.Retried(row.id, owner, 1, FAILED, strike=True),
            op.Start(row.id, owner, previous=1),
            answer(row, owner)._replace(attempt=2),
        ]
    )

    assert retried.wait(WAIT_S).state is State.RUNNING
    assert started.wait(WAIT_S).attempt == 2
    assert answered.wait(WAIT_S).state is State.SUCCEEDED


def test_operations_are_grouped_by_kind_but_never_overtake_one_on_the_same_job():
    closing = Closing()
    one, two = op.Park(1, 9, 1, closing, "c"), op.Start(2, 9)
    operations: list[op.Operation] = [one, two, op.Start(3, 9), op.Discard(1, "why"), op.Leave(9), op.Start(4, 9)]

    assert waves(operations) == [
        {"finish": [0], "start": [1, 2]},
        {"discard": [3]},
        {"leave": [4]},
        {"start": [5]},
    ]


def test_every_operation_has_its_method():
    assert set(METHODS) == set(op.Operation.__args__)
    assert all(callable(getattr(SqliteStore, method)) for method in METHODS.values())


def test_an_owner_that_leaves_hands_back_first_what_was_released_before(writer, owner):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row

    released, left = writer.submit_many([op.Release(row.id, owner), op.Leave(owner)])

    assert released.wait(WAIT_S).state is State.PENDING
    assert left.wait(WAIT_S) == []


def test_one_bad_operation_does_not_fail_the_others(writer, owner):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row

    before, bad, after = writer.submit_many([accept("a-2"), op.Discard(row.id, "why"), accept("a-3")])

    assert before.wait(WAIT_S).created
    with pytest.raises(TransitionError):
        bad.wait(WAIT_S)
    assert after.wait(WAIT_S).created


def test_a_channel_hears_once_of_a_batch(writer, disk):
    heard: list[list[Ticket]] = []
    done = threading.Event()

    class Loop:
        def deliver(self, tickets: list[Ticket]) -> None:
            heard.append(tickets)
            done.set()

    tickets = writer.submit_many([accept(f"job-{n}") for n in range(10)], Loop())

    assert done.wait(WAIT_S)
    assert heard == [tickets]
    assert all(ticket.result.created for ticket in tickets)


def test_a_channel_that_is_gone_does_not_end_the_thread(writer):
    class ClosedLoop:
        def deliver(self, tickets: list[Ticket]) -> None:
            raise RuntimeError("Event loop is closed")

    writer.submit(accept("a-1"), ClosedLoop())

    assert writer.submit(accept("a-2")).wait(WAIT_S).created


def test_accepting_fails_at_once_while_the_disk_is_full(writer, disk):
    disk.full = True

    with pytest.raises(LedgerUnavailable, match="the disk is full"):
        writer.submit(accept("a-1")).wait(WAIT_S)


def test_an_outcome_waits_until_the_disk_has_room_again(writer, disk, owner, monotonic):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row
    disk.full = True
    ticket = writer.submit(answer(row, owner))
    with pytest.raises(LedgerUnavailable):
        writer.submit(accept("a-2")).wait(WAIT_S)

    assert writer.stalled
    assert writer.unwritten == [ticket.operation]
    disk.full = False
    monotonic.now += 10.0
    writer.look()

    assert ticket.wait(WAIT_S).state is State.SUCCEEDED
    assert not writer.stalled


def test_an_outcome_that_is_just_being_tried_again_still_counts_as_unwritten(writer, disk, owner, monotonic):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row
    disk.full = True
    ticket = writer.submit(answer(row, owner))
    with pytest.raises(LedgerUnavailable):
        writer.submit(accept("a-2")).wait(WAIT_S)
    while disk.tried.acquire(blocking=False):
        pass

    disk.goes_on.clear()
    monotonic.now += 10.0
    writer.look()
    assert disk.tried.acquire(timeout=WAIT_S)  # the writer has it in hand, and waits for the disk

    assert writer.stalled
    assert writer.unwritten == [ticket.operation]
    disk.full = False
    disk.goes_on.set()
    assert ticket.wait(WAIT_S).state is State.SUCCEEDED
    writer.submit(accept("a-3")).wait(WAIT_S)
    assert (writer.stalled, writer.unwritten) == (False, [])


def test_an_outcome_that_fails_alone_is_not_overtaken_by_the_next_of_its_job(writer, disk, owner, monotonic):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row
    disk.commits_that_fail = 2  # of the batch, and of the first operation alone

    failed, parked = writer.submit_many(
        [op.Retried(row.id, owner, 1, FAILED, strike=True), op.Park(row.id, owner, 1, FAILED, "exhausted:500")]
    )
    writer.submit(accept("a-2")).wait(WAIT_S)

    assert failed.wait(WAIT_S).state is State.RUNNING
    assert parked.wait(WAIT_S).strikes == 1


def test_counters_of_a_batch_that_was_rolled_back_are_not_counted_twice(writer, owner, path):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row

    accepted, refused = writer.submit_many([accept("a-2"), op.Discard(row.id, "why")])
    accepted.wait(WAIT_S)
    with pytest.raises(TransitionError):
        refused.wait(WAIT_S)

    with open_ledger(f"sqlite:///{path}") as ledger, ledger.ask() as reader:
        assert [(row.metric, row.value) for row in reader.counters("jobs_accepted")] == [("jobs_accepted", 2)]
        assert reader.imbalances() == []


def test_nothing_overtakes_an_outcome_that_waits(writer, disk, owner, monotonic):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row
    disk.full = True
    failed = writer.submit(op.Retried(row.id, owner, 1, FAILED, strike=True))
    with pytest.raises(LedgerUnavailable):
        writer.submit(accept("a-2")).wait(WAIT_S)
    parked = writer.submit(op.Park(row.id, owner, 1, FAILED, "exhausted:500"))

    disk.full = False
    started = writer.submit(op.Start(row.id, owner))

    assert failed.wait(WAIT_S).strikes == 1
    assert parked.wait(WAIT_S).state is State.PARKED
    assert isinstance(started.wait(WAIT_S), op.Held)


def test_an_outcome_is_given_up_when_the_patience_is_over(writer, disk, owner, monotonic):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row
    disk.full = True
    ticket = writer.submit(answer(row, owner))
    with pytest.raises(LedgerUnavailable):
        writer.submit(accept("a-2")).wait(WAIT_S)

    monotonic.now += 900.0
    with pytest.raises(LedgerUnavailable):
        writer.submit(accept("a-3")).wait(WAIT_S)

    with pytest.raises(LedgerUnavailable, match=r"not recorded after 900 s of trying: .* the disk is full"):
        ticket.wait(WAIT_S)


def test_a_ledger_that_takes_something_else_while_an_outcome_is_given_up_is_not_said_to_be_back(
    writer, disk, owner, monotonic, caplog
):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row
    disk.full = True
    ticket = writer.submit(answer(row, owner))
    with pytest.raises(LedgerUnavailable):
        writer.submit(accept("a-2")).wait(WAIT_S)

    disk.full = False
    monotonic.now += 900.0
    writer.submit(accept("a-3")).wait(WAIT_S)
    with pytest.raises(LedgerUnavailable, match="not recorded"):
        ticket.wait(WAIT_S)
    disk.full = True
    with pytest.raises(LedgerUnavailable):
        writer.submit(accept("a-4")).wait(WAIT_S)

    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["ledger_away"]


def test_an_outcome_that_the_database_refuses_is_recorded_without_its_texts(writer, owner, path):
    row = writer.submit(accept("a-1", owner=owner)).wait(WAIT_S).row
    said = FAILED._replace(message="a lone surrogate: \ud800", fingerprint="\udfff")

    parked = writer.submit(op.Park(row.id, owner, 1, said, "exhausted:500")).wait(WAIT_S)

    assert (parked.state, parked.error_class, parked.fingerprint) == (State.PARKED, "exhausted:500", None)
    with open_ledger(f"sqlite:///{path}") as ledger, ledger.ask() as reader:
        (attempt,) = reader.attempts(row.id)
    assert (attempt.status, attempt.message) == (500, "")


def interrupting_once(monkeypatch, method):
    """Have Ctrl-C strike where a thread is started, or waited for: once."""
    does = getattr(threading.Thread, method)

    def struck(thread, *given):
        monkeypatch.setattr(threading.Thread, method, does)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, method, struck)


def test_a_writer_whose_thread_was_interrupted_at_its_start_starts_another(writer, monkeypatch):
    interrupting_once(monkeypatch, "start")
    with pytest.raises(KeyboardInterrupt):
        writer.submit(accept("a-1"))

    assert writer.submit(accept("a-2")).wait(WAIT_S).created


def test_a_writer_whose_thread_was_never_started_can_be_closed(writer, monkeypatch):
    interrupting_once(monkeypatch, "start")
    with pytest.raises(KeyboardInterrupt):
        writer.submit(accept("a-1"))

    writer.close()


def test_a_ledger_whose_closing_was_interrupted_is_closed_by_the_next(path, monkeypatch):
    ledger = open_ledger(f"sqlite:///{path}")
    ledger.sweep()
    interrupting_once(monkeypatch, "join")
    with pytest.raises(KeyboardInterrupt):
        ledger.close()

    ledger.close()

    assert not [file.name for file in path.parent.iterdir() if file.name.endswith("-wal")]


def test_closing_writes_what_waits(path, disk, monotonic):
    writer = Writer(
        lambda: StoreOnDisk(path, disk), pulse=Pulse(monotonic=monotonic), patience_s=900.0, monotonic=monotonic
    )
    tickets = writer.submit_many([accept(f"job-{n}") for n in range(1000)])

    writer.close()

    assert all(ticket.wait(0).created for ticket in tickets)
    with pytest.raises(LedgerUnavailable, match="closed"):
        writer.submit(accept("late"))
