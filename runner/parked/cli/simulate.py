"""`parked simulate`: the simulator in the foreground."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.output import hint, put, put_json
from parked.errors import SettingsError
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

DEFAULT_PORT: Final = 9466
_MAX_PORT: Final = 65_535

_DESCRIPTION: Final = """\
Serve the Gemini REST API on this machine, without a key and without a model, until SIGTERM or Ctrl-C.
Every prompt gets a short text, unless a script says otherwise: quotas, outages from one minute to another, slow or
empty answers, errors for some prompts. docs/simulator.md has its format, with an example of each kind of failure.

example:
  parked simulate --script outage.json &
  GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9466 GEMINI_API_KEY=simulated parked run jobs.jsonl
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "simulate", help="serve the Gemini API on this machine, failing as told", description=_DESCRIPTION
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="P", help=f"default {DEFAULT_PORT}; 0 for any free one"
    )
    parser.add_argument("--script", metavar="FILE", help="JSON: what to answer to which request, and when")
    parser.add_argument("--record", metavar="FILE", help="write a JSON line for each call: when, for what, what it got")


def run(args: argparse.Namespace, settings: Settings) -> int:
    if not 0 <= args.port <= _MAX_PORT:
        raise SettingsError(f"--port must be a number from 0 to {_MAX_PORT}, got {args.port}")
    from parked.simulator import serve
    from parked.simulator.record import RecordFile
    from parked.simulator.script import load_script

    script = load_script(Path(args.script)) if args.script else None

    def announce(url: str) -> None:
        if args.json:
            put_json({"url": url})
        else:
            put(f"export GOOGLE_GEMINI_BASE_URL={url} GEMINI_API_KEY=simulated")
        hint(f"simulating the Gemini API at {url} until SIGTERM or Ctrl-C")

    with RecordFile(Path(args.record)) if args.record else nullcontext() as record:
        serve(port=args.port, rule=script, record=record.add if record else None, announce=announce)
    return Exit.OK
