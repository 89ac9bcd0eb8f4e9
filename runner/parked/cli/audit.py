"""`parked audit`: does the ledger account for every job that was accepted?"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.ledgers import existing_ledger
from parked.cli.output import hint, put, put_json
from parked.job import State
from parked.ledger.counters import Metric
from parked.ledger.store import Imbalance
from parked.plain import number_text, printable
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers

EPILOG: Final = """\
The law: accepted = pending + running + parked + replaying + succeeded + recovered + discarded + forgotten. The
counters are held against it, the rows against the counters, and each row against its attempts, payload and answer.
Exit status 1 says that it does not hold; then the jobs are named, and it is a bug in parked. Payloads and answers that
are encrypted with a key that isn't there are named too, with exit status 3.

example:
  parked audit && echo every job is accounted for
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "audit",
        help="check that every accepted job is accounted for",
        description="Check, row by row, that every job that was ever accepted is in exactly one state.",
        epilog=EPILOG,
    )
    parser.add_argument("--bodies", action="store_true", help="also read every payload and answer; takes its time")


def run(args: argparse.Namespace, settings: Settings) -> int:
    with existing_ledger(settings) as ledger, ledger.ask() as reader:
        bodies = reader.read_bodies() if args.bodies else None
        imbalances = reader.imbalances(thorough=True) + (bodies.broken if bodies else [])
        locked = bodies.locked if bodies else []
        counters = reader.counters(Metric.JOBS_ACCEPTED, Metric.LEDGER_JOBS)
    accepted = int(sum(row.value for row in counters if row.metric == Metric.JOBS_ACCEPTED))
    jobs = Counter[str]()
    for row in counters:
        if row.metric == Metric.LEDGER_JOBS:
            jobs[row.a] += int(row.value)
    if args.json:
        put_json(
            {
                "ledger": ledger.where,
                "holds": not imbalances,
                "accepted": accepted,
                "states": {state: jobs[state] for state in State},
                "bodies_read": bodies.number if bodies else None,
                "imbalances": [found._asdict() for found in imbalances],
                "locked": [found._asdict() for found in locked],
            }
        )
    else:
        put(f"ledger {ledger.where}")
        put(f"accepted {accepted} {'!=' if imbalances else '='} " + " + ".join(f"{s} {jobs[s]}" for s in State))
        if bodies is not None:
            counts = [("damaged", bodies.broken), ("without a key", locked)]
            told = ", ".join(f"{sum(int(each.found) for each in some)} {what}" for what, some in counts if some)
            put(f"read {bodies.number} payloads and answers: {told or 'all whole'}")
        for line in _told(imbalances):
            put(line)
        for found in locked:
            for line in _named(found, number_text(found.found)):
                put(line)
    if not imbalances:
        return Exit.SURROUNDINGS if locked else Exit.OK
    hint("the law does not hold; please report this, and keep a copy of the ledger")
    return Exit.PARKED


def _told(imbalances: list[Imbalance]) -> Iterator[str]:
    for found in imbalances:
        yield from _named(found, f"counted {number_text(found.counted)}, found {number_text(found.found)}")


def _named(found: Imbalance, how_many: str) -> Iterator[str]:
    where = f"{found.pipeline}: " if found.pipeline else ""
    yield printable(f"{where}{found.what}: {how_many}")
    for job_id in found.job_ids:
        yield f"  {printable(job_id)}"
