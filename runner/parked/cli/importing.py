"""`parked import`: takes over a `dead_letter` table as it was published in the article."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.ledgers import trouble_said_once
from parked.cli.output import command_line, counted, flag, hint, put_json, same_command
from parked.cli.progress import progress
from parked.cli.signals import noting
from parked.complaints import Complaints
from parked.errors import InvalidJob, JobConflict, OutputFailed, SourceUnavailable
from parked.job import check_name
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.deadtable import DeadRow, DeadTable
    from parked.ledger import Ledger

SHOWN_OVER: Final = 10

DESCRIPTION: Final = """\
Take over a table dead_letter, as the article has it, as parked jobs. FILE.db is only read. Run it again whenever you
like: what is known stays as it is. A row that can't be taken is named by its rowid and written to
FILE.db.rejected.jsonl; then the exit status is 1. If the file can't be read to its end, being locked or damaged, what
was read is taken all the same, and the exit status is 3.

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
    from parked.named import payload_check

    check_payload = payload_check(args.call or "")
    with (
        trouble_said_once(),
        DeadTable(Path(args.file)) as table,
        _Rejects(Path(f"{args.file}.rejected.jsonl")) as rejects,
        open_ledger(settings.ledger, mode=settings.ledger_mode) as ledger,
    ):
        if ledger.created:
            hint(f"made the ledger {ledger.where}")
        tally = _Tally()
        with progress(_rows_of(table)) as shown, noting() as signals:
            try:
                for page in table.pages():
                    if signals.first is not None:
                        tally.was_stopped = True
                        break
                    _take(args, ledger, table, page, rejects, tally, check_payload)
                    for _ in page:
                        shown.advance(parked=0)
                tally.rows = len(table)
            except SourceUnavailable as exc:
                tally.broke_off = str(exc)
            except BaseException:
                if tally.taken:
                    rows = counted(tally.taken, "row")
                    hint(f"{rows} taken over before that; give the same command again for the rest")
                raise
        _tell(args, ledger, tally, rejects)
    if tally.was_stopped:
        return signals.exit()
    if tally.broke_off:
        return Exit.SURROUNDINGS
    return Exit.PARKED if tally.refused else Exit.OK


@dataclass(slots=True)
class _Tally:
    taken: int = 0
    unsendable: list[int] = field(default_factory=list)  # rowids of those of them that their caller can't send
    why_unsendable: str = ""  # the first of them
    known_before: int = 0
    over: list[int] = field(default_factory=list)  # rowids; the table says that they were dealt with
    refused: list[int] = field(default_factory=list)  # rowids
    complaints: Complaints = field(default_factory=lambda: Complaints("row"))
    last: int | None = None  # the rowid of the last row that was read
    rows: int | None = None  # how many the table has; None: it couldn't be read to its end
    broke_off: str = ""  # why
    was_stopped: bool = False  # by a signal, with rows left

    @property
    def read(self) -> int:
        return self.taken + self.known_before + len(self.over) + len(self.refused)


class _Rejects:
    """The file of rows that can't be taken; made with the first. Each line holds the rowid, why, and the whole row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> _Rejects:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # a line that couldn't be written was said, and would be tried once more
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


def _rows_of(table: DeadTable) -> int:
    """How many rows there seem to be; 0 if a damage keeps from counting them, and the rows before it count."""
    try:
        return len(table)
    except SourceUnavailable:
        return 0


def _take(
    args: argparse.Namespace,
    ledger: Ledger,
    table: DeadTable,
    page: list[DeadRow],
    rejects: _Rejects,
    tally: _Tally,
    check_payload: Callable[[Any], None] | None,
) -> None:
    """Take one page over, in as few commits as the writer needs."""
    from parked.elsewhere import take_over

    now = time.time()
    handed_in = []
    for row in page:
        if table.is_over(row):
            tally.over.append(row.rowid)
            continue
        try:
            failed = table.failed(row, default_model=args.model, now=now)
            operation = take_over(failed, pipeline=args.pipeline, caller=args.call or "", anew=False)
        except InvalidJob as exc:
            _refuse(row, str(exc), rejects, tally)
        else:
            handed_in.append((row, ledger.submit(operation), _unsendable(failed.job.payload, check_payload)))
    for row, ticket, why in handed_in:
        try:
            created = ticket.wait().created
        except JobConflict as exc:
            _refuse(row, str(exc), rejects, tally)
        else:
            tally.taken += created
            if created and why is not None:
                tally.unsendable.append(row.rowid)
                tally.why_unsendable = tally.why_unsendable or why
            tally.known_before += not created
    tally.last = page[-1].rowid


def _unsendable(payload: Any, check_payload: Callable[[Any], None] | None) -> str | None:
    """Return why a payload can't be sent as it is; None if it can, as far as anybody knows."""
    try:
        if check_payload is not None:
            check_payload(payload)
    except InvalidJob as exc:
        return str(exc)
    return None


def _refuse(row: DeadRow, why: str, rejects: _Rejects, tally: _Tally) -> None:
    rejects.add(row, why)
    tally.refused.append(row.rowid)
    tally.complaints.add(row.rowid, why)


def _tell(args: argparse.Namespace, ledger: Ledger, tally: _Tally, rejects: _Rejects) -> None:
    refused = len(tally.refused)
    if args.json:
        told = {"taken": tally.taken, "known_before": tally.known_before, "over": len(tally.over)}
        aside = {
            "unsendable": tally.unsendable,
            "refused": sorted(tally.refused),
            "refused_to": str(rejects.path) if refused else None,
        }
        source = {"over_rows": tally.over, "rows": tally.rows, "last_row": tally.last}
        put_json({"ledger": ledger.where, **told, **aside, **source})
    for text in tally.complaints.texts():
        hint(text)
    if refused:
        hint(f"the rows that were refused were set aside in {rejects.path}")
    left = ""
    if tally.over:
        named = ", ".join(map(str, tally.over[:SHOWN_OVER])) + (", …" if len(tally.over) > SHOWN_OVER else "")
        left = f", {len(tally.over)} left, since the table says they were dealt with (rows {named})"
    hint(f"{tally.taken} taken over, {tally.known_before} known before, {refused} refused{left}")
    if tally.unsendable:
        hint(
            f"{len(tally.unsendable)} of them can't be sent as {'it is' if len(tally.unsendable) == 1 else 'they are'},"
            f" e.g. row {tally.unsendable[0]}: {tally.why_unsendable}; replay such with --payload FILE, or"
            " by a function of yours: parked.replay(call_model)"
        )
    where = "before its first row" if tally.last is None else f"after row {tally.last}"
    if tally.was_stopped:
        hint(f"stopped {where}; to go on: {same_command(args)}")
    elif tally.broke_off:
        hint(f"broke off {where}: {tally.broke_off}; mend that, or copy the table with .recover, and run it again")
    elif tally.rows is not None and tally.rows != tally.read:
        hint(f"the table has {tally.rows} rows, and {tally.read} were read: some came or went; run it again")
    if tally.taken:
        hint(f"to see what is parked and why: {command_line(args, 'list', *flag('--pipeline', args.pipeline))}")


def _as_json(value: Any) -> Any:
    """A value of SQLite; bytes as hex."""
    return {"hex": value.hex()} if isinstance(value, bytes) else value
