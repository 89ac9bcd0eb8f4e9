"""A payload or an answer that isn't what was stored: its job is named, and no other suffers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import PLAIN, Body, encode, identity
from parked.ledger.counters import Metric
from parked.ledger.store import Filters
from parked.verdict import MEANINGS, Reason

BROKEN = Body(PLAIN, None, b'{"contents": ')
ANSWER = {"candidates": [{"content": {"parts": [{"text": "42"}]}, "finishReason": "STOP"}]}


@pytest.fixture
def known(url: str) -> Callable[..., None]:
    """Returns a function that has a job of these bodies in a state; it is the one that `jobs` writes for its prompt."""

    def make(job_id: str, state: State, *, payload: Body = BROKEN, answer: Body = BROKEN, prompt: str = "") -> None:
        with open_ledger(url) as ledger:
            start = None if state is State.PENDING else ledger.owner_id
            names = ("default", "", job_id, "gemini-3.5-flash", payload, identity({"contents": prompt}))
            row = ledger.record(op.Accept(*names, caller="parked.gemini:Gemini", start_for=start)).row
            if state is State.SUCCEEDED:
                ledger.record(op.Answer(row.id, ledger.owner_id, 1, answer, op.Closing()))
            if state is State.PARKED:
                reason = Reason.OVERLOADED
                closing = op.Closing(MEANINGS[reason].kind, reason, MEANINGS[reason].scope, 503, "test", "f503")
                ledger.record(op.Park(row.id, ledger.owner_id, 1, closing, "exhausted:503"))

    return make


@pytest.fixture
def states(url: str) -> Callable[[], dict[str, State]]:
    def read() -> dict[str, State]:
        with open_ledger(url) as ledger, ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            return {row.job_id: row.state for row in reader.jobs(Filters(), states=tuple(State))}

    return read


@pytest.fixture
def calls(url: str) -> Callable[[], dict[str, float]]:
    """Returns a function that tells how many calls metrics count, by reason."""

    def read() -> dict[str, float]:
        with open_ledger(url) as ledger, ledger.ask() as reader:
            return {counter.b: counter.value for counter in reader.counters(Metric.ATTEMPTS)}

    return read


def prompts(api: Any) -> list[str]:
    return sorted(request.text for request in api.requests)


def test_a_worker_parks_a_job_whose_payload_is_damaged_and_runs_the_others(parked, api, jobs, known, states, calls):
    known("bad", State.PENDING)
    parked("submit", jobs("one", "two"))

    worked = parked("work", "--until-empty")

    assert worked.status == 1
    assert worked.err.endswith("3 jobs: 2 answered, 1 parked\n")
    assert states() == {"bad": State.PARKED, "job-0": State.SUCCEEDED, "job-1": State.SUCCEEDED}
    assert prompts(api) == ["one", "two"]
    assert calls() == {"ok": 2}
    shown = parked("show", "bad").out
    assert "permanent:resource_missing" in shown
    assert "its payload in the ledger is damaged; `parked audit --bodies` names its job; to send another" in shown


def test_a_run_does_so_with_what_was_left_over(parked, api, jobs, known, states):
    known("bad", State.PENDING)
    parked("submit", jobs("left", name="left.jsonl", prefix="left"))

    ran = parked("run", jobs("one"))

    assert ran.status == 1
    assert ran.err.endswith("1 line: 1 answered; left over from earlier: 1 parked, 1 succeeded\n")
    assert prompts(api) == ["left", "one"]


def test_a_job_of_the_file_has_its_payload_from_there(parked, api, jobs, known, states):
    known("job-0", State.PENDING, prompt="one")

    assert parked("run", jobs("one")).status == 0
    assert prompts(api) == ["one"]


def test_a_replay_leaves_it_and_says_so_until_it_is_given_another_payload(parked, api, jobs, known, states, tmp_path):
    known("bad", State.PARKED)
    known("good", State.PARKED, payload=encode({"contents": "good"}))

    replayed = parked("replay", "--all", "--apply")

    assert (replayed.status, prompts(api)) == (4, ["good"])
    assert "1 job replayed: 1 recovered, 0 parked again, 1 not run" in replayed.err
    assert 'job_left job=bad why="payload damaged; `parked audit --bodies` names its job"' in replayed.err
    assert states() == {"bad": State.PARKED, "good": State.RECOVERED}
    mended = tmp_path / "mended.json"
    mended.write_text(json.dumps({"contents": "again"}))
    assert parked("replay", "--job", "bad", "--payload", str(mended), "--apply").status == 0
    assert states()["bad"] is State.RECOVERED


def test_a_run_writes_all_answers_but_the_one_that_is_damaged(parked, api, jobs, known, tmp_path):
    known("job-0", State.SUCCEEDED, prompt="one")
    known("job-1", State.SUCCEEDED, prompt="two", answer=encode(ANSWER))
    out = tmp_path / "out.jsonl"

    ran = parked("run", jobs("one", "two", "three"), "--out", str(out))
    quiet = parked("run", jobs("one", "two", "three"), "--out", str(out), "--quiet")

    assert (ran.status, quiet.status) == (3, 3)
    why = "1 answer of earlier runs not written: damaged; `parked audit --bodies` names its job"
    assert ran.err.endswith(f"{why}\n")
    assert why in quiet.err
    assert sorted(json.loads(line)["job_id"] for line in out.read_text().splitlines()) == ["job-1", "job-2"]
    assert prompts(api) == ["three"]


def test_answers_leave_it(parked, known):
    known("bad", State.SUCCEEDED)
    known("good", State.SUCCEEDED, answer=encode(ANSWER))

    said = parked("answers")

    assert said.status == 3
    assert [json.loads(line)["job_id"] for line in said.out.splitlines()] == ["good"]
    assert said.err == "left 1 answer: damaged; `parked audit --bodies` names its job\n"
