"""`parked show`: one job and all that is known of each of its attempts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from parked.answers import TRUNCATED
from parked.cli.exits import Exit
from parked.cli.finding import add_place, the_one
from parked.cli.jobs import attempt_as_json, job_as_json, outcome, revision_as_json
from parked.cli.ledgers import existing_ledger
from parked.cli.output import counted, hint, put, put_json
from parked.clock import iso_text, minute_text, second_text
from parked.job import State
from parked.ledger.codec import decode
from parked.ledger.operations import JobRow
from parked.ledger.store import AttemptRow, Erasure, Reader, Revision
from parked.owners import gone_here
from parked.plain import printable
from parked.reasons import ORPHANED, explain
from parked.settings import Settings
from parked.summary import SWEPT

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

ERASED_REMEDY: Final = "discard it: it was erased and can't run again"
OWNED: Final = (State.RUNNING, State.REPLAYING)  # by a process

EPILOG: Final = """\
example:
  parked show img-0412
  parked show img-0412 --batch 2026-03-02 --payload --json | jq .payload
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "show",
        help="show one job with every attempt",
        description="Show one job: its state, and each attempt with time, reason, status, message, tokens and trace.",
        epilog=EPILOG,
    )
    parser.add_argument("job_id", metavar="JOB_ID")
    add_place(parser)
    parser.add_argument("--payload", action="store_true", help="show the payload too")
    parser.add_argument("--answer", action="store_true", help="show the stored answer too")


def run(args: argparse.Namespace, settings: Settings) -> int:
    with existing_ledger(settings) as ledger, ledger.ask() as reader:
        row = the_one(args, reader, args.job_id, where=ledger.where)
        attempts = reader.attempts(row.id)
        revisions = reader.revisions(row.id)
        erasure = reader.erasure(row.id)
        gone = gone_here(reader.owners_alive()).get(row.owner_id or 0) if row.state in OWNED else None
        bodies = _bodies(args, reader, row)
        if args.json:
            told = {"ledger": ledger.where, "job": job_as_json(row), "attempts": list(map(attempt_as_json, attempts))}
            told["revisions"] = list(map(revision_as_json, revisions))
            put_json(told | {"erased": erasure and _erasure_as_json(erasure), "gone_pid": gone} | bodies)
            return Exit.OK
    for line in _text(row, revisions, attempts, erasure, gone=gone):
        put(line)
    for name, body in bodies.items():
        put(f"{name}:\n{json.dumps(body, indent=2)}")
    if erasure is not None:
        hint("its payload, answer and messages were erased")
    elif bodies.get("answer", ...) is None:
        hint(f"it has no answer: it is {row.state}")
    return Exit.OK


def _bodies(args: argparse.Namespace, reader: Reader, row: JobRow) -> dict[str, Any]:
    """Return what was asked for of payload and answer, as JSON values; what isn't there, or was erased, is None."""
    bodies: dict[str, Any] = {}
    if args.payload:
        bodies["payload"] = decode(reader.payload(row.id)) if row.erased_at is None else None
    if args.answer:
        answer = reader.answer(row.id)
        bodies["answer"] = None if answer is None else decode(answer.body)
    return bodies


def _erasure_as_json(erasure: Erasure) -> dict[str, Any]:
    return {"at": iso_text(erasure.at), "why": erasure.why}


def _text(
    row: JobRow,
    revisions: Sequence[Revision],
    attempts: Sequence[AttemptRow],
    erasure: Erasure | None,
    *,
    gone: int | None,
) -> Iterator[str]:
    facts = [
        ("job", row.job_id),
        ("pipeline", row.pipeline),
        ("batch", row.batch),
        ("model", row.model),
        ("state", f"{row.state} since {minute_text(_since(row))}"),
        ("but", gone and f"its process, pid {gone}, is gone; {SWEPT}"),
        ("class", row.error_class),
        ("reason", row.reason and _reason_text(row)),
        ("means", row.reason and explain(row.reason).meaning),
        ("what to do", row.reason and row.state is State.PARKED and _remedy(row)),
        ("cause", row.fingerprint),
        ("attempts", f"{row.calls} ({counted(row.strikes, 'strike')} since it was last started)"),
        ("replays", row.replays and _replays_text(row)),
        ("accepted", minute_text(row.accepted_at)),
        ("not before", row.not_before is not None and minute_text(row.not_before)),
        ("caller", row.caller),
        ("check", row.checker),
        ("discarded", row.note),
        ("erased", erasure and f"{minute_text(erasure.at)}: {erasure.why}"),
        ("trace", row.trace_id),
    ]
    for name, value in facts:
        if value:
            yield f"{name:<11}{printable(value)}"
    for revision in revisions if len(revisions) > 1 else ():
        said = [
            f"payload {revision.number}", revision.model, second_text(revision.stored_at), revision.note or "accepted"
        ]  # fmt: skip
        yield "  ".join(printable(fact) for fact in said if fact)
    for attempt in attempts:
        yield from _attempt_text(attempt)


def _remedy(row: JobRow) -> str:
    return explain(row.reason or "").remedy if row.erased_at is None else ERASED_REMEDY


def _replays_text(row: JobRow) -> str:
    return f"{row.replays} ({row.auto_replays} automatic)" if row.auto_replays else str(row.replays)


def _reason_text(row: JobRow) -> str:
    """The reason with what is known of it; whose fault a lost owner is can't be known."""
    fault = f"fault of the {row.scope}" if row.scope and row.reason not in ORPHANED else None
    said = ", ".join(part for part in (row.kind, fault) if part)
    return f"{row.reason} ({said})" if said else str(row.reason)


def _since(row: JobRow) -> float:
    """When the job came into its state, as far as its row tells."""
    at = {
        State.RUNNING: row.started_at,
        State.REPLAYING: row.started_at,
        State.PARKED: row.parked_at,
        State.PENDING: row.accepted_at,
    }.get(row.state, row.finished_at)
    return row.accepted_at if at is None else at


def _attempt_text(row: AttemptRow) -> Iterator[str]:
    facts = [
        f"attempt {row.number}",
        row.revision and f"payload {row.revision}",
        row.model,
        second_text(row.started_at),
        row.duration_s is not None and f"{row.duration_s:.1f} s",
        outcome(row),
        row.rule == TRUNCATED and "cut off at the token limit",
        row.status is not None and str(row.status),
        not row.interrupted and row.reason,  # of those that are it says no more
        row.kind and ("strike" if row.strike else "no strike"),
        row.replay_id is not None and f"in replay #{row.replay_id}",
        row.tokens_in is not None and f"{row.tokens_in} tokens in",
        row.tokens_out is not None and f"{row.tokens_out} tokens out",
        row.rule and f"rule {row.rule}",
        row.quota_id and f"quota {row.quota_id}",
        row.trace_id and f"trace {row.trace_id}",
    ]
    yield "  ".join(printable(fact) for fact in facts if fact)
    for line in row.message.splitlines():
        yield f"    {printable(line)}"
