"""Known jobs that are accepted again with another model: those that are pending go to it, and no others."""

from __future__ import annotations

import pytest

from parked.errors import JobConflict
from parked.job import State
from parked.ledger import operations as op
from parked.ledger.counters import Metric
from parked.ledger.moves import ANOTHER_MODEL
from parked.ledger.operations import Called
from parked.ledger.store import Revision


def sent_for(desk, row):
    """Which payload and which model a job is sent with."""
    with desk.ledger.ask() as reader:
        (sent,) = reader.jobs_with_payloads([row.id])
        return sent.payload, sent.model


def test_a_pending_job_goes_to_the_other_model_and_tells_which_it_had(desk):
    first = desk.accept("a", model="retired").row

    again = desk.accept("a", model="new")

    assert (again.created, again.was_model, again.row.model, again.row.revision) == (False, "retired", "new", 1)
    assert desk.now(first) == again.row
    assert again.row == first._replace(model="new", revision=1)


def test_what_it_sends_is_what_it_was_accepted_with(desk):
    row = desk.accept("a", model="retired").row
    payload, _ = sent_for(desk, row)

    desk.accept("a", model="new")

    assert sent_for(desk, row) == (payload, "new")


def test_it_stands_in_the_lane_of_the_other_model_and_no_more_in_the_first(desk):
    desk.accept("a", model="retired")
    desk.accept("a", model="new")

    claimed = desk.ledger.record(op.Claim(None, desk.owner(), 10, closed=("retired",)))

    assert [(started.row.job_id, started.row.model) for started in claimed.started] == [("a", "new")]
    assert claimed.left == ()
    assert desk.ledger.record(op.Claim(None, desk.owner(), 10, served=(Called("", ""),))).started == []


def test_its_attempts_tell_with_which_model_each_was_made(desk):
    owner = desk.owner()
    row = desk.accept("a", model="retired", start_for=owner).row
    desk.release(row, owner, closing=op.Closing(), attempt=1)
    desk.accept("a", model="better")
    desk.accept("a", model="best", start_for=owner)

    assert [(attempt.number, attempt.revision, attempt.model) for attempt in desk.attempts(row)] == [
        (1, 0, "retired"), (2, 2, "best"),
    ]  # fmt: skip


def test_what_counted_against_it_with_the_first_model_is_forgotten(desk, wall):
    owner = desk.owner()
    row = desk.accept("a", model="retired", start_for=owner).row
    row = desk.retried(row, owner, wait_s=600.0)
    row = desk.release(row, owner, strikes=3)
    assert (row.strikes, row.not_before) == (3, wall.now + 600.0)

    moved = desk.accept("a", model="new").row

    assert (moved.strikes, moved.not_before, moved.calls) == (0, None, 1)


def test_it_can_be_started_at_once_with_the_other_model(desk):
    desk.accept("a", model="retired")

    started = desk.accept("a", model="new", start_for=desk.owner())

    assert (started.row.state, started.row.model, started.was_model) == (State.RUNNING, "new", "retired")
    assert started.attempt == 1


@pytest.mark.parametrize("state", [state for state in State if state not in (State.PENDING, State.FORGOTTEN)])
def test_a_job_that_is_not_pending_keeps_its_model(desk, state):
    row = desk.in_state(state, desk.owner())

    again = desk.accept(row.job_id, model="new")

    assert (again.row, again.was_model) == (row, None)
    assert desk.now(row) == row


def test_another_payload_is_a_conflict_with_another_model_too(desk):
    row = desk.accept("a", model="retired").row

    with pytest.raises(JobConflict):
        desk.accept("a", payload="another", model="new")

    assert desk.now(row) == row


def test_who_read_the_job_before_does_not_start_it_with_the_first_model(desk):
    read = desk.accept("a", model="retired").row
    moved = desk.accept("a", model="new").row

    late = desk.ledger.record(op.Start(read.id, desk.owner(), revision=read.revision))
    started = desk.ledger.record(op.Start(read.id, desk.owner(), revision=moved.revision))

    assert late == op.Held(moved)
    assert (started.row.model, started.attempt) == ("new", 1)


def test_whoever_came_last_before_the_start_has_it_run_with_its_model(desk):
    here = desk.accept("a", model="one").row
    there = desk.accept("a", model="two").row
    here = desk.accept("a", model="one").row

    assert desk.ledger.record(op.Start(there.id, desk.owner(), revision=there.revision)) == op.Held(here)
    assert desk.ledger.record(op.Start(here.id, desk.owner(), revision=here.revision)).row.model == "one"


def test_a_moved_job_can_be_mended_for_its_replays_once_it_is_parked(desk):
    desk.accept("a", model="retired")
    owner = desk.owner()
    row = desk.park(desk.accept("a", model="new", start_for=owner).row, owner)

    mended = desk.ledger.record(op.Mend(row.id, model="newer", note="replay 1"))

    assert (mended.model, mended.revision) == ("new", 2)
    assert sent_for(desk, row)[1] == "newer"


def test_it_is_accepted_once_and_counts_with_the_model_that_it_is_run_with(desk):
    owner = desk.owner()
    desk.accept("a", model="retired")
    row = desk.accept("a", model="new", start_for=owner).row
    desk.park(row, owner)

    with desk.ledger.ask() as reader:
        accepted = {row.model: row.value for row in reader.counters(Metric.JOBS_ACCEPTED)}
        parked = {row.model: row.value for row in reader.counters(Metric.JOBS_PARKED)}
    assert (accepted, parked) == ({"retired": 1, "new": 0}, {"new": 1})


def test_the_history_tells_with_which_models_it_was_to_be_sent_since_when(desk, wall):
    accepted_at = wall.now
    row = desk.accept("a", model="retired").row
    wall.now += 60
    desk.accept("a", model="new")

    with desk.ledger.ask() as reader:
        assert reader.revisions(row.id) == [
            Revision(0, "retired", accepted_at, None), Revision(1, "new", accepted_at + 60, ANOTHER_MODEL),
        ]  # fmt: skip
