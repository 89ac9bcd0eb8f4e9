"""An answer that was paid for is never thrown away, and the first one wins, whoever brings it."""

from __future__ import annotations

import pytest

from parked.job import State
from parked.ledger import codec, open_ledger
from parked.ledger import operations as op
from parked.verdict import Kind, Reason


def test_an_answer_of_a_lost_owner_recovers_the_orphan(desk):
    owner = desk.owner()
    row = desk.running(owner)
    desk.lose(owner)

    late = desk.answer(row, owner)

    assert late.state is State.RECOVERED
    assert desk.answer_of(row) == "42"
    assert desk.counted("jobs_recovered") == {("orphaned:maybe_sent", "maybe_sent"): 1}
    assert desk.counted("parked_now") == {}


def test_answers_of_an_owner_that_another_process_declared_lost_are_late_ones(desk, at_desk, ledger, url):
    """The owner's process knows its jobs by heart; what has become of them it learns as it writes."""
    owner = desk.owner()
    rows = [desk.accept(f"a{number}", start_for=owner).row for number in range(3)]
    with open_ledger(url) as other:
        at_desk(other).lose(owner)

    answers = [op.Answer(row.id, owner, 1, codec.encode_answer(row.job_id), op.Closing()) for row in rows]
    late = [ticket.wait(10) for ticket in ledger.submit_many(answers)]

    assert [row.state for row in late] == [State.RECOVERED] * 3
    assert [desk.answer_of(row) for row in rows] == ["a0", "a1", "a2"]
    assert desk.counted("jobs_recovered") == {("orphaned:maybe_sent", "maybe_sent"): 3}
    assert desk.counted("jobs_succeeded") == {}


def test_an_answer_comes_late_while_a_replay_of_another_process_holds_its_job(desk, at_desk, url):
    owner = desk.owner()
    row = desk.running(owner)
    with open_ledger(url) as other:
        others = at_desk(other)
        others.lose(owner)
        others.start(row, others.owner(token="another"), others.replay())

        late = desk.answer(row, owner)

    assert late.state is State.RECOVERED
    assert desk.answer_of(row) == "42"


def test_an_answer_after_the_job_was_released_ends_the_pending_job(desk):
    owner = desk.owner()
    row = desk.running(owner)
    desk.release(row, owner)

    late = desk.answer(row, owner)

    assert late.state is State.SUCCEEDED
    assert desk.counted("jobs_succeeded") == {("", ""): 1}


def test_an_answer_after_its_deadline_ends_the_job_that_is_tried_again(desk):
    owner = desk.owner()
    row = desk.running(owner)
    desk.retried(row, owner)
    second = desk.start_again(row, owner)

    late = desk.answer(row, owner, attempt=1)

    assert late.state is State.SUCCEEDED
    assert [(attempt.number, attempt.answered) for attempt in desk.attempts(row)] == [(1, True), (2, False)]
    after = desk.answer(second.row, owner, attempt=2, value="too late")
    assert after.state is State.SUCCEEDED
    assert desk.answer_of(row) == "42"
    assert [attempt.answered for attempt in desk.attempts(row)] == [True, True]


def test_an_answer_while_another_owner_runs_the_job_ends_it(desk):
    first, second = desk.owner(), desk.owner()
    row = desk.running(first)
    desk.release(row, first)
    again = desk.start(row, second).row

    late = desk.answer(row, first)
    theirs = desk.answer(again, second, value="43")

    assert (late.state, late.owner_id) == (State.SUCCEEDED, None)
    assert theirs.state is State.SUCCEEDED
    assert desk.answer_of(row) == "42"
    assert desk.counted("jobs_succeeded") == {("", ""): 1}


def test_an_answer_while_the_orphan_is_replayed_recovers_it(desk):
    first, second = desk.owner(), desk.owner()
    row = desk.running(first)
    desk.lose(first)
    replaying = desk.start(row, second, desk.replay()).row

    late = desk.answer(row, first)
    failed = desk.park(replaying, second)

    assert late.state is State.RECOVERED
    assert failed.state is State.RECOVERED
    assert desk.counted("jobs_replayed") == {("orphaned:maybe_sent", "manual/recovered"): 1}


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.RECOVERED])
def test_a_second_answer_changes_nothing_but_its_attempt(desk, state):
    first, second = desk.owner(), desk.owner()
    row = desk.running(first)
    if state is State.SUCCEEDED:
        desk.release(row, first)
        again = desk.start(row, second).row
    else:
        desk.lose(first)
        again = desk.start(row, second, desk.replay()).row
    ended = desk.answer(again, second)
    tokens = desk.counted("tokens")[("output", "ok")]

    after = desk.answer(row, first, value="another")

    assert after == ended
    assert desk.answer_of(row) == "42"
    assert desk.attempts(row)[0].answered
    assert desk.counted("tokens")[("output", "ok")] == tokens + 20


def test_an_answer_for_a_discarded_job_is_kept_until_it_is_wanted(desk):
    owner = desk.owner()
    row = desk.running(owner)
    (orphan,) = desk.lose(owner)
    desk.discard(orphan)

    late = desk.answer(row, owner)
    assert late.state is State.DISCARDED
    assert desk.answer_of(row) is None
    restored = desk.restore(late)

    assert restored.state is State.RECOVERED
    assert desk.answer_of(row) == "42"


def test_the_same_answer_twice_counts_once(desk):
    owner = desk.owner()
    row = desk.running(owner)

    first = desk.answer(row, owner)
    second = desk.answer(row, owner)

    assert first == second
    assert desk.counted("attempts") == {("ok", "ok"): 1}
    assert desk.counted("tokens") == {("input", "ok"): 10, ("output", "ok"): 20}


def test_the_same_failure_twice_counts_one_strike(desk):
    owner = desk.owner()
    row = desk.running(owner)

    desk.retried(row, owner)
    again = desk.retried(row, owner)

    assert again.strikes == 1
    assert desk.counted("attempts") == {("retryable", "overloaded"): 1}


def test_a_late_failure_only_completes_its_attempt(desk):
    owner = desk.owner()
    row = desk.running(owner)
    (orphan,) = desk.lose(owner)

    after = desk.park(row, owner, error_class="permanent:400")

    assert after == orphan
    (attempt,) = desk.attempts(row)
    assert (attempt.interrupted, attempt.reason, attempt.message) == (False, "overloaded", "The model is overloaded.")
    assert desk.counted("attempts") == {("retryable", "cancelled"): 1}
    assert desk.counted("tokens") == {("input", "retryable"): 7}


def test_an_old_failure_does_not_park_a_job_that_is_held_anew(desk):
    owner = desk.owner()
    row = desk.running(owner)
    desk.release(row, owner)
    again = desk.start(row, owner).row

    after = desk.park(row, owner, attempt=1)

    assert after.state is State.RUNNING
    assert desk.now(row) == again


def test_a_job_that_is_handed_back_after_a_failure_keeps_what_it_met(desk, ledger):
    owner = desk.owner()
    row = desk.running(owner)
    closing = op.Closing(kind=Kind.RETRYABLE, reason=Reason.DAILY_QUOTA_EXHAUSTED, status=429)

    released = ledger.record(op.Release(row.id, owner, row.calls, closing, to_the_back=True))

    assert released.state is State.PENDING
    (attempt,) = desk.attempts(row)
    assert (attempt.interrupted, attempt.reason, attempt.strike) == (False, "daily_quota_exhausted", False)


def test_any_answer_comes_back_as_it_was(desk):
    owner = desk.owner()
    value = {"text": "\x00 \ud800 🦆", "n": 10**40, "f": 1e308}
    row = desk.answer(desk.running(owner), owner, value=value)

    assert desk.answer_of(row) == value
    assert codec.encode_answer(value).codec == codec.PLAIN
