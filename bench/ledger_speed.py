"""What the ledger does: jobs accepted in bulk, jobs parked beside a replay, a million jobs audited. See README.md.

Each figure is taken in a process of its own, on SQLite or (with --url) on a database of PostgreSQL without a ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import benchlib

MODEL = "m"
TWO_KB = {"contents": [{"role": "user", "parts": [{"text": ("Summarise this ticket in one line. " * 60)[:1_950]}]}]}
ACCEPTED = 50_000
WINDOW_S = 5.0
WINDOWS = 4  # with a replay beside, and as many without
CALL_S = 0.5  # of the model that the replay waits for
IN_FLIGHT = 16
AUDITED = 1_000_000
KINDS = 10  # jobs that are made by parked itself, and then copied


def accepted(url: str) -> benchlib.Figures:
    """As `parked submit` does: jobs encoded and handed in by the chunk, the next one while one is synced."""
    from parked import Job, open_ledger
    from parked.ledger import Ticket
    from parked.ledger.operations import Called
    from parked.pool import CHUNK
    from parked.running import acceptance

    called = Called("bench:call", "")
    committing: list[Ticket] = []
    with open_ledger(url) as ledger:
        begun, cpu = time.perf_counter(), time.process_time()
        for start in range(0, ACCEPTED + CHUNK, CHUNK):
            numbers = range(start, min(start + CHUNK, ACCEPTED))
            jobs = (Job(f"job-{number}", MODEL, TWO_KB) for number in numbers)
            handed_in = ledger.submit_many([acceptance(job, "bench", "", called) for job in jobs])
            for ticket in committing:
                assert ticket.wait().created
            committing = handed_in
        took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
        return {"jobs_per_s": ACCEPTED / took_s, "cpu_us": cpu_s / ACCEPTED * 1e6}


async def fails(payload: Any, model: str) -> str:
    """The caller of `parks`: it fails for good; in the process of the replay it answers, slowly."""
    from parked import ApiError

    told = os.environ.get("BENCH_REPLAYING")
    if not told:
        raise ApiError(400, "the request is wrong")
    Path(told).touch()
    await asyncio.sleep(CALL_S)
    return "done"


def parks(url: str) -> benchlib.Figures:
    """Windows without a replay and with one, in turn, while jobs are parked all the time."""
    import ledger_speed

    from parked import AsyncRunner, Job, Policy, open_ledger

    async def source() -> AsyncIterator[Job]:
        number = 0
        while not over:
            yield Job(f"job-{number}", MODEL, TWO_KB)
            number += 1

    async def measure() -> benchlib.Figures:
        rates: dict[bool, float] = {False: 0, True: 0}
        parking = asyncio.create_task(park())
        await asyncio.sleep(WINDOW_S)  # something to replay, and everything warm
        for window in range(2 * WINDOWS):
            beside = window % 4 in (1, 2)  # neither is always the later one
            with contextlib.ExitStack() as stack:
                if beside:
                    await asyncio.to_thread(stack.enter_context, replay(url))
                before, begun = parked, time.perf_counter()
                await asyncio.sleep(WINDOW_S)
                rates[beside] += (parked - before) / (time.perf_counter() - begun) / WINDOWS
        over.append(True)
        await parking
        return {"alone_per_s": rates[False], "beside_per_s": rates[True], "ratio": rates[True] / rates[False]}

    async def park() -> None:
        nonlocal parked
        # That all of them fail alike is meant here; else the run would pause after twenty.
        runner = AsyncRunner(ledger, ledger_speed.fails, policy=Policy(max_attempts=1, stop_after_alike=0))
        async for outcome in runner.run_many(source(), concurrency=IN_FLIGHT):
            assert outcome.error_class == "permanent:400"
            parked += 1

    over: list[bool] = []
    parked = 0
    with open_ledger(url) as ledger:
        return asyncio.run(measure())


@contextlib.contextmanager
def replay(url: str) -> Iterator[None]:
    """The real command, from its first call on; ended by SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "calling"
        words = ["replay", "--all", "--apply", "--canary", "0", "--limit", "5000", "--ledger", url]
        environment = os.environ | {"BENCH_REPLAYING": str(told)}
        environment["PYTHONPATH"] += os.pathsep + str(benchlib.HERE)
        process = subprocess.Popen(
            [sys.executable, "-m", "parked.cli", *words], env=environment, stdout=subprocess.DEVNULL, stderr=sys.stderr
        )
        try:
            while not told.exists():
                assert process.poll() is None
                time.sleep(0.02)
            yield
            assert process.poll() is None, "there was too little to replay"
        finally:
            process.terminate()
            process.wait()


def audited(url: str) -> benchlib.Figures:
    """The real command on a ledger whose rows are copies of a few that parked made."""
    fill(url)
    before, begun = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "parked.cli", "audit", "--json", "--ledger", url], capture_output=True, check=False
    )
    took_s = time.perf_counter() - begun
    used = os.times()
    told = json.loads(done.stdout)
    assert (told["holds"], told["accepted"]) == (True, AUDITED), told
    cpu_s = used.children_user + used.children_system - before.children_user - before.children_system
    return {"took_s": took_s, "cpu_s": cpu_s}


def fill(url: str) -> None:
    """Seven of ten answered, two parked, one pending."""
    from parked import ApiError, Job, Policy, Runner, open_ledger
    from parked.ledger.operations import Called
    from parked.running import acceptance

    def call(payload: Any, model: str) -> str:
        if payload["fails"]:
            raise ApiError(503, "The model is overloaded.")
        return "done"

    with open_ledger(url) as ledger:
        runner = Runner(ledger, call, policy=Policy(max_attempts=1))
        for number in range(KINDS - 1):
            runner.run(Job(f"job-{number}", MODEL, {"fails": number >= 7}))
        job = Job(f"job-{KINDS - 1}", MODEL, {"fails": False})
        ledger.record(acceptance(job, "default", "", Called("bench:call", "")))
    copies = AUDITED // KINDS
    execute = _statements(url)
    for table, shifted in (("jobs", "id"), ("payloads", "job"), ("attempts", "job"), ("answers", "job")):
        columns = execute.columns(table)
        numbered = {shifted: f"{shifted} + {KINDS} * n.n", "place": f"place + {KINDS} * n.n"}
        numbered |= {"job_id": "job_id || '-' || n.n"} if table == "jobs" else {}
        given = ", ".join(numbered.get(column, column) for column in columns)
        execute(
            f"INSERT INTO {execute.schema}{table} ({', '.join(columns)})"
            f" SELECT {given} FROM {execute.schema}{table}, ({execute.numbers(copies - 1)}) n"
        )
    execute(
        f"UPDATE {execute.schema}counters SET value = value * {copies}"
        " WHERE metric NOT IN ('last_accepted', 'last_success', 'last_parked')"
    )
    execute.end()


class _Sqlite:
    schema = ""

    def __init__(self, url: str) -> None:
        import sqlite3

        self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)

    def __call__(self, sql: str) -> None:
        self._connection.execute(sql)

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")]

    def numbers(self, most: int) -> str:
        return f"WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {most}) SELECT n FROM c"

    def end(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()


class _Postgres:
    schema = "parked."

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)

    def __call__(self, sql: str) -> None:
        self._connection.execute(sql.encode())

    def columns(self, table: str) -> list[str]:
        found = self._connection.execute(f"SELECT * FROM parked.{table} LIMIT 0".encode()).description
        assert found is not None
        return [column.name for column in found]

    def numbers(self, most: int) -> str:
        return f"SELECT n FROM generate_series(1, {most}) n"

    def end(self) -> None:
        self._connection.execute(b"VACUUM ANALYZE")  # as autovacuum has done by the time that a ledger is this large
        self._connection.close()


def _statements(url: str) -> _Sqlite | _Postgres:
    return _Sqlite(url) if url.startswith("sqlite:") else _Postgres(url)


CASES: dict[str, Callable[[str], benchlib.Figures]] = {"accepted": accepted, "parks": parks, "audited": audited}


def one(case: str, url: str | None) -> benchlib.Figures:
    """What a process of its own does."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        return CASES[case](url or f"sqlite:///{folder}/parked.db")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="a database of PostgreSQL; the schema `parked` in it is dropped before each case")
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)  # how this file calls itself
    args = parser.parse_args()
    if args.case:
        if args.url:
            drop(args.url)
        print(json.dumps(one(args.case, args.url)))
        return

    benchlib.print_machine()
    where = ["--url", args.url] if args.url else []
    names = [args.only] if args.only else list(CASES)
    cases = {name: functools.partial(benchlib.figures_of, __file__, *where, "--case", name) for name in names}
    results = benchlib.interleaved(cases, args.rounds)
    rows = []
    if "accepted" in results:
        rows.append(("jobs of 2 KB accepted in bulk, a second", benchlib.spread(results["accepted"], "jobs_per_s")))
        rows.append(("… CPU µs a job", benchlib.spread(results["accepted"], "cpu_us")))
    if "parks" in results:
        rows.append(("jobs parked a second", benchlib.spread(results["parks"], "alone_per_s")))
        rows.append(("… beside a replay", benchlib.spread(results["parks"], "beside_per_s")))
        rows.append(("… as a share", f"{benchlib.median(results['parks'], 'ratio'):.2f}"))
    if "audited" in results:
        rows.append((f"audit of {AUDITED:,} jobs, s", f"{benchlib.median(results['audited'], 'took_s'):.1f}"))
        rows.append(("… CPU s", f"{benchlib.median(results['audited'], 'cpu_s'):.1f}"))
    benchlib.table(("what", "figure"), rows)


def drop(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"DROP SCHEMA IF EXISTS parked CASCADE")


if __name__ == "__main__":
    main()
