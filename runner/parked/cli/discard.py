"""`parked discard`: jobs that nobody wants any more, put away with a reason."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.ledgers import existing_ledger
from parked.cli.nearest import one_of
from parked.cli.output import counted, flag, hint
from parked.cli.triage import CHANGED, add_flags, do, read_flags, tell_done, tell_dry_run
from parked.job import State
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

DISCARDED_FROM: Final = (State.PARKED, State.PENDING)
LEFT: Final = {CHANGED: "taken up or put away since it was chosen"}

DESCRIPTION: Final = """\
Put parked jobs away for good, with a reason. Without --apply it only says which. They stay in the ledger with all that
is known of them, count as discarded, and parked restore brings them back.

example:
  parked discard --class permanent:prompt_blocked --until 30d --reason "not worth rewording"
  parked discard --pipeline captions --state pending --reason "the campaign was called off" --apply
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("discard", help="put parked jobs away, with a reason", description=DESCRIPTION)
    parser.add_argument(
        "--state",
        metavar="S",
        type=one_of("state to discard from", DISCARDED_FROM),
        default=str(State.PARKED),
        help="parked (the default), or pending: accepted and not run yet",
    )
    add_flags(parser, verb="discard", time="parked (with --state pending: accepted)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    filters = read_flags(args)

    from parked.ledger.operations import Discard
    from parked.triage import select

    with existing_ledger(settings) as ledger:
        with ledger.ask() as reader:
            selection = select(reader, filters, states=(State(args.state),))
        if not args.apply:
            words = [] if args.state == State.PARKED else ["--state", args.state]
            words += flag("--reason", args.why)
            tell_dry_run(args, ledger, selection, left_means=LEFT, words=words)
            return Exit.OK
        discarded = do(ledger, selection, lambda id: Discard(id, args.why))
        tell_done(args, ledger, selection, {"discarded": discarded}, LEFT)
        hint(f"{counted(discarded, 'job')} discarded")
    return Exit.PENDING if selection.left else Exit.OK
