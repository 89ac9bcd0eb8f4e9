"""Counters move in the transaction of the job, so that what a scrape shows is what the ledger holds."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parked.errors import ParkedError
from parked.job import State
from parked.ledger import codec, open_ledger
from parked.ledger import operations as op
from parked.ledger.operations import Closing, SpanIds
from parked.verdict import Kind, Reason, Scope


def test_a_run_that_parks_counts_once_under_class_and_reason(desk, wall):
    row = desk.parked()

    assert desk.counted("jobs_accepted") == {("", ""): 1}
    assert desk.counted("jobs_parked") == {("exhausted:503", "overloaded"): 1}
    assert desk.counted("last_parked") == {("exhausted:503", ""): wall.now}
    assert desk.counted("parked_now") == {("exhausted:503", "overloaded"): 1}
    assert desk.counted("ledger_jobs") == {("parked", ""): 1}
    assert row.state is State.PARKED


def test_a_replay_that_fails_counts_as_parked_again_under_the_class_it_had(desk):
    owner = desk.owner()
    row = desk.replaying(owner, error_class="exhausted:429")

    desk.park(row, owner, error_class="permanent:400")

    assert desk.counted("jobs_parked") == {("exhausted:429", "overloaded"): 1}
    assert desk.counted("jobs_replayed") == {("exhausted:429", "manual/parked_again"): 1}
    assert desk.counted("parked_now") == {("permanent:400", "overloaded"): 1}


def test_a_replay_that_answers_counts_under_the_class_it_had_and_who_set_it_off(desk):
    owner = desk.owner()

    desk.answer(desk.replaying(owner, trigger="auto"), owner)

    assert desk.counted("jobs_recovered") == {("exhausted:503", "overloaded"): 1}
    assert desk.counted("jobs_replayed") == {("exhausted:503", "auto/recovered"): 1}
    assert desk.counted("jobs_succeeded") == {}


def test_a_replay_that_is_handed_back_counts_as_released(desk):
    owner = desk.owner()

    desk.release(desk.replaying(owner), owner)

    assert desk.counted("jobs_replayed") == {("exhausted:503", "manual/released"): 1}
    assert desk.counted("jobs_parked") == {("exhausted:503", "overloaded"): 1}


def test_orphans_of_a_run_count_as_parked(desk):
    owner = desk.owner()
    desk.running(owner)
    between = desk.running(owner)
    desk.retried(between, owner)

    desk.lose(owner)

    assert desk.counted("jobs_parked") == {
        ("orphaned:maybe_sent", "maybe_sent"): 1,
        ("orphaned:not_sent", "not_sent"): 1,
    }


def test_an_orphan_of_a_replay_counts_as_parked_again(desk):
    owner = desk.owner()
    desk.replaying(owner)

    desk.lose(owner)

    assert desk.counted("jobs_replayed") == {("exhausted:503", "manual/parked_again"): 1}
    assert desk.counted("parked_now") == {("orphaned:maybe_sent", "maybe_sent"): 1}


def test_a_discarded_job_counts_under_the_class_it_was_parked_with(desk):
    desk.discard(desk.parked())
    desk.discard(desk.pending())

    assert desk.counted("jobs_discarded") == {("exhausted:503", "overloaded"): 1, ("", ""): 1}
    assert desk.counted("ledger_jobs") == {("discarded", ""): 2}


def test_attempts_their_durations_and_tokens_are_counted_when_they_close(desk):
    owner = desk.owner()
    row = desk.running(owner)
    assert desk.counted("attempts") == {}

    desk.retried(row, owner)
    desk.start_again(row, owner)
    desk.answer(row, owner, attempt=2)

    assert desk.counted("attempts") == {("retryable", "overloaded"): 1, ("ok", "ok"): 1}
    assert desk.counted("attempt_duration") == {
        ("retryable", "2.5"): 1,
        ("retryable", "sum"): 1.5,
        ("ok", "0.5"): 1,
        ("ok", "sum"): 0.3,
    }
    assert desk.counted("tokens") == {("input", "retryable"): 7, ("input", "ok"): 10, ("output", "ok"): 20}


def test_an_interrupted_attempt_counts_once_and_its_late_answer_adds_its_tokens(desk):
    owner = desk.owner()
    row = desk.running(owner)
    desk.lose(owner)

    desk.answer(row, owner)

    assert desk.counted("attempts") == {("retryable", "cancelled"): 1}
    assert desk.counted("tokens") == {("input", "ok"): 10, ("output", "ok"): 20}


def test_an_attempt_that_is_handed_back_before_its_call_is_in_the_history_and_counts_as_none(desk):
    owner = desk.owner()
    row = desk.running(owner)

    released = desk.release(row, owner, attempt=1, called=False)
    again = desk.replaying(owner)
    desk.release(again, owner, attempt=again.calls, called=False)

    assert released.state is State.PENDING
    assert [attempt.interrupted for attempt in desk.attempts(row)] == [True]
    assert desk.counted("attempts") == {("retryable", "overloaded"): 1}  # with which the other was parked
    assert desk.counted("jobs_replayed") == {("exhausted:503", "manual/released"): 1}
    assert desk.imbalances() == []


def test_a_counter_carries_the_sampled_trace_that_last_moved_it(desk, ledger):
    owner = desk.owner()
    row = desk.running(owner)
    closing = Closing(
        kind=Kind.PERMANENT, reason=Reason.INVALID_REQUEST, scope=Scope.JOB, duration_s=0.7, span=SpanIds("aa", "bb")
    )
    ledger.record(op.Park(row.id, owner, 1, closing, "permanent:400"))
    other = desk.running(owner)
    desk.park(other, owner, error_class="permanent:400")

    with ledger.ask() as reader:
        counters = {(row.metric, row.b): row for row in reader.counters("attempt_duration", "jobs_parked")}

    assert counters["attempt_duration", "1"].trace_id == "aa"
    assert counters["attempt_duration", "1"].example_value == 0.7
    assert counters["jobs_parked", "invalid_request"][7:9] == ("aa", "bb")


def test_an_operation_that_fails_moves_no_counter(desk, ledger):
    owner = desk.owner()
    row = desk.running(owner)

    with pytest.raises(ParkedError):
        ledger.record(op.Discard(row.id, "no"))

    assert desk.counted("jobs_discarded") == {}
    assert desk.counted("ledger_jobs") == {("running", ""): 1}


def test_a_job_that_is_taken_over_counts_as_accepted_and_parked(desk, ledger):
    taken = take_over(ledger, calls=4)

    assert taken.created
    assert (taken.row.state, taken.row.calls, taken.row.error_class) == (State.PARKED, 4, "exhausted:503")
    assert desk.counted("jobs_accepted") == {("", ""): 1}
    assert desk.counted("jobs_parked") == {("exhausted:503", "server_error"): 1}
    assert desk.counted("attempts") == {}
    assert [attempt.number for attempt in desk.attempts(taken.row)] == [4]


def test_taking_over_again_parks_anew_behind_the_others(desk, ledger):
    take_over(ledger, job_id="old", calls=4)
    desk.parked()

    again = take_over(ledger, job_id="old", calls=2, error_class="permanent:400")

    assert not again.created
    assert (again.row.calls, again.row.error_class) == (6, "permanent:400")
    assert desk.line(State.PARKED)[-1] == "old"
    assert desk.counted("jobs_parked")[("exhausted:503", "server_error")] == 1


def test_taking_over_leaves_an_answered_job_alone(desk, ledger):
    owner = desk.owner()
    row = desk.answer(desk.accept("old", start_for=owner).row, owner)

    taken = take_over(ledger, job_id="old", calls=1)

    assert taken == op.Accepted(row, created=False)


def take_over(ledger: Any, *, job_id: str = "old", calls: int, error_class: str = "exhausted:503") -> op.Accepted:
    payload = {"contents": "six times seven"}
    closing = Closing(kind=Kind.RETRYABLE, reason=Reason.SERVER_ERROR, scope=Scope.JOB, message="boom")
    taken: op.Accepted = ledger.record(
        op.TakeOver(
            "captions", "", job_id, "m", codec.encode(payload), codec.identity(payload), error_class, closing, calls
        )
    )
    return taken


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_whatever_is_done_every_job_is_in_exactly_one_state(tmp_path_factory, at_desk, seed):
    chance = random.Random(seed)
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/parked.db"
    with open_ledger(url) as ledger:
        desk = at_desk(ledger)
        owners = [desk.owner() for _ in range(3)]
        replay = desk.replay()
        rows = [desk.accept(f"j{n}", pipeline=f"p{n % 2}").row for n in range(4)]

        for _ in range(60):
            with suppress(ParkedError):
                do_something(chance, desk, desk.now(chance.choice(rows)), owners, replay)

        assert desk.imbalances() == []


def do_something(chance: random.Random, desk: Any, row: op.JobRow, owners: list[int], replay: int) -> None:
    owner = chance.choice(owners)
    attempt = max(1, row.calls - chance.choice((0, 0, 1)))
    match chance.randrange(11):
        case 0:
            desk.start(row, owner)
        case 1:
            desk.start(row, owner, replay)
        case 2:
            desk.start_again(row, owner)
        case 3:
            desk.answer(row, owner, attempt)
        case 4:
            desk.park(row, owner, attempt)
        case 5:
            desk.retried(row, owner)
        case 6:
            desk.release(row, owner, to_the_back=chance.random() < 0.5)
        case 7:
            desk.discard(row)
        case 8:
            desk.restore(row)
        case 9:
            take_over(desk.ledger, job_id=row.job_id, calls=chance.randrange(3))
        case _:
            owners.remove(owner)
            owners.append(desk.owner())
            desk.lose(owner)
