"""The article's functions: names, values and printed lines."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from contextlib import closing

import pytest

import parked
from parked import ApiError, classify_failure
from parked.job import State
from parked.ledger import open_ledger, shared
from parked.ledger.operations import SetMark
from parked.ledger.store import Filters


@pytest.fixture
def slept_s(monkeypatch):
    """What was slept, instead of sleeping it; the jitter is half a second."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.5)
    return slept


@pytest.fixture
def path(tmp_path, monkeypatch, slept_s):
    """The article's store, which its functions open by themselves."""
    path = tmp_path / "dead_letter.db"
    monkeypatch.setenv("PARKED_LEDGER", f"sqlite:///{path}")
    return path


def rows(path, state=State.PARKED):
    for ledger in shared._open.values():
        ledger.record(SetMark("settled", True))  # what was handed in without waiting is committed by now
    with open_ledger(f"sqlite:///{path}") as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return [(row.job_id, row.error_class, row.calls) for row in reader.jobs(Filters(), states=(state,))]


class Model:
    """Fails as told, in order, then answers."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.calls = []

    def __call__(self, payload):
        self.calls.append(payload)
        if self.failures:
            raise self.failures.pop(0)
        return {"echo": payload}


def always(error):
    def call(payload):
        raise error

    return call


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        *[(status, "anything UNAVAILABLE", "permanent") for status in (400, 403, 404, 422)],
        *[(status, "SAFETY", "retryable") for status in (429, 500, 502, 503, 504)],
        (None, "invalid_argument: bad field", "permanent"),
        (None, "FAILED_PRECONDITION", "permanent"),
        (418, "blocked by Safety", "permanent"),
        (None, "Deadline_Exceeded", "retryable"),
        (0, "unavailable", "retryable"),
        (None, None, "unknown"),
        (418, "teapot", "unknown"),
    ],
)
def test_a_telling_status_decides_and_else_the_words(status, message, kind):
    assert classify_failure(status, message) == kind


def test_an_answer_is_returned_and_nothing_is_parked(path):
    assert parked.run_with_dead_letter("a", {"p": 1}, "m", Model()) == {"echo": {"p": 1}}
    assert rows(path) == []


def test_an_answer_is_returned_as_the_function_returned_it(path):
    answer = ("a", object())

    assert parked.run_with_dead_letter("c-1", {"prompt": "x"}, "m", lambda payload: answer) is answer


def test_a_permanent_failure_is_parked_at_once(path, slept_s):
    model = Model(ApiError(400, "bad"))

    assert parked.run_with_dead_letter("a", {}, "m", model) is None
    assert rows(path) == [("a", "permanent:400", 1)]
    assert (len(model.calls), slept_s) == (1, [])


@pytest.mark.parametrize("status", [503, 418], ids=["retryable", "unknown"])
def test_other_failures_are_retried_with_the_articles_waits_and_then_parked(path, slept_s, status):
    assert parked.run_with_dead_letter("a", {}, "m", always(ApiError(status, "again")), max_attempts=3) is None

    assert rows(path) == [("a", f"exhausted:{status}", 3)]
    assert slept_s == [2.5, 4.5]


def test_what_the_server_asks_for_is_not_waited_for(path, slept_s):
    parked.run_with_dead_letter("a", {}, "m", Model(ApiError(429, "Please retry in 34s.")))

    assert slept_s == [2.5]


@pytest.mark.parametrize("error", [ValueError("no json"), ConnectionResetError(), KeyError("parts")])
def test_any_other_exception_parks_the_job_instead_of_escaping(path, error):
    assert parked.run_with_dead_letter("a", {}, "m", always(error)) is None

    assert len(rows(path)) == 1


def test_a_job_that_is_parked_is_a_line_in_the_log_and_an_answered_one_none(path, caplog):
    parked.run_with_dead_letter("a-1", {"prompt": "SECRET"}, "m", always(ApiError(400, "SECRET")))
    parked.run_with_dead_letter("a-2", {"prompt": "SECRET"}, "m", Model())

    assert caplog.messages == ['job_parked job="a-1" pipeline="default" error_class="permanent:400"']


def test_a_job_that_has_succeeded_is_called_again(path):
    model = Model()

    parked.run_with_dead_letter("a", {}, "m", model)
    parked.run_with_dead_letter("a", {}, "m", model)

    assert len(model.calls) == 2
    assert [job_id for job_id, _, _ in rows(path, State.SUCCEEDED)] == ["a", "a"]


def test_a_parked_job_that_is_run_again_is_replayed(path):
    parked.run_with_dead_letter("a", {}, "m", always(ApiError(400, "bad")))

    assert parked.run_with_dead_letter("a", {}, "m", Model()) == {"echo": {}}
    assert rows(path) == []
    assert rows(path, State.RECOVERED) == [("a", "permanent:400", 2)]


def test_a_job_can_be_parked_by_hand(path):
    parked.park("a", {"p": 1}, "m", "exhausted:503", "overloaded", 4)

    assert rows(path) == [("a", "exhausted:503", 4)]


def test_a_dry_run_says_what_it_would_replay_and_calls_nothing(path, capsys):
    parked.park("a", {}, "m", "exhausted:503", "overloaded", 4)
    parked.park("b", {}, "m", "permanent:400", "bad", 1)
    model = Model()

    result = parked.replay(model)

    assert result == {"scanned": 2, "recovered": 0, "still_failing": 0, "dry_run": True}
    assert capsys.readouterr().out.splitlines() == [
        "[dry-run] would replay a (exhausted:503)",
        "[dry-run] would replay b (permanent:400)",
    ]
    assert model.calls == []


def test_a_replay_tries_the_oldest_once_each_and_what_fails_goes_behind_the_others(path):
    for job_id in "abc":
        parked.park(job_id, job_id, "m", "exhausted:503", "overloaded", 4)

    first = parked.replay(Model(ApiError(503, "still")), limit=2, dry_run=False)
    model = Model()
    second = parked.replay(model, limit=1, dry_run=False)

    assert first == {"scanned": 2, "recovered": 1, "still_failing": 1, "dry_run": False}
    assert second == {"scanned": 1, "recovered": 1, "still_failing": 0, "dry_run": False}
    assert model.calls == ["c"]
    assert rows(path) == [("a", "exhausted:503", 5)]


def test_a_replay_leaves_a_job_whose_payload_is_damaged_and_tries_the_others(path, caplog):
    for job_id in ("a", "bad", "b"):
        parked.park(job_id, job_id, "m", "exhausted:503", "overloaded", 4)
    with closing(sqlite3.connect(path)) as behind_its_back, behind_its_back:
        behind_its_back.execute("UPDATE payloads SET body = '{' WHERE job = (SELECT id FROM jobs WHERE job_id = 'bad')")
    model = Model()

    result = parked.replay(model, dry_run=False)

    assert result == {"scanned": 3, "recovered": 2, "still_failing": 0, "dry_run": False}
    assert model.calls == ["a", "b"]
    assert [id for id, *_ in rows(path)] == ["bad"]
    assert 'job_left job="bad"' in caplog.text


def test_a_replay_of_another_store_is_told_where_it_is(tmp_path, path):
    assert parked.replay(Model(), dry_run=False, path=tmp_path / "other.db")["scanned"] == 0


def test_two_replays_at_once_never_call_the_model_twice_for_one_job(path):
    for number in range(30):
        parked.park(f"j{number}", number, "m", "exhausted:503", "overloaded", 4)
    model = Model()
    results = []

    threads = [
        threading.Thread(target=lambda: results.append(parked.replay(model, limit=30, dry_run=False))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(model.calls) == list(range(30))
    assert sum(result["recovered"] for result in results) == 30


def test_the_store_is_not_locked_while_the_model_is_called(path):
    parked.park("a", {}, "m", "exhausted:503", "overloaded", 4)

    def call(payload):
        parked.park("b", {}, "m", "exhausted:503", "overloaded", 4)
        return "ok"

    assert parked.replay(call, dry_run=False)["recovered"] == 1
    assert rows(path) == [("b", "exhausted:503", 4)]


def test_a_replay_that_crashes_forgets_nothing_that_was_recovered(path):
    for job_id in "ab":
        parked.park(job_id, job_id, "m", "exhausted:503", "overloaded", 4)

    with pytest.raises(KeyboardInterrupt):
        parked.replay(Model2(), dry_run=False)

    assert rows(path, State.RECOVERED) == [("a", "exhausted:503", 5)]
    assert [job_id for job_id, _, _ in rows(path)] == ["b"]


class Model2:
    def __call__(self, payload):
        if payload == "b":
            raise KeyboardInterrupt
        return "ok"


def test_the_summary_of_an_empty_store_is_clean(path, capsys):
    parked.dlq_summary()

    assert capsys.readouterr().out == "dead-letter: clean (0 parked)\n"


def test_the_summary_counts_classes_largest_first(path, capsys):
    for job_id, error_class in [("a", "permanent:400"), ("b", "exhausted:503"), ("c", "exhausted:503")]:
        parked.park(job_id, {}, "m", error_class, "why", 1)

    parked.dlq_summary()

    assert capsys.readouterr().out.splitlines() == [
        "dead-letter: 3 parked",
        "     2  exhausted:503",
        "     1  permanent:400",
    ]
