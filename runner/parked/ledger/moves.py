"""The life of a job, decided: what an operation makes of a job's row, its attempt and the counters. Pure.

A store reads the rows, asks here, and writes what it is told; it knows no transition. So all databases tell the same
story. Every change of state goes through `parked.job.after`. Times are UTC epoch seconds.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from parked.errors import TransitionError
from parked.job import ANSWERED, FINISHED, HELD, Event, State, after
from parked.ledger.codec import NOTHING, Body
from parked.ledger.counters import Metric, Move, duration_bucket
from parked.ledger.operations import (
    NO_SPAN,
    Accept,
    Answer,
    Closing,
    Forgive,
    JobRow,
    NoteDelivery,
    Orphan,
    Park,
    Release,
    Retried,
    SpanIds,
    TakeOver,
)
from parked.verdict import Disposition, Kind, Reason, Scope

INTERRUPTED: Final = Closing(kind=Kind.RETRYABLE, reason=Reason.CANCELLED, scope=Scope.JOB, rule="parked.interrupted")
MAYBE_SENT: Final = "maybe_sent"  # an attempt was open: the call may have been made, and billed
NOT_SENT: Final = "not_sent"  # the owner died between two attempts
ANOTHER_MODEL: Final = "accepted again, with another model"  # why a pending job sends another revision
DELIVERED: Final = "delivered"
FAILED: Final = "failed"  # a delivery that is tried again
GIVEN_UP: Final = "given_up"
AUTO: Final = "auto"  # the trigger of a replay that a sidecar began by itself
ERASED: Final = "erased"  # no state, but what keeps a job from being restored, or erased again
_NO_FAILURE: Final[dict[str, Any]] = dict.fromkeys(("error_class", "reason", "kind", "scope", "fingerprint"))
ERASABLE: Final = FINISHED | {State.PARKED}  # at rest: nobody sends its payload now, or will without being asked


class AttemptState(NamedTuple):
    """What an attempt's row says before an operation."""

    number: int  # 1-based
    started_at: float
    ended_at: float | None
    answered: bool
    interrupted: bool


class Closed(NamedTuple):
    """How the row of an attempt is to be closed, or completed if it was closed without its outcome."""

    number: int
    closing: Closing
    strike: bool = False
    interrupted: bool = False


class Change(NamedTuple):
    """What one operation makes of one job. `row` equals `was` where only an attempt is closed, or nothing happens."""

    was: JobRow
    row: JobRow
    moves: tuple[Move, ...] = ()
    opened: int | None = None  # the number of the attempt to open, for the owner and replay in `row`
    closed: Closed | None = None
    answer: Body | None = None  # to be stored with `closed`'s number, unless there is one already
    answered_by: int | None = None  # that attempt's number
    to_the_back: bool = False  # `row` gets a place behind all others


# --- taking on -------------------------------------------------------------------------------------------------


def accepted(op: Accept | TakeOver, *, place: int, now: float) -> JobRow:
    """Return the row of a job that is to be taken on; it gets its id when it is stored."""
    return JobRow(
        0, op.pipeline, op.batch, op.job_id, op.model, after(None, Event.ACCEPT), None, None, None, None, None, None,
        0, 0, 0, None, place, op.caller, op.checker, now, None, None, None, None, None, None, None, None,
        op.payload_hash, 0,
    )  # fmt: skip


def count_accepted(pipeline: str, model: str, *, jobs: int, now: float) -> tuple[Move, ...]:
    """Return the moves of so many new jobs, which are pending: a large batch counts them together."""
    return (
        Move(Metric.JOBS_ACCEPTED, pipeline, model, "", "", jobs),
        Move(Metric.LEDGER_JOBS, pipeline, "", State.PENDING, "", jobs),
        Move(Metric.LAST_ACCEPTED, pipeline, "", "", "", now),
    )


def taken_over(op: TakeOver, row: JobRow, *, known: bool, now: float) -> Change:
    """Park a job that failed elsewhere. A known one must be pending or parked: it is as if it had been run once more.

    The attempt that is opened and closed tells of the last of the calls made elsewhere. It moves no counter of
    attempts, since parked made none.
    """
    if known:
        started = after(row.state, Event.CLAIM if row.state is State.PARKED else Event.START)
        state = after(started, Event.GIVE_UP)
    else:
        state = after(None, Event.TAKE_OVER)
    calls = row.calls + max(op.calls, 1)
    parked_at = now if op.parked_at is None else op.parked_at
    new = _failed(row, op.closing, op.error_class, now=parked_at)._replace(state=state, calls=calls)
    counted = () if row.state is State.PARKED else _count_parked(new, now)
    closed = Closed(calls, _without_erased(row, op.closing))
    return Change(row, new, (*_gauges(row, new), *counted), opened=calls, closed=closed, to_the_back=known)


def for_model(row: JobRow, model: str) -> JobRow:
    """Return a pending job as it is with another model. Its strikes, and its backoff, were met with the one before."""
    return row._replace(model=model, revision=row.revision + 1, strikes=0, not_before=None)


# --- a job's course --------------------------------------------------------------------------------------------


def started(
    row: JobRow,
    *,
    owner_id: int,
    replay_id: int | None = None,
    trigger: str = "",
    previous: int | None = None,
    span: SpanIds = NO_SPAN,
    revision: int | None = None,
    last_is_open: bool,
    now: float,
) -> Change | None:
    """Open the next attempt: the first of a course, or the one after its `previous`. None: nothing to start here.

    An erased job has nothing left to send, and what was read as another `revision` isn't to be sent any more.

    An owner may run two courses of one job by mistake; `previous` tells which of them holds it.

    Raises:
        TransitionError: the course holds the job, and its last attempt is still open.
    """
    if previous is not None:
        if not _holds(row, owner_id) or (row.calls, row.replay_id) != (previous, replay_id):
            return None
        if last_is_open:
            raise TransitionError(row.state, Event.START)
        state = after(row.state, Event.RETRY)
        trace = span if span.trace_id else SpanIds(row.trace_id, row.span_id)
        new = row._replace(state=state, calls=row.calls + 1, not_before=None, trace_id=trace[0], span_id=trace[1])
        return Change(row, new, opened=new.calls)
    if revision not in (None, row.revision):
        return None
    if row.state is not (State.PENDING if replay_id is None else State.PARKED) or row.erased_at is not None:
        return None
    new = row._replace(
        state=after(row.state, Event.START if replay_id is None else Event.CLAIM),
        calls=row.calls + 1,
        strikes=row.strikes if replay_id is None else 0,
        replays=row.replays + (replay_id is not None),
        auto_replays=row.auto_replays + (trigger == AUTO),
        not_before=None,
        started_at=now,
        owner_id=owner_id,
        replay_id=replay_id,
        trace_id=span.trace_id,
        span_id=span.span_id,
    )
    return Change(row, new, _gauges(row, new), opened=new.calls)


def answered(row: JobRow, op: Answer, attempt: AttemptState | None, *, trigger: str, now: float) -> Change:
    """Close an attempt with its answer. The first answer wins; a late one still ends a job that has none.

    A recovered job goes on telling what it had been parked with. Of an erased one no text is kept, late or not.
    """
    if attempt is not None and attempt.answered:
        return Change(row, row)
    in_time = _holds(row, op.owner_id) and attempt is not None and attempt.ended_at is None
    state = after(row.state, Event.ANSWER if in_time else Event.LATE_ANSWER)
    closed, moves = _close(row, op.attempt, op.closing, attempt)
    new = row
    if state is not row.state:
        new = _ended(_span(row, op.closing.span), state, now)
        moves += (*_gauges(row, new), *_count_answered(row, new, trigger, now))
    answer = op.answer if row.erased_at is None else NOTHING
    return Change(row, new, moves, closed=closed, answer=answer, answered_by=op.attempt)


def retried(row: JobRow, op: Retried, attempt: AttemptState | None, *, now: float) -> Change:
    """Close a failed attempt whose owner makes another."""
    closed, moves = _close(row, op.attempt, op.closing, attempt, strike=op.strike)
    if not _holds(row, op.owner_id) or not _is_open(attempt):
        return Change(row, row, moves, closed=closed)
    new = row._replace(
        state=after(row.state, Event.RETRY),
        strikes=row.strikes + op.strike,
        not_before=now + op.wait_s if op.wait_s else None,
    )
    return Change(row, new, moves, closed=closed)


def parked(row: JobRow, op: Park, attempt: AttemptState | None, *, trigger: str, now: float) -> Change:
    """Close a failed attempt and park its job; after a replay behind all others."""
    closed, moves = _close(row, op.attempt, op.closing, attempt, strike=op.strike)
    if not op.called:
        moves = ()
    if not _holds(row, op.owner_id) or op.attempt != row.calls:
        return Change(row, row, moves, closed=closed)
    new = _failed(row, op.closing, op.error_class, now=now)._replace(
        state=after(row.state, Event.GIVE_UP),
        strikes=row.strikes + (op.strike and _is_open(attempt)),
        not_before=None if op.wait_s is None else now + op.wait_s,
    )
    return _put_away(row, new, moves, closed, trigger=trigger, now=now)


def released(row: JobRow, op: Release, attempt: AttemptState | None, *, trigger: str) -> Change:
    """Hand a job back as it was before it was started: pending, or parked with the class it had."""
    closed: Closed | None = None
    moves: tuple[Move, ...] = ()
    if attempt is not None:
        interrupted = op.closing is None
        closed, moves = _close(row, attempt.number, op.closing or INTERRUPTED, attempt, interrupted=interrupted)
    if not op.called:
        moves = ()
    if not _holds(row, op.owner_id) or op.attempt not in (None, row.calls):
        return Change(row, row, moves, closed=closed)
    strikes = row.strikes if op.strikes is None else op.strikes
    new = row._replace(
        state=after(row.state, Event.RELEASE),
        owner_id=None,
        replay_id=None,
        strikes=strikes,
        # It has told nothing of the job: a long outage, or restarts, must not use up what it is allowed.
        auto_replays=row.auto_replays - (row.state is State.REPLAYING and trigger == AUTO),
    )
    moves += (*_gauges(row, new), *_count_replayed(row, trigger, "released"))
    return Change(row, new, moves, closed=closed, to_the_back=op.to_the_back)


def is_held_so(row: JobRow | None, op: Release) -> bool:
    """Whether an owner holds a job in the very attempt that it may have started."""
    return row is not None and _holds(row, op.owner_id) and row.calls == op.attempt


def forgiven(row: JobRow, op: Forgive) -> JobRow:
    """Return the row with one strike less, where its owner still holds it."""
    return row._replace(strikes=max(0, row.strikes - 1)) if _holds(row, op.owner_id) else row


def orphaned(row: JobRow, attempt: AttemptState | None, *, trigger: str, now: float) -> Change:
    """Park a job whose owner is lost. `attempt` is the job's last one, None if it never had any."""
    code = MAYBE_SENT if _is_open(attempt) else NOT_SENT
    closed, moves = _interrupt(row, attempt)
    orphan = Closing(kind=Kind.RETRYABLE, scope=Scope.JOB)
    new = _failed(row, orphan, f"{Disposition.ORPHANED}:{code}", now=now)._replace(
        state=after(row.state, Event.OWNER_LOST), reason=code
    )
    return _put_away(row, new, moves, closed, trigger=trigger, now=now)


def given_up_on(row: JobRow, op: Orphan, attempt: AttemptState | None, *, trigger: str, now: float) -> Change:
    """Park a job whose owner can't record what came of it. Nobody knows any more, so that its call may be repeated."""
    if not _holds(row, op.owner_id) or op.attempt not in (None, row.calls):
        return Change(row, row)
    return orphaned(row, attempt, trigger=trigger, now=now)


def abandoned(row: JobRow, attempt: AttemptState) -> Change:
    """Close the attempt that a lost owner left open on a job that it doesn't hold any more."""
    closed, moves = _interrupt(row, attempt)
    return Change(row, row, moves, closed=closed)


# --- people ----------------------------------------------------------------------------------------------------


def discarded(row: JobRow, *, why: str, now: float) -> Change:
    new = row._replace(state=after(row.state, Event.DISCARD), came_from=row.state, finished_at=now, note=why)
    counted = Move(Metric.JOBS_DISCARDED, row.pipeline, row.model, row.error_class or "", row.reason or "", 1)
    return Change(row, new, (*_gauges(row, new), counted))


def restored(row: JobRow, *, has_answer: bool, now: float) -> Change:
    """Bring a discarded job back. One whose answer came after it was discarded is answered at once.

    Raises:
        TransitionError: it isn't discarded, or it was erased, so that it could never run.
    """
    if row.erased_at is not None:
        raise TransitionError(ERASED, Event.RESTORE)
    new = row._replace(
        state=after(row.state, Event.RESTORE, came_from=row.came_from), came_from=None, finished_at=None, note=None
    )
    moves = _gauges(row, new)
    if not has_answer:
        return Change(row, new, moves)
    answer = _ended(new, after(new.state, Event.LATE_ANSWER), now)
    return Change(row, answer, (*_gauges(row, answer), *_count_answered(new, answer, "", now)))


def delivered(row: JobRow, op: NoteDelivery) -> Move:
    """How the delivery of an answer counts."""
    result = DELIVERED if op.fault is None else FAILED if op.wait_s is not None else GIVEN_UP
    return Move(Metric.DELIVERIES, row.pipeline, row.model, result, "", 1, row.trace_id, row.span_id)


def forgotten(row: JobRow) -> Change:
    """Remove a finished job."""
    new = row._replace(state=after(row.state, Event.FORGET))
    return Change(row, new, _gauges(row, new))


def erased(row: JobRow, *, has_texts: bool, now: float) -> JobRow:
    """Return the row of a job whose texts are to be removed; when it was erased first stands.

    Raises:
        TransitionError: it may still be run, being pending or held by somebody; or there is nothing left to remove.
    """
    if row.state not in ERASABLE:
        raise TransitionError(row.state, "erase")
    if row.erased_at is None:
        return row._replace(erased_at=now)
    if not has_texts:
        raise TransitionError(ERASED, "erase")
    return row


# --- parts -----------------------------------------------------------------------------------------------------


def _holds(row: JobRow, owner_id: int) -> bool:
    return row.state in HELD and row.owner_id == owner_id


def _is_open(attempt: AttemptState | None) -> bool:
    return attempt is not None and attempt.ended_at is None


def _failed(row: JobRow, closing: Closing, error_class: str, *, now: float) -> JobRow:
    """The row with what its failure says, held by nobody; its state is the caller's to set."""
    return _span(row, closing.span)._replace(
        error_class=error_class,
        reason=closing.reason,
        kind=closing.kind,
        scope=closing.scope,
        fingerprint=closing.fingerprint,
        not_before=None,
        # Its age counts from the first failure: a replay in vain doesn't make a job new.
        parked_at=row.parked_at if row.state in (State.PARKED, State.REPLAYING) else now,
        owner_id=None,
        replay_id=None,
    )


def _ended(row: JobRow, state: State, now: float) -> JobRow:
    """The row of a job that is answered, held by nobody."""
    told: dict[str, Any] = {} if state is State.RECOVERED else _NO_FAILURE
    return row._replace(state=state, not_before=None, finished_at=now, owner_id=None, replay_id=None, **told)


def _without_erased(row: JobRow, closing: Closing) -> Closing:
    return closing if row.erased_at is None else closing._replace(message="", message_key_id=None)


def _span(row: JobRow, span: SpanIds) -> JobRow:
    """Keep the job's own span where the attempt's is of the same trace."""
    if span.trace_id is None or span.trace_id == row.trace_id:
        return row
    return row._replace(trace_id=span.trace_id, span_id=span.span_id)


def _put_away(
    row: JobRow, new: JobRow, moves: tuple[Move, ...], closed: Closed | None, *, trigger: str, now: float
) -> Change:
    """Park: counted once as parked by a run, or as parked again by a replay, which also sends it to the back."""
    again = row.state is State.REPLAYING
    counted = _count_replayed(row, trigger, "parked_again") if again else _count_parked(new, now)
    return Change(row, new, (*moves, *_gauges(row, new), *counted), closed=closed, to_the_back=again)


def _interrupt(row: JobRow, attempt: AttemptState | None) -> tuple[Closed | None, tuple[Move, ...]]:
    if attempt is None or attempt.ended_at is not None:
        return None, ()
    return _close(row, attempt.number, INTERRUPTED, attempt, interrupted=True)


def _close(
    row: JobRow,
    number: int,
    closing: Closing,
    attempt: AttemptState | None,
    *,
    strike: bool = False,
    interrupted: bool = False,
) -> tuple[Closed | None, tuple[Move, ...]]:
    """Close an attempt, or complete one that was closed before its outcome came; None if there is nothing to add.

    An attempt counts once, when it is first closed; an outcome that comes later adds only its tokens.
    """
    if attempt is None or attempt.answered:
        return None, ()
    closed = Closed(number, _without_erased(row, closing), strike=strike, interrupted=interrupted)
    if attempt.ended_at is None:
        return closed, (*_count_attempt(row, closing), *_count_tokens(row, closing))
    # Closed by a sweep or a release, so its own outcome is still to come; or an answer came after the deadline.
    completes = (attempt.interrupted and not interrupted) or closing.kind is None
    return (closed, _count_tokens(row, closing)) if completes else (None, ())


def _gauges(was: JobRow, row: JobRow) -> tuple[Move, ...]:
    """What a change of state does to the gauges that follow the rows."""
    moves: list[Move] = []
    for one, by in ((was, -1), (row, 1)):
        if was.state is not row.state:
            moves.append(Move(Metric.LEDGER_JOBS, one.pipeline, "", one.state, "", by))
        if one.state is State.PARKED:
            moves.append(Move(Metric.PARKED_NOW, one.pipeline, one.model, one.error_class or "", one.reason or "", by))
    return tuple(moves)


def _count_parked(row: JobRow, now: float) -> tuple[Move, ...]:
    assert row.error_class is not None
    return (
        Move(
            Metric.JOBS_PARKED, row.pipeline, row.model, row.error_class, row.reason or "", 1, row.trace_id, row.span_id
        ),
        Move(Metric.LAST_PARKED, row.pipeline, "", row.error_class, "", now),
    )


def _count_answered(was: JobRow, row: JobRow, trigger: str, now: float) -> tuple[Move, ...]:
    assert row.state in ANSWERED
    success = Move(Metric.LAST_SUCCESS, row.pipeline, "", "", "", now)
    if row.state is State.SUCCEEDED:
        return (Move(Metric.JOBS_SUCCEEDED, row.pipeline, row.model, "", "", 1, row.trace_id, row.span_id), success)
    recovered = Move(
        Metric.JOBS_RECOVERED, row.pipeline, row.model, was.error_class or "", was.reason or "", 1,
        row.trace_id, row.span_id,
    )  # fmt: skip
    return (recovered, *_count_replayed(was, trigger, "recovered"), success)


def _count_replayed(was: JobRow, trigger: str, result: str) -> tuple[Move, ...]:
    """Each claim by a replay ends with one result, under the class that the job had."""
    if was.state is not State.REPLAYING:
        return ()
    return (
        Move(
            Metric.JOBS_REPLAYED, was.pipeline, was.model, was.error_class or "", f"{trigger}/{result}", 1,
            was.trace_id, was.span_id,
        ),
    )  # fmt: skip


def _count_attempt(row: JobRow, closing: Closing) -> tuple[Move, ...]:
    kind = closing.kind or "ok"
    counted = Move(
        Metric.ATTEMPTS, row.pipeline, row.model, kind, closing.reason or ("ok" if closing.kind is None else ""), 1,
        *closing.span,
    )  # fmt: skip
    took = closing.duration_s
    if took is None:
        return (counted,)
    return (
        counted,
        Move(
            Metric.ATTEMPT_DURATION, row.pipeline, row.model, kind, duration_bucket(took), 1, *closing.span,
            example=took,
        ),
        Move(Metric.ATTEMPT_DURATION, row.pipeline, row.model, kind, "sum", took),
    )  # fmt: skip


def _count_tokens(row: JobRow, closing: Closing) -> tuple[Move, ...]:
    kind = closing.kind or "ok"
    return tuple(
        Move(Metric.TOKENS, row.pipeline, row.model, direction, kind, tokens, *closing.span)
        for direction, tokens in (("input", closing.tokens_in), ("output", closing.tokens_out))
        if tokens
    )
