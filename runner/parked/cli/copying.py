"""`parked copy`: a ledger moved into another, empty database."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.output import counted, put, put_json
from parked.errors import SettingsError
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

DESCRIPTION: Final = """\
Take all that a ledger holds over into another database, from SQLite to PostgreSQL, back, or to one of the same kind.
The target must be a file that is missing, or a database of PostgreSQL that is there and empty; there, copying takes the
role that owns the schema. Nobody may use the source meanwhile: programs that still do are named, and nothing is copied.
Each row is read back and compared, and both sides are audited; if anything is amiss, nothing is left in the target. The
source stays as it is: point your programs at the target, and put the source away.

example:
  parked copy sqlite:///parked.db postgresql://parked_migrate@db.example.com/pipelines
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("copy", help="move a ledger into another database", description=DESCRIPTION)
    parser.add_argument("source", metavar="FROM", help="the URL of the ledger")
    parser.add_argument("target", metavar="TO", help="the URL of an empty database or a missing file")


def run(args: argparse.Namespace, settings: Settings) -> int:
    if args.ledger is not None:
        raise SettingsError("parked copy takes both ledgers as FROM and TO; leave --ledger out")

    from parked.ledger.copying import copy

    moved = copy(args.source, args.target, mode=settings.ledger_mode)
    if args.json:
        put_json({"source": moved.source, "ledger": moved.target, "jobs": moved.rows["jobs"], "rows": moved.rows})
        return Exit.OK
    put(f"ledger {moved.target}")
    put(f"copied {counted(moved.rows['jobs'], 'job')} from {moved.source}")
    put("every row was compared, and the audit holds on both sides")
    return Exit.OK
