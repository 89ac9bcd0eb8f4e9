"""`parked backup`: a copy of a ledger that goes on being used."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.output import counted, put, put_json
from parked.errors import SettingsError
from parked.plain import printable
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

DESCRIPTION: Final = """\
Write the ledger, as it is at one moment, into a new SQLite file that only its owner may read; programs go on using the
ledger meanwhile. Of a PostgreSQL ledger, too. The file is a ledger by itself: look at it with --ledger. Nothing is
overwritten, and if it can't be written whole, nothing of it is left. docs/operating.md says how one is put back.

example:
  parked backup "/backup/parked-$(date -I).db"
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("backup", help="write a copy of a ledger in use", description=DESCRIPTION)
    parser.add_argument("file", metavar="FILE", help="where; must not exist")


def run(args: argparse.Namespace, settings: Settings) -> int:
    if args.file in ("", "-"):
        raise SettingsError(f"a backup needs the name of a file, got {args.file!r}")

    from parked.ledger.copying import backup

    kept = backup(settings.ledger, Path(args.file))
    if args.json:
        put_json({"ledger": kept.ledger, "file": str(kept.file), "bytes": kept.bytes, "jobs": kept.jobs})
        return Exit.OK
    put(f"ledger {kept.ledger}")
    put(printable(f"wrote {kept.file}: {counted(kept.jobs, 'job')}, {kept.bytes:,} bytes"))
    return Exit.OK
