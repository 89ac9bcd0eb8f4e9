"""Ledgers with few and with many parked jobs and the same label sets, for the benchmarks that compare the two.

The small one is made by parked itself; the large one begins as the same, and its jobs, their payloads and attempts are
then copied inside the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parked.ledger import codec, open_ledger
from parked.ledger import operations as op
from parked.ledger.operations import Closing
from parked.verdict import Kind, Reason, Scope

if TYPE_CHECKING:
    from servers import Postgres

FEW: Final = 1_000
CLASSES: Final = ("exhausted:503", "exhausted:429", "permanent:400", "exhausted:timeout")
PAYLOAD: Final = codec.encode({"contents": "Describe the picture. " * 20})
CLOSING: Final = Closing(Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, 503, "http.503", "f503", duration_s=1.5)

# One more parked job, payload and attempt for each that there is, so many times.
COLUMNS: Final = (
    "pipeline, batch, model, state, error_class, reason, kind, scope, fingerprint, calls, strikes, place, caller,"
    " checker, accepted_at, started_at, parked_at, payload_hash"
)
COPY_JOBS: Final = """
    INSERT INTO {s}jobs (job_id, {columns}) SELECT job_id || '-' || n, {columns} FROM {s}jobs CROSS JOIN copies
     WHERE state = 'parked'
"""
COPY_REST: Final = (
    "INSERT INTO {s}payloads (job, revision, codec, body, stored_at) SELECT id, 0, 'json', CAST('{{}}' AS {blob}), 0"
    " FROM {s}jobs WHERE NOT EXISTS (SELECT 1 FROM {s}payloads WHERE job = jobs.id)",
    "INSERT INTO {s}attempts (job, number, started_at, ended_at, kind, reason, scope, status, rule, fingerprint)"
    " SELECT id, 1, parked_at, parked_at, kind, reason, scope, 503, 'http.503', fingerprint"
    " FROM {s}jobs WHERE state = 'parked' AND NOT EXISTS (SELECT 1 FROM {s}attempts WHERE job = jobs.id)",
    "UPDATE {s}counters SET value = value * {times}"
    " WHERE metric IN ('jobs_accepted', 'jobs_parked', 'parked_now', 'attempts', 'attempt_duration')"
    " OR metric = 'ledger_jobs' AND a = 'parked'",
)


def fill(url: str, *, pairs: int) -> None:
    """Make a ledger with `FEW` parked jobs, of so many pairs of pipeline and model, five models a pipeline."""
    with open_ledger(url) as ledger:
        owner = ledger.owner_id
        accepts = (
            op.Accept(
                f"pipeline-{number % pairs // 5}", "", f"parked-{number}", f"model-{number % pairs % 5}", PAYLOAD, b"h",
                start_for=owner,
            )
            for number in range(FEW)
        )  # fmt: skip
        accepted = [ticket.wait() for ticket in ledger.submit_many(accepts)]
        parks = [
            op.Park(each.row.id, owner, each.attempt, CLOSING, CLASSES[number // pairs % len(CLASSES)])
            for number, each in enumerate(accepted)
        ]
        ledger.submit_many(parks)[-1].wait()


def multiply_sqlite(file: Path, times: int) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
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


def two_sizes(folder: Path, server: Postgres | None, *, jobs: int, pairs: int) -> dict[str, str]:
    """Make a ledger with `FEW` and one with `jobs` parked jobs; return their URLs. Without a server they are files."""
    urls = {size: _url(folder, server, f"{size}_{pairs}") for size in ("few", "many")}
    for url in urls.values():
        fill(url, pairs=pairs)
    if server is None:
        multiply_sqlite(folder / f"many_{pairs}.db", jobs // FEW)
    else:
        multiply_postgres(urls["many"], jobs // FEW)
    return urls


def two_empty(folder: Path, server: Postgres | None) -> dict[str, str]:
    """Make two empty ledgers, of whose jobs PostgreSQL won't gather statistics; return their URLs."""
    urls = {size: _url(folder, server, f"{size}_waiting") for size in ("few", "many")}
    for size, url in urls.items():
        open_ledger(url).close()
        if server is not None:
            server.run("ALTER TABLE parked.jobs SET (autovacuum_enabled = off)", database=f"{size}_waiting")
    return urls


def _url(folder: Path, server: Postgres | None, name: str) -> str:
    if server is None:
        return f"sqlite:///{folder}/{name}.db"
    server.run(f"CREATE DATABASE {name}")
    return server.url(name)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server of its own, as the tests have one, that keeps what it commits."""
    import sys

    from benchlib import HERE

    sys.path.append(str(HERE.parent / "tests"))
    from servers import running

    with running("-c", "max_wal_size=4GB", is_durable=True) as server:
        yield server
