"""What a claim and a scrape cost with 1,000 and with 1,000,000 parked jobs, on both databases.

    python bench/scale.py [--jobs 1000000] [--rounds 40]

Both ledgers of a database hold the same label sets. The small one is made by parked itself; the large one begins as the
same, and its parked jobs, their payloads and attempts are then copied inside the database. Each round claims 16 jobs in
either, and looks at either as the sidecar does for a scrape.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

from benchlib import HERE, print_machine, table

from parked.ledger import Ledger, codec, open_ledger
from parked.ledger import operations as op
from parked.ledger.operations import Closing
from parked.verdict import Kind, Reason, Scope
from parked_exporter.collector import look

FEW = 1_000
CLAIMED = 16
PIPELINES, CLASSES = 5, ("exhausted:503", "exhausted:429", "permanent:400", "exhausted:timeout")
PAYLOAD = codec.encode({"contents": "Describe the picture. " * 20})
CLOSING = Closing(Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, 503, "http.503", "f503", duration_s=1.5)

# One more parked job, payload and attempt for each that there is, so many times.
COLUMNS = (
    "pipeline, batch, model, state, error_class, reason, kind, scope, fingerprint, calls, strikes, place, caller,"
    " checker, accepted_at, started_at, parked_at, payload_hash"
)
COPY_JOBS = """
    INSERT INTO {s}jobs (job_id, {columns}) SELECT job_id || '-' || n, {columns} FROM {s}jobs CROSS JOIN copies
     WHERE state = 'parked'
"""
COPY_REST = (
    "INSERT INTO {s}payloads (job, revision, codec, body, stored_at) SELECT id, 0, 'json', CAST('{{}}' AS {blob}), 0"
    " FROM {s}jobs WHERE NOT EXISTS (SELECT 1 FROM {s}payloads WHERE job = jobs.id)",
    "INSERT INTO {s}attempts (job, number, started_at, ended_at, kind, reason, scope, status, rule, fingerprint)"
    " SELECT id, 1, parked_at, parked_at, kind, reason, scope, 503, 'http.503', fingerprint"
    " FROM {s}jobs WHERE state = 'parked' AND NOT EXISTS (SELECT 1 FROM {s}attempts WHERE job = jobs.id)",
    "UPDATE {s}counters SET value = value * {times}"
    " WHERE metric IN ('jobs_accepted', 'jobs_parked', 'parked_now', 'attempts')"
    " OR metric = 'ledger_jobs' AND a = 'parked'",
)


def filled(url: str) -> Ledger:
    """A ledger with a few parked jobs of many label sets."""
    ledger = open_ledger(url)
    ledger.submit_many(
        op.TakeOver(
            f"pipeline-{number % PIPELINES}", "", f"parked-{number}", f"model-{number % 7}", PAYLOAD, b"h",
            CLASSES[number % len(CLASSES)], CLOSING, calls=1,
        )
        for number in range(FEW)
    )[-1].wait()  # fmt: skip
    return ledger


def multiply_sqlite(path: Path, times: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        copies = f"WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < {times - 1})"
        connection.execute("BEGIN")
        connection.execute(copies + COPY_JOBS.format(s="", columns=COLUMNS))
        for statement in COPY_REST:
            connection.execute(statement.format(s="", blob="BLOB", times=times))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def multiply_postgres(url: str, times: int) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        copies = f"WITH copies (n) AS (SELECT generate_series(1, {times - 1}))"
        connection.execute((copies + COPY_JOBS.format(s="parked.", columns=COLUMNS)).encode())
        for statement in COPY_REST:
            connection.execute(statement.format(s="parked.", blob="bytea", times=times).encode())
        connection.execute(b"VACUUM ANALYZE")


def measure(ledgers: dict[str, Ledger], rounds: int) -> dict[tuple[str, str], float]:
    """Medians in ms, by (ledger, what)."""
    took: dict[tuple[str, str], list[float]] = {}
    owners = {}
    for name, ledger in ledgers.items():
        jobs = rounds * CLAIMED + CLAIMED
        accepts = (op.Accept("pipeline-0", "", f"new-{n}", "model-0", PAYLOAD, b"h") for n in range(jobs))
        ledger.submit_many(accepts)[-1].wait()
        owners[name] = ledger.owner_id
        ledger.record(op.Claim(None, owners[name], CLAIMED))
    for number in range(rounds):
        for name, ledger in list(ledgers.items())[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            claimed = ledger.record(op.Claim(None, owners[name], CLAIMED))
            took.setdefault((name, "claim"), []).append(time.perf_counter() - began)
            assert len(claimed.started) == CLAIMED
            began = time.perf_counter()
            look(ledger.url, tasks=())
            took.setdefault((name, "scrape"), []).append(time.perf_counter() - began)
    return {key: 1000 * median(values) for key, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    sys.path.append(str(HERE.parent / "tests"))
    from servers import running

    print_machine()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running("-c", "max_wal_size=4GB", is_durable=True))
        for database in ("SQLite", "PostgreSQL"):
            urls = {}
            for size in ("few", "many"):
                if database == "SQLite":
                    urls[size] = f"sqlite:///{folder}/{size}.db"
                else:
                    server.run(f"CREATE DATABASE {size}")
                    urls[size] = server.url(size)
                filled(urls[size]).close()
            if database == "SQLite":
                multiply_sqlite(folder / "many.db", args.jobs // FEW)
            else:
                multiply_postgres(urls["many"], args.jobs // FEW)
            ledgers = {size: stack.enter_context(open_ledger(url)) for size, url in urls.items()}
            ms = measure(ledgers, args.rounds)
            for what in ("claim", "scrape"):
                few, many = ms["few", what], ms["many", what]
                rows.append([f"{database}, a {what}", f"{few:.1f}", f"{many:.1f}", f"{many / few:.2f}"])
    table(["", f"ms at {FEW:,}", f"ms at {args.jobs:,}", "ratio"], rows)


if __name__ == "__main__":
    main()
