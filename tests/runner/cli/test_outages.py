"""Outages, quotas and pauses as a user meets them: the real SDK against a simulator that fails for everybody."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.store import Filters
from parked.simulator import replies as reply
from parked_exporter.collector import look
from parked_exporter.metrics import gates, pauses


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch, url):
    monkeypatch.delenv("PARKED_MAX_OUTAGE_S")


@pytest.fixture
def many(tmp_path):
    """Returns a function that writes a file of so many jobs, of these models in turn."""

    def write(count, *models):
        models = models or ("gemini-3.5-flash",)
        file = tmp_path / "many.jsonl"
        lines = [
            {"job_id": f"job-{n:03}", "model": models[n % len(models)], "payload": {"contents": f"{n}?"}}
            for n in range(count)
        ]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(file)

    return write


def states(url):
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return {state: jobs for (_, state), jobs in reader.states().items()}


def paused(url):
    with open_ledger(url) as ledger, ledger.ask() as reader:
        return [(row.pipeline, row.model, row.reason) for row in reader.pauses()]


def test_a_key_that_is_revoked_in_mid_run_parks_nothing_and_the_next_run_answers_all(parked, api, many, url):
    answered = []

    def revoked(request):
        answered.append(request.text)
        return reply.bad_key() if len(answered) > 20 else None

    api.answers(revoked)
    file = many(60)
    said = parked("run", file, "--pipeline", "nightly", "--concurrency", "4")

    assert said.status == 4
    assert states(url) == {State.SUCCEEDED: 20, State.PENDING: 40}
    assert len(api.requests) <= 20 + 2 * 4
    lines = said.err.splitlines()
    assert (
        "paused, all models: the key or token is invalid, expired, leaked, missing or doubled (auth_invalid)" in lines
    )
    assert "what to do: replace the credential" in lines
    assert any("40 jobs of the pipeline 'nightly' pending" in line and "parked run" in line for line in lines)
    assert paused(url) == [("nightly", "", "auth_invalid")]

    api.answers(None)
    again = parked("run", file, "--pipeline", "nightly")

    assert again.status == 0
    assert states(url) == {State.SUCCEEDED: 60}
    assert paused(url) == []


def test_a_run_that_finds_a_pause_has_one_job_try(parked, api, many, url):
    api.answers(lambda request: reply.bad_key())
    parked("run", many(30))
    calls = len(api.requests)

    assert parked("run", many(30)).status == 4
    assert len(api.requests) == calls + 1
    assert states(url) == {State.PENDING: 30}


def test_one_model_of_two_that_is_retired_leaves_the_others_jobs_answered(parked, api, many, url):
    api.answers(lambda request: reply.model_not_found() if request.model == "old" else None)

    said = parked("run", many(40, "new", "old"))

    assert said.status == 4
    assert states(url) == {State.SUCCEEDED: 20, State.PENDING: 20}
    assert "paused, the model old:" in said.err


def test_empty_answers_for_everybody_pause_with_nothing_parked(parked, api, many, url, monkeypatch):
    monkeypatch.setenv("PARKED_STOP_AFTER_ALIKE", "5")
    api.answers(lambda request: reply.no_parts())

    said = parked("run", many(40))

    assert said.status == 4
    assert states(url) == {State.PENDING: 40}
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert {row.strikes for row in reader.jobs(Filters(), states=[State.PENDING])} == {0}


def test_blocked_prompts_in_a_row_are_parked_and_pause_nothing(parked, api, many, url):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if int(request.text[:-1]) < 25 else None)

    said = parked("run", many(60))

    assert said.status == 1
    assert states(url) == {State.PARKED: 25, State.SUCCEEDED: 35}
    assert paused(url) == []


def test_jobs_whose_own_file_is_denied_are_parked_and_stop_nobody(parked, api, many, url):
    api.answers(lambda request: reply.permission_denied() if request.text in ("0?", "1?") else None)

    said = parked("run", many(40))

    assert said.status == 1
    assert states(url) == {State.PARKED: 2, State.SUCCEEDED: 38}


def test_what_was_left_over_in_another_batch_is_taken_up_beside_the_new_file(parked, api, many, url):
    api.answers(lambda request: reply.bad_key())
    parked("run", many(10), "--batch", "monday")
    api.answers(None)

    said = parked("run", many(10), "--batch", "tuesday")

    assert said.status == 0
    assert "left over from earlier: 10 succeeded" in said.err
    assert states(url) == {State.SUCCEEDED: 20}


@pytest.mark.slow
def test_while_an_outage_lasts_a_replay_says_how_long_it_is_waited_for(parked, api, many, url, monkeypatch):
    monkeypatch.setenv("PARKED_MAX_OUTAGE_S", "0")
    api.answers(lambda request: reply.overloaded())
    parked("run", many(3), "--max-attempts", "1")
    monkeypatch.setenv("PARKED_MAX_OUTAGE_S", "2")

    said = parked("replay", "--all", "--apply")

    assert said.status == 4
    (outage,) = [line for line in said.err.splitlines() if line.startswith("an outage, ")]
    assert re.fullmatch(
        r"an outage, the model gemini-3.5-flash: one job tries every 15 s or sooner, until .*Z at the latest; .*",
        outage,
    )
    assert "paused, the model gemini-3.5-flash: " in said.err


@pytest.mark.slow
def test_a_quiet_run_says_nothing_of_an_outage_that_it_waits_for(parked, api, many, monkeypatch):
    monkeypatch.setenv("PARKED_MAX_OUTAGE_S", "2")
    api.answers(lambda request: reply.overloaded())

    said = parked("run", many(3), "--quiet")

    assert said.status == 4
    assert "an outage" not in said.err


@pytest.mark.slow
def test_the_log_says_until_when_a_pause_is_waited_for_at_the_latest(parked, api, many, monkeypatch):
    monkeypatch.setenv("PARKED_LOG_LEVEL", "info")
    api.answers(lambda request: reply.bad_key())

    said = parked("run", many(3), "--wait-until", "2s")

    assert re.search("WARNING paused pipeline=default model=[*] reason=auth_invalid$", said.err, re.MULTILINE)
    said_at, until = map(datetime.fromisoformat, re.search(r"(\S+) INFO waiting .* until=(\S+)", said.err).groups())
    assert until - said_at <= timedelta(seconds=2.1)


@pytest.mark.parametrize("rate", ["0", "-3", "1e-300", "0.05", "1e9", "inf", "nan", "many"])
def test_a_rate_that_nobody_means_is_refused(parked, many, no_ledger, rate):
    said = parked("run", many(1), "--rpm", rate)

    assert said.status == 2
    assert "--rpm" in said.err
    assert f"a number of calls a minute from 0.1 to 1000000, got {rate!r}" in said.err
    assert no_ledger()


def test_a_time_to_wait_until_must_lie_ahead(parked, many):
    said = parked("run", many(1), "--wait-until", "2020-01-01")

    assert said.status == 2
    assert "--wait-until must lie ahead" in said.err


def test_the_summary_and_the_metrics_tell_of_a_pause(parked, api, many, url):
    api.answers(lambda request: reply.bad_key())
    parked("run", many(10), "--pipeline", "nightly")

    said = parked("summary")

    assert any(
        line.startswith("paused: nightly, all models, since") and "auth_invalid, replace" in line
        for line in said.out.splitlines()
    )
    (pause,) = json.loads(parked("summary", "--json").out)["pauses"]
    assert (pause["pipeline"], pause["model"], pause["reason"]) == ("nightly", None, "auth_invalid")
    assert look(url).pauses == [("nightly", "*", "auth_invalid")]


def test_the_summary_leads_from_a_pause_to_what_exactly_was_said(parked, api, many):
    api.answers(lambda request: reply.bad_key())
    parked("run", many(200), "--pipeline", "nightly", "--batch", "monday")

    told = json.loads(parked("summary", "--json").out)
    (command,) = (each for each in told["next"] if " show " in each)
    shown = parked(*shlex.split(command)[1:])

    (pause,) = told["pauses"]
    assert pause["met_by"]["batch"] == "monday"
    assert pause["met_by"]["job_id"] in command
    assert "auth_invalid" in shown.out
    assert "API key not valid" in shown.out


def test_the_series_of_a_pause_goes_to_0_when_it_is_over(parked, api, many, url):
    """One that ended would look like a target that was lost, and nothing could be said of it afterwards."""
    pause = {"pipeline": "default", "model": "*", "reason": "auth_invalid"}

    def series():
        return [(one.labels, one.value) for one in pauses(look(url))]

    parked("run", many(10))
    assert series() == []

    api.answers(lambda request: reply.bad_key())
    parked("run", many(20))
    assert series() == [(pause, 1)]

    api.answers(None)
    parked("run", many(20))
    assert series() == [(pause, 0)]


def test_the_series_of_a_gate_goes_to_0_when_it_is_open_again(parked, many, url):
    parked("submit", many(1))

    def series(why):
        with open_ledger(url) as ledger:
            ledger.record(op.Consult((op.GateState("gemini-3.5-flash", why, closed_for_s=60.0),)))
        return {one.labels["reason"]: one.value for one in gates(look(url))}

    assert series("rate") == {"rate": 1, "outage": 0}
    assert series(None) == {"rate": 0, "outage": 0}


def test_a_run_that_waits_goes_on_by_itself_once_the_key_works_again(parked, api, many, url, monkeypatch):
    monkeypatch.setattr("parked.line.RESUME_S", 0.5)
    asked = []

    def mended_at_the_third_try(request):
        asked.append(request)
        return reply.bad_key() if len(asked) <= 5 else None

    api.answers(mended_at_the_third_try)

    said = parked("run", many(20), "--wait", "--concurrency", "1")

    assert said.status == 0
    assert states(url) == {State.SUCCEEDED: 20}
    assert paused(url) == []


def test_a_run_says_in_its_log_when_it_begins_to_wait_and_when_it_tries_again(parked, api, many, monkeypatch):
    monkeypatch.setattr("parked.line.RESUME_S", 0.5)
    monkeypatch.setenv("PARKED_LOG_FORMAT", "json")
    asked = []

    def mended_at_the_second_try(request):
        asked.append(request)
        return reply.bad_key() if len(asked) <= 4 else None

    api.answers(mended_at_the_second_try)
    err = parked("run", many(20), "--wait", "--concurrency", "1").err

    said = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [(told["event"], told["model"], told.get("reason")) for told in said if told["event"] != "paused"] == [
        ("waiting", "*", "auth_invalid"), ("trying_again", "*", "auth_invalid"),
        ("waiting", "*", "auth_invalid"), ("trying_again", "*", "auth_invalid"),
        ("resumed", "*", None),
    ]  # fmt: skip
    assert {told["pipeline"] for told in said} == {"default"}
    assert [bool(re.fullmatch(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", told["until"])) for told in said if "until" in told] == [
        True, True
    ]  # fmt: skip


def test_a_run_that_is_killed_while_it_waits_leaves_its_jobs_pending_and_no_orphans(parked, api, many, url):
    """Also those that have met the fault: their calls are over, and nobody runs them."""
    api.answers(lambda request: reply.bad_key())
    command = [sys.executable, "-m", "parked.cli", "run", many(20), "--wait", "--concurrency", "4"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as waiting:
        try:
            assert waiting.stderr is not None
            next(line for line in waiting.stderr if " waiting " in line)
            ends = time.monotonic() + 30
            while states(url) != {State.PENDING: 20}:  # they are handed back within the commits that follow
                assert time.monotonic() < ends
        finally:
            waiting.kill()

    api.answers(None)
    said = parked("run", many(20))

    assert said.status == 0
    assert states(url) == {State.SUCCEEDED: 20}


def test_a_run_waits_no_longer_than_it_is_told(parked, api, many, url, monkeypatch):
    monkeypatch.setattr("parked.line.RESUME_S", 0.2)
    api.answers(lambda request: reply.bad_key())

    said = parked("run", many(20), "--wait-until", "1s")

    assert said.status == 4
    assert states(url) == {State.PENDING: 20}


def test_a_worker_that_stays_goes_on_after_a_pause(parked, api, many, url, monkeypatch):
    monkeypatch.setattr("parked.line.RESUME_S", 0.5)
    parked("submit", many(20))
    asked = []

    def mended(request):
        asked.append(request)
        if len(asked) == 30:
            os.kill(os.getpid(), signal.SIGTERM)
        return reply.bad_key() if len(asked) <= 10 else None

    api.answers(mended)

    said = parked("work", "--concurrency", "2")

    assert said.status == 143
    assert states(url) == {State.SUCCEEDED: 20}
