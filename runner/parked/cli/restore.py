"""`parked restore`: discarded jobs brought back to the state they came from."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.filters import add_filters, filters_of
from parked.cli.finding import the_one
from parked.cli.jobs import job_as_json
from parked.cli.ledgers import existing_ledger
from parked.cli.output import counted, hint, put, put_json
from parked.cli.triage import CHANGED, do, tell_done, tell_dry_run
from parked.errors import SettingsError, TransitionError
from parked.job import State
from parked.ledger.moves import ERASED
from parked.plain import printable
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.ledger import Ledger
    from parked.ledger.operations import JobRow

LEFT: Final = {
    ERASED: "erased, so that they can't run any more",
    CHANGED: "restored or erased by somebody else since they were chosen",
}

DESCRIPTION: Final = """\
Bring discarded jobs back to the state they came from: parked or pending. Those that are named by their ids come back at
once; of those that filters choose it only says which, unless it is given --apply. Status 4: some stay.

example:
  parked list --state discarded
  parked restore img-0412 img-0413 --batch 2026-03-02
  parked restore --pipeline captions --apply
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("restore", help="bring discarded jobs back", description=DESCRIPTION)
    parser.add_argument(
        "job_ids_at_once", metavar="JOB_ID", nargs="*", help="with --pipeline and --batch to tell which"
    )
    add_filters(parser, time="accepted")
    parser.add_argument("--all", action="store_true", help="every discarded job; needed where no filter limits --apply")
    parser.add_argument("--apply", action="store_true", help="restore them, instead of saying which")


def run(args: argparse.Namespace, settings: Settings) -> int:
    return _restore_named(args, settings) if args.job_ids_at_once else _restore_chosen(args, settings)


def _restore_named(args: argparse.Namespace, settings: Settings) -> int:
    """
    Raises:
        SettingsError: an id that isn't there or isn't unique, or filters beside ids.
    """
    chooses = filters_of(args, now=time.time())._replace(pipeline=None, batch=None)
    if chooses or args.all:
        raise SettingsError(
            "parked restore takes the ids of jobs, with --pipeline and --batch where they aren't unique, or filters;"
            " leave out the ids, or the other filters"
        )
    with existing_ledger(settings) as ledger:
        with ledger.ask() as reader:
            rows = [the_one(args, reader, job_id, where=ledger.where) for job_id in dict.fromkeys(args.job_ids_at_once)]
        left = Counter[str]()
        restored = list(_restored(ledger, rows, left))
    if args.json:
        told = [job_as_json(row) for row in restored]
        put_json({"ledger": ledger.where, "restored": told, "jobs": len(told), "left": dict(left)})
    else:
        for row in restored:
            put(printable(f"{row.job_id} is {row.state} again"))
    return Exit.PENDING if left else Exit.OK


def _restore_chosen(args: argparse.Namespace, settings: Settings) -> int:
    """
    Raises:
        SettingsError, InvalidJob: something is missing or can't be read; nothing was changed.
    """
    filters = filters_of(args, now=time.time())
    if args.apply and not (filters or args.all):
        raise SettingsError("parked restore --apply without a filter takes every job; say --all, or name a filter")

    from parked.ledger.operations import Restore
    from parked.triage import select

    with existing_ledger(settings) as ledger:
        with ledger.ask() as reader:
            selection = select(
                reader, filters, states=(State.DISCARDED,), why_left=lambda row: ERASED if row.erased_at else None
            )
        if not args.apply:
            tell_dry_run(args, ledger, selection, left_means=LEFT, words=())
            return Exit.OK
        restored = do(ledger, selection, Restore)
        tell_done(args, ledger, selection, {"restored": None, "jobs": restored}, LEFT)
        hint(f"{counted(restored, 'job')} restored")
    return Exit.PENDING if selection.left else Exit.OK


def _restored(ledger: Ledger, rows: list[JobRow], left: Counter[str]) -> Iterator[JobRow]:
    """Yield what was brought back; count in `left` what wasn't, by why."""
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
