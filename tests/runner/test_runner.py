"""The sync runner over a real ledger, with callers of one's own and with Gemini over HTTP."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

import parked
from parked.calls import Call
from parked.job import State
from parked.ledger import Ticket
from parked.ledger import operations as op
from parked.ledger.store import Filters
from parked.simulator import replies as reply
from parked.verdict import Reason

JOB = parked.Job("a-1", model="m", payload={"contents": "What is six times seven?"})


@pytest.fixture
def ledger_url(url_on_each_database):
    return url_on_each_database


@pytest.fixture
def runner(ledger, clock):
    """Returns a function that makes a runner for a caller."""

    def make(call_model, **options):
        return parked.Runner(ledger, call_model, clock=clock, **options)

    return make


def test_an_answered_job_gives_its_answer_back(runner, gemini, simulator):
    simulator.will_answer(reply.text("42"))

    outcome = runner(gemini).run(JOB)

    assert (outcome.state, outcome.text, outcome.attempts) == (State.SUCCEEDED, "42", 1)
    assert outcome.answer["candidates"][0]["finishReason"] == "STOP"
    assert outcome.verdict.ok


def test_a_rate_limited_job_waits_as_long_as_the_api_asks(runner, gemini, simulator, clock):
    simulator.will_answer(reply.rate_limited(retry_delay_s=34), reply.text("42"))

    outcome = runner(gemini).run(JOB)

    assert outcome.state is State.SUCCEEDED
    assert clock.slept_s == [34.0]
    assert simulator.bodies[0] == simulator.bodies[1]


def test_a_job_that_stays_overloaded_is_parked_with_its_whole_history(
    runner, gemini, simulator, clock, ledger, attempts
):
    simulator.answers(lambda request: reply.overloaded())

    outcome = runner(gemini).run(JOB)

    assert (outcome.state, outcome.error_class, outcome.attempts) == (State.PARKED, "exhausted:503", 4)
    assert outcome.answer is None
    assert [int(wait) for wait in clock.slept_s] == [2, 4, 8]
    assert [(a.number, a.reason, a.status, a.strike) for a in attempts("a-1")] == [
        (n, "overloaded", 503, True) for n in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("many", [False, True])
def test_a_pending_job_is_run_with_the_model_that_is_named_now(runner, ledger, many):
    def call(payload, model):
        return model

    pending = runner(call)._on.accept(replace(JOB, model="retired"))
    ledger.record(pending)

    (outcome,) = runner(call).run_many([JOB]) if many else [runner(call).run(JOB)]

    assert (outcome.state, outcome.answer) == (State.SUCCEEDED, "m")


def test_a_permanent_failure_costs_one_call(runner, gemini, simulator):
    simulator.answers(lambda request: reply.invalid_request())

    outcome = runner(gemini).run(JOB)

    assert (outcome.error_class, outcome.attempts) == ("permanent:400", 1)
    assert len(simulator.requests) == 1


@pytest.mark.parametrize(
    ("empty", "error_class"),
    [
        (reply.no_candidates(), "exhausted:empty_answer"),
        (reply.thoughts_only(), "exhausted:empty_answer"),
        (reply.null_body(), "exhausted:empty_answer"),
        (reply.blocked_prompt("SAFETY"), "permanent:prompt_blocked"),
        (reply.stopped("MAX_TOKENS", text="This secur"), "permanent:answer_truncated"),
        (reply.error_under_200(), "exhausted:503"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_http_200_without_an_answer_is_a_failure(runner, gemini, simulator, empty, error_class):
    simulator.answers(lambda request: empty)

    assert runner(gemini).run(JOB).error_class == error_class


def test_a_job_is_on_disk_before_its_first_call(ledger, runner):
    seen = []

    def call(payload, model):
        with ledger.ask() as reader:
            (row,) = reader.jobs(Filters(), states=list(State))
            seen.append((row.state, [attempt.ended_at for attempt in reader.attempts(row.id)]))
        return "42"

    runner(call).run(JOB)

    assert seen == [(State.RUNNING, [None])]


def test_any_exception_is_an_outcome(runner, scripted):
    outcome = runner(scripted(*[KeyError("candidates")] * 2)).run(JOB)

    assert (outcome.state, outcome.error_class) == (State.PARKED, "exhausted:unclassified")


def test_an_answered_job_is_not_called_again(runner, scripted):
    first = runner(scripted({"sum": 42})).run(JOB)

    again = runner(scripted()).run(JOB)

    assert again == first.__class__(**{**_fields(first), "verdict": None})
    assert again.answer == {"sum": 42}


def test_a_parked_job_stays_parked_for_a_run(runner, scripted):
    runner(scripted(parked.ApiError(400, "no"))).run(JOB)

    again = runner(scripted()).run(JOB)

    assert (again.state, again.attempts) == (State.PARKED, 1)


def test_a_known_id_with_another_payload_is_refused(runner, scripted):
    runner(scripted("42")).run(JOB)

    with pytest.raises(parked.JobConflict, match="a-1"):
        runner(scripted()).run(parked.Job("a-1", model="m", payload="another"))


@pytest.mark.parametrize(
    "payload",
    [{1: "a"}, float("nan"), object(), {"contents": "x", "http_options": {}}],
    ids=["a key that is no text", "NaN", "no JSON", "http_options"],
)
def test_a_payload_that_cant_be_kept_or_sent_is_refused_before_it_is_accepted(ledger, runner, gemini, payload):
    with pytest.raises(parked.InvalidJob):
        runner(gemini).run(parked.Job("a-1", model="m", payload=payload))

    with ledger.ask() as reader:
        assert reader.count(Filters(), states=list(State)) == 0


def test_ctrl_c_hands_the_job_back_and_is_raised_again(runner, scripted, attempts, states):
    with pytest.raises(KeyboardInterrupt):
        runner(scripted(KeyboardInterrupt())).run(JOB)

    (attempt,) = attempts("a-1")
    assert attempt.interrupted
    assert states() == {State.PENDING: 1}


def test_a_call_that_hangs_runs_into_its_deadline_and_its_answer_is_kept_when_it_comes(ledger, clock, attempts):
    may_end, ended = threading.Event(), threading.Event()
    calls = []

    def call(payload, model):
        calls.append(payload)
        if len(calls) > 1:
            return ""
        may_end.wait(10)
        ended.set()
        return "late, but paid for"

    policy = parked.Policy(max_attempts=2, attempt_timeout_s=0.05)
    outcome = parked.Runner(ledger, call, clock=clock, policy=policy).run(JOB)
    assert (outcome.error_class, attempts("a-1")[0].reason) == ("exhausted:empty_answer", Reason.TIMEOUT)

    may_end.set()
    assert ended.wait(10)
    late = _until_answered(ledger)

    assert (late.state, late.text) == (State.RECOVERED, "late, but paid for")


def test_a_check_of_the_pipelines_own_can_refuse_an_answer(runner, scripted):
    def no_bananas(answer):
        return "there is a banana in it" if "banana" in answer else None

    outcome = runner(scripted("a banana", "an apple"), check=no_bananas).run(JOB)

    assert (outcome.text, outcome.attempts) == ("an apple", 2)


def test_an_answer_that_no_check_accepts_is_parked_with_what_was_wrong(ledger, runner, scripted, attempts):
    outcome = runner(scripted(*["x"] * 4), check=lambda answer: False).run(JOB)

    assert outcome.error_class == "exhausted:malformed_answer"
    assert attempts("a-1")[0].message == "the check says no"


def test_a_stopped_runner_hands_back_what_waits(ledger, scripted, clock):
    runner = parked.Runner(ledger, scripted(ConnectionResetError()), clock=clock)
    clock._pass = lambda wait_s: runner.stop()

    outcome = runner.run(JOB)

    assert (outcome.state, outcome.attempts) == (State.PENDING, 1)
    with pytest.raises(parked.ParkedError, match="stopped"):
        runner.run(JOB)


def test_run_many_yields_each_jobs_outcome(runner):
    jobs = [parked.Job(f"a-{n}", model="m", payload=n) for n in range(600)]

    outcomes = list(runner(lambda payload, model: {"n": payload}).run_many(iter(jobs), concurrency=8))

    assert {outcome.job_id: outcome.answer["n"] for outcome in outcomes} == {f"a-{n}": n for n in range(600)}


def test_run_many_that_is_left_early_hands_back_what_runs(runner, states):
    jobs = [parked.Job(f"a-{n}", model="m", payload=n) for n in range(40)]
    outcomes = runner(lambda payload, model: payload + 1).run_many(jobs, concurrency=2)

    next(outcomes)
    outcomes.close()

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_run_many_raises_what_a_caller_did_wrong(runner, scripted):
    jobs = [parked.Job("a-1", model="m", payload=1), parked.Job("a-1", model="m", payload=2)]

    with pytest.raises(parked.JobConflict):
        list(runner(lambda payload, model: 1).run_many(jobs))


def test_an_interrupt_that_comes_as_the_call_ends_keeps_the_answer_and_is_raised(ledger, runner, scripted, monkeypatch):
    real = Call.wait

    def wait(call, timeout_s):
        assert real(call, timeout_s)
        raise KeyboardInterrupt

    monkeypatch.setattr(Call, "wait", wait)

    with pytest.raises(KeyboardInterrupt):
        runner(scripted("42")).run(JOB)

    ledger.record(op.SetMark("settled", True))
    with ledger.ask() as reader:
        assert [row.state for row in reader.jobs(Filters(), states=list(State))] == [State.SUCCEEDED]


def test_an_interrupt_while_the_job_is_accepted_hands_it_back(ledger, runner, scripted, monkeypatch, states):
    real = Ticket.wait
    interrupted: list = []

    def wait(ticket, timeout=None):
        result = real(ticket, timeout)
        if isinstance(ticket.operation, op.Accept) and not interrupted:
            interrupted.append(ticket)
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(Ticket, "wait", wait)

    with pytest.raises(KeyboardInterrupt):
        runner(scripted()).run(JOB)

    assert states() == {State.PENDING: 1}


def test_a_ticket_can_be_waited_for_again_after_an_interrupt(ledger):
    ticket = ledger.submit(op.SetMark("x", 1))
    ticket.wait()
    ticket._pending.acquire()  # as an interrupt leaves it that comes between taking the lock and giving it back

    assert ticket.wait(timeout=0.1) is None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
def test_what_ends_a_program_ends_run_many_in_the_callers_thread(runner, states, error):
    def call(payload, model):
        if payload == 2:
            raise error
        return payload + 1

    jobs = [parked.Job(f"a-{n}", model="m", payload=n) for n in range(6)]
    with pytest.raises(type(error)):
        list(runner(call).run_many(jobs, concurrency=1))

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


class Foreign(BaseException):
    """Not an Exception: a library's own way out."""


def test_a_foreign_base_exception_is_an_outcome_one_by_one_and_among_many(runner):
    def call(payload, model):
        raise Foreign

    one = runner(call).run(JOB)
    (many,) = runner(call).run_many([parked.Job("a-2", model="m", payload=1)])

    assert one.error_class == many.error_class == "exhausted:unclassified"


@pytest.mark.parametrize("found", [["wrong"], (False, "why"), 0, {}, ""], ids=repr)
def test_a_check_that_says_neither_yes_nor_no_lets_nothing_pass(runner, scripted, found):
    assert runner(scripted(*["x"] * 4), check=lambda answer: found).run(JOB).error_class == "exhausted:malformed_answer"


@pytest.mark.parametrize("found", [None, True])
def test_a_check_that_says_yes_lets_the_answer_pass(runner, scripted, found):
    assert runner(scripted("x"), check=lambda answer: found).run(JOB).text == "x"


def test_what_a_check_does_to_an_answer_does_not_reach_the_ledger(runner, scripted):
    def check(answer):
        answer.clear()

    outcome = runner(scripted({"total": 1}), check=check).run(JOB)

    assert outcome.answer == runner(scripted()).run(JOB).answer == {"total": 1}


async def awaited(answer):
    return None


def test_a_check_that_is_none_is_refused_when_the_runner_is_made(runner, scripted):
    with pytest.raises(parked.SettingsError, match="check"):
        runner(scripted(), check="x")
    with pytest.raises(parked.SettingsError, match="AsyncRunner"):
        runner(scripted(), check=awaited)


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_a_check_whose_exception_has_no_text_finds_fault_all_the_same(runner, scripted):
    def check(answer):
        raise Unspeakable

    assert runner(scripted(*["x"] * 4), check=check).run(JOB).error_class == "exhausted:malformed_answer"


def test_an_answer_with_an_absurd_token_count_is_an_answer(runner, scripted, attempts):
    usage = {"promptTokenCount": 10**30, "candidatesTokenCount": -5}
    answer = {"candidates": [{"content": {"parts": [{"text": "42"}]}, "finishReason": "STOP"}], "usageMetadata": usage}

    outcome = runner(scripted(answer)).run(JOB)

    assert outcome.text == "42"
    assert [(a.tokens_in, a.tokens_out) for a in attempts("a-1")] == [(None, None)]


def test_a_payload_that_contains_itself_is_refused_at_once(runner, scripted):
    payload: list = []
    payload.append(payload)

    with pytest.raises(parked.InvalidJob, match="Circular"):
        runner(scripted()).run(parked.Job("a-1", model="m", payload=payload))


def test_the_next_program_parks_what_a_dead_one_left_as_soon_as_it_owns_a_job(tmp_path, runner, scripted, ledger):
    script = (
        "import os, parked\n"
        f"ledger = parked.open_ledger({ledger.url!r})\n"
        "call = lambda payload, model: os.kill(os.getpid(), 9)\n"
        "parked.Runner(ledger, call).run(parked.Job('dead', model='m', payload=1))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9

    runner(scripted("42")).run(JOB)

    until(lambda: _state(ledger, "dead") is State.PARKED)


def until(happened, timeout_s=10.0):
    ends, pause = time.monotonic() + timeout_s, threading.Event()
    while not happened():
        assert time.monotonic() < ends
        pause.wait(0.01)


def _state(ledger, job_id):
    with ledger.ask() as reader:
        (row,) = reader.jobs_by_key(job_id, pipeline=None, batch=None)
    return row.state


def _fields(outcome):
    return {name: getattr(outcome, name) for name in outcome.__slots__}


def _until_answered(ledger):
    """The late answer is recorded by the thread of its call."""
    runner = parked.Runner(ledger, lambda payload, model: "not called")
    until(lambda: runner.run(JOB).state is not State.PARKED)
    return runner.run(JOB)


@pytest.fixture
def refusing(ledger, ledger_url):
    """A database that stores no answer for the first job."""
    if ledger_url.startswith("sqlite"):
        with closing(sqlite3.connect(ledger_url.removeprefix("sqlite:///"))) as connection:
            connection.execute(
                "CREATE TRIGGER refused BEFORE INSERT ON answers WHEN NEW.job = 1 BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
    else:
        with psycopg.connect(ledger_url) as server:
            server.execute("ALTER TABLE parked.answers ADD CONSTRAINT refused CHECK (job <> 1)")
    return ledger


def test_an_answer_that_the_database_refuses_altogether_parks_its_job_and_ends_nothing(
    refusing, clock, caplog, states, attempts
):
    jobs = [parked.Job(f"a-{n}", model="m", payload=n) for n in range(3)]

    outcomes = list(parked.Runner(refusing, lambda payload, model: "42", clock=clock).run_many(jobs, concurrency=1))

    assert [(outcome.job_id, outcome.state, outcome.error_class, outcome.answer) for outcome in outcomes] == [
        ("a-0", State.PARKED, "orphaned:maybe_sent", None),
        ("a-1", State.SUCCEEDED, None, "42"),
        ("a-2", State.SUCCEEDED, None, "42"),
    ]
    assert states() == {State.PARKED: 1, State.SUCCEEDED: 2}
    assert [attempt.interrupted for attempt in attempts("a-0")] == [True]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said.startswith("outcome_lost job=1 error=")
