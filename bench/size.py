"""How many bytes a job takes up in a ledger, on both databases. See README.md.

    python bench/size.py [--jobs 10000]

Bodies are random text, which no database can shorten. A run with each size of body is made by parked itself, into a
ledger of its own; what is on the disk at its end, indexes included, is shared out among its jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import random
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import ledgers
from benchlib import print_machine, table

from parked import ApiError, AsyncRunner, Job, open_ledger

BODY_BYTES = (1_000, 10_000)
Call = Callable[[Any, str], Awaitable[Any]]


def text(size: int, chance: random.Random) -> str:
    return base64.b64encode(chance.randbytes(size))[:size].decode()


async def answers(payload: Any, model: str) -> str:
    """As much as it was given, turned round."""
    return str(payload["contents"])[::-1]


async def fails(payload: Any, model: str) -> str:
    raise ApiError(400, "Request contains an invalid argument.")


async def run(url: str, call: Call, *, jobs: int, body_bytes: int) -> None:
    chance = random.Random(1)
    source = (Job(f"job-{n:08}", model="m", payload={"contents": text(body_bytes, chance)}) for n in range(jobs))
    with open_ledger(url) as ledger:
        # Different jobs that fail alike pause a run; here each is meant to be parked.
        runner = AsyncRunner(ledger, call, pipeline="nightly", batch="2026-03-02", policy=_never_pausing())
        async for _ in runner.run_many(source, concurrency=64):
            pass


def _never_pausing() -> Any:
    from parked import Policy

    return Policy(stop_after_alike=0)


def bytes_of_file(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.stat().st_size


def bytes_of_schema(url: str) -> int:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'parked' AND c.relkind = 'r'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10_000)
    jobs = parser.parse_args().jobs

    print_machine()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(ledgers.postgres())
        for what, call, bodies in (("answered", answers, 2), ("parked", fails, 1)):
            for size in BODY_BYTES:
                name = f"{what}_{size}"
                file = folder / f"{name}.db"
                server.run(f"CREATE DATABASE {name}")
                measured = {
                    f"sqlite:///{file}": functools.partial(bytes_of_file, file),
                    server.url(name): functools.partial(bytes_of_schema, server.url(name)),
                }
                row = [f"{what}, {bodies} × {size:,} bytes of text"]
                for url, taken in measured.items():
                    asyncio.run(run(url, call, jobs=jobs, body_bytes=size))
                    row += [f"{taken() / jobs:,.0f}", f"{taken() / jobs - bodies * size:,.0f}"]
                rows.append(row)
    table(["a job", "SQLite", "beside its text", "PostgreSQL", "beside its text"], rows)


if __name__ == "__main__":
    main()
