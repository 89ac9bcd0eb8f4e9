"""`parked work` as it is run: real processes that share one ledger, the real SDK over HTTP against the simulator."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.store import Filters
from parked.simulator import replies as reply
from servers import IN_A_SECOND_S

pytestmark = pytest.mark.slow

WAIT_S = 60.0


@pytest.fixture
def worker(api):
    """Returns a function that starts a worker in a process of its own; those that still run at the end are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "parked.cli", "work", *words]
        process = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


@pytest.fixture
def rows(url):
    """Returns a function that reads the jobs of these states."""

    def read(*states: State) -> list[op.JobRow]:
        with open_ledger(url) as ledger, ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            return list(reader.jobs(Filters(), states=states))

    return read


def until(condition) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came so"
        time.sleep(0.02)


def test_two_workers_share_the_jobs_and_call_each_once(parked, api, jobs, worker, rows):
    parked("submit", jobs(*[f"prompt {n}" for n in range(500)]))

    workers = [worker("--until-empty"), worker("--until-empty")]
    said = [process.communicate(timeout=WAIT_S)[1] for process in workers]

    assert [process.returncode for process in workers] == [0, 0]
    assert Counter(request.text for request in api.requests) == {f"prompt {n}": 1 for n in range(500)}
    assert len(rows(State.SUCCEEDED)) == 500
    answered = [int(err.splitlines()[-1].partition(" ")[0]) for err in said]
    assert sum(answered) == 500
    assert min(answered) > 0


def test_two_workers_on_one_postgresql_behind_a_pooler_call_each_job_once(
    parked, api, jobs, worker, pooled_url, monkeypatch
):
    monkeypatch.setenv("PARKED_LEDGER", pooled_url)
    prompts = [f"prompt {n}" for n in range(2_000)]
    assert parked("submit", jobs(*prompts)).status == 0

    workers = [worker("--until-empty", "--concurrency", "16") for _ in range(2)]
    said = [process.communicate(timeout=WAIT_S)[1] for process in workers]

    assert [process.returncode for process in workers] == [0, 0]
    assert Counter(request.text for request in api.requests) == Counter(prompts)
    answered = [int(err.splitlines()[-1].partition(" ")[0]) for err in said]
    assert sum(answered) == 2_000
    assert min(answered) > 0
    assert parked("audit").status == 0


def test_a_job_that_is_submitted_while_a_worker_waits_starts_within_a_second(parked, api, jobs, worker, rows):
    parked("submit", jobs("first"))
    worker()
    until(lambda: rows(State.SUCCEEDED))

    for n in range(5):
        parked("submit", jobs(f"prompt {n}", prefix=f"later-{n}"))
        until(lambda n=n: len(rows(State.SUCCEEDED)) == n + 2)

    waited_s = [row.started_at - row.accepted_at for row in rows(State.SUCCEEDED)[1:]]
    assert statistics.median(waited_s) < IN_A_SECOND_S


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_lets_running_calls_end_and_leaves_the_rest_pending(parked, api, jobs, worker, rows, number, status):
    parked("submit", jobs(*[f"prompt {n}" for n in range(10)]))
    api.hold()
    process = worker("--concurrency", "3")
    api.wait_for_requests(3)

    process.send_signal(number)
    seen = iter(process.stderr.readline, "")
    assert any(number.name in line for line in seen)
    api.release()
    _, err = process.communicate(timeout=WAIT_S)

    assert process.returncode == status
    assert err.splitlines()[-1] == "3 jobs: 3 answered"
    assert "7 jobs pending since" in err
    assert (len(rows(State.SUCCEEDED)), len(rows(State.PENDING))) == (3, 7)


def test_the_jobs_of_a_killed_worker_are_parked_by_the_other_at_once(parked, api, jobs, worker, rows):
    parked("submit", jobs(*[f"prompt {n}" for n in range(8)]))
    api.hold()
    killed = worker("--concurrency", "2")
    api.wait_for_requests(2)
    other = worker("--until-empty", "--concurrency", "2")
    api.wait_for_requests(4)

    killed.kill()
    until(lambda: len(rows(State.PARKED)) == 2)
    api.release()
    _, err = other.communicate(timeout=WAIT_S)

    assert {row.error_class for row in rows(State.PARKED)} == {"orphaned:maybe_sent"}
    assert "owner_lost" in err
    assert other.returncode == 0
    assert len(rows(State.SUCCEEDED)) == 6
    assert len(api.requests) == 8


def test_a_small_pipeline_is_not_kept_waiting_by_a_large_one(parked, api, jobs, worker):
    parked("submit", jobs(*[f"large {n}" for n in range(150)], name="large.jsonl"), "--pipeline", "large")
    parked("submit", jobs(*[f"small {n}" for n in range(5)], name="small.jsonl"), "--pipeline", "small")

    worker("--until-empty", "--concurrency", "2").communicate(timeout=WAIT_S)

    order = [request.text for request in api.requests]
    assert len(order) == 155
    assert max(order.index(f"small {n}") for n in range(5)) < 20


def test_jobs_whose_caller_is_not_to_be_found_here_are_left_and_said_once(parked, api, jobs, url, rows):
    parked("submit", jobs("one"))
    with open_ledger(url) as ledger:
        for n in range(3):
            accept = op.Accept("nightly", "", f"theirs-{n}", "m", encode(n), identity(n), caller="no_such_module:call")
            ledger.record(accept)

    said = parked("work", "--until-empty")

    assert said.status == 4
    assert said.err.count("jobs_left") == 1
    assert "no_such_module:call" in said.err
    assert "3 jobs pending since" in said.err
    assert said.err.splitlines()[-1] == "1 job: 1 answered"
    assert {row.calls for row in rows(State.PENDING)} == {0}


def test_a_job_is_called_and_checked_by_what_it_was_submitted_with(parked, jobs, tmp_path, rows, monkeypatch):
    monkeypatch.setenv("PARKED_MAX_ATTEMPTS", "1")
    (tmp_path / "workcalls.py").write_text(
        "def shout(payload, model):\n    return payload['contents'].upper()\n"
        "def object(payload, model):\n    return '{}'\n"
    )
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    parked("submit", jobs("a", prefix="a"), "--call", "workcalls:shout")
    parked("submit", jobs("b", prefix="b"), "--call", "workcalls:shout", "--schema", "schema.json")
    parked("submit", jobs("c", prefix="c"), "--call", "workcalls:object", "--schema", "schema.json")

    said = parked("work", "--until-empty", "--json")

    assert said.status == 1
    assert "parked list" in said.err
    told = json.loads(said.out)
    assert (told["answered"], told["parked"], told["handed_back"], told["pending"]) == (2, 1, 0, 0)
    assert [row.job_id for row in rows(State.PARKED)] == ["b-0"]


def test_a_worker_of_one_pipeline_leaves_the_others(parked, api, jobs, rows):
    parked("submit", jobs("one"), "--pipeline", "mine")
    parked("submit", jobs("two"), "--pipeline", "theirs")

    said = parked("work", "--pipeline", "mine", "--until-empty")

    assert (said.status, len(api.requests)) == (0, 1)
    assert [row.pipeline for row in rows(State.PENDING)] == ["theirs"]


def test_what_fails_is_parked_and_said(parked, api, jobs):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "bad" else None)
    parked("submit", jobs("good", "bad"))

    said = parked("work", "--until-empty")

    assert said.status == 1
    assert said.err.splitlines()[-1] == "2 jobs: 1 answered, 1 parked"


def test_where_parked_jobs_are_alright_the_status_is_0_unless_some_are_pending(parked, api, jobs):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "bad" else None)
    parked("submit", jobs("good", "bad"))

    said = parked("work", "--until-empty", "--parked-ok")
    api.answers(lambda request: reply.bad_key())
    parked("submit", jobs("one", "two", prefix="dead"))
    with_pending = parked("work", "--until-empty", "--parked-ok")

    assert (said.status, said.err.splitlines()[-1]) == (0, "2 jobs: 1 answered, 1 parked")
    assert with_pending.status == 4


def test_a_quiet_worker_says_nothing_when_nothing_is_left_to_be_done(parked, api, jobs):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "bad" else None)
    parked("submit", jobs("good", "bad"))

    worked = parked("work", "--until-empty", "--quiet", "--parked-ok")
    again = parked("work", "--until-empty", "--quiet")

    for said in (worked, again):
        assert (said.status, said.out, said.err) == (0, "", "")


def test_a_quiet_worker_says_in_one_line_what_is_parked_and_pending_and_what_to_type(parked, api, jobs):
    api.answers(
        lambda request: reply.blocked_prompt("SAFETY") if request.text == "bad"
        else reply.bad_key() if request.text.startswith("dead") else None
    )  # fmt: skip
    parked("submit", jobs("bad"), "--pipeline", "nightly")
    words = ("work", "--pipeline", "nightly", "--until-empty", "--quiet")

    with_parked = parked(*words)
    parked("submit", jobs("dead 1", "dead 2", prefix="dead"), "--pipeline", "nightly")
    with_pending = parked(*words)

    assert with_parked.status == 1
    assert with_parked.err == "1 job: 1 parked; why: parked causes --pipeline nightly\n"
    assert with_pending.status == 4
    (line,) = with_pending.err.splitlines()
    assert line.startswith(
        "2 jobs: 2 handed back; paused: all models (auth_invalid); 2 jobs of the pipeline 'nightly' pend"
    )
    assert line.endswith(f"; to go on: parked {' '.join(words)}")


def test_nothing_pending_is_nothing_to_do(parked, api, jobs):
    parked("run", jobs("one"))

    said = parked("work", "--until-empty")

    assert (said.status, said.err.splitlines()[-1]) == (0, "0 jobs: nothing to do")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 3, "there is no ledger"),
        (["--concurrency", "0"], 2, "--concurrency"),
        (["--pipeline", ""], 2, "--pipeline"),
        (["jobs.jsonl"], 2, "jobs.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_sentence(parked, words, status, says):
    said = parked("work", *words)

    assert said.status == status
    assert says in said.err.splitlines()[-1]
