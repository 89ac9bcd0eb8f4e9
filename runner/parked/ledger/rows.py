"""Rows of the tables as values, and values as rows: the same for all databases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from parked.job import State
from parked.ledger.codec import Body
from parked.ledger.moves import AttemptState, Change
from parked.ledger.operations import Called, JobRow, OwnerFacts, OwnerRow, PauseRow, Run
from parked.ledger.store import AnswerRow, AttemptRow
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


def closing_columns(change: Change, *, now: float) -> dict[str, Any]:
    """What is written into the row of an attempt that a change closes, by column."""
    assert change.closed is not None
    closing = change.closed.closing
    return {
        "job": change.row.id,
        "number": change.closed.number,
        "now": now,
        "strike": int(change.closed.strike),
        "answered": int(closing.kind is None),
        "interrupted": int(change.closed.interrupted),
        "duration_s": closing.duration_s,
        "kind": closing.kind,
        "reason": closing.reason,
        "scope": closing.scope,
        "status": closing.status,
        "rule": closing.rule,
        "fingerprint": closing.fingerprint,
        "quota_id": closing.quota_id,
        "message": closing.message,
        "message_key_id": closing.message_key_id,
        "retry_after_s": closing.retry_after_s,
        "tokens_in": closing.tokens_in,
        "tokens_out": closing.tokens_out,
        "response_id": closing.response_id,
        "trace_id": closing.span.trace_id,
        "span_id": closing.span.span_id,
    }
