"""The wall clock jumps by an hour and by three days, either way, under processes that are at work.

Their clock, and the server's, is the real one and what stands in a file, added by a library that is loaded before all.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parked.simulator import replies as reply
from parked_exporter.metrics import task_mark
from servers import Postgres, missing, running
from torture.conftest import Books, Commands, until

pytestmark = pytest.mark.slow

HOUR_S = 3600
DAYS_S = 3 * 86_400
QUICK = ["quick"]

# Only the wall clock is moved: a process sleeps and waits by another one.
SHIM = r"""
#define _GNU_SOURCE
#include <time.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <stdlib.h>
#include <fcntl.h>
static long ahead(void) {
    const char *path = getenv("CLOCKFILE");
    char text[32] = {0};
    int file;
    if (!path || (file = open(path, O_RDONLY)) < 0) return 0;
    (void)!read(file, text, 31);
    close(file);
    return atol(text);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = syscall(SYS_clock_gettime, clock, at);
    if (!result && clock == CLOCK_REALTIME) at->tv_sec += ahead();
    return result;
}
time_t time(time_t *to) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (to) *to = at.tv_sec;
    return at.tv_sec;
}
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    to->tv_sec = at.tv_sec;
    to->tv_usec = at.tv_nsec / 1000;
    return 0;
}
"""


class WallClock:
    """The clock of all processes that have `env`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None or not sys.platform.startswith("linux"):
            missing("a C compiler for Linux")
        assert compiler is not None
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(SHIM)
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
        self._file = folder / "ahead"
        self.env = {"LD_PRELOAD": str(library), "CLOCKFILE": str(self._file)}
        self.set(0)

    def set(self, ahead_s: int) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(ahead_s))
        fresh.replace(self._file)


@pytest.fixture(scope="module")
def wall_clock() -> Iterator[WallClock]:
    folder = Path(tempfile.mkdtemp(prefix="parked-clock-"))
    folder.chmod(0o755)  # the server runs as another user
    yield WallClock(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def under_the_clock(wall_clock, tmp_path_factory) -> Iterator[Commands]:
    """Commands whose wall clock can be set."""
    commands = Commands(tmp_path_factory.mktemp("commands"), **wall_clock.env)
    yield commands
    commands.close()


@pytest.fixture(scope="module")
def server(wall_clock) -> Iterator[Postgres]:
    """A server that goes by the same wall clock."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in wall_clock.env.items():
            patch.setenv(name, value)
        with running() as server:
            yield server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, wall_clock, tmp_path) -> str:
    """An empty database."""
    wall_clock.set(0)
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/parked.db"
    server = request.getfixturevalue("server")
    server.run("DROP DATABASE IF EXISTS ledger WITH (FORCE)", "CREATE DATABASE ledger")
    return str(server.url("ledger"))


@pytest.fixture
def commands(url, wall_clock, under_the_clock, simulator, tmp_path) -> Iterator[Commands]:
    yield under_the_clock.on(url, simulator.url, tmp_path, **wall_clock.env)
    under_the_clock.forget()


@pytest.fixture
def books(url, make_books) -> Iterator[Books]:
    books = make_books(url)
    yield books
    books.close()


@pytest.fixture
def file(tmp_path):
    """Returns a function that makes a job file of these prompts, whose ids are the prompts."""

    def make(*prompts: str) -> str:
        path = tmp_path / f"{prompts[0]}.jsonl"
        lines = [{"job_id": prompt, "model": "m", "payload": {"contents": prompt}} for prompt in prompts]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    return make


def owners_alive(books) -> dict[str, int]:
    with books.ledger.ask() as reader:
        found = [owner for owner in reader.owners() if owner.facts.role != "test"]
    assert [owner for owner in found if owner.lost_at is not None] == [], "somebody who lives was declared lost"
    return {owner.facts.role: owner.beat for owner in found if owner.ended_at is None}


def test_jumps_lose_nobody_and_the_sidecar_goes_on(commands, books, simulator, wall_clock, file):
    simulator.hold()
    runner = commands.begin("parked", "run", file("job-0"), points=QUICK)
    simulator.wait_for_requests(1)
    commands.begin("parked-exporter", "--listen", "127.0.0.1:0", points=QUICK)
    until(lambda: owners_alive(books).keys() == {"runner", "sidecar"})

    for ahead_s in (HOUR_S, -HOUR_S, DAYS_S, -DAYS_S):
        wall_clock.set(ahead_s)
        before = owners_alive(books)
        until(lambda before=before: all(beat > before[role] + 3 for role, beat in owners_alive(books).items()))
        assert owners_alive(books).keys() == {"runner", "sidecar"}
        if ahead_s < 0:  # else its next sweep is due by the wall clock, too
            until(lambda ahead_s=ahead_s: abs(swept_at(books) - time.time() - ahead_s) < 60)

    assert books.state() == ("running", None)
    simulator.release()
    assert runner.end() == 0, runner.said
    assert books.state() == ("succeeded", None)


def swept_at(books) -> float:
    with books.ledger.ask() as reader:
        at = reader.mark(task_mark("orphan_sweep"))
    return float(at or 0.0)


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S, DAYS_S, -DAYS_S])
def test_a_backoff_is_as_long_as_ever(commands, books, simulator, wall_clock, file, ahead_s):
    simulator.will_answer(replace(reply.overloaded(), headers={"Retry-After": "1"}))
    runner = commands.begin("parked", "run", file("job-0"))
    simulator.wait_for_requests(1)

    wall_clock.set(ahead_s)

    assert runner.end() == 0, runner.said
    first, second = (request.at for request in simulator.requests)
    assert 0.9 < second - first < 30
    assert [attempt.number for attempt in books.attempts()] == [1, 2]


def test_a_job_handed_back_in_its_backoff_is_not_held_for_days(commands, books, simulator, wall_clock, file):
    simulator.will_answer(reply.no_candidates())
    commands.run("parked", "submit", file("job-0"))
    worker = commands.begin("parked", "work")
    until(lambda: [attempt.ended_at is not None for attempt in books.attempts()] == [True])
    worker.kill(signal.SIGTERM)
    assert worker.end() == 143
    assert books.job().not_before is not None

    wall_clock.set(-DAYS_S)
    commands.run("parked", "work", "--until-empty")

    assert books.state() == ("succeeded", None)


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S, DAYS_S, -DAYS_S])
def test_a_parked_job_is_due_when_its_time_has_come_and_never_days_later(
    commands, books, simulator, wall_clock, file, ahead_s
):
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "200s"}
    simulator.will_answer(reply.error(503, "UNAVAILABLE", "overloaded", [delay]))
    commands.run("parked", "run", file("job-0"))
    assert "not due until" in commands.run("parked", "replay", "--all", "--apply").said

    wall_clock.set(ahead_s)
    commands.run("parked", "replay", "--all", "--apply")

    assert books.state() == ("recovered", "exhausted:503")


def test_jobs_keep_their_order(commands, books, simulator, wall_clock, file):
    for name, ahead_s in (("a", 0), ("b", -DAYS_S), ("c", DAYS_S), ("d", -HOUR_S)):
        wall_clock.set(ahead_s)
        commands.run("parked", "submit", file(name))

    commands.run("parked", "work", "--until-empty", "--concurrency", "1")

    assert [request.text for request in simulator.requests] == ["a", "b", "c", "d"]
