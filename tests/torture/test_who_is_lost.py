"""Who is declared lost, end to end: real processes, whose owners beat and look more often (`points.py`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from parked import owners
from parked.simulator import Simulator
from parked.simulator import replies as reply
from parked_exporter.metrics import task_mark
from servers import missing, running
from torture.conftest import until
from torture.points import LOST_AFTER_S

pytestmark = pytest.mark.slow

QUICK = ["quick"]
SIDECAR = ("parked-exporter", "--listen", "127.0.0.1:0")


@pytest.fixture
def run(tmp_path):
    """The words of a run of one job."""
    line = {"job_id": "job-0", "model": "m", "payload": {"contents": "prompt"}}
    (tmp_path / "jobs.jsonl").write_text(json.dumps(line) + "\n")
    return ["parked", "run", str(tmp_path / "jobs.jsonl"), "--out", str(tmp_path / "answers.jsonl")]


def pass_timeouts(number: int) -> None:
    """Let so many timeouts of an owner go by: that nothing happens meanwhile is what is tested."""
    threading.Event().wait(number * LOST_AFTER_S)


def alive(books) -> dict[str, int]:
    """The owners that count as alive by role, with their beats; the test's own is left out."""
    with books.ledger.ask() as reader:
        found = [owner for owner in reader.owners() if owner.facts.role != "test"]
    assert [owner for owner in found if owner.lost_at is not None] == [], "somebody who lives was declared lost"
    return {owner.facts.role: owner.beat for owner in found if owner.ended_at is None}


# --- PID namespaces ----------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(commands):
    """Returns a function that starts a command as the first process of a PID namespace of its own; same host name."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        missing("unshare, and the right to use it,")
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
             sys.executable, "-m", "torture.points", *QUICK, "--", *words],
            env=commands.env | {"PYTHONPATH": path},
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_runner_and_a_sidecar_in_two_pid_namespaces_never_declare_each_other_lost(elsewhere, books, simulator, run):
    simulator.hold()
    runner = elsewhere(*run)
    simulator.wait_for_requests(1, timeout_s=60)
    elsewhere(*SIDECAR)
    until(lambda: "sidecar" in alive(books))

    pass_timeouts(2)

    assert alive(books).keys() == {"runner", "sidecar"}
    with books.ledger.ask() as reader:
        assert reader.mark(task_mark("orphan_sweep")) is not None
        facts = {o.facts.role: o.facts for o in reader.owners()}
    mine = owners.facts("test")
    assert facts["runner"].pid == facts["sidecar"].pid == 1
    assert facts["runner"].host == facts["sidecar"].host == mine.host
    assert len({mine.pid_namespace, facts["runner"].pid_namespace, facts["sidecar"].pid_namespace}) == 3
    assert books.ledger.sweep() == []
    assert books.state() == ("running", None)
    simulator.release()
    assert runner.wait(60) == 0
    assert books.state() == ("succeeded", None)


def test_a_runner_killed_in_another_pid_namespace_is_lost_after_the_timeout_and_not_before(
    elsewhere, books, simulator, run
):
    simulator.hold()
    runner = elsewhere(*run)
    simulator.wait_for_requests(1, timeout_s=60)
    runner.kill()
    runner.wait()
    assert books.ledger.sweep() == [], "its pid says nothing here"
    assert books.state() == ("running", None)

    elsewhere(*SIDECAR)

    until(lambda: books.state() == ("parked", "orphaned:maybe_sent"))


# --- a ledger that is away ---------------------------------------------------------------------------------------


@contextmanager
def locked(file: Path, *, patience_s: float = 60):
    """Nobody can write to it meanwhile."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=patience_s)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def stopped(server):
    """The server is killed, and there again at the end."""
    server.kill()
    yield
    server.start()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_ledger_that_was_away_for_two_timeouts_has_lost_nobody(
    all_commands, make_books, simulator, run, database, tmp_path
):
    with running() if database == "postgres" else closing(sqlite3.connect(":memory:")) as server:
        url = f"sqlite:///{tmp_path}/parked.db"
        if database == "postgres":
            server.run("CREATE DATABASE away")
            url = server.url("away")
        commands, books = all_commands.on(url, simulator.url, tmp_path), make_books(url)
        simulator.hold()
        runner = commands.begin(*run, points=QUICK)
        simulator.wait_for_requests(1)
        commands.begin(*SIDECAR, points=QUICK)
        until(lambda: alive(books).keys() == {"runner", "sidecar"})

        with stopped(server) if database == "postgres" else locked(tmp_path / "parked.db"):
            pass_timeouts(2)
        until(lambda: is_there(books))
        before = alive(books)
        pass_timeouts(2)

        after = alive(books)
        assert after.keys() == before.keys() == {"runner", "sidecar"}
        assert all(after[role] > before[role] for role in before), "they beat again"
        assert books.state() == ("running", None)
        simulator.release()
        assert runner.end() == 0, runner.said
        assert books.state() == ("succeeded", None)
        books.close()
        commands.forget()


def is_there(books) -> bool:
    try:
        alive(books)
    except Exception as exc:  # noqa: BLE001 - whatever a server says that isn't ready
        return not str(exc)
    return True


# --- a process that stands still ---------------------------------------------------------------------------------


def stop(runner, url: str) -> None:
    """Stop it outside of a transaction: one that it is in would keep all others from writing until it goes on."""
    runner.kill(signal.SIGSTOP)
    while not may_be_written(url):
        runner.kill(signal.SIGCONT)
        runner.kill(signal.SIGSTOP)


def may_be_written(url: str) -> bool:
    if url.startswith("sqlite"):
        try:
            with locked(Path(url.removeprefix("sqlite:///")), patience_s=1):
                return True
        except sqlite3.OperationalError:
            return False
    with psycopg.connect(url, autocommit=True) as connection:
        question = """
            SELECT 1 FROM pg_stat_activity
             WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
        """
        return connection.execute(question).fetchone() is None


@pytest.mark.parametrize("replayed", [False, True], ids=["parked", "replaying"])
def test_the_answer_of_a_runner_that_stood_still_past_the_timeout_is_kept(
    commands, books, simulator, run, replayed, tmp_path
):
    with Simulator() as second:
        for api, text in ((simulator, "first"), (second, "second")):
            api.hold()
            api.will_answer(reply.text(text))
        runner = commands.begin(*run, points=QUICK)
        simulator.wait_for_requests(1)
        stop(runner, books.url)
        commands.begin(*SIDECAR, points=QUICK)
        until(lambda: books.state() == ("parked", "orphaned:maybe_sent"))
        if replayed:
            replay = commands.begin(
                "parked", "replay", "--all", "--apply", points=QUICK, GOOGLE_GEMINI_BASE_URL=second.url
            )
            second.wait_for_requests(1)
            assert books.state()[0] == "replaying"

        runner.kill(signal.SIGCONT)
        simulator.release()

        until(lambda: books.state() == ("recovered", "orphaned:maybe_sent"))
        assert runner.end() == 0, runner.said
        if replayed:
            second.release()
            assert replay.end() == 0, replay.said
    with books.ledger.ask() as reader:
        answer = json.loads(reader.answer(books.job().id).body.data)
    assert answer["candidates"][0]["content"]["parts"][0]["text"] == "first"
    assert [attempt.answered for attempt in books.attempts()] == [True] * (1 + replayed)
    (line,) = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert json.loads(line)["text"] == "first"
    assert books.counted("jobs_recovered") == {("orphaned:maybe_sent", "maybe_sent"): 1}
