"""How many syncs a job costs. Unlike jobs a second it doesn't depend on the disk, so it can be a gate.

Counted where they leave the process: a library that is preloaded counts fsync and fdatasync of whatever does them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COUNTER = Path(__file__).parents[2] / "bench" / "syncs.c"

RUN = """
import asyncio, os, sys
import parked

url, jobs, in_flight = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def syncs():
    with open(os.environ["SYNCS"], "rb") as file:
        return int.from_bytes(file.read(8), "little")

async def call(payload, model):
    return "done"

def some(name, count):
    return [parked.Job(f"{name}-{n}", model="m", payload={"contents": "x" * 2000}) for n in range(count)]

async def run_many(runner, name, count):
    async for outcome in runner.run_many(some(name, count), concurrency=in_flight):
        assert outcome.text == "done", outcome

async def run_one_by_one(runner, name, count):
    for job in some(name, count):
        assert (await runner.run(job)).text == "done"

with parked.open_ledger(url) as ledger:
    runner = parked.AsyncRunner(ledger, call)
    run = run_one_by_one if in_flight == 1 else run_many
    asyncio.run(run(runner, "warm-up", 64))
    before = syncs()
    asyncio.run(run(runner, "job", jobs))
    print((syncs() - before) / jobs)
"""


@pytest.fixture(scope="session")
def counter(tmp_path_factory):
    """The library to preload."""
    if not shutil.which("gcc"):
        if os.environ.get("CI"):
            pytest.fail("no gcc to build the counter of syncs with")
        pytest.skip("no gcc to build the counter of syncs with")
    library = tmp_path_factory.mktemp("syncs") / "syncs.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, COUNTER, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("in_flight", "jobs", "most"), [(1, 300, 2.1), (16, 2_000, 0.4), (64, 4_000, 0.2)], ids=["1", "16", "64"]
)
def test_a_job_shares_its_syncs_with_those_that_run_beside_it(counter, on_disk, in_flight, jobs, most):
    count = on_disk / "count"
    count.write_bytes(bytes(8))
    environment = os.environ | {"LD_PRELOAD": str(counter), "SYNCS": str(count)}

    words = [f"sqlite:///{on_disk}/parked.db", str(jobs), str(in_flight)]
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *words], env=environment, check=True, capture_output=True, text=True, timeout=300
    )

    syncs = float(ran.stdout)
    print(f"{syncs:.3f} syncs a job with {in_flight} in flight")
    assert 0 < syncs <= most
