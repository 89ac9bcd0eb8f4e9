"""One job found by its id, and by pipeline and batch where the id isn't unique."""

from __future__ import annotations

import argparse
from typing import Final

from parked.cli.output import command_line, flag
from parked.errors import SettingsError
from parked.job import check_name
from parked.ledger.operations import JobRow
from parked.ledger.store import Reader

SHOWN_PLACES: Final = 10


def add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pipeline", metavar="NAME", help="where more than one pipeline has this id")
    parser.add_argument("--batch", metavar="NAME", help='where more than one batch has it; "" for none')


def the_one(args: argparse.Namespace, reader: Reader, job_id: str, *, where: str) -> JobRow:
    """Return the job of that id; `where` names the ledger.

    Raises:
        InvalidJob: a name that no job can have.
        SettingsError: there is none, or more than one; then they are listed with the command that chooses each.
    """
    check_name("JOB_ID", job_id)
    for name, value in (("--pipeline", args.pipeline), ("--batch", args.batch)):
        if value is not None:
            check_name(name, value, empty=True)
    rows = reader.jobs_by_key(job_id, pipeline=args.pipeline, batch=args.batch)
    if len(rows) == 1:
        return rows[0]
    if not rows:
        asked = "".join(
            f" of {name} {value!r}" for name, value in (("pipeline", args.pipeline), ("batch", args.batch)) if value
        )
        listed = command_line(args, "list", "--state", "all")
        raise SettingsError(f"there is no job {job_id!r}{asked} in {where}; {listed} shows what there is")
    said = [f"{len(rows)} jobs are called {job_id!r}; choose one:"]
    for row in rows[:SHOWN_PLACES]:
        words = [*flag("--pipeline", row.pipeline), *flag("--batch", row.batch), *_positional(row.job_id)]
        said.append(f"  {command_line(args, args.command, *words)}")
    if len(rows) > SHOWN_PLACES:
        said.append(f"  and {len(rows) - SHOWN_PLACES} more")
    raise SettingsError("\n".join(said))


def _positional(word: str) -> list[str]:
    return ["--", word] if word.startswith("-") else [word]
