"""What processes tell each other through the ledger: gates, probes and pauses."""

from __future__ import annotations

import pytest

from parked.ledger import operations as op
from parked.verdict import Kind, Reason, Scope

OVERLOADED = op.Closing(kind=Kind.RETRYABLE, reason=Reason.OVERLOADED, scope=Scope.MODEL, status=503)
CLOSED = op.GateState("m", "outage", closed_for_s=8.0, probe_interval_s=4.0, outage_for_s=30.0)


@pytest.fixture
def us(desk):
    return desk.owner()


@pytest.fixture
def them(desk):
    return desk.owner()


def consulted(ledger, *gates):
    return ledger.record(op.Consult(gates))


def test_a_gate_that_one_has_closed_is_seen_by_all_with_what_is_left_of_it(ledger, wall):
    consulted(ledger, CLOSED)
    wall.now += 3.0

    (row,) = consulted(ledger).gates

    assert (row.model, row.why, row.closed_for_s, row.outage_for_s) == ("m", "outage", 5.0, 33.0)


def test_a_pace_that_nobody_knows_leaves_what_was_learned(ledger):
    consulted(ledger, op.GateState("m", None, pace_per_s=1.5))
    consulted(ledger, op.GateState("m", "rate", closed_for_s=9.0))

    (row,) = consulted(ledger).gates

    assert (row.why, row.pace_per_s) == ("rate", 1.5)


def test_when_a_pace_was_learnt_is_kept_as_long_as_the_pace(ledger, wall):
    consulted(ledger, op.GateState("m", None, pace_per_s=1.5, pace_learnt_s=100.0))
    wall.now += 50.0
    consulted(ledger, op.GateState("m", "rate", closed_for_s=9.0))

    (row,) = consulted(ledger).gates
    assert (row.pace_per_s, row.pace_learnt_s, row.changed_s) == (1.5, 150.0, 0.0)

    consulted(ledger, op.GateState("m", None, pace_per_s=1.2, pace_learnt_s=1.0))
    with ledger.ask() as reader:
        assert reader.paces() == [("m", 1.2, wall.now - 1.0)]


def test_of_two_that_would_probe_one_goes_and_the_other_waits(ledger, wall, us, them):
    consulted(ledger, CLOSED)

    assert ledger.record(op.ClaimProbe("m", us, 4.0)) == 0.0
    assert ledger.record(op.ClaimProbe("m", them, 4.0)) == 4.0
    wall.now += 4.0
    assert ledger.record(op.ClaimProbe("m", them, 4.0)) == 0.0


def test_where_no_outage_is_noted_anybody_goes(ledger, us):
    assert ledger.record(op.ClaimProbe("m", us, 4.0)) == 0.0
    consulted(ledger, op.GateState("m", None))
    assert ledger.record(op.ClaimProbe("m", us, 4.0)) == 0.0


def test_a_pause_stands_until_a_call_begun_after_its_fault_succeeds(ledger, desk, wall, us):
    desk.accept("a-1", pipeline="p")
    ledger.record(op.SetPause("p", "", "auth_invalid", 10.0, None, us))
    with ledger.ask() as reader:
        (row,) = reader.pauses()
    assert (row.pipeline, row.model, row.reason, row.fault_began_at) == ("p", "", "auth_invalid", wall.now - 10.0)

    assert ledger.record(op.ClearPause("p", "", 20.0)) is False
    assert ledger.record(op.ClearPause("p", "", 5.0)) is True
    assert consulted(ledger).pauses == []


def test_a_pause_that_holds_back_nothing_any_more_is_shown_to_nobody(ledger, desk, us):
    job = desk.accept("a-1", pipeline="p", model="retired").row
    desk.accept("a-2", pipeline="p", model="other")
    ledger.record(op.SetPause("p", "retired", "model_not_found", 10.0, None, us))

    def shown():
        with ledger.ask() as reader:
            return [pause.model for pause in reader.pauses()]

    assert shown() == ["retired"]
    ledger.record(op.Discard(job.id, "the model is gone"))
    assert shown() == []


def test_a_pause_knows_when_its_cause_ends(ledger, wall, us):
    ledger.record(op.SetPause("p", "m", "daily_quota_exhausted", 1.0, 3600.0, us))

    (row,) = consulted(ledger).pauses

    assert row.until == wall.now + 3600.0


def test_a_strike_that_an_outage_explains_is_taken_back(ledger, desk, us):
    row = desk.accept("a-1", start_for=us).row
    struck = ledger.record(op.Retried(row.id, us, 1, OVERLOADED, strike=True, wait_s=2.0))
    assert struck.strikes == 1

    forgiven = ledger.record(op.Forgive(row.id, us, 1))

    assert forgiven.strikes == 0
    with ledger.ask() as reader:
        assert [attempt.strike for attempt in reader.attempts(row.id)] == [False]


def test_nobody_else_takes_back_a_strike(ledger, desk, us, them):
    row = desk.accept("a-1", start_for=us).row
    ledger.record(op.Retried(row.id, us, 1, OVERLOADED, strike=True, wait_s=2.0))

    assert ledger.record(op.Forgive(row.id, them, 1)).strikes == 1


def test_a_job_that_is_released_keeps_its_strikes_or_has_as_many_as_said(ledger, desk, us):
    row = desk.accept("a-1", start_for=us).row

    released = ledger.record(op.Release(row.id, us, attempt=1, to_the_back=True, strikes=3))

    assert (released.state, released.strikes) == ("pending", 3)
