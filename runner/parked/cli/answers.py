"""`parked answers`: the stored answers as JSON lines."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.filters import add_filters, filters_of
from parked.cli.ledgers import existing_ledger
from parked.cli.output import counted, hint, put
from parked.errors import OutputFailed, TextMissing
from parked.ledger import operations as op
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.ledger import Ledger

MARKED_TOGETHER: Final = 200

EPILOG: Final = """\
Without --new nothing is marked: the same answers come each time.

example:
  parked answers --pipeline nightly-captions --since 1d > answers.jsonl
  parked answers --new | ./load-into-database
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "answers",
        help="print stored answers as JSON lines",
        description="Print the stored answers as JSON lines, oldest first; those that a replay brought too.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--new",
        action="store_true",
        help="only those not yet handed out; they are marked once they were written, so that the next --new goes on",
    )
    add_filters(parser, time="answered")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked.answerfile import AnswerLine

    filters = filters_of(args, now=time.time())
    written: list[int] = []
    left: Counter[str] = Counter()
    with existing_ledger(settings) as ledger, ledger.ask() as reader:
        if args.new:
            ledger.record(op.HandOut(()))  # who may not mark them would get the same ones each time
        try:
            for row in reader.answers(filters, only_new=args.new):
                try:
                    line = AnswerLine.of(row)
                except TextMissing as exc:
                    left[exc.why] += 1
                    continue
                put(line.json())
                written.append(row.job.id)
                if len(written) == MARKED_TOGETHER:
                    _hand_out(ledger, written, mark=args.new)
            _hand_out(ledger, written, mark=args.new)
        except BrokenPipeError:
            if not args.new:
                raise
            raise OutputFailed(
                "whoever read the answers went away; those that weren't marked yet come again with the next --new"
            ) from None
    for why, answers in left.items():
        hint(f"left {counted(answers, 'answer')}: {why}")
    return Exit.SURROUNDINGS if left else Exit.OK


def _hand_out(ledger: Ledger, written: list[int], *, mark: bool) -> None:
    """Let go of what was written, and only then mark it: an answer may come twice, but is never skipped."""
    sys.stdout.flush()
    if mark and written:
        with suppress(OSError, ValueError):  # a pipe or a terminal can't be synced; a file can
            os.fsync(sys.stdout.fileno())
        ledger.record(op.HandOut(tuple(written)))
    written.clear()
