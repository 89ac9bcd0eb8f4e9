"""Tasks of Celery whose calls are jobs, as docs/adopt.md shows it: a prefork pool, a real Redis, workers killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from pages import DOCS, diffs, side
from parked.cli import main
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger.operations import JobRow
from parked.ledger.store import Filters
from parked.simulator import Simulator
from parked.simulator import replies as reply
from servers import Redis, sqlite_only, wait_until

pytestmark = pytest.mark.slow

TASKS = side(diffs((DOCS / "adopt.md").read_text("utf-8"))["Celery"], "+")
STARTED_WITHIN_S = 120.0
LATE = "app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True\n"
SOON_AGAIN = "app.conf.broker_transport_options = {'visibility_timeout': 1}\n"  # seconds, for what nobody acknowledges


@pytest.fixture
def broker(tmp_path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def api(monkeypatch) -> Iterator[Simulator]:
    """The Gemini API, which doesn't answer what is asked of a `slow` thing until it is told to."""
    with Simulator() as simulator:
        simulator.answers(lambda request: reply.hang() if "slow" in request.text else None)
        monkeypatch.setenv("GEMINI_API_KEY", "k")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", simulator.url)
        yield simulator


@pytest.fixture
def start(tmp_path, broker, api, ledger_url, monkeypatch) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Returns a function that starts a worker with two children; all that it started is gone at the end."""
    monkeypatch.setenv("PARKED_LEDGER", ledger_url)
    monkeypatch.setenv("CELERY_BROKER_URL", broker.url)
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "2", "--loglevel", "info"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            started.append(
                subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )
        return started[-1]

    yield start
    for worker in started:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


@pytest.fixture
def ledger_url(url_on_each_database):
    return url_on_each_database


@pytest.fixture
def send(broker) -> Iterator[Callable[[str], None]]:
    """Returns a function that sends a task by the name of the thing that is to be described, which is its id, too."""
    with Celery("tasks", broker=broker.url) as app:
        yield lambda name: app.send_task("tasks.describe", (name,), task_id=name) and None


@pytest.fixture
def said(tmp_path) -> Callable[[str], int]:
    """Returns a function that counts what the workers have said."""
    return lambda words: (tmp_path / "log").read_text().count(words)


def states(ledger) -> dict[State, int]:
    with ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return {state: jobs for (_, state), jobs in reader.states().items() if jobs}


def jobs(ledger) -> dict[str, JobRow]:
    with ledger.ask() as reader:
        return {row.job_id: row for row in reader.jobs(Filters(), states=tuple(State))}


def pid_of_owner(ledger, job_id: str) -> int:
    with ledger.ask() as reader:
        pids: list[int] = [each.facts.pid for each in reader.owners() if each.id == jobs(ledger)[job_id].owner_id]
    (pid,) = pids
    return pid


def all_parked(ledger) -> bool:
    """What is left of a process that was killed may still be there for a moment."""
    ledger.sweep()
    return set(states(ledger)) == {State.PARKED}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def asked_for(api) -> Counter[str]:
    return Counter(request.text for request in api.requests)


def test_a_killed_child_s_job_is_parked_and_a_stopped_worker_s_is_answered(
    start, send, said, api, ledger_url, tmp_path
):
    (tmp_path / "tasks.py").write_text(TASKS + LATE)
    worker = start()
    names = [f"star {n}" for n in range(20)]

    # Two children share the ledger, and no task that comes twice is called twice.
    for name in names:
        send(name)
    wait_until(lambda: said("succeeded in") == 20, within_s=STARTED_WITHIN_S)
    for name in names:
        send(name)
    wait_until(lambda: said("succeeded in") == 40)
    with open_ledger(ledger_url) as ledger:
        assert states(ledger) == {State.SUCCEEDED: 20}
        assert len(api.requests) == 20

        # A child is killed in mid-call: Celery delivers its task again, and another child finds the job.
        send("slow moon")
        api.wait_for_requests(21, 30.0)
        child = pid_of_owner(ledger, "slow moon")
        assert parent_of(child) == worker.pid
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: jobs(ledger)["slow moon"].state is State.PARKED)
        assert jobs(ledger)["slow moon"].error_class == "orphaned:maybe_sent"
        wait_until(lambda: said("raised unexpected: NotAnswered") == 1)

        # The worker is told to stop in mid-call: it waits for the call.
        send("slow sun")
        api.wait_for_requests(22, 30.0)
        other = pid_of_owner(ledger, "slow sun")
        worker.terminate()
        wait_until(lambda: said("Warm shutdown") == 1)
        api.release()
        assert worker.wait(STARTED_WITHIN_S) == 0
        assert states(ledger) == {State.SUCCEEDED: 21, State.PARKED: 1}
        with ledger.ask() as reader:
            pids = [each.facts.pid for each in reader.owners()]
        assert {child, other} <= {*pids}
        assert worker.pid not in pids
    assert set(asked_for(api).values()) == {1}


@sqlite_only
@pytest.mark.parametrize("configuration", [LATE + SOON_AGAIN, ""], ids=["late", "early"])
def test_the_jobs_of_a_worker_that_is_killed_with_its_children_are_parked_and_replayed(
    start, send, said, api, ledger_url, tmp_path, configuration
):
    names = ("slow moon", "slow sun")
    (tmp_path / "tasks.py").write_text(TASKS + configuration)
    worker = start()
    for name in names:
        send(name)
    api.wait_for_requests(2, STARTED_WITHIN_S)

    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()

    if configuration:  # Redis hands the tasks to the next worker, which doesn't call the model
        start()
        wait_until(lambda: said("raised unexpected: NotAnswered") >= 2, within_s=STARTED_WITHIN_S)
    with open_ledger(ledger_url) as ledger:
        wait_until(lambda: all_parked(ledger))
        assert {row.error_class for row in jobs(ledger).values()} == {"orphaned:maybe_sent"}
    assert asked_for(api).total() == 2
    api.answers(None)
    assert main(["replay", "--class", "orphaned:*", "--apply"]) == 0
    with open_ledger(ledger_url) as ledger:
        assert states(ledger) == {State.RECOVERED: 2}
    if configuration:
        for name in names:
            send(name)
        wait_until(lambda: said("succeeded in") == 2)
    assert set(asked_for(api).values()) == {2}
