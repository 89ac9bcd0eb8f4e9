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
from parked.judge import Judged, text_of
from parked.ledger import operations as op
from parked.ledger.codec import Body, keep
from parked.ledger.operations import NO_SPAN, Closing, JobRow, SpanIds
from parked.policy import GiveUp, LetGo, Rest, Retry, Ruling
from parked.verdict import Verdict


class Turn(NamedTuple):
    """Wait for the job's turn: at least so long, until the model may be called and a worker is free.

    Sent: None once it may call, or what it is told instead.
    """

    model: str
    wait_s: float = 0.0


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


Effect = Turn | Record | Ask | Inspect


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
    stands_aside: bool = False  # another hold of the same job came, and tells what becomes of it
    finished: bool = False  # the job needs nothing more from us
    called: bool = False  # at least one call was made here
    handed_back: bool = False  # told to leave, at a pause say: it is what it was before
    failed_attempt: int | None = None  # the last one that failed here
    body_bytes: int = 0  # of the payload as it is stored
    judged: Judged | None = None  # of the last call
    stored: Body | None = None  # the answer that was there before, where it was read already
    was_model: str | None = None  # for which it was pending until it was accepted here with another
    # With which it was accepted here in vain: it wasn't pending, or another process has moved it before its start.
    wanted_model: str | None = None

    def release(self) -> op.Release:
        """The operation that hands the job back as it is; an open attempt is closed as interrupted.

        Between two attempts it names the one before: another course that has started the job since keeps it.
        """
        attempt = self.row.calls if self.attempt is None else self.attempt
        return op.Release(self.row.id, self.owner_id, attempt, called=self.called)

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
    """What a course goes by."""

    judge: Callable[[Any, Reply], Judged]  # (payload, reply)
    has_check: bool  # whether a check of the pipeline's own looks at each success
    rule: Callable[[Hold, Verdict], Ruling | None]  # told of every outcome; None: nothing follows a success


def course(hold: Hold, rules: Rules, *, span: SpanIds = NO_SPAN) -> Generator[Effect, Any, Hold]:
    """Run one job to its end here: answered, parked, handed back, or found in other hands.

    Returns the hold, up to date.
    """
    previous, wait_s, closing = None, 0.0, None
    model = hold.model
    while True:
        if hold.attempt is None:
            told = yield Turn(model, wait_s)
            if isinstance(told, Rest):
                release = op.Release(hold.row.id, hold.owner_id, to_the_back=True, strikes=told.strikes)
                hold.row = yield Record(release)
                if hold.row.state is not State.PENDING:
                    return _left(hold, hold.row)
                previous, wait_s = None, 0.0
                continue
            if told is not None:
                return (yield from _told(hold, told, closing))
            opened = yield Record(
                op.Start(hold.row.id, hold.owner_id, hold.replay_id, previous, span, hold.row.revision)
            )
            if not isinstance(opened, op.Started):
                if opened.row is not None and opened.row.model != hold.row.model:
                    hold.wanted_model = hold.row.model
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
        ruling = rules.rule(hold, verdict)
        if ruling is None:
            kept = keep(judged.answer)
            if kept.value is not judged.answer:  # whoever asks later is told the same
                hold.judged = judged._replace(answer=kept.value, text=text_of(kept.value))
            hold.row = yield Record(op.Answer(*at, answer=kept.body, closing=closing))
            return _left(hold, hold.row)

        hold.failed_attempt = hold.attempt
        match ruling.then:
            case GiveUp(disposition, not_before_s):
                error_class = verdict.error_class(disposition)
                park = op.Park(*at, closing, error_class, strike=ruling.strike, wait_s=not_before_s)
                hold.row = yield Record(park)
                return _left(hold, hold.row)
            case LetGo(strikes):
                hold.handed_back = True
                hold.row = yield Record(op.Release(*at, closing, to_the_back=True, strikes=strikes))
                return _left(hold, hold.row)
            case Retry(wait_s):
                hold.row = yield Record(op.Retried(*at, closing, strike=ruling.strike, wait_s=wait_s))
                previous, hold.attempt = hold.attempt, None
                if hold.row.state not in HELD or hold.row.owner_id != hold.owner_id:
                    return _left(hold, hold.row)
            case _:
                assert_never(ruling.then)


def _told(hold: Hold, told: LetGo | GiveUp, closing: Closing | None) -> Generator[Effect, Any, Hold]:
    """A job that waits is told to leave; `closing` is how its last attempt here ended, None if it made none."""
    if hold.row.state not in HELD or hold.row.owner_id != hold.owner_id:
        return _left(hold, hold.row)
    if isinstance(told, GiveUp) and closing is not None and hold.verdict is not None:
        error_class = hold.verdict.error_class(told.disposition)
        last = hold.row.calls
        park = op.Park(hold.row.id, hold.owner_id, last, closing, error_class, strike=False, wait_s=told.wait_s)
        hold.row = yield Record(park)
    else:
        hold.handed_back = True
        strikes = told.strikes if isinstance(told, LetGo) else None
        hold.row = yield Record(op.Release(hold.row.id, hold.owner_id, to_the_back=True, strikes=strikes))
    return _left(hold, hold.row)


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
