"""Every state meets every event, through the operations: what the table lists happens, and nothing else."""

from __future__ import annotations

import pytest

from parked.errors import OwnerLost, TransitionError
from parked.job import HELD, TRANSITIONS, Event, State
from parked.ledger import operations as op
from parked.ledger.operations import JobRow

STATES = [state for state in State if state is not State.FORGOTTEN]


def _fire(event: Event, desk, row: JobRow, owner: int) -> None:
    """Send the operation that carries this event."""
    match event:
        case Event.START:
            desk.start(row, desk.owner())
        case Event.CLAIM:
            desk.start(row, desk.owner(), desk.replay())
        case Event.RETRY:
            desk.retried(row, owner)
        case Event.ANSWER:
            desk.answer(row, owner)
        case Event.GIVE_UP:
            desk.park(row, owner)
        case Event.OWNER_LOST:
            desk.lose(owner)
        case Event.RELEASE:
            desk.release(row, owner)
        case Event.LATE_ANSWER:
            desk.answer(row, desk.owner())
        case Event.DISCARD:
            desk.discard(row)
        case Event.RESTORE:
            desk.restore(row)
        case _:
            raise ValueError(event)


EVENTS_OF_KNOWN_JOBS = [event for event in Event if event not in (Event.ACCEPT, Event.TAKE_OVER, Event.FORGET)]
# A person is told that it can't be done. Of a process it is no mistake: somebody else was faster.
REFUSED = (Event.DISCARD, Event.RESTORE)


@pytest.mark.parametrize("event", EVENTS_OF_KNOWN_JOBS)
@pytest.mark.parametrize("state", STATES)
def test_a_job_moves_as_the_table_says_and_else_stays_where_it_is(desk, state, event):
    owner = desk.owner()
    row = desk.in_state(state, owner)
    expected = TRANSITIONS.get((state, event))
    if (state, event) == (State.DISCARDED, Event.RESTORE):
        expected = State.PENDING
    if event is Event.ANSWER and state not in HELD:
        # Its owner lost the job meanwhile (here it never held it again), so that the answer is late.
        expected = TRANSITIONS[state, Event.LATE_ANSWER]

    if expected is None and event in REFUSED:
        with pytest.raises(TransitionError, match=f"{state} has no event '{event}'"):
            _fire(event, desk, row, owner)
    else:
        _fire(event, desk, row, owner)

    assert desk.now(row).state is (expected or state)


def test_a_job_is_accepted_as_pending_and_its_payload_kept(desk, ledger):
    accepted = desk.accept("a-1", {"contents": "hi"})

    assert accepted.created
    assert accepted.row.state is State.PENDING
    assert desk.now(accepted.row) == accepted.row
    with ledger.ask() as reader:
        assert reader.payload(accepted.row.id).data == b'{"contents":"hi"}'


def test_a_job_that_is_accepted_and_started_in_one_has_an_open_attempt(desk):
    accepted = desk.accept(start_for=desk.owner())

    assert accepted.row.state is State.RUNNING
    assert accepted.attempt == 1
    (attempt,) = desk.attempts(accepted.row)
    assert (attempt.number, attempt.ended_at) == (1, None)


def test_a_pending_job_is_started_by_the_next_accept_of_it(desk):
    desk.accept("a-1")

    again = desk.accept("a-1", start_for=desk.owner())

    assert not again.created
    assert again.attempt == 1
    assert again.row.state is State.RUNNING


def test_a_job_that_somebody_runs_is_left_to_him(desk):
    first = desk.owner()
    desk.accept("a-1", start_for=first)

    again = desk.accept("a-1", start_for=desk.owner())

    assert again.attempt is None
    assert again.row.owner_id == first


def test_a_retry_opens_the_next_attempt_and_counts_its_strike(desk, wall):
    owner = desk.owner()
    row = desk.running(owner)

    waiting = desk.retried(row, owner, wait_s=34.0)
    started = desk.start_again(row, owner)

    assert (waiting.strikes, waiting.not_before) == (1, wall.now + 34.0)
    assert started.attempt == 2
    assert [attempt.strike for attempt in desk.attempts(row)] == [True, False]


def test_starting_again_before_the_attempt_was_closed_is_a_bug(desk):
    owner = desk.owner()
    row = desk.running(owner)

    with pytest.raises(TransitionError):
        desk.start_again(row, owner)


def test_a_second_course_of_the_same_owner_finds_the_job_held(desk):
    owner = desk.owner()
    row = desk.running(owner)
    desk.retried(row, owner)
    again = desk.start_again(row, owner).row
    desk.retried(again, owner)

    stale = desk.start_again(row, owner)
    fresh = desk.start(row, owner)

    assert isinstance(stale, op.Held)
    assert isinstance(fresh, op.Held)


def test_an_owner_that_was_declared_lost_starts_nothing(desk, ledger):
    owner = desk.owner()
    desk.lose(owner)
    row = desk.pending()

    with pytest.raises(OwnerLost):
        desk.start(row, owner)
    with pytest.raises(OwnerLost):
        ledger.record(op.Claim("captions", owner, 1))
    with pytest.raises(OwnerLost):
        desk.accept("new", start_for=owner)


def test_a_parked_job_says_what_it_met_and_when_it_may_be_tried_again(desk, wall):
    owner = desk.owner()

    row = desk.park(desk.running(owner), owner, wait_s=60.0)

    assert (row.error_class, row.reason, row.kind, row.fingerprint) == (
        "exhausted:503",
        "overloaded",
        "retryable",
        "f503",
    )
    assert (row.parked_at, row.not_before, row.owner_id) == (wall.now, wall.now + 60.0, None)
    (attempt,) = desk.attempts(row)
    assert (attempt.status, attempt.message, attempt.rule) == (503, "The model is overloaded.", "http.503")


def test_a_replay_starts_with_no_strikes_while_calls_go_on_counting(desk):
    row = desk.parked()

    started = desk.start(row, desk.owner(), desk.replay())

    assert (row.strikes, row.calls) == (1, 1)
    assert (started.row.strikes, started.row.calls, started.row.replays) == (0, 2, 1)


def test_a_job_that_was_handed_back_keeps_its_strikes(desk):
    owner = desk.owner()
    row = desk.retried(desk.running(owner), owner)
    row = desk.release(row, owner)

    started = desk.start(row, owner)

    assert started.row.strikes == 1


def test_a_release_closes_the_open_attempt_as_interrupted(desk):
    owner = desk.owner()

    row = desk.release(desk.running(owner), owner)

    assert row.state is State.PENDING
    (attempt,) = desk.attempts(row)
    assert (attempt.interrupted, attempt.kind, attempt.reason) == (True, "retryable", "cancelled")


def test_a_released_replay_is_parked_with_the_class_it_had(desk):
    owner = desk.owner()
    row = desk.replaying(owner, error_class="permanent:400")

    released = desk.release(row, owner)

    assert released.state is State.PARKED
    assert (released.error_class, released.parked_at) == ("permanent:400", row.parked_at)


def test_jobs_are_claimed_in_order_of_place_with_their_payloads(desk, ledger):
    rows = [desk.accept(payload={"n": n}).row for n in range(3)]

    claimed = ledger.record(op.Claim("captions", desk.owner(), 2)).started

    assert [started.row.id for started in claimed] == [rows[0].id, rows[1].id]
    assert [started.payload.data for started in claimed] == [b'{"n":0}', b'{"n":1}']
    assert {started.row.state for started in claimed} == {State.RUNNING}


def test_what_goes_to_the_back_is_claimed_last(desk):
    owner = desk.owner()
    first, second = desk.running(owner), desk.pending()

    desk.release(first, owner, to_the_back=True)

    assert desk.line() == [second.job_id, first.job_id]


def test_a_failed_replay_goes_behind_all_that_are_parked(desk):
    owner = desk.owner()
    first = desk.parked()
    second = desk.parked()

    row = desk.start(first, owner, desk.replay()).row
    desk.park(row, owner)

    assert desk.line(State.PARKED) == [second.job_id, first.job_id]


def test_a_job_is_claimed_only_once_its_time_has_come(desk, ledger, wall):
    owner = desk.owner()
    row = desk.retried(desk.running(owner), owner, wait_s=60.0)
    desk.release(row, owner)

    early = ledger.record(op.Claim("captions", owner, 10))
    wall.now += 60.0
    later = ledger.record(op.Claim("captions", owner, 10))

    assert (len(early.started), len(later.started)) == (0, 1)


def test_a_discarded_job_comes_back_to_where_it_was(desk):
    parked = desk.parked()
    pending = desk.pending()

    back = [desk.restore(desk.discard(row)) for row in (parked, pending)]

    assert [row.state for row in back] == [State.PARKED, State.PENDING]
    assert back[0] == parked
    assert back[1] == pending


def test_why_a_job_was_discarded_stands_in_its_row(desk):
    assert desk.discard(desk.parked()).note == "no longer wanted"
