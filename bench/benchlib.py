"""What the benchmarks share: cases in processes of their own, interleaved round by round, and tables of medians.

Round 1 of every case, then round 2 of every case, each round beginning with another case: what else the machine does
meanwhile hits all alike. Only ratios inside one table mean anything.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = [str(HERE.parent / "runner"), str(HERE.parent / "exporter")]  # measured as they are in this checkout

Figures = dict[str, float]


@contextmanager
def server() -> Iterator[int]:
    """A zero-latency Gemini on loopback, in a process of its own; gives its port."""
    process = subprocess.Popen([sys.executable, str(HERE / "server.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def figures_of(*arguments: str) -> Figures:
    """Run Python with these arguments, and return the JSON object that it prints on its last line."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment())
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments[:3])} failed:\n{done.stderr[-3000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def environment() -> dict[str, str]:
    """Nothing of whoever runs the benchmark changes what it measures."""
    others = ("PARKED_", "OTEL_", "GEMINI_", "GOOGLE_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**kept, "PYTHONPATH": os.pathsep.join(PACKAGES)}


@contextmanager
def disk(sync_ms: float) -> Iterator[None]:
    """What is started meanwhile, servers too, syncs so much slower than this machine's disk does (needs gcc)."""
    if not sync_ms:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/syncs.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "syncs.c", "-ldl"], check=True)
        Path(folder).chmod(0o755)  # PostgreSQL's user reads it
        os.environ |= {"LD_PRELOAD": library, "SYNC_DELAY_US": str(round(sync_ms * 1000))}
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ["SYNC_DELAY_US"]


def interleaved(cases: Mapping[str, Callable[[], Figures]], rounds: int) -> dict[str, list[Figures]]:
    """Run every case once a round; the order moves on by one each round."""
    results: dict[str, list[Figures]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            results[name].append(cases[name]())
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return results


def median(rounds: Sequence[Figures], figure: str) -> float:
    return statistics.median(each[figure] for each in rounds)


def spread(rounds: Sequence[Figures], figure: str) -> str:
    """`512 (498-530)`: the median, and from the least to the most."""
    values = [each[figure] for each in rounds]
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, numbers to the right."""
    print("| " + " | ".join(head) + " |")
    print("|---|" + "---:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_machine() -> None:
    """The facts of a machine that say how far its figures are to be trusted; nothing that names it."""
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},"
        f" Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}\n"
    )
