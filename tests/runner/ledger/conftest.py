"""One suite judges every database: it drives a ledger through its operations and its reader, never through its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parked.job import State
from parked.ledger import Ledger, codec, open_ledger
from parked.ledger import operations as op
from parked.ledger.operations import Closing, JobRow, OwnerFacts
from parked.ledger.store import AttemptRow, Filters, Imbalance
from parked.verdict import Kind, Reason, Scope

OVERLOADED = Closing(
    kind=Kind.RETRYABLE,
    reason=Reason.OVERLOADED,
    scope=Scope.MODEL,
    status=503,
    rule="http.503",
    fingerprint="f503",
    message="The model is overloaded.",
    duration_s=1.5,
    tokens_in=7,
)
DONE = Closing(rule="answer.stop", duration_s=0.3, tokens_in=10, tokens_out=20, response_id="r-1")
PAYLOAD = {"contents": "six times seven"}


class Clock:
    """The wall clock of a ledger: stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """What a pipeline, a replay and a person do with a ledger, in one line each; owners are made of thin air."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.owners = 0
        self.jobs = 0

    def owner(self, **facts: Any) -> int:
        self.owners += 1
        values: dict[str, Any] = {
            "token": f"t{self.owners}", "role": "runner", "host": "h", "boot_id": "", "pid_namespace": "", "pid": 1,
            "process_start": "", "version": "1",
        }  # fmt: skip
        id: int = self.ledger.record(op.Register(OwnerFacts(**values | facts)))
        return id

    def accept(self, job_id: str | None = None, payload: Any = PAYLOAD, **more: Any) -> op.Accepted:
        self.jobs += 1
        names = {"pipeline": "captions", "batch": "", "model": "m"} | more
        operation = op.Accept(
            job_id=job_id or f"job-{self.jobs}",
            payload=codec.encode(payload),
            payload_hash=codec.identity(payload),
            **names,
        )
        accepted: op.Accepted = self.ledger.record(operation)
        return accepted

    def pending(self) -> JobRow:
        return self.accept().row

    def start(self, row: JobRow, owner: int, replay: int | None = None) -> Any:
        return self.ledger.record(op.Start(row.id, owner, replay))

    def start_again(self, row: JobRow, owner: int) -> Any:
        """The next attempt of the course that made the last one of `row`."""
        return self.ledger.record(op.Start(row.id, owner, row.replay_id, previous=row.calls))

    def running(self, owner: int) -> JobRow:
        return self.accept(start_for=owner).row

    def answer(self, row: JobRow, owner: int, attempt: int | None = None, value: Any = "42") -> JobRow:
        return self._recorded(op.Answer(row.id, owner, attempt or row.calls, codec.encode_answer(value), DONE))

    def retried(self, row: JobRow, owner: int, **more: Any) -> JobRow:
        return self._recorded(op.Retried(row.id, owner, row.calls, OVERLOADED, **{"strike": True} | more))

    def park(self, row: JobRow, owner: int, attempt: int | None = None, **more: Any) -> JobRow:
        error_class = more.pop("error_class", "exhausted:503")
        return self._recorded(op.Park(row.id, owner, attempt or row.calls, OVERLOADED, error_class, **more))

    def release(self, row: JobRow, owner: int, **more: Any) -> JobRow:
        return self._recorded(op.Release(row.id, owner, **more))

    def lose(self, owner: int) -> list[JobRow]:
        parked: list[JobRow] = self.ledger.record(op.Lose({owner: 0}))
        return parked

    def parked(self, **more: Any) -> JobRow:
        owner = self.owner()
        return self.park(self.running(owner), owner, **more)

    def replay(self, trigger: str = "manual") -> int:
        id: int = self.ledger.record(op.OpenReplay("mend", "me", "{}", trigger))
        return id

    def replaying(self, owner: int, trigger: str = "manual", **more: Any) -> JobRow:
        started: op.Started = self.start(self.parked(**more), owner, self.replay(trigger))
        return started.row

    def discard(self, row: JobRow) -> JobRow:
        return self._recorded(op.Discard(row.id, "no longer wanted"))

    def restore(self, row: JobRow) -> JobRow:
        return self._recorded(op.Restore(row.id))

    def in_state(self, state: State, owner: int) -> JobRow:
        """A job that came into this state by its usual way; if it is held, then by `owner`."""
        match state:
            case State.PENDING:
                return self.pending()
            case State.RUNNING:
                return self.running(owner)
            case State.SUCCEEDED:
                return self.answer(self.running(owner), owner)
            case State.PARKED:
                return self.park(self.running(owner), owner)
            case State.REPLAYING:
                return self.replaying(owner)
            case State.RECOVERED:
                return self.answer(self.replaying(owner), owner)
            case State.DISCARDED:
                return self.discard(self.pending())
            case State.FORGOTTEN:
                raise ValueError("a forgotten job has no row")

    def _recorded(self, operation: op.Operation) -> JobRow:
        row: JobRow = self.ledger.record(operation)
        return row

    # --- asking ---

    def now(self, row: JobRow) -> JobRow:
        with self.ledger.ask() as reader:
            (found,) = reader.jobs_by_key(row.job_id, pipeline=row.pipeline, batch=row.batch)
            return found

    def attempts(self, row: JobRow) -> list[AttemptRow]:
        with self.ledger.ask() as reader:
            return reader.attempts(row.id)

    def answer_of(self, row: JobRow) -> Any:
        with self.ledger.ask() as reader:
            found = reader.answer(row.id)
            return None if found is None else codec.decode(found.body)

    def counted(self, metric: str) -> dict[tuple[str, str], float]:
        """The label sets of a family that aren't 0, over all pipelines and models: {(a, b): value}."""
        with self.ledger.ask() as reader:
            return {(row.a, row.b): row.value for row in reader.counters(metric) if row.value}

    def imbalances(self) -> list[Imbalance]:
        with self.ledger.ask() as reader:
            return reader.imbalances(thorough=True)

    def line(self, state: State = State.PENDING) -> list[str]:
        with self.ledger.ask() as reader:
            return [row.job_id for row in reader.jobs(Filters(), states=[state])]


@pytest.fixture
def wall() -> Clock:
    return Clock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/parked.db"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(request: pytest.FixtureRequest, database: str) -> str:
    """Where there is no ledger yet."""
    url: str = request.getfixturevalue(f"{database}_url")
    return url


@pytest.fixture
def ledger(url: str, wall: Clock) -> Iterator[Ledger]:
    with open_ledger(url, clock=wall) as ledger:
        yield ledger


@pytest.fixture
def desk(ledger: Ledger) -> Iterator[Desk]:
    """Whatever a test did, the law of conservation holds at its end."""
    desk = Desk(ledger)
    yield desk
    assert desk.imbalances() == []


@pytest.fixture
def at_desk() -> Callable[[Ledger], Desk]:
    """Returns a function that sits somebody down at a ledger that the test opened by itself."""
    return Desk
