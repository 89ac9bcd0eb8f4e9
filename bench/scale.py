"""What a claim costs with 1,000 and with 1,000,000 parked jobs, on both databases.

    python bench/scale.py [--jobs 1000000] [--rounds 40]

Both ledgers of a database hold the same label sets (`ledgers.py`). Each round claims 16 jobs in either. What a scrape
costs there, `scrape.py` measures.
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


def measure(opened: dict[str, Ledger], rounds: int) -> dict[str, float]:
    """Medians in ms, by ledger."""
    took: dict[str, list[float]] = {}
    owners = {}
    for name, ledger in opened.items():
        jobs = rounds * CLAIMED + CLAIMED
        accepts = (op.Accept("pipeline-0", "", f"new-{n}", "model-0", ledgers.PAYLOAD, b"h") for n in range(jobs))
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
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()

    print_machine()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for database, server in (("SQLite", None), ("PostgreSQL", stack.enter_context(ledgers.postgres()))):
            urls = ledgers.two_sizes(folder, server, jobs=args.jobs, pairs=PAIRS)
            ms = measure({size: stack.enter_context(open_ledger(url)) for size, url in urls.items()}, args.rounds)
            rows.append(
                [f"{database}, a claim", *(f"{ms[size]:.1f}" for size in urls), f"{ms['many'] / ms['few']:.2f}"]
            )
    table(["", f"ms at {ledgers.FEW:,}", f"ms at {args.jobs:,}", "ratio"], rows)


if __name__ == "__main__":
    main()
