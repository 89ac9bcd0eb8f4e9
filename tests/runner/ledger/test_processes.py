"""Several processes on one ledger: nothing is lost, whatever happens to one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger.store import Filters

pytestmark = pytest.mark.slow

WAIT_S = 60.0

PRELUDE = """
import os, sys
from parked.ledger import codec, open_ledger
from parked.ledger import operations as op

def accept(name, owner=None):
    return op.Accept("p", "", name, "m", codec.encode(1), codec.identity(1), start_for=owner)

ledger = open_ledger(sys.argv[1])
"""


@pytest.fixture
def process(url) -> Callable[..., subprocess.Popen[str]]:
    """Returns a function that starts a process which has this ledger open; the script tells on what it prints."""

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, url, *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    return start


def test_two_processes_share_a_ledger_without_loss(process, url):
    script = """
owner = ledger.owner_id
for n in range(150):
    row = ledger.record(accept(f"{sys.argv[2]}-{n}", owner)).row
    ledger.submit(op.Answer(row.id, owner, 1, codec.encode(n), op.Closing()))
ledger.close()
"""
    workers = [process(script, name) for name in ("a", "b")]

    for worker in workers:
        worker.communicate(timeout=WAIT_S)
        assert worker.returncode == 0

    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.states() == {("p", State.SUCCEEDED): 300}
        assert reader.imbalances(thorough=True) == []


def test_jobs_of_a_killed_process_are_parked_at_once_on_the_same_machine(process, url):
    script = """
owner = ledger.owner_id
ledger.record(accept("calling", owner))
row = ledger.record(accept("between", owner)).row
ledger.record(op.Retried(row.id, owner, 1, op.Closing(), strike=True))
ledger.record(accept("waiting"))
print("ready", flush=True)
input()
"""
    victim = process(script)
    assert victim.stdout.readline() == "ready\n"
    victim.kill()
    victim.communicate(timeout=WAIT_S)

    with open_ledger(url, role="sidecar") as ledger:
        parked = ledger.sweep()

        assert {row.job_id: row.error_class for row in parked} == {
            "calling": "orphaned:maybe_sent",
            "between": "orphaned:not_sent",
        }
        with ledger.ask() as reader:
            assert reader.count(Filters(), states=[State.PENDING]) == 1
            assert reader.imbalances(thorough=True) == []


def test_what_was_answered_to_a_killed_process_is_on_disk(process, url):
    script = """
for n in range(100_000):
    ledger.record(accept(f"j{n}"))
    print(n, flush=True)
"""
    victim = process(script)
    seen = [victim.stdout.readline() for _ in range(50)]
    victim.kill()
    more, _ = victim.communicate(timeout=WAIT_S)
    told = len(seen) + len(more.split())

    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.count(Filters(), states=[State.PENDING]) >= told
        assert reader.imbalances(thorough=True) == []


def test_a_forked_child_gets_its_own_writer_and_owner(process, url):
    script = """
mine = ledger.owner_id
ledger.record(accept("before"))
child = os.fork()
if child == 0:
    theirs = ledger.owner_id
    for n in range(50):
        ledger.record(accept(f"child-{n}", theirs))
    print("child", theirs, flush=True)
    ledger.close()
    os._exit(0)
for n in range(50):
    ledger.record(accept(f"parent-{n}", mine))
os.waitpid(child, 0)
assert ledger.owner_id == mine
ledger.record(accept("after"))
print("parent", mine, flush=True)
ledger.close()
"""
    worker = process(script)
    said, _ = worker.communicate(timeout=WAIT_S)
    assert worker.returncode == 0
    owners = dict(line.split() for line in said.splitlines())
    assert owners["child"] != owners["parent"]

    with open_ledger(url) as ledger, ledger.ask() as reader:
        # Both left with jobs in their hands, which are orphans now.
        assert reader.states() == {("p", State.PENDING): 2, ("p", State.PARKED): 100}
        assert reader.imbalances(thorough=True) == []


def test_a_pool_of_forked_children_runs_jobs_with_the_runner_of_its_parent(process, url):
    """As Celery's prefork pool does. The parent has called before, so that it has threads that no child has."""
    script = """
import multiprocessing
import parked

runner = parked.Runner(ledger, lambda payload, model: "42")

def run(n):
    many = [parked.Job(f"{n}-{m}", model="m", payload=m) for m in range(5)]
    outcomes = [runner.run(parked.Job(f"{n}", model="m", payload=n)), *runner.run_many(many)]
    return ledger.owner_id, {str(outcome.state) for outcome in outcomes}

mine, _ = run("before")
with multiprocessing.get_context("fork").Pool(3) as pool:
    ran = pool.map(run, range(12), chunksize=1)
    pool.close()
    pool.join()
assert {state for _, states in ran for state in states} == {"succeeded"}
assert mine not in {owner for owner, _ in ran}
assert run("after")[0] == mine
ledger.close()
"""
    worker = process(script)
    worker.communicate(timeout=WAIT_S)
    assert worker.returncode == 0

    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.states() == {("default", State.SUCCEEDED): 14 * 6}
        assert reader.imbalances(thorough=True) == []


def test_a_job_whose_forked_worker_is_killed_is_parked_and_not_called_by_the_one_in_its_place(process, url):
    """A task queue gives the new worker the task once more, since nobody has acknowledged it."""
    script = """
import signal
import parked

def call(payload, model):
    print("called", payload, flush=True)
    if payload == "fatal":
        os.kill(os.getpid(), signal.SIGKILL)
    return "42"

runner = parked.Runner(ledger, call)

def job(name):
    return parked.Job(name, model="m", payload=name)

def work(*names):
    child = os.fork()
    if child == 0:
        for name in names:
            runner.run(job(name))
        ledger.close()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

runner.run(job("before"))
assert work("first", "fatal", "never") == -signal.SIGKILL
assert work("fatal", "never", "last") == 0
ledger.close()
"""
    worker = process(script)
    said, _ = worker.communicate(timeout=WAIT_S)

    assert worker.returncode == 0
    assert said.split("called ")[1:] == ["before\n", "first\n", "fatal\n", "never\n", "last\n"]
    with open_ledger(url) as ledger, ledger.ask() as reader:
        (row,) = reader.jobs_by_key("fatal", pipeline=None, batch=None)
        assert (row.state, row.error_class) == (State.PARKED, "orphaned:maybe_sent")
        assert [attempt.interrupted for attempt in reader.attempts(row.id)] == [True]
        assert reader.states() == {("default", State.SUCCEEDED): 4, ("default", State.PARKED): 1}
        assert reader.imbalances(thorough=True) == []


def test_a_program_that_forgets_to_close_still_writes_what_it_handed_in(process, url):
    worker = process("ledger.submit_many([accept(f'j{n}') for n in range(2000)])")
    worker.communicate(timeout=WAIT_S)
    assert worker.returncode == 0

    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.count(Filters(), states=[State.PENDING]) == 2000
