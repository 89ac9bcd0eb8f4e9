"""A long file with bad lines: in flat memory, killed and resumed, each answer in the output once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger.store import Filters

pytestmark = pytest.mark.slow

LINES = 20_000
SHORT = 1_000
KILLS = 3
MOST_GROWTH_MB = 8  # two indexes of ids, 2 MB each before they go to disk, and what the allocator leaves unused
WAIT_S = 120.0

CALLER = """
import asyncio

async def call(payload, model):
    await asyncio.sleep(0)
    if payload["n"] % 100 == 7:
        raise ValueError("a bad job")
    return {"n": payload["n"], "text": "x" * 200}
"""


class Ran(NamedTuple):
    status: int  # negative: the signal
    peak_mb: float
    said: str


def write(path: Path, lines: int) -> None:
    """Of each hundred lines one is no JSON, and one is a job that fails."""
    with path.open("w") as file:
        for n in range(lines):
            line = json.dumps({"job_id": f"job-{n}", "model": "m", "payload": {"n": n, "contents": "y" * 200}})
            file.write(line[: -5 if n % 100 == 50 else None] + "\n")


def wanted(lines: int) -> list[str]:
    return sorted(f"job-{n}" for n in range(lines) if n % 100 not in (7, 50))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(CALLER)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    """Returns a function that runs a file; with `kill_at`, until so many lines have been written, and then kills it."""

    def run(name, *, ledger, kill_at=None):
        words = ["run", f"{name}.jsonl", "--out", f"{name}.out", "--call", "mine:call", "--max-attempts", "1"]
        words += ["--skip-bad-lines", "--ledger", ledger]
        path = os.pathsep.join([str(folder), *sys.path])
        with (folder / "stderr").open("w+") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "parked.cli", *words],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": path},
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
            ends, pause, peak_kb = time.monotonic() + WAIT_S, threading.Event(), 0
            while process.poll() is None:
                peak_kb = max(peak_kb, high_water_kb(process.pid))
                if kill_at is not None and lines_in(folder / f"{name}.out") >= kill_at:
                    process.kill()
                assert time.monotonic() < ends
                pause.wait(0.01)
            said.seek(0)
            return Ran(process.returncode, peak_kb / 1024, said.read())

    return run


def high_water_kb(pid):
    """The most memory that a process had so far. (What `wait4` tells begins with that of the one that forked it.)"""
    with contextlib.suppress(OSError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0  # it has ended


def lines_in(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ids_in(path):
    return [json.loads(line)["job_id"] for line in path.read_text().splitlines()]


def test_a_long_file_is_run_in_flat_memory_through_kills_and_each_answer_is_written_once(folder, run):
    write(folder / "short.jsonl", SHORT)
    short = run("short", ledger=f"sqlite:///{folder}/short.db")
    assert short.status == 1, short.said
    assert sorted(ids_in(folder / "short.out")) == wanted(SHORT)

    url = f"sqlite:///{folder}/long.db"
    write(folder / "long.jsonl", LINES)
    runs = [run("long", ledger=url, kill_at=LINES * n // (KILLS + 1)) for n in range(1, KILLS + 1)]
    runs.append(run("long", ledger=url))

    assert [ran.status for ran in runs] == [-signal.SIGKILL] * KILLS + [1], runs[-1].said
    assert max(ran.peak_mb for ran in runs) - short.peak_mb < MOST_GROWTH_MB
    with open_ledger(url) as ledger, ledger.ask() as reader:
        orphans = [row.job_id for row in reader.jobs(Filters(error_class="orphaned:*"), states=(State.PARKED,))]
        assert reader.imbalances(thorough=True) == []
    out = ids_in(folder / "long.out")
    assert len(orphans) <= KILLS * 32
    assert sorted([*out, *(id for id in orphans if id in wanted(LINES))]) == wanted(LINES)
    assert lines_in(folder / "long.jsonl.rejected.jsonl") == LINES // 100


def test_what_the_kills_interrupted_is_replayed_and_written_by_the_next_run(folder, run, parked):
    url = f"sqlite:///{folder}/long.db"
    write(folder / "long.jsonl", SHORT)
    run("long", ledger=url, kill_at=SHORT // 4)
    run("long", ledger=url)

    assert parked("replay", "--class", "orphaned:*", "--ledger", url, "--apply").status in (0, 1)
    assert run("long", ledger=url).status == 1

    assert sorted(ids_in(folder / "long.out")) == wanted(SHORT)
