"""Whose fault it is, with plain values."""

from __future__ import annotations

import pytest

from nights import failed
from parked.pauses import ALL, TRIES, Doubt, Doubts, Step, is_everybodys
from parked.verdict import Reason

DEAD_KEY, DENIED, RETIRED = (
    failed(Reason.AUTH_INVALID),
    failed(Reason.PERMISSION_DENIED),
    failed(Reason.MODEL_NOT_FOUND),
)


@pytest.fixture
def doubts() -> Doubts:
    return Doubts(stop_after_alike=3)


def only(doubts: Doubts) -> Doubt:
    (doubt,) = doubts
    return doubt


def test_one_witness_stops_nobody_else(doubts):
    assert not doubts.fault(1, DEAD_KEY, "m", started_n=1, had_chance=False)

    assert doubts.has_met(1)
    assert not doubts.holding("m")


def test_a_second_job_holds_every_model_for_a_fault_of_the_project(doubts):
    doubts.fault(1, DEAD_KEY, "a", started_n=1, had_chance=False)
    doubts.fault(2, DEAD_KEY, "b", started_n=2, had_chance=False)

    assert only(doubts).scope == ALL
    assert doubts.holding("c")


def test_a_models_fault_holds_that_model(doubts):
    doubts.fault(1, RETIRED, "a", started_n=1, had_chance=False)
    doubts.fault(2, RETIRED, "a", started_n=2, had_chance=False)

    assert doubts.holding("a")
    assert not doubts.holding("b")


def test_the_same_job_twice_is_one_witness(doubts):
    doubts.fault(1, DEAD_KEY, "m", started_n=1, had_chance=False)
    doubts.fault(1, DEAD_KEY, "m", started_n=5, had_chance=False)

    assert not doubts.holding("m")


def test_a_success_that_began_later_frees_who_met_it_and_one_that_began_sooner_frees_nobody(doubts):
    doubts.fault(1, DENIED, "m", started_n=5, had_chance=False)
    doubts.fault(2, DENIED, "m", started_n=8, had_chance=False)

    assert doubts.succeeded("m", started_n=4).jobs == []
    assert doubts.succeeded("m", started_n=6).jobs == [1]
    assert not doubts.holding("m")
    assert doubts.succeeded("m", started_n=9) == ([2], [ALL])


def test_a_job_that_meets_it_again_after_its_chance_has_it_of_its_own(doubts):
    doubts.fault(1, DENIED, "m", started_n=5, had_chance=False)
    doubts.succeeded("m", started_n=6)

    assert doubts.fault(1, DENIED, "m", started_n=7, had_chance=True)


def test_a_chance_that_came_with_a_fault_of_others_is_no_proof(doubts):
    doubts.fault(2, DENIED, "m", started_n=6, had_chance=False)

    assert not doubts.fault(1, DENIED, "m", started_n=7, had_chance=True)


STEPS = [
    ("no hold", Doubt("m", Reason.AUTH_INVALID), {"running": 1, "untried": 0, "more": False}, Step.GO_ON),
    ("others wait", Doubt("m", Reason.AUTH_INVALID), {"running": 0, "untried": 1, "more": False}, Step.GO_ON),
    ("others may come", Doubt("m", Reason.AUTH_INVALID), {"running": 0, "untried": 0, "more": True}, Step.GO_ON),
    ("alone, a key", Doubt("m", Reason.AUTH_INVALID), {"running": 0, "untried": 0, "more": False}, Step.PAUSE),
    ("alone, a file", Doubt("m", Reason.PERMISSION_DENIED), {"running": 0, "untried": 0, "more": False}, Step.OWN),
    ("calls run", Doubt("m", Reason.AUTH_INVALID, holding=True), {"running": 1, "untried": 3, "more": True}, Step.HOLD),
    ("all back", Doubt("m", Reason.AUTH_INVALID, holding=True), {"running": 0, "untried": 3, "more": True}, Step.TRY),
    (
        "being read",
        Doubt("m", Reason.AUTH_INVALID, holding=True),
        {"running": 0, "untried": 0, "more": True},
        Step.HOLD,
    ),
    ("nobody", Doubt("m", Reason.AUTH_INVALID, holding=True), {"running": 0, "untried": 0, "more": False}, Step.PAUSE),
]


@pytest.mark.parametrize(("doubt", "seen", "step"), [each[1:] for each in STEPS], ids=[each[0] for each in STEPS])
def test_what_a_doubt_calls_for(doubt, seen, step):
    assert doubt.step(**seen) is step


def test_a_dead_key_is_confirmed_by_one_job_and_what_a_payload_can_cause_by_several():
    assert Doubt(ALL, Reason.AUTH_INVALID, confirmed=1).is_confirmed
    assert not Doubt(ALL, Reason.PERMISSION_DENIED, confirmed=TRIES - 1).is_confirmed
    assert Doubt(ALL, Reason.PERMISSION_DENIED, confirmed=TRIES).is_confirmed


def test_so_many_failures_alike_in_a_row_hold_and_a_success_breaks_the_row(doubts):
    for job in (1, 2):
        doubts.alike(job, failed(Reason.EMPTY_ANSWER), "m", started_n=job)
    doubts.succeeded("m", started_n=3)
    for job in (3, 4):
        doubts.alike(job, failed(Reason.EMPTY_ANSWER), "m", started_n=job)
    assert not doubts.holding("m")

    doubts.alike(5, failed(Reason.EMPTY_ANSWER), "m", started_n=5)
    assert doubts.holding("m")


def test_another_fingerprint_begins_another_row(doubts):
    for job, reason in enumerate([Reason.EMPTY_ANSWER, Reason.EMPTY_ANSWER, Reason.RECITATION, Reason.EMPTY_ANSWER]):
        doubts.alike(job, failed(reason), "m", started_n=job)

    assert not doubts.holding("m")


def test_a_row_is_never_looked_at_where_that_is_off():
    doubts = Doubts(stop_after_alike=0)
    for job in range(100):
        doubts.alike(job, failed(Reason.EMPTY_ANSWER), "m", started_n=job)

    assert not doubts.holding("m")


def test_a_pause_that_was_found_is_cleared_only_by_a_call_begun_since(doubts):
    doubts.from_elsewhere(ALL, Reason.AUTH_INVALID, n=10)

    assert doubts.succeeded("m", started_n=9).scopes == []
    assert doubts.holding("m")
    assert doubts.succeeded("m", started_n=11).scopes == [ALL]
    assert not doubts.holding("m")


def test_what_waiting_mends_is_nobodys_to_pause():
    assert not is_everybodys(failed(Reason.OVERLOADED))
    assert not is_everybodys(failed(Reason.PROMPT_BLOCKED))
    assert is_everybodys(failed(Reason.BILLING_REQUIRED))
