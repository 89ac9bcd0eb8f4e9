"""`parked restore`: discarded jobs brought back to the state they came from."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.finding import add_place, the_one
from parked.cli.jobs import job_as_json
from parked.cli.ledgers import existing_ledger
from parked.cli.output import hint, put, put_json
from parked.cli.triage import CHANGED
from parked.errors import TransitionError
from parked.job import State
from parked.plain import printable
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.ledger import Ledger
    from parked.ledger.operations import JobRow

EPILOG: Final = """\
example:
  parked list --state discarded
  parked restore img-0412 img-0413 --batch 2026-03-02
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "restore",
        help="bring discarded jobs back",
        description="Bring discarded jobs back to the state they came from: parked or pending. Status 4: some stay.",
        epilog=EPILOG,
    )
    parser.add_argument("job_ids", metavar="JOB_ID", nargs="+")
    add_place(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    with existing_ledger(settings) as ledger:
        with ledger.ask() as reader:
            rows = [the_one(args, reader, job_id, where=ledger.where) for job_id in dict.fromkeys(args.job_ids)]
        left = Counter[str]()
        restored = list(_restored(ledger, rows, left))
    if args.json:
        told = [job_as_json(row) for row in restored]
        put_json({"ledger": ledger.where, "restored": told, "left": dict(left)})
    else:
        for row in restored:
            put(printable(f"{row.job_id} is {row.state} again"))
    return Exit.PENDING if left else Exit.OK


def _restored(ledger: Ledger, rows: list[JobRow], left: Counter[str]) -> Iterator[JobRow]:
    """Yield what was brought back; count in `left` what wasn't, by why."""
    from parked.ledger.moves import ERASED
    from parked.ledger.operations import Restore

    for row in rows:
        if row.state is not State.DISCARDED:
            hint(f"left {row.job_id}: it is {row.state}, not discarded")
            left[row.state] += 1
            continue
        if row.erased_at is not None:
            hint(f"left {row.job_id}: it was erased, so that it can't run any more")
            left[ERASED] += 1
            continue
        try:
            yield ledger.record(Restore(row.id))
        except TransitionError:
            hint(f"left {row.job_id}: somebody else has restored or erased it just now")
            left[CHANGED] += 1
