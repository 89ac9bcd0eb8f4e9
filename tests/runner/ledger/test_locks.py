"""No transaction is open during a call: whoever waits for a model keeps nobody from writing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psycopg
import pytest

import parked
from parked.job import State
from parked.ledger import open_ledger

pytestmark = pytest.mark.slow

WAIT_S = 60.0
JOBS = 1_000

PARK = """
import sys
import parked

def refuse(payload, model):
    raise ValueError("no")

with parked.open_ledger(sys.argv[1]) as ledger:
    runner = parked.Runner(ledger, refuse, pipeline="other", policy=parked.Policy(max_attempts=1, stop_after_alike=0))
    jobs = [parked.Job(f"job-{n}", model="m", payload=n) for n in range(int(sys.argv[2]))]
    print(sum(outcome.state == "parked" for outcome in runner.run_many(jobs)))
"""


def park_many(url: str) -> str:
    """Park jobs in another process; return how many it parked."""
    return subprocess.run(
        [sys.executable, "-c", PARK, url, str(JOBS)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=WAIT_S,
    ).stdout.strip()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_others_park_at_full_speed_while_a_model_is_waited_for(url, concurrency):
    called = threading.Semaphore(0)
    answers = threading.Event()

    def slow(payload, model):
        called.release()
        assert answers.wait(WAIT_S)
        return "42"

    with open_ledger(url) as ledger:
        runner = parked.Runner(ledger, slow)
        jobs = [parked.Job(f"slow-{n}", model="m", payload=n) for n in range(concurrency)]
        outcomes: list[parked.Outcome] = []
        waiting = threading.Thread(
            target=lambda: outcomes.extend(runner.run_many(jobs, concurrency=concurrency)), name="waiting"
        )
        waiting.start()
        for _ in range(concurrency):
            assert called.acquire(timeout=WAIT_S)

        parked_meanwhile = park_many(url)
        idle = in_transaction(url)
        answers.set()
        waiting.join(WAIT_S)

        assert parked_meanwhile == str(JOBS)
        assert idle == []
        assert [outcome.state for outcome in outcomes] == [State.SUCCEEDED] * concurrency
        with ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []


def in_transaction(url: str) -> list[tuple]:
    """The sessions of a server that have a transaction open, other than the one that asks."""
    if url.startswith("sqlite"):
        return []
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT pid, state, query FROM pg_stat_activity"
            " WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()"
        ).fetchall()
