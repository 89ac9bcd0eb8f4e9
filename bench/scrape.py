"""What a scrape costs and what a sidecar takes: next to the obvious alternative, by the number of jobs and of series.

    python bench/scrape.py [--jobs 1000000] [--rounds 40] [--scrapes 10000]

Real sidecars, scraped over HTTP as Prometheus does (OpenMetrics, gzip), one for each of four ledgers a database: with
1,000 and with that many parked jobs, each with about 200 and about 2,400 series (`ledgers.py`). The alternative is what
a generic SQL exporter would be told to ask, on a connection that stays open: it gives one number a class. Rounds are
interleaved. CPU is that of the sidecar's process, without the server's.

Then one sidecar with its tasks: how soon it is ready, and its resident memory before and after so many scrapes.

Ends with status 1 where a target is missed; on a busy machine the times say little, the ratios and the CPU more.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import ledgers
from benchlib import environment, print_machine, table

SERIES: Final = {200: 3, 2400: 39}  # about so many series: from so many pairs of pipeline and model
MOST_RATIO: Final = 1.5
MOST_MS: Final = {200: 10.0, 2400: 100.0}
MOST_MB: Final = 50.0
MOST_GROWTH: Final = 1.05  # from the first thousandth of the scrapes to the last
READY_WITHIN_S: Final = 1.5
STARTS: Final = 5
HEADERS: Final = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
QUESTION: Final = "SELECT error_class, count(*) FROM {s}jobs WHERE state = 'parked' GROUP BY error_class"


@dataclass
class Sidecar:
    process: subprocess.Popen[str]
    connection: http.client.HTTPConnection

    def get(self, path: str, headers: dict[str, str]) -> bytes:
        self.connection.request("GET", path, headers=headers)
        response = self.connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise SystemExit(f"{path} answered {response.status}: {body[:300]!r}")
        return body

    def scrape(self) -> None:
        self.get("/metrics", HEADERS)

    def series(self) -> int:
        lines = self.get("/metrics", {}).decode().splitlines()
        if "parked_ledger_up 1.0" not in lines:
            raise SystemExit("a sidecar can't read its ledger")
        return sum(not line.startswith("#") for line in lines)

    def cpu_s(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


@contextmanager
def sidecar(url: str, *flags: str) -> Iterator[Sidecar]:
    """A sidecar that is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "parked_exporter.cli", "--ledger", url, "--listen", "127.0.0.1:0", *flags],
        env=environment() | {"PARKED_LOG_FORMAT": "json"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        records = (json.loads(line) for line in process.stderr if line.startswith("{"))
        address = next(record["url"] for record in records if record["event"] == "sidecar_started")
        host, _, port = address.removeprefix("http://").partition(":")
        started = Sidecar(process, http.client.HTTPConnection(host, int(port), timeout=60))
        started.get("/-/ready", {})
        yield started
    finally:
        process.terminate()
        process.wait()


def asked_of(url: str, stack: ExitStack) -> Callable[[], None]:
    """The alternative, on a connection that stays open."""
    if url.startswith("sqlite:"):
        import sqlite3

        lite = sqlite3.connect(url.removeprefix("sqlite:///"))
        stack.callback(lite.close)
        return lambda: lite.execute(QUESTION.format(s="")).fetchall() and None
    import psycopg

    full = stack.enter_context(psycopg.connect(url, autocommit=True))
    return lambda: full.execute(QUESTION.format(s="parked.").encode()).fetchall() and None


def timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def compare(urls: dict[tuple[int, str], str], rounds: int) -> Iterator[tuple[list[str], bool]]:
    """A row of the table for each number of series, and whether its targets are met."""
    with ExitStack() as stack:
        running = {key: stack.enter_context(sidecar(url, "--read-only")) for key, url in urls.items()}
        alternatives = {key: asked_of(url, stack) for key, url in urls.items()}
        series = {key: one.series() for key, one in running.items()}
        scraped: dict[tuple[int, str], list[float]] = {key: [] for key in urls}
        asked: dict[tuple[int, str], list[float]] = {key: [] for key in urls}
        cpu_before = {key: one.cpu_s() for key, one in running.items()}
        for number in range(rounds):
            for key in list(urls)[:: 1 if number % 2 else -1]:
                scraped[key].append(timed(running[key].scrape))
                asked[key].append(timed(alternatives[key]))
        cpu = {key: 1000 * (one.cpu_s() - cpu_before[key]) / rounds for key, one in running.items()}
    for about in SERIES:
        few, many = (about, "few"), (about, "many")
        ms = {key: 1000 * median(scraped[key]) for key in (few, many)}
        sql_ms = {key: 1000 * median(asked[key]) for key in (few, many)}
        ratio = ms[many] / ms[few]
        yield (
            [
                f"{series[many]:,} series", f"{ms[few]:.1f}", f"{ms[many]:.1f}", f"{ratio:.2f}", f"{cpu[few]:.1f}",
                f"{cpu[many]:.1f}", f"{sql_ms[few]:.2f}", f"{sql_ms[many]:.2f}", f"{sql_ms[many] / sql_ms[few]:.1f}",
            ],
            ratio <= MOST_RATIO and ms[many] <= MOST_MS[about],
        )  # fmt: skip


def memory(url: str, scrapes: int) -> tuple[list[str], bool]:
    """How soon a sidecar is ready, and what it holds before, early in and after so many scrapes."""
    ready_s = []
    for _ in range(STARTS):
        began = time.perf_counter()
        with sidecar(url):
            ready_s.append(time.perf_counter() - began)
    with sidecar(url) as running:
        idle = running.rss_mb()
        early = 0.0
        for number in range(scrapes):
            running.scrape()
            if number == scrapes // 10:
                early = running.rss_mb()
        late = running.rss_mb()
        series = running.series()
    met = median(ready_s) <= READY_WITHIN_S and late <= MOST_MB and late <= early * MOST_GROWTH
    return [f"{series:,} series", f"{median(ready_s):.2f}", f"{idle:.1f}", f"{early:.1f}", f"{late:.1f}"], met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--scrapes", type=int, default=10_000)
    parser.add_argument("--only", choices=["SQLite", "PostgreSQL"], help="one of the databases")
    args = parser.parse_args()

    print_machine()
    rows, held, all_met = [], [], True
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"))))
        for database in ("SQLite", "PostgreSQL"):
            if args.only not in (None, database):
                continue
            server = None if database == "SQLite" else stack.enter_context(ledgers.postgres())
            urls = {
                (about, size): url
                for about, pairs in SERIES.items()
                for size, url in ledgers.two_sizes(folder, server, jobs=args.jobs, pairs=pairs).items()
            }
            for row, met in compare(urls, args.rounds):
                rows.append([f"{database}, {row[0]}", *row[1:]])
                all_met &= met
            if server is None:
                for about in SERIES:
                    row, met = memory(urls[about, "many"], args.scrapes)
                    held.append(row)
                    all_met &= met or about != min(SERIES)  # the targets are those of the smaller
    few, many = f"{ledgers.FEW:,}", f"{args.jobs:,}"
    table(
        ["a scrape of", f"ms at {few}", f"at {many}", "ratio", f"CPU ms at {few}", f"at {many}",
         f"SQL: ms at {few}", f"at {many}", "ratio"],
        rows,
    )  # fmt: skip
    print()
    if held:
        tenth = args.scrapes // 10
        table(["sidecar on SQLite", "ready after s", "MB then", f"after {tenth:,}", f"after {args.scrapes:,}"], held)
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
