"""`parked list`: jobs as a table, newest first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.filters import add_filters, filter_words, filters_of
from parked.cli.jobs import job_as_json, job_table
from parked.cli.ledgers import existing_ledger
from parked.cli.nearest import one_of, whole_number
from parked.cli.output import command_line, counted, flag, hint, put, put_json
from parked.job import State
from parked.ledger.operations import JobRow
from parked.ledger.store import Filters, Reader
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

ALL: Final = "all"
_STATES: Final = [str(state) for state in State if state is not State.FORGOTTEN]  # a forgotten job has no row

EPILOG: Final = """\
example:
  parked list --pipeline nightly-captions --class 'exhausted:*' --since 1d
  parked list --state pending
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "list",
        help="show parked jobs, or those of another state",
        description="Show parked jobs, newest first; with --state those of another state.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--state", metavar="S", type=one_of("state", [*_STATES, ALL]), default=str(State.PARKED),
        help=f"one of {', '.join(_STATES)}, or {ALL}; default {State.PARKED}",
    )  # fmt: skip
    parser.add_argument("--limit", metavar="N", type=whole_number, default=100, help="show at most N; default 100")
    add_filters(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    filters = filters_of(args, now=time.time())
    states = _states(args)
    with existing_ledger(settings) as ledger, ledger.ask() as reader:
        if args.json:
            put_json(as_json(args, filters, reader, where=ledger.where))
            return Exit.OK
        total, rows = _jobs(args, filters, reader)
        thing = "job" if args.state == ALL else f"{args.state} job"
        if not rows:
            hint(f"no {thing}{' that the filters match' if filters else ''} in {ledger.where}")
            return Exit.OK
        for line in job_table(rows, is_parked=states == [State.PARKED]):
            put(line)
        hint(_said(args, filters, reader, rows, total=total, thing=thing))
    return Exit.OK


def as_json(args: argparse.Namespace, filters: Filters, reader: Reader, *, where: str) -> dict[str, Any]:
    """Return what docs/cli-json.md describes; `where` is the full name of the ledger."""
    total, rows = _jobs(args, filters, reader)
    return {"ledger": where, "total": total, "jobs": [job_as_json(row) for row in rows]}


def _states(args: argparse.Namespace) -> list[State]:
    return [State(name) for name in (_STATES if args.state == ALL else [args.state])]


def _jobs(args: argparse.Namespace, filters: Filters, reader: Reader) -> tuple[int, list[JobRow]]:
    """How many the filters match, and the newest of them."""
    states = _states(args)
    rows = list(reader.jobs(filters, states=states, limit=args.limit, newest_first=True))
    return reader.count(filters, states=states), rows


def _said(
    args: argparse.Namespace, filters: Filters, reader: Reader, rows: Sequence[JobRow], *, total: int, thing: str
) -> str:
    said = counted(total, thing)
    if total > len(rows):
        said = f"{len(rows)} of {said}; --limit {total} shows all"
    said += "."
    if args.state == State.PARKED:
        chosen = _one_job(reader, rows[0]) if total == 1 else filter_words(args) if filters else ["--all"]
        said += f" To try {'it' if total == 1 else 'them'} again: {command_line(args, 'replay', *chosen, '--apply')}"
    return said


def _one_job(reader: Reader, row: JobRow) -> list[str]:
    """Return the filters that match this job and no other."""
    words = flag("--job", row.job_id)
    if len(reader.jobs_by_key(row.job_id, pipeline=None, batch=None)) > 1:
        words += [*flag("--pipeline", row.pipeline), *flag("--batch", row.batch)]
    return words
