"""No-op jobs through a ledger on PostgreSQL, next to two queues on the same server.

    pip install -r bench/requirements.txt
    python bench/postgres.py [--jobs 4000] [--rounds 5] [--only NAME]

Each case begins with an empty database on one private server, fsync on. Jobs are handed in first, in bulk, then run by
16 workers in one process, or in each of four. parked records all that it always does: a row for each attempt, each
answer, and the counters; its workers are `parked work`. The queues record that a job was done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from benchlib import HERE, Figures, disk, environment, interleaved, median, print_machine, spread, table
from noop import PAYLOAD

WORKERS = 16
BULK = 500  # jobs handed in at a time


# --- parked ---


def submit(url: str, jobs: int) -> None:
    from parked.cli import main

    assert main(["migrate", "--ledger", url]) == 0
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for number in range(jobs):
            print(json.dumps({"job_id": f"job-{number}", "model": "gemini", "payload": PAYLOAD}), file=file)
        file.flush()
        began()
        assert main(["submit", file.name, "--ledger", url, "--call", "noop:answer"]) == 0


class Writes(Enum):
    """How a store writes the rows of a batch."""

    AT_ONCE = auto()  # as it does
    ROW_BY_ROW = auto()  # by a statement for each, which is waited for
    PIPELINED = auto()  # by a statement for each; what needs no answer is sent along with the next


def work(url: str, *, writes: Writes = Writes.AT_ONCE) -> None:
    import psycopg

    from parked.cli import main
    from parked.ledger.postgres import PostgresStore

    for module in ("cli.work", "callers", "claims", "pool", "tracing", "ledger.postgres"):  # before the clock starts
        import_module(f"parked.{module}")
    if writes is Writes.ROW_BY_ROW:
        psycopg.Pipeline.is_supported = classmethod(lambda _: False)  # type: ignore[method-assign,assignment]
    if writes is not Writes.AT_ONCE:
        PostgresStore.write_changes = one_by_one(PostgresStore.write_changes)  # type: ignore[method-assign]
    began()
    assert main(["work", "--ledger", url, "--until-empty", "--concurrency", str(WORKERS)]) == 0


def one_by_one(all_at_once: Callable[..., None]) -> Callable[..., None]:
    """Have a store write each row of jobs, attempts and answers by a statement of its own, in the same transactions."""

    def write(self: Any, changes: Sequence[Any]) -> None:
        for change in changes:
            bare = change._replace(opened=None, closed=None, answer=None)
            written = bare._replace(was=change.row)
            if change.row is not change.was:
                all_at_once(self, [bare])
            for name in ("opened", "closed", "answer"):
                if (value := getattr(change, name)) is not None:
                    all_at_once(self, [written._replace(**{name: value})])

    return write


# --- the queues ---


def procrastinate_app(url: str) -> Any:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=WORKERS + 4))

    @app.task(name="answer", retry=False)
    async def answer(payload: Any) -> dict[str, str]:
        return {"text": "A dog sleeps on a red sofa in the afternoon sun."}

    return app


def procrastinate_in(url: str, jobs: int) -> None:
    async def hand_in() -> None:
        app = procrastinate_app(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            began()
            for first in range(0, jobs, BULK):
                payloads = [{"payload": PAYLOAD} for _ in range(first, min(first + BULK, jobs))]
                await app.tasks["answer"].batch_defer_async(*payloads)

    asyncio.run(hand_in())


def procrastinate_work(url: str) -> None:
    async def run() -> None:
        app = procrastinate_app(url)
        async with app.open_async():
            began()
            await app.run_worker_async(wait=False, concurrency=WORKERS, install_signal_handlers=False)

    asyncio.run(run())


def pgqueuer_in(url: str, jobs: int) -> None:
    async def hand_in() -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
        await queries.install()
        payload = json.dumps(PAYLOAD).encode()
        began()
        for first in range(0, jobs, BULK):
            several = min(BULK, jobs - first)
            await queries.enqueue(["answer"] * several, [payload] * several, [0] * several)

    asyncio.run(hand_in())


def pgqueuer_work(url: str) -> None:
    async def run() -> None:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.models import Job
        from pgqueuer.types import QueueExecutionMode

        queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(url))

        @queue.entrypoint("answer")
        async def answer(job: Job) -> None:
            json.loads(job.payload or b"")

        began()
        # Its own rule: at most twice the batch at a time.
        await queue.run(batch_size=WORKERS // 2, max_concurrent_tasks=WORKERS, mode=QueueExecutionMode.drain)

    asyncio.run(run())


class Case(NamedTuple):
    hand_in: Callable[[str, int], None]
    run: Callable[[str], None]
    processes: int = 1


CASES = {
    "parked": Case(submit, work),
    "parked, four processes": Case(submit, work, 4),
    "parked, a statement a row": Case(submit, partial(work, writes=Writes.ROW_BY_ROW)),
    "parked, a statement a row, pipelined": Case(submit, partial(work, writes=Writes.PIPELINED)),
    "procrastinate": Case(procrastinate_in, procrastinate_work),
    "pgqueuer": Case(pgqueuer_in, pgqueuer_work),
}


# --- measuring ---


def began() -> None:
    """In a process of a case: it is ready; go on when all are."""
    print("ready", flush=True)
    sys.stdin.readline()


def seconds(*arguments: str, processes: int = 1) -> float:
    """How long processes take from their `began` to their end, all started at once."""
    path = os.pathsep.join([environment()["PYTHONPATH"], str(HERE)])
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=environment() | {"PYTHONPATH": path, "PARKED_LOG_LEVEL": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.perf_counter()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[1] for process in started]
    took = time.perf_counter() - start
    for process, errors in zip(started, said, strict=True):
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} failed:\n{errors[-3000:]}")
    return took


def measured(name: str, server: Any, jobs: int) -> Figures:
    database = f"bench_{time.time_ns()}"
    server.run(f"CREATE DATABASE {database}")
    url = server.url(database)
    hand_in_s = seconds("--case", name, "--hand-in", str(jobs), "--url", url)
    run_s = seconds("--case", name, "--url", url, processes=CASES[name].processes)
    server.run(f"DROP DATABASE {database} WITH (FORCE)")
    return {"hand_in": jobs / hand_in_s, "run": jobs / run_s, "both": jobs / (hand_in_s + run_s)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="a case; may be given several times")
    parser.add_argument("--sync-ms", type=float, default=0.0, help="a disk whose syncs take so much longer")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--hand-in", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        logging.disable(logging.ERROR)
        case = CASES[args.case]
        if args.hand_in:
            case.hand_in(args.url, args.hand_in)
        else:
            case.run(args.url)
        return

    sys.path.insert(0, str(HERE.parent / "tests"))
    from servers import running

    print_machine()
    with disk(args.sync_ms), running(is_durable=True) as server:
        cases = {name: partial(measured, name, server, args.jobs) for name in args.only or CASES}
        results = interleaved(cases, args.rounds)
    base = median(results["parked"], "both") if "parked" in results else None
    table(
        ["case", "jobs/s", "× parked", "handed in a second", "run a second"],
        [
            [
                name,
                spread(rounds, "both"),
                f"{median(rounds, 'both') / base:.2f}" if base else "-",
                spread(rounds, "hand_in"),
                spread(rounds, "run"),
            ]
            for name, rounds in results.items()
        ],
    )


if __name__ == "__main__":
    main()
