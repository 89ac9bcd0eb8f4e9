"""`parked import`: takes over a `dead_letter` table as it was published in the article."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.output import command_line, flag, hint, put_json
from parked.cli.progress import progress
from parked.errors import InvalidJob, JobConflict, OutputFailed
from parked.job import check_name
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.deadtable import DeadRow, DeadTable
    from parked.ledger import Ledger

SHOWN_REFUSED: Final = 20

DESCRIPTION: Final = """\
Take over a table dead_letter, as the article has it, as parked jobs. FILE.db is only read. Run it again whenever you
like: what is known stays as it is. A row that can't be taken is named by its rowid and written to
FILE.db.rejected.jsonl; then the exit status is 1.

example:
  parked import dead_letter.db --pipeline nightly
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("import", help="take over a dead_letter table", description=DESCRIPTION)
    parser.add_argument("file", metavar="FILE.db", help="a SQLite database with a table dead_letter")
    parser.add_argument("--pipeline", metavar="NAME", default="default", help="under which name the jobs are counted")
    parser.add_argument("--model", metavar="M", help="for rows that name none")
    parser.add_argument(
        "--call", metavar="MODULE:FUNCTION", help="what a replay calls instead of Gemini: (payload, model) -> answer"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    check_name("--pipeline", args.pipeline)
    if args.model is not None:
        check_name("--model", args.model)

    from parked.deadtable import DeadTable
    from parked.ledger import open_ledger

    if args.call:
        from parked.named import function_named

        function_named(args.call)
    with (
        DeadTable(Path(args.file)) as table,
        _Rejects(Path(f"{args.file}.rejected.jsonl")) as rejects,
        open_ledger(settings.ledger, mode=settings.ledger_mode) as ledger,
    ):
        if ledger.created:
            hint(f"made the ledger {ledger.where}")
        tally = _Tally()
        with progress(len(table)) as shown:
            for page in table.pages():
                _take(args, ledger, table, page, rejects, tally)
                for _ in page:
                    shown.advance(parked=0)
        _tell(args, ledger, tally, rejects)
    return Exit.PARKED if tally.refused else Exit.OK


@dataclass(slots=True)
class _Tally:
    taken: int = 0
    known_before: int = 0
    over: int = 0  # the table says that they were dealt with
    refused: list[int] = field(default_factory=list)  # rowids


class _Rejects:
    """The file of rows that can't be taken; made with the first. Each line holds the rowid, why, and the whole row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> _Rejects:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: DeadRow, why: str) -> None:
        """
        Raises:
            OutputFailed: it can't be written; what was taken so far is in the ledger.
        """
        line = {"rowid": row.rowid, "why": why, "row": {name: _as_json(value) for name, value in row.values.items()}}
        try:
            if self._file is None:
                opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                self._file = os.fdopen(opened, "w", encoding="ascii")
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as exc:
            raise OutputFailed(f"{self.path} can't be written: {exc.strerror}; mend that and run it again") from exc


def _take(
    args: argparse.Namespace, ledger: Ledger, table: DeadTable, page: list[DeadRow], rejects: _Rejects, tally: _Tally
) -> None:
    """Take one page over, in as few commits as the writer needs."""
    from parked.elsewhere import take_over

    now = time.time()
    handed_in = []
    for row in page:
        if table.is_over(row):
            tally.over += 1
            continue
        try:
            failed = table.failed(row, default_model=args.model, now=now)
            operation = take_over(failed, pipeline=args.pipeline, caller=args.call or "", anew=False)
        except InvalidJob as exc:
            _refuse(row, str(exc), rejects, tally)
        else:
            handed_in.append((row, ledger.submit(operation)))
    for row, ticket in handed_in:
        try:
            created = ticket.wait().created
        except JobConflict as exc:
            _refuse(row, str(exc), rejects, tally)
        else:
            tally.taken += created
            tally.known_before += not created


def _refuse(row: DeadRow, why: str, rejects: _Rejects, tally: _Tally) -> None:
    rejects.add(row, why)
    tally.refused.append(row.rowid)
    if len(tally.refused) <= SHOWN_REFUSED:
        hint(f"row {row.rowid}: {why}")


def _tell(args: argparse.Namespace, ledger: Ledger, tally: _Tally, rejects: _Rejects) -> None:
    refused = len(tally.refused)
    if args.json:
        told = {"taken": tally.taken, "known_before": tally.known_before, "over": tally.over}
        aside = {"refused": sorted(tally.refused), "refused_to": str(rejects.path) if refused else None}
        put_json({"ledger": ledger.where, **told, **aside})
    if refused > SHOWN_REFUSED:
        hint(f"and {refused - SHOWN_REFUSED} more rows")
    if refused:
        hint(f"the rows that were refused were set aside in {rejects.path}")
    left = f", {tally.over} left, since the table says they were dealt with" if tally.over else ""
    hint(f"{tally.taken} taken over, {tally.known_before} known before, {refused} refused{left}")
    if tally.taken:
        hint(f"to see what is parked and why: {command_line(args, 'list', *flag('--pipeline', args.pipeline))}")


def _as_json(value: Any) -> Any:
    """A value of SQLite; bytes as hex."""
    return {"hex": value.hex()} if isinstance(value, bytes) else value
