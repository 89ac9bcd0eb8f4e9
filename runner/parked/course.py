"""One job's course, from its turn to its end: the story of the product. Pure.

A course is a generator. It yields what it wants done (`Turn`, `Record`, `Ask`, …) and is sent the result;
a driver does it, with threads (`runner.py`) or with asyncio (`aio.py`). A course holds no resource: whatever stops it
early, its driver hands the job back to the ledger (`Hold.release`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, assert_never

from parked.job import HELD, State
from parked.judge import Judged
from parked.ledger import operations as op
from parked.ledger.codec import Body, encode_answer
from parked.ledger.operations import NO_SPAN, Closing, JobRow, SpanIds
from parked.policy import GiveUp, Retry, Standing
from parked.verdict import Verdict


class Turn(NamedTuple):
    """Wait until the model may be called and a worker is free. The worker is given back when the `Ask` is over."""

    model: str


class Record(NamedTuple):
    """Have the ledger apply an operation, and wait until it is committed. Sent: its result."""

    operation: op.Operation


class Ask(NamedTuple):
    """Call the model. Sent: a `Reply`."""

    payload: Any
    model: str
    attempt: int


class Inspect(NamedTuple):
    """Have the pipeline's own check look at an answer that is otherwise a success. Sent: what remains of it."""

    judged: Judged


class Sleep(NamedTuple):
    wait_s: float


Effect = Turn | Record | Ask | Inspect | Sleep


class Returned(NamedTuple):
    value: Any


class Raised(NamedTuple):
    error: BaseException


class Reply(NamedTuple):
    """What a call came to, how long it took, and the span that saw it."""

    outcome: Returned | Raised
    duration_s: float
    span: SpanIds = NO_SPAN


# What ends a program or a generator rather than a call: recorded as an interruption, and raised again.
NEVER_AN_OUTCOME: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)


@dataclass(slots=True)
class Hold:
    """A job in this process's hands, kept up to date by its course."""

    row: JobRow
    payload: Any
    owner_id: int
    replay_id: int | None = None
    attempt: int | None = None  # the open one, if it is known
    other_model: str | None = None  # than the job's own: it was mended
    claimed: bool = False  # pending from an earlier run, and taken up by this one
    finished: bool = False  # the job needs nothing more from us
    called: bool = False  # at least one call was made here
    judged: Judged | None = None  # of the last call
    stored: Body | None = None  # the answer that was there before, where it was read already

    def release(self) -> op.Release:
        """The operation that hands the job back as it is; an open attempt is closed as interrupted.

        Between two attempts it names the one before: another course that has started the job since keeps it.
        """
        return op.Release(self.row.id, self.owner_id, attempt=self.row.calls if self.attempt is None else self.attempt)

    def let_go(self) -> None:
        """The job was handed back: its row says so."""
        self.row = self.row._replace(state=State.PENDING if self.replay_id is None else State.PARKED)

    @property
    def model(self) -> str:
        """The model that is called."""
        return self.other_model or self.row.model

    @property
    def verdict(self) -> Verdict | None:
        return self.judged.verdict if self.judged else None


class Rules(NamedTuple):
    """What a course decides by. `heed` tells the gate of a failure; the others have no effect outside."""

    judge: Callable[[Any, Reply], Judged]  # (payload, reply)
    has_check: bool  # whether a check of the pipeline's own looks at each success
    heed: Callable[[str, Verdict], None]  # (model, verdict)
    strikes: Callable[[Verdict], bool]
    decide: Callable[[Standing, Verdict], Retry | GiveUp]


def course(hold: Hold, rules: Rules, *, span: SpanIds = NO_SPAN) -> Generator[Effect, Any, Hold]:
    """Run one job to its end here: answered, parked, or found in other hands. Returns the hold, up to date."""
    refusals, previous = 0, None
    model = hold.model
    while True:
        if hold.attempt is None:
            yield Turn(model)
            opened = yield Record(op.Start(hold.row.id, hold.owner_id, hold.replay_id, previous, span))
            if not isinstance(opened, op.Started):
                return _left(hold, opened.row)
            hold.row, hold.attempt = opened.row, opened.attempt

        hold.called = True
        reply = yield Ask(hold.payload, model, hold.attempt)
        judged = rules.judge(hold.payload, reply)
        if rules.has_check and judged.verdict.ok:
            judged = yield Inspect(judged)
        hold.judged = judged
        verdict, closing = judged.verdict, _closing(judged, reply)
        at = (hold.row.id, hold.owner_id, hold.attempt)
        if verdict.ok:
            hold.row = yield Record(op.Answer(*at, answer=encode_answer(judged.answer), closing=closing))
            return _left(hold, hold.row)

        rules.heed(model, verdict)
        strike = rules.strikes(verdict)
        refusals += not strike
        decision = rules.decide(Standing(hold.row.strikes + strike, refusals), verdict)
        match decision:
            case GiveUp(disposition, wait_s):
                error_class = verdict.error_class(disposition)
                hold.row = yield Record(op.Park(*at, closing, error_class, strike=strike, wait_s=wait_s))
                return _left(hold, hold.row)
            case Retry(wait_s):
                hold.row = yield Record(op.Retried(*at, closing, strike=strike, wait_s=wait_s))
                previous, hold.attempt = hold.attempt, None
                if hold.row.state not in HELD or hold.row.owner_id != hold.owner_id:
                    return _left(hold, hold.row)
                yield Sleep(wait_s)
            case _:
                assert_never(decision)


def _left(hold: Hold, row: JobRow | None) -> Hold:
    """The job is out of our hands; `row` is how it stands now, None if retention has removed it since."""
    hold.row = row or hold.row._replace(state=State.FORGOTTEN)
    hold.attempt, hold.finished = None, True
    return hold


def _closing(judged: Judged, reply: Reply) -> Closing:
    return Closing.of(judged.verdict)._replace(
        duration_s=reply.duration_s,
        tokens_in=judged.usage.tokens_in,
        tokens_out=judged.usage.tokens_out,
        response_id=judged.response_id,
        span=reply.span,
    )
