"""What a claim costs with 1,000 and with 1,000,000 parked jobs, and with 1,000 and 100,000 pending ones.

    python bench/scale.py [--jobs 1000000] [--waiting 100000] [--rounds 40]

On both databases. Both ledgers of a database hold the same label sets (`ledgers.py`). Each round claims 16 jobs in
either. Pending jobs are those of a file that was just submitted, before PostgreSQL has gathered statistics of them.
What a scrape costs, `scrape.py` measures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import ledgers
from benchlib import print_machine, table

from parked.ledger import Ledger, open_ledger
from parked.ledger import operations as op

CLAIMED = 16
PAIRS = 25
CHUNK = 500


def measure(opened: dict[str, Ledger], waiting: dict[str, int], rounds: int) -> dict[str, float]:
    """Medians in ms, by ledger, of claims with so many pending jobs in each."""
    took: dict[str, list[float]] = {}
    owners = {}
    for name, ledger in opened.items():
        for first in range(0, waiting[name], CHUNK):
            numbers = range(first, min(first + CHUNK, waiting[name]))
            accepts = (op.Accept("pipeline-0", "", f"new-{n}", "model-0", ledgers.PAYLOAD, b"h") for n in numbers)
            ledger.submit_many(accepts)[-1].wait()
        owners[name] = ledger.owner_id
        ledger.record(op.Claim(None, owners[name], CLAIMED))
    for number in range(rounds):
        for name, ledger in list(opened.items())[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            claimed = ledger.record(op.Claim(None, owners[name], CLAIMED))
            took.setdefault(name, []).append(time.perf_counter() - began)
            assert len(claimed.started) == CLAIMED
    return {name: 1000 * median(values) for name, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()

    print_machine()
    parked, pending = [], []
    few = {"few": ledgers.FEW, "many": ledgers.FEW}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for database, server in (("SQLite", None), ("PostgreSQL", stack.enter_context(ledgers.postgres()))):
            urls = ledgers.two_sizes(folder, server, jobs=args.jobs, pairs=PAIRS)
            parked.append(row(database, urls, few, args.rounds))
            urls = ledgers.two_empty(folder, server)
            pending.append(row(database, urls, {"few": ledgers.FEW, "many": args.waiting}, args.rounds))
    for state, most, rows in (("parked", args.jobs, parked), ("pending", args.waiting, pending)):
        table(["", f"ms at {ledgers.FEW:,} {state}", f"ms at {most:,}", "ratio"], rows)


def row(database: str, urls: dict[str, str], waiting: dict[str, int], rounds: int) -> list[str]:
    with ExitStack() as stack:
        opened = {size: stack.enter_context(open_ledger(url)) for size, url in urls.items()}
        ms = measure(opened, waiting, rounds)
    return [f"{database}, a claim", *(f"{ms[size]:.1f}" for size in urls), f"{ms['many'] / ms['few']:.2f}"]


if __name__ == "__main__":
    main()
