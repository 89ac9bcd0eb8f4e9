"""`parked migrate`: makes a ledger, or brings an older one up to this version."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.output import put, put_json
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

DESCRIPTION: Final = """\
Make the ledger, or apply what an older one lacks. On SQLite the commands do it by themselves, and before a step that
older programs can't follow they keep a copy beside the ledger: parked.db.before-0003. On
PostgreSQL they do it where their role may, and only in steps that older programs can go on beside; a step that they
can't is made by this command alone, once none of them is running. docs/postgres.md has the rights it needs.

example:
  parked migrate --ledger postgresql://parked_migrate@db.example.com/pipelines
"""


def add_parser(subparsers: Subparsers) -> None:
    subparsers.add_parser("migrate", help="make or upgrade the ledger", description=DESCRIPTION)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked.ledger import full_name, migrate

    done = migrate(settings.ledger, mode=settings.ledger_mode)
    name = full_name(settings.ledger)
    if args.json:
        steps = [{"number": step.number, "title": step.title, "additive": step.additive} for step in done.steps]
        copy = None if done.copy is None else str(done.copy)
        put_json({"ledger": name, "created": done.created, "steps": steps, "copy": copy})
        return Exit.OK
    put(f"ledger {name}")
    if done.copy is not None:
        put(f"  kept as it was: {done.copy}")
    for step in done.steps:
        put(f"  {step.number:04} {step.title}")
    put("created" if done.created else "upgraded" if done.steps else "nothing to do: it is up to date")
    return Exit.OK
