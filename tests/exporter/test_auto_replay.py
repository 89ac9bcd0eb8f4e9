"""Replays that the sidecar begins by itself, over the real SDK against the simulator, on each database."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from google import genai
from google.genai import types

import parked
from parked.errors import LedgerUnavailable
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.counters import Metric
from parked.ledger.store import Filters
from parked.policy import Policy
from parked.simulator import replies as reply
from parked.verdict import Kind, Reason, Scope
from parked_exporter import auto_replay, metrics
from parked_exporter.auto_replay import AutoReplay, is_due, replay_parked_jobs
from parked_exporter.collector import look
from parked_exporter.schedule import Context, run_task, tasks_for

MODEL = "gemini-3.5-flash"
PATIENCE_S = 20.0
# One try a job, and every failure counts: what a long outage does to a replay is tested in the runner's own suite.
AT_ONCE = Policy(max_attempts=1, max_outage_s=0.0)
SETTINGS = AutoReplay({"*": 1800.0}, classes=("exhausted:*", "orphaned:not_sent"), limit=100, most=3, policy=AT_ONCE)


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


@pytest.fixture
def night(ledger, api):
    """Returns a function that runs jobs, each parked by what the API says to it; then the API is well again."""
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=api.url))

    def run(*job_ids, says=reply.overloaded, pipeline="captions", model=MODEL):
        api.answers(lambda request: says())
        runner = parked.Runner(ledger, parked.Gemini(client), pipeline=pipeline, policy=AT_ONCE)
        for job_id in job_ids:
            runner.run(parked.Job(job_id, model=model, payload={"contents": job_id}))
        api.answers(None)
        api.requests.clear()

    yield run
    client.close()


@pytest.fixture
def replay(ledger):
    """Returns a function that runs the task as the schedule does, as if the interval was over."""
    began = [time.time()]

    def run(**more):
        began[0] += 1800.0
        settings = replace(SETTINGS, **more)
        context = Context(auto_replay=settings, now=partial(float, began[0]))
        (task,) = [task for task in tasks_for(context) if task.name == "auto_replay"]
        return run_task(task, ledger, context)

    return run


@pytest.fixture
def jobs(ledger):
    """Returns a function that names the jobs in a state, in order; the law holds whenever it is asked."""

    def named(state):
        with ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            return [row.job_id for row in reader.jobs(Filters(), states=(state,))]

    return named


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def asked(api):
    return [request.text for request in api.requests]


def row_of(ledger, job_id):
    with ledger.ask() as reader:
        (row,) = reader.jobs_by_key(job_id, pipeline=None, batch=None)
        return row


def park(ledger, job_id, caller="parked.gemini:Gemini", checker="", *, wait_s=None):
    """As a run parks one that this function calls and that one checks."""
    payload = {"contents": job_id}
    body, hashed, owner = encode(payload), identity(payload), ledger.owner_id
    accepted = ledger.record(op.Accept("captions", "", job_id, MODEL, body, hashed, caller, checker, start_for=owner))
    failed = op.Closing(Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, 503, fingerprint="f503")
    ledger.record(op.Park(accepted.row.id, owner, 1, failed, "exhausted:503", wait_s=wait_s))


def test_what_an_outage_has_parked_recovers_and_is_told_in_the_ledger_the_metrics_and_the_log(
    url, ledger, night, replay, jobs, events
):
    night("a-1", "a-2", "a-3", "a-4")

    replay()

    assert sorted(jobs(State.RECOVERED)) == ["a-1", "a-2", "a-3", "a-4"]
    with ledger.ask() as reader:
        ((id, name, who, filters, trigger, _, ended_at, *counts),) = reader.rows("replays")
        assert reader.answer(row_of(ledger, "a-1").id) is not None
    assert (name, trigger, counts) == ("auto_replay", "auto", [4, 0, 0])
    assert who.startswith("sidecar@")
    assert json.loads(filters) == {"pipeline": "captions", "error_class": "exhausted:*,orphaned:not_sent"}
    assert ended_at is not None
    (series,) = metrics.counted(Metric.JOBS_REPLAYED)(look(url))
    assert series.value == 4
    assert series.labels == {
        "pipeline": "captions",
        "model": MODEL,
        "error_class": "exhausted:503",
        "trigger": "auto",
        "result": "recovered",
    }
    (record,) = events("auto_replayed")
    assert record.pop("for_s") >= 0
    assert record == {
        "pipeline": "captions", "replay": id, "recovered": 4, "parked_again": 0, "spared": 0, "not_run": 0,
    }  # fmt: skip


def test_only_pipelines_that_are_named_are_replayed(night, replay, jobs):
    night("a-1", pipeline="captions")
    night("b-1", pipeline="titles")

    replay(every_s={"captions": 1800.0})

    assert (jobs(State.RECOVERED), jobs(State.PARKED)) == (["a-1"], ["b-1"])


def test_each_pipeline_is_a_replay_of_its_own(ledger, night, replay, jobs):
    night("a-1", pipeline="captions")
    night("b-1", pipeline="titles")

    replay()

    assert sorted(jobs(State.RECOVERED)) == ["a-1", "b-1"]
    with ledger.ask() as reader:
        assert [json.loads(row[3])["pipeline"] for row in reader.rows("replays")] == ["captions", "titles"]


def test_only_classes_that_are_allowed_are_replayed(night, replay, jobs):
    night("busy")
    night("refused", says=reply.blocked_prompt)
    night("empty", says=reply.no_parts)
    night("busy-2")

    replay(classes=("exhausted:503", "permanent:other"))

    assert (jobs(State.RECOVERED), jobs(State.PARKED)) == (["busy", "busy-2"], ["refused", "empty"])


def test_a_job_whose_class_two_entries_allow_is_one_job(night, replay, jobs, events):
    night("a-1", "a-2")

    replay(classes=("exhausted:503", "exhausted:*"), limit=2)

    assert jobs(State.RECOVERED) == ["a-1", "a-2"]
    (record,) = events("auto_replayed")
    assert (record["recovered"], record["not_run"]) == (2, 0)


def test_by_default_what_may_have_been_sent_waits_for_a_person(ledger, api, replay, jobs):
    far_away = op.OwnerFacts("c0ffee", "runner", "build-7", "another boot", "pid:[1]", 4711, "99", "1.0.0")
    owner = ledger.record(op.Register(far_away))
    payload = {"contents": "maybe"}
    ledger.record(op.Accept("captions", "", "maybe", MODEL, encode(payload), identity(payload), start_for=owner))
    ledger.record(op.Lose({owner: 0}))

    replay()

    assert (jobs(State.PARKED), asked(api)) == (["maybe"], [])


def test_a_job_whose_time_has_not_come_is_left(ledger, night, replay, jobs):
    park(ledger, "tomorrow", wait_s=86_400.0)
    night("busy")

    replay(limit=1)  # it takes nobody's place either

    assert (jobs(State.RECOVERED), jobs(State.PARKED)) == (["busy"], ["tomorrow"])


def test_a_job_whose_caller_or_check_is_not_here_is_left_and_said_once(ledger, night, replay, jobs, events):
    night("mine")
    park(ledger, "other", "nowhere:call")
    park(ledger, "checked", checker="nowhere:look")
    told: set[str] = set()

    replay(told=told)
    replay(told=told)

    assert (jobs(State.RECOVERED), jobs(State.PARKED)) == (["mine"], ["other", "checked"])
    assert [(left["caller"], left["checker"]) for left in events("jobs_left")] == [
        ("nowhere:call", ""),
        ("parked.gemini:Gemini", "nowhere:look"),
    ]


def test_a_job_is_replayed_by_itself_only_so_often_and_each_time_behind_the_others(ledger, api, night, replay, jobs):
    night("a-1", "a-2")
    api.answers(lambda request: reply.overloaded() if request.text == "a-1" else reply.server_error())

    for _ in range(5):
        replay(most=2)

    assert sorted(asked(api)) == ["a-1", "a-1", "a-2", "a-2"]
    assert {row_of(ledger, "a-1").auto_replays, row_of(ledger, "a-2").auto_replays} == {2}
    assert sorted(jobs(State.PARKED)) == ["a-1", "a-2"]


def test_a_replay_that_fails_again_is_not_counted_as_parked_by_a_run(url, api, night, replay):
    night("a-1")
    api.answers(lambda request: reply.overloaded())
    before = [one.value for one in metrics.counted(Metric.JOBS_PARKED)(look(url))]

    replay()

    readings = look(url)
    assert [one.value for one in metrics.counted(Metric.JOBS_PARKED)(readings)] == before == [1.0]
    (again,) = metrics.counted(Metric.JOBS_REPLAYED)(readings)
    assert (again.labels["trigger"], again.labels["result"], again.value) == ("auto", "parked_again", 1.0)


def test_the_oldest_go_first_and_no_more_than_the_limit(api, night, replay, jobs):
    night("a-1", "a-2", "a-3", "a-4", "a-5")

    replay(limit=2)
    assert sorted(asked(api)) == ["a-1", "a-2"]

    replay(limit=2)
    assert sorted(asked(api)) == ["a-1", "a-2", "a-3", "a-4"]
    assert jobs(State.PARKED) == ["a-5"]


def test_canaries_that_fail_spare_the_rest_of_their_cause_and_no_other(api, night, replay, jobs, events):
    night(*(f"busy-{n}" for n in range(10)))
    night(*(f"broken-{n}" for n in range(5)), says=reply.server_error)
    api.answers(lambda request: reply.overloaded() if "busy" in request.text else None)

    replay()

    assert sorted(text for text in asked(api) if "busy" in text) == ["busy-0", "busy-1", "busy-2"]
    assert sorted(jobs(State.RECOVERED)) == [f"broken-{n}" for n in range(5)]
    (record,) = events("auto_replayed")
    assert (record["recovered"], record["parked_again"], record["spared"]) == (5, 3, 7)


def test_a_large_cause_that_is_not_mended_keeps_no_other_from_its_turn(api, night, replay, jobs, events):
    night(*(f"busy-{n}" for n in range(10)))
    night(*(f"broken-{n}" for n in range(8)), says=reply.server_error)
    api.answers(lambda request: reply.overloaded() if "busy" in request.text else None)

    replay(limit=8)  # three canaries of each, and two of those that are mended

    assert sorted(asked(api)) == [*(f"broken-{n}" for n in range(5)), "busy-0", "busy-1", "busy-2"]
    assert jobs(State.RECOVERED) == [f"broken-{n}" for n in range(5)]
    (record,) = events("auto_replayed")
    assert (record["recovered"], record["parked_again"], record["spared"], record["not_run"]) == (5, 3, 7, 0)


def test_of_causes_that_are_mended_the_oldest_jobs_go_on(api, night, replay, jobs):
    for n in range(5):
        night(f"a-{n}")
        night(f"b-{n}", says=reply.server_error)

    replay(limit=7)

    assert asked(api)[-1] == "a-3"  # after three canaries of each
    assert sorted(jobs(State.RECOVERED)) == ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1", "b-2"]


def pause(ledger, *, model="", reason="auth_invalid", for_s=None, pipeline="captions"):
    """As a run of that pipeline leaves it: with a job that is still pending."""
    payload = {"contents": "waits"}
    ledger.record(op.Accept(pipeline, "", "waits", model or MODEL, encode(payload), identity(payload)))
    ledger.record(op.SetPause(pipeline, model, reason, 0.0, for_s, ledger.owner_id))


@pytest.mark.parametrize(
    "paused",
    [
        {},
        {"model": MODEL, "reason": "model_not_found"},
        {"reason": "daily_quota_exhausted", "for_s": 86_400.0},
        {"reason": "empty_answer"},
    ],
    ids=["all models", "its model", "until the reset", "failed alike"],
)
def test_nothing_is_replayed_while_the_pipeline_is_paused(ledger, api, night, replay, paused):
    night("a-1")
    pause(ledger, **paused)

    replay()

    assert asked(api) == []


@pytest.mark.parametrize(
    "paused",
    [
        {"model": "another", "reason": "model_not_found"},
        {"pipeline": "titles"},
        {"model": MODEL, "reason": "overloaded"},
        {"reason": "daily_quota_exhausted", "for_s": -1.0},
    ],
    ids=["another model", "another pipeline", "an outage", "past its time"],
)
def test_a_pause_of_others_or_one_that_may_be_over_holds_nothing_up(ledger, night, replay, jobs, paused):
    night("a-1")
    pause(ledger, **paused)

    replay()

    assert jobs(State.RECOVERED) == ["a-1"]


def paused_now(url):
    """The pauses that /metrics shows, by model and reason."""
    return {
        (one.labels["model"], one.labels["reason"]) for one in metrics.pauses(look(url)) if one.labels and one.value
    }


def test_a_fault_that_a_replay_meets_is_a_pause_that_one_job_tries_every_five_minutes(url, ledger, api, night, jobs):
    night(*(f"a-{n}" for n in range(6)))
    api.answers(lambda request: reply.bad_key())
    began, often = time.time(), replace(SETTINGS, every_s={"*": 5.0})
    sidecar = open_ledger(url, role="sidecar")

    def calls_after(minutes):
        replay_parked_jobs(sidecar, Context(auto_replay=often, now=partial(float, began + 60 * minutes)))
        return len(api.requests)

    assert [calls_after(minutes) for minutes in (0, 1, 4.9, 5.1)] == [3, 3, 3, 4]
    assert paused_now(url) == {("*", "auth_invalid")}
    assert len(jobs(State.PARKED)) == 6

    api.answers(None)
    calls_after(10.2)

    assert len(jobs(State.RECOVERED)) == 6
    assert paused_now(url) == set()
    sidecar.close()


def test_a_pause_of_a_sidecar_ends_with_it_and_with_the_jobs_that_it_holds_back(url, ledger, night, jobs):
    night("a-1", "a-2")
    first, second = (open_ledger(url, role="sidecar") for _ in range(2))
    first.record(op.SetPause("captions", "", "auth_invalid", 0.0, None, first.owner_id))
    assert paused_now(url) == {("*", "auth_invalid")}

    first.close()
    assert paused_now(url) == set()

    second.record(op.SetPause("captions", "", "auth_invalid", 0.0, None, second.owner_id))
    assert paused_now(url) == {("*", "auth_invalid")}
    for job_id in jobs(State.PARKED):
        ledger.record(op.Discard(row_of(ledger, job_id).id, "enough"))
    assert paused_now(url) == set()
    second.close()


def test_a_replay_goes_through_the_gate_that_all_share(ledger, api, night, replay, jobs):
    night("a-1")
    ledger.record(op.Consult((op.GateState(MODEL, "rate", closed_for_s=1.0),)))
    began = time.monotonic()

    replay(policy=Policy(max_attempts=1))

    assert jobs(State.RECOVERED) == ["a-1"]
    assert time.monotonic() - began >= 0.9


def test_a_rate_limit_that_a_replay_meets_is_known_to_all(ledger, api, night, replay, jobs):
    night("a-1")
    api.will_answer(reply.rate_limited(retry_delay_s=0.5))

    replay(policy=Policy(max_attempts=1))

    assert jobs(State.RECOVERED) == ["a-1"]
    with ledger.ask() as reader:
        assert MODEL in {model for model, _, _ in reader.gates()}


def test_answers_are_judged_as_in_a_run(ledger, api, night, replay, jobs):
    night("a-1")
    api.answers(lambda request: reply.no_candidates())

    replay()

    assert jobs(State.PARKED) == ["a-1"]
    assert row_of(ledger, "a-1").error_class == "exhausted:empty_answer"


# --- when -------------------------------------------------------------------------------------------------------


def test_the_next_one_is_due_when_the_interval_is_over_whichever_sidecar_asks(url, night, api):
    night("a-1", "a-2", "a-3", "a-4")
    api.answers(lambda request: reply.overloaded())

    counts = []
    for at in (0.0, 1799.0, 1800.0):
        with open_ledger(url, role="sidecar") as sidecar:  # a new one each time
            replay_parked_jobs(sidecar, Context(auto_replay=SETTINGS, now=partial(float, 1_900_000_000.0 + at)))
        counts.append(len(api.requests))

    assert counts == [3, 3, 6]


@pytest.mark.parametrize(
    ("began", "due"), [(None, True), (1000.0, True), (1000.1, False), (2800.0, False), (2800.1, True)]
)
def test_a_round_is_due_once_its_interval_is_over_or_the_clock_was_set_back(began, due):
    assert is_due(began, every_s=1800.0, now=2800.0) is due


@pytest.mark.parametrize(("intervals_s", "look_s"), [((1800.0, 7200.0), 15.0), ((10.0, 7200.0), 5.0), ((0.5,), 1.0)])
def test_it_is_looked_often_enough_for_the_shortest_interval(intervals_s, look_s):
    settings = replace(SETTINGS, every_s=dict(zip("ab", intervals_s, strict=False)))

    assert settings.look_s == look_s


def test_it_is_off_unless_it_is_switched_on():
    assert "auto_replay" not in {task.name for task in tasks_for(Context())}


# --- PARKED_CALL ------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's with a function that answers."""
    (tmp_path / "mine.py").write_text("def call(payload, model):\n    return {'said': payload['contents']}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)


def test_a_function_stands_in_for_the_adapter_and_for_callers_without_a_name(ledger, mine, replay, jobs):
    for job_id, caller in (
        ("unnamed", ""), ("gemini", "parked.gemini:Gemini"), ("script", "__main__:ask"),
        ("lambda", "captions:make.<locals>.<lambda>"), ("elsewhere", "nowhere:call"),
    ):  # fmt: skip
        park(ledger, job_id, caller)

    replay(call="mine:call")

    assert sorted(jobs(State.RECOVERED)) == ["gemini", "lambda", "script", "unnamed"]
    assert jobs(State.PARKED) == ["elsewhere"]


def test_a_job_is_called_by_its_own_function_where_that_is_here(ledger, mine, replay, jobs):
    park(ledger, "own", "mine:call")

    replay(call="nowhere:call")

    assert jobs(State.RECOVERED) == ["own"]


# --- several sidecars, and their end -----------------------------------------------------------------------------


def test_two_that_replay_at_once_call_no_job_twice(url, ledger, api, night, jobs):
    night(*(f"a-{n}" for n in range(20)))
    both = threading.Barrier(2)

    def sidecar():
        with open_ledger(url, role="sidecar") as own:  # as if each held the lease
            both.wait(PATIENCE_S)
            replay_parked_jobs(own, Context(auto_replay=SETTINGS))

    threads = [threading.Thread(target=sidecar) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert sorted(asked(api)) == sorted(f"a-{n}" for n in range(20))
    assert len(jobs(State.RECOVERED)) == 20


def test_a_sidecar_that_ends_releases_what_it_replays_at_once(url, ledger, api, night, jobs):
    night("a-1", "a-2", "a-3", "a-4")
    before = len(api.calls)
    api.hold()
    context = Context(auto_replay=SETTINGS)
    sidecar = open_ledger(url, role="sidecar")
    thread = threading.Thread(target=replay_parked_jobs, args=(sidecar, context))
    thread.start()
    api.wait_for_requests(before + 3)

    context.stopping.set()
    thread.join(PATIENCE_S)
    sidecar.close()

    assert not thread.is_alive()
    assert sorted(jobs(State.PARKED)) == ["a-1", "a-2", "a-3", "a-4"]
    assert {row_of(ledger, f"a-{n}").error_class for n in range(1, 5)} == {"exhausted:503"}  # no orphans
    assert {row_of(ledger, f"a-{n}").auto_replays for n in range(1, 5)} == {0}
    with ledger.ask() as reader:
        ((*_, ended_at, recovered, parked_again, released),) = reader.rows("replays")
    assert ended_at is not None
    assert (recovered, parked_again, released) == (0, 0, 3)


def test_one_that_loses_its_lease_lets_running_calls_end_and_starts_no_more(
    url, ledger, api, night, jobs, events, monkeypatch
):
    monkeypatch.setattr(auto_replay, "RENEW_S", 0.0)
    night("a-1", "a-2", "a-3", "a-4", "a-5")
    before = len(api.calls)
    api.hold()
    sidecar = open_ledger(url, role="sidecar")
    thread = threading.Thread(target=replay_parked_jobs, args=(sidecar, Context(auto_replay=SETTINGS)))
    thread.start()
    api.wait_for_requests(before + 3)
    sidecar.record(op.TakeLease("auto_replay", ledger.owner_id, -math.inf))  # as if it had stood still meanwhile
    until(lambda: events("lease_lost"))

    api.release()
    thread.join(PATIENCE_S)
    sidecar.close()

    assert sorted(asked(api)) == ["a-1", "a-2", "a-3"]
    assert len(jobs(State.RECOVERED)) == 3


def test_a_ledger_that_goes_away_is_an_error_of_the_task(url, night):
    night("a-1")
    sidecar = open_ledger(url, role="sidecar")
    sidecar.close()

    with pytest.raises(LedgerUnavailable):
        replay_parked_jobs(sidecar, Context(auto_replay=SETTINGS))
