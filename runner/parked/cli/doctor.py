"""`parked doctor`: checks what parked stands on, and says what to do."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from parked import logs
from parked.cli.exits import Exit
from parked.cli.output import put, put_json, table
from parked.errors import ParkedError, SettingsError
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

EPILOG: Final = """\
exit status:
  0  nothing is broken; what needs attention is said
  3  something is broken

example:
  parked doctor
  parked doctor --offline --json | jq '.checks[] | select(.level == "broken")'
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check the surroundings: ledger, volume, rights, clock, key, proxy, sidecar",
        description="Check what parked stands on (the ledger, its volume and rights, clocks, certificates, proxies, the"
        " key, the sidecar) and say what to do. Nothing is made or changed; one question to the API costs nothing.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="ask no other machine and no server: neither API, sidecar, nor PostgreSQL",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked.ledger import full_name
    from parked.settings import LogLevel, SidecarSettings
    from parked.surroundings.checks import examine
    from parked.surroundings.finding import Level, worst
    from parked.surroundings.seeing import see

    can_be, wrong = SidecarSettings.load_what_can_be({"ledger": args.ledger})
    logs.configure(LogLevel.ERROR, can_be.log_format)  # what would be warned of at a start is a finding here
    ledger = None
    try:
        ledger = full_name(can_be.ledger) if "ledger" not in wrong else None
    except SettingsError as exc:
        wrong["ledger"] = str(exc)
    except ParkedError:
        pass  # an extra is missing, which a check says
    findings = examine(see(can_be, wrong, offline=args.offline))
    level = worst(list(findings.values())).level
    if args.json:
        checks = [
            {"check": name, "level": one.level, "found": one.found, "next": one.next_step or None}
            for name, one in findings.items()
        ]
        put_json({"ledger": ledger, "level": level, "checks": checks})
    else:
        put(f"ledger {ledger or 'unknown'}")
        for line in table(
            ("CHECK", "LEVEL", "FOUND"), [(name, one.level, one.found) for name, one in findings.items()]
        ):
            put(line)
        to_do = {name: one.next_step for name, one in findings.items() if one.next_step}
        put("what to do:" if to_do else "nothing is to be done")
        for name, step in to_do.items():
            put(f"  {name}: {step}")
    return Exit.SURROUNDINGS if level is Level.BROKEN else Exit.OK
