"""Rows of the tables as values, and values as rows: the same for all databases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from parked.job import State
from parked.ledger.codec import Body, TextKind
from parked.ledger.moves import AttemptState, Closed
from parked.ledger.operations import Called, JobRow, OwnerFacts, OwnerRow, PauseRow, Rekey, Run
from parked.ledger.store import AnswerRow, AttemptRow
from parked.ledger.vault import message_text
from parked.verdict import Kind, Reason, Scope

_STATES: Final[Mapping[str | None, State | None]] = {None: None, **{state.value: state for state in State}}
_REASONS: Final[Mapping[str | None, Reason]] = {reason.value: reason for reason in Reason}
_KINDS: Final[Mapping[str | None, Kind | None]] = {None: None, **{kind.value: kind for kind in Kind}}
_SCOPES: Final[Mapping[str | None, Scope | None]] = {None: None, **{scope.value: scope for scope in Scope}}

LATEST: Final = 1e11  # UTC epoch seconds; no time that anybody means lies behind it
JOB_COLUMNS: Final = len(JobRow._fields)


GateColumns = tuple[str, str | None, float | None, float | None, float | None, float, float | None]


def job_row(columns: Iterable[Any]) -> JobRow:
    """The row of a job from the columns that the fragment `job` names."""
    values = list(columns)
    values[5] = _STATES[values[5]]
    values[6] = _STATES[values[6]]
    values[8] = _REASONS.get(values[8], values[8])
    values[9] = _KINDS[values[9]]
    values[10] = _SCOPES[values[10]]
    return JobRow._make(values)


def owner_row(columns: Sequence[Any]) -> OwnerRow:
    """The row of an owner from the columns that the fragment `owner` names."""
    facts = OwnerFacts(*columns[:8])
    id, beat, started_at, beat_at, ended_at, lost_at, pipeline, caller, checker, run_began_at = columns[8:]
    run = None if pipeline is None else Run(pipeline, Called(caller, checker))
    return OwnerRow(id, facts, beat, started_at, beat_at, ended_at, lost_at, run, run_began_at)


def moment(value: Any) -> float | None:
    """A time or a rate as it was stored; None where there is none, or where what stands there makes no sense."""
    is_one = isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < LATEST
    return value if is_one else None


def gate_columns(rows: Iterable[Sequence[Any]]) -> list[GateColumns]:
    """What is known of gates: (model, why, closed until, pace a second, outage since, when written, pace learnt)."""
    return [
        (model, why, moment(closed_until), moment(pace_per_s), moment(outage_since), written_at, moment(learnt_at))
        for model, why, closed_until, pace_per_s, outage_since, changed_at, learnt_at in rows
        if (written_at := moment(changed_at)) is not None
    ]


def pause_rows(rows: Iterable[Sequence[Any]]) -> list[PauseRow]:
    found = (PauseRow._make(row) for row in rows)
    return [
        pause._replace(until=moment(pause.until))
        for pause in found
        if moment(pause.fault_began_at) is not None and moment(pause.since) is not None
    ]


def answer_row(columns: Sequence[Any]) -> AnswerRow:
    codec, key_id, body, answered_at, handed_out_at = columns[JOB_COLUMNS:]
    return AnswerRow(job_row(columns[:JOB_COLUMNS]), Body(codec, key_id, body), answered_at, handed_out_at)


def attempt_row(columns: Iterable[Any]) -> AttemptRow:
    row = AttemptRow._make(columns)
    return row._replace(strike=bool(row.strike), answered=bool(row.answered), interrupted=bool(row.interrupted))


def attempt_state(columns: Sequence[Any]) -> AttemptState:
    number, started_at, ended_at, answered, interrupted = columns
    return AttemptState(number, started_at, ended_at, bool(answered), bool(interrupted))


# Columns in the order in which they are written; `sqlite.sql` has them in the same.
ACCEPTED: Final = (
    "pipeline", "batch", "job_id", "model", "state", "calls", "place", "caller", "checker", "accepted_at", "started_at",
    "owner_id", "trace_id", "span_id",
)  # fmt: skip
MOVED: Final = (
    "state", "came_from", "error_class", "reason", "kind", "scope", "fingerprint", "calls", "strikes", "replays",
    "not_before", "place", "started_at", "parked_at", "finished_at", "owner_id", "replay_id", "trace_id", "span_id",
    "note", "auto_replays",
)  # fmt: skip
CLOSED: Final = (
    "strike", "answered", "interrupted", "duration_s", "kind", "reason", "scope", "status", "rule", "fingerprint",
    "quota_id", "message", "message_key_id", "retry_after_s", "tokens_in", "tokens_out", "response_id", "trace_id",
    "span_id",
)  # fmt: skip
FOUND: Final = ("was", "was_owner", "was_calls")


def accepted_columns(job: JobRow) -> tuple[Any, ...]:
    return (
        job.pipeline, job.batch, job.job_id, job.model, str(job.state), job.calls, job.place, job.caller, job.checker,
        job.accepted_at, job.started_at, job.owner_id, job.trace_id, job.span_id,
    )  # fmt: skip


def moved_columns(row: JobRow) -> tuple[Any, ...]:
    return (
        str(row.state), _text(row.came_from), row.error_class, _text(row.reason), _text(row.kind), _text(row.scope),
        row.fingerprint, row.calls, row.strikes, row.replays, row.not_before, row.place, row.started_at, row.parked_at,
        row.finished_at, row.owner_id, row.replay_id, row.trace_id, row.span_id, row.note, row.auto_replays,
    )  # fmt: skip


def found_columns(was: JobRow) -> tuple[Any, ...]:
    """By what a job is known as the move found it."""
    return str(was.state), was.owner_id, was.calls


REKEY: Final = {  # the statement that keeps a text of this kind in another way
    TextKind.PAYLOADS: "rekey_payloads",
    TextKind.ANSWERS: "rekey_answers",
    TextKind.MESSAGES: "rekey_messages",
}
REKEYED_BODY: Final = ("codec", "key_id", "body", "job", "number", "was_codec", "was_key_id")
REKEYED_MESSAGE: Final = ("key_id", "message", "job", "number", "was_key_id", "was_message")


def rekeyed_columns(row: Rekey) -> tuple[Any, ...]:
    """What is written of a text (codec, key, body), and by what it is found again; messages have no codec."""
    at, was, now = (row.job, row.number), row.was, row.body
    if row.kind is TextKind.MESSAGES:
        return (now.key_id, message_text(now), *at, was.key_id, message_text(was))
    return (now.codec, now.key_id, now.data, *at, was.codec, was.key_id)


def closing_columns(closed: Closed) -> tuple[Any, ...]:
    """What is written into the row of an attempt that is closed, but for the time."""
    closing = closed.closing
    return (
        int(closed.strike), int(closing.kind is None), int(closed.interrupted), closing.duration_s,
        _text(closing.kind), _text(closing.reason), _text(closing.scope), closing.status, closing.rule,
        closing.fingerprint, closing.quota_id, closing.message, closing.message_key_id, closing.retry_after_s,
        closing.tokens_in, closing.tokens_out, closing.response_id, *closing.span,
    )  # fmt: skip


def _text(value: str | None) -> str | None:
    """A plain text: each driver takes longer over a member of an enum."""
    return None if value is None else str(value)
