"""`parked causes`: parked jobs by what they failed of."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.filters import FAILED_WITH, add_filters, filter_words, filters_of
from parked.cli.ledgers import existing_ledger
from parked.cli.nearest import whole_number
from parked.cli.output import command_line, counted, hint, put, put_json
from parked.clock import iso_text, minute_text
from parked.ledger.store import Cause, Filters, Reader
from parked.plain import printable
from parked.reasons import explain, mended_by
from parked.settings import Settings
from parked.summary import message_of, remedy_of

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

EPILOG: Final = """\
Jobs that failed of one cause share a fingerprint: numbers, ids, URLs and quoted words of the message don't count.

example:
  parked causes --since 1d
  parked causes --json | jq -r '.causes[] | [.jobs, .fingerprint, .message] | @tsv'
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "causes",
        help="show parked jobs grouped by cause",
        description="Show parked jobs grouped by cause, largest first: how many, since when, an example, what to do.",
        epilog=EPILOG,
    )
    parser.add_argument("--limit", metavar="N", type=whole_number, default=20, help="show at most N; default 20")
    add_filters(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    filters = filters_of(args, now=time.time())
    with existing_ledger(settings) as ledger, ledger.ask() as reader:
        if args.json:
            put_json(as_json(args, filters, reader, where=ledger.where))
            return Exit.OK
        causes, shown = _causes(args, filters, reader)
    if not causes:
        hint(f"no parked job{' that the filters match' if filters else ''} in {ledger.where}")
        return Exit.OK
    for cause, message in shown:
        for line in _told(args, cause, message):
            put(line)
    said = f"{counted(sum(cause.jobs for cause in causes), 'parked job')}, {counted(len(causes), 'cause')}"
    if len(causes) > len(shown):
        said += f"; --limit {len(causes)} shows all"
    hint(said)
    return Exit.OK


def as_json(args: argparse.Namespace, filters: Filters, reader: Reader, *, where: str) -> dict[str, Any]:
    """Return what docs/cli-json.md describes; `where` is the full name of the ledger."""
    causes, shown = _causes(args, filters, reader)
    return {
        "ledger": where,
        "total": len(causes),
        "causes": [_cause_as_json(args, cause, message) for cause, message in shown],
    }


def _causes(args: argparse.Namespace, filters: Filters, reader: Reader) -> tuple[list[Cause], list[tuple[Cause, str]]]:
    """All causes, the largest first; and those that are shown, with their messages."""
    causes = sorted(reader.causes(filters), key=lambda cause: (-cause.jobs, cause.first_parked_at))
    return causes, [(cause, message_of(reader, cause.example.id, cause.fingerprint)) for cause in causes[: args.limit]]


def _next(args: argparse.Namespace, cause: Cause) -> str:
    """The command that says what a replay of this cause would run; of erased jobs: what a discard would take."""
    narrower = {"fingerprint": cause.fingerprint} if cause.fingerprint else {"error_class": cause.error_class}
    chosen = argparse.Namespace(**{**vars(args), **narrower})
    if cause.erased:
        return command_line(args, "discard", *filter_words(chosen, reason=FAILED_WITH), "--reason", "erased")
    return command_line(args, "replay", *filter_words(chosen), *mended_by(cause.reason))


def _told(args: argparse.Namespace, cause: Cause, message: str) -> Iterator[str]:
    example = cause.example
    explained = explain(cause.reason)
    erased = "  erased" if cause.erased else ""
    yield printable(
        f"{counted(cause.jobs, 'job')}  {cause.error_class}  {cause.reason}  [{cause.fingerprint or '-'}]"
        f"{erased}  {minute_text(cause.first_parked_at)} to {minute_text(cause.last_parked_at)}"
    )
    name = "/".join(part for part in (example.pipeline, example.batch, example.job_id) if part)
    yield printable(f"  e.g. {name}{f': {message}' if message else ''}")
    yield f"  means: {explained.meaning}"
    yield f"  what to do: {remedy_of(cause)}"
    yield f"  next: {_next(args, cause)}"


def _cause_as_json(args: argparse.Namespace, cause: Cause, message: str) -> dict[str, Any]:
    example = cause.example
    explained = explain(cause.reason)
    return {
        "fingerprint": cause.fingerprint,
        "error_class": cause.error_class,
        "reason": cause.reason,
        "kind": example.kind,
        "scope": example.scope,
        "meaning": explained.meaning,
        "remedy": remedy_of(cause),
        "erased": cause.erased,
        "jobs": cause.jobs,
        "first_parked_at": iso_text(cause.first_parked_at),
        "last_parked_at": iso_text(cause.last_parked_at),
        "example": {"job_id": example.job_id, "pipeline": example.pipeline, "batch": example.batch},
        "message": message,
        "next": _next(args, cause),
    }
