"""`parked summary`: what is parked and why, what is new, and what waits."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.filters import moment_of
from parked.cli.ledgers import existing_ledger
from parked.cli.output import command_line, hint, put, put_json
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

EPILOG: Final = """\
example:
  parked summary
  parked summary --since 1d --json | jq .new
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "summary",
        help="show what is parked by class and cause, and what waits",
        description="Show what is parked by class and cause, what is new, the oldest, what waits since when and why,"
        " and what was recovered, discarded and spent since the last scheduled summary.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--since",
        metavar="T",
        help="what counts as new: parked since 2h, 3d, or an ISO 8601 time; default: since the last scheduled summary",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked.summary import as_json, next_commands, render, summarise

    since = moment_of("--since", args.since, now=time.time())
    with existing_ledger(settings) as ledger, ledger.ask() as reader:
        summary = summarise(reader, where=ledger.where, since=since, messages=settings.export_messages)
    commands = [command_line(args, *words) for words in next_commands(summary)]
    if args.json:
        put_json(as_json(summary, commands))
        return Exit.OK
    put(render(summary))
    if commands:
        hint("\n  ".join(["next:", *commands]))
    return Exit.OK
