"""`parked erase`: the texts of jobs removed for good; that there was such a job, and what became of it, stays."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.ledgers import existing_ledger
from parked.cli.output import counted, flag, hint
from parked.cli.scrubbing import scrub
from parked.cli.triage import CHANGED, ERASED_BEFORE, add_flags, do, read_flags, tell_done, tell_dry_run
from parked.job import State
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.ledger.operations import JobRow

LEFT: Final = {
    ERASED_BEFORE: "erased before",
    State.PENDING: "still to be run; discard it first (parked discard --state pending)",
    State.RUNNING: "being run; erase it once that is over",
    State.REPLAYING: "being replayed; erase it once that is over",
    CHANGED: "taken up since it was chosen; erase it once that is over",
}

DESCRIPTION: Final = """\
Remove payload, answer and messages of jobs for good; nobody can bring them back. Without --apply it only says which.
The jobs stay in the ledger, known by their ids and counted; a parked one can't be replayed any more. Jobs of all
states are taken but those that are still to be run or just being run. At the end the ledger's file is rewritten, so
that no copy is left in it; others wait to write meanwhile, some 10 s for each GB.

example:
  parked erase --job order-4711 --reason "the customer asked for it"
  parked erase --pipeline captions --until 90d --reason "kept for 90 days" --apply
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("erase", help="remove the texts of jobs for good", description=DESCRIPTION)
    add_flags(parser, verb="erase", time="accepted")


def run(args: argparse.Namespace, settings: Settings) -> int:
    filters = read_flags(args)

    from parked.ledger.operations import Erase
    from parked.triage import select

    states = tuple(state for state in State if state is not State.FORGOTTEN)
    with existing_ledger(settings) as ledger:
        with ledger.ask() as reader:
            selection = select(
                reader, filters, states=states, why_left=partial(_why_left, again=reader.erased_with_texts())
            )
        if not args.apply:
            tell_dry_run(args, ledger, selection, left_means=LEFT, words=flag("--reason", args.why))
            return Exit.OK
        erased = do(ledger, selection, lambda id: Erase(id, args.why))
        # Also after an earlier one that was broken off before this.
        copies = scrub(ledger, f"{counted(erased, 'job')} erased") if erased or selection.left[ERASED_BEFORE] else ""
        tell_done(args, ledger, selection, {"erased": erased, "scrubbed": not copies}, LEFT)
        hint(f"{counted(erased, 'job')} erased")
    if copies:
        hint(f"copies are left in the ledger's files: {copies}")
        return Exit.SURROUNDINGS
    if not erased and selection.left[ERASED_BEFORE]:
        hint("of those that were erased before, no copies are left in the ledger's files")
    return Exit.PENDING if selection.left.keys() - {ERASED_BEFORE} else Exit.OK


def _why_left(row: JobRow, *, again: Collection[int]) -> str | None:
    """`again`: the erased jobs that got a text since."""
    from parked.ledger.moves import ERASABLE

    if row.erased_at is not None and row.id not in again:
        return ERASED_BEFORE
    return None if row.state in ERASABLE else str(row.state)
