"""Jobs as a table, and a job and its attempts as `list` and `show` give them out in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from parked.answers import TRUNCATED
from parked.cli.output import table
from parked.clock import iso_text, minute_text
from parked.ledger.operations import JobRow
from parked.ledger.store import AttemptRow, Revision


def job_table(rows: Sequence[JobRow], *, is_parked: bool) -> Iterator[str]:
    """Yield a head, and a line for each job. Columns that would be empty in every line are left out.

    `is_parked`: all of them are, so that their state needs no column, and since when is what matters.
    """
    columns = {
        "JOB": [row.job_id for row in rows],
        "PIPELINE": [row.pipeline for row in rows],
        "BATCH": [row.batch for row in rows],
        "STATE": ["" if is_parked else str(row.state) for row in rows],
        "CLASS": [row.error_class or "" for row in rows],
        "ATTEMPTS": [str(row.calls) for row in rows],
        "PARKED" if is_parked else "ACCEPTED": [
            minute_text(row.parked_at if is_parked and row.parked_at is not None else row.accepted_at) for row in rows
        ],
    }
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    yield from table(list(shown), list(zip(*shown.values(), strict=True)))


def job_as_json(row: JobRow) -> dict[str, Any]:
    """Return the fields of docs/cli-json.md, "A job"."""
    return {
        "job_id": row.job_id,
        "pipeline": row.pipeline,
        "batch": row.batch,
        "model": row.model,
        "state": row.state,
        "error_class": row.error_class,
        "reason": row.reason,
        "kind": row.kind,
        "scope": row.scope,
        "fingerprint": row.fingerprint,
        "attempts": row.calls,
        "strikes": row.strikes,
        "replays": row.replays,
        "auto_replays": row.auto_replays,
        "accepted_at": iso_text(row.accepted_at),
        "started_at": iso_text(row.started_at),
        "parked_at": iso_text(row.parked_at),
        "finished_at": iso_text(row.finished_at),
        "not_before": iso_text(row.not_before),
        "caller": row.caller,
        "checker": row.checker,
        "note": row.note,
        "erased_at": iso_text(row.erased_at),
        "trace_id": row.trace_id,
        "span_id": row.span_id,
    }


def attempt_as_json(row: AttemptRow) -> dict[str, Any]:
    """Return the fields of docs/cli-json.md, "An attempt"."""
    return {
        "attempt": row.number,
        "outcome": outcome(row),
        "truncated": row.rule == TRUNCATED,
        "is_replay": row.replay_id is not None,
        "strike": row.strike,
        "started_at": iso_text(row.started_at),
        "ended_at": iso_text(row.ended_at),
        "duration_s": row.duration_s,
        "kind": row.kind,
        "reason": row.reason,
        "scope": row.scope,
        "status": row.status,
        "rule": row.rule,
        "fingerprint": row.fingerprint,
        "quota_id": row.quota_id,
        "message": row.message,
        "retry_after_s": row.retry_after_s,
        "tokens_in": row.tokens_in,
        "tokens_out": row.tokens_out,
        "response_id": row.response_id,
        "trace_id": row.trace_id,
        "span_id": row.span_id,
        "revision": row.revision,
        "model": row.model,
    }


def revision_as_json(row: Revision) -> dict[str, Any]:
    """Return the fields of docs/cli-json.md, "A revision"."""
    return {"revision": row.number, "model": row.model, "stored_at": iso_text(row.stored_at), "note": row.note}


def outcome(row: AttemptRow) -> str:
    """How an attempt ended, in a word."""
    if row.answered:
        return "answered"
    if row.ended_at is None:
        return "open"
    return "interrupted" if row.interrupted else "failed"
