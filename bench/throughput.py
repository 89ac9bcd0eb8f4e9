"""Durable jobs a second, accept included, next to the queues that a user would pick instead. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import logging
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import benchlib

MODEL = "m"
PAYLOAD = {"contents": [{"role": "user", "parts": [{"text": ("Summarise this ticket in one line. " * 60)[:1_900]}]}]}
WAIT_S = 120

PARKED_ASYNCIO = "parked, asyncio"
PARKED_THREADS = "parked, threads"
HUEY = "huey, SQLite"
DRAMATIQ = "dramatiq, Redis with appendfsync always"


class Finish:
    """Counts the jobs that were run; knows when the last one was."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._at = 0.0

    def hit(self) -> None:
        with self._mutex:
            self._left -= 1
            if self._left == 0:
                self._at = time.perf_counter()
                self._over.set()

    def wait(self) -> float:
        """When the last job was run."""
        if not self._over.wait(WAIT_S):
            raise SystemExit(f"{self._left} jobs were not run within {WAIT_S} s")
        return self._at


def in_threads(workers: int, jobs: int, do: Callable[[int], object]) -> None:
    """Do it once for each number, from so many threads at a time."""
    numbers = iter(range(jobs))  # `next` of a range's iterator is atomic

    def work() -> None:
        for number in numbers:
            do(number)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- each returns how long it took to take the jobs on, run them and have them finished, in seconds ---------------


def parked_asyncio(jobs: int, workers: int, folder: str, url: str) -> float:
    from parked import AsyncRunner, Job, State, open_ledger

    async def call(payload: Any, model: str) -> str:
        return "done"

    async def run(name: str, count: int) -> None:
        source = (Job(f"{name}-{number}", MODEL, PAYLOAD) for number in range(count))
        async for outcome in runner.run_many(source, concurrency=workers):
            assert outcome.state is State.SUCCEEDED

    with open_ledger(f"sqlite:///{folder}/parked.db") as ledger:
        runner = AsyncRunner(ledger, call)
        asyncio.run(run("warm-up", workers))
        begun = time.perf_counter()
        asyncio.run(run("job", jobs))
        return time.perf_counter() - begun


def parked_threads(jobs: int, workers: int, folder: str, url: str) -> float:
    from parked import Job, Runner, State, open_ledger

    with open_ledger(f"sqlite:///{folder}/parked.db") as ledger:
        runner = Runner(ledger, lambda payload, model: "done")

        def run(name: str, number: int) -> None:
            assert runner.run(Job(f"{name}-{number}", MODEL, PAYLOAD)).state is State.SUCCEEDED

        in_threads(workers, workers, functools.partial(run, "warm-up"))
        begun = time.perf_counter()
        in_threads(workers, jobs, functools.partial(run, "job"))
        return time.perf_counter() - begun


def huey(jobs: int, workers: int, folder: str, url: str) -> float:
    from huey import SqliteHuey

    logging.getLogger("huey").setLevel(logging.CRITICAL + 1)
    queue = SqliteHuey(filename=f"{folder}/huey.db", fsync=True)
    finish = Finish(jobs)

    @queue.task()  # type: ignore[untyped-decorator]  # it has no types
    def call(payload: Any) -> str:
        finish.hit()
        return "done"

    begun = time.perf_counter()
    in_threads(workers, jobs, lambda number: call(PAYLOAD))
    accepted = time.perf_counter()
    consumer = queue.create_consumer(workers=workers, periodic=False, check_worker_health=False)
    starting = time.perf_counter()
    consumer.start()
    ended = finish.wait()
    consumer.stop(graceful=True)
    return accepted - begun + ended - starting


def dramatiq(jobs: int, workers: int, folder: str, url: str) -> float:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    logging.disable(logging.CRITICAL)
    broker = RedisBroker(url=url)
    broker.flush_all()
    dramatiq.set_broker(broker)
    finish = Finish(jobs)

    @dramatiq.actor(max_retries=0)
    def call(payload: Any) -> None:
        finish.hit()

    begun = time.perf_counter()
    in_threads(workers, jobs, lambda number: call.send(PAYLOAD))
    accepted = time.perf_counter()
    worker = dramatiq.Worker(broker, worker_threads=workers)
    starting = time.perf_counter()
    worker.start()
    ended = finish.wait()
    worker.stop()
    return accepted - begun + ended - starting


CASES: dict[str, Callable[[int, int, str, str], float]] = {
    PARKED_ASYNCIO: parked_asyncio,
    PARKED_THREADS: parked_threads,
    HUEY: huey,
    DRAMATIQ: dramatiq,
}


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """A private Redis that syncs each write before it answers; gives its URL."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning"]
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            _until_it_listens(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait()


def _until_it_listens(port: int) -> None:
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise SystemExit("redis-server doesn't listen")


def one(case: str, jobs: int, workers: int, url: str) -> None:
    """What a process of its own does."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        cpu = time.process_time()
        took_s = CASES[case](jobs, workers, folder, url)
        cpu = time.process_time() - cpu
    print(json.dumps({"jobs_per_s": jobs / took_s, "cpu_us": cpu / jobs * 1e6}), flush=True)
    os._exit(0)  # the peers leave threads that wait for more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--sync-ms", type=float, default=0.0, help="a disk whose syncs take so much longer")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)  # how this file calls itself
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        one(args.case, args.jobs, args.workers, args.url)

    benchlib.print_machine()
    with benchlib.disk(args.sync_ms), redis() as url:
        own = [__file__, "--jobs", str(args.jobs), "--workers", str(args.workers), "--url", url, "--case"]
        cases = {name: functools.partial(benchlib.figures_of, *own, name) for name in CASES}
        results = benchlib.interleaved(cases, args.rounds)
    rate = {name: benchlib.median(rounds, "jobs_per_s") for name, rounds in results.items()}
    benchlib.table(
        ("case", "jobs/s", "× huey", "× dramatiq", "CPU µs a job"),
        [
            (
                name,
                benchlib.spread(rounds, "jobs_per_s"),
                f"{rate[name] / rate[HUEY]:.2f}",
                f"{rate[name] / rate[DRAMATIQ]:.2f}",
                benchlib.spread(rounds, "cpu_us"),
            )
            for name, rounds in results.items()
        ],
    )


if __name__ == "__main__":
    main()
