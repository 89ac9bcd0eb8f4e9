"""Who is next in line: in order of acceptance within a pipeline, and fairly among pipelines."""

from __future__ import annotations

import pytest

from parked.job import State
from parked.ledger import operations as op
from parked.ledger.operations import Called, Lane
from parked.ledger.store import Filters
from parked.ledger.turns import next_turns

GEMINI = Called("gemini", "")


@pytest.fixture
def owner(desk):
    return desk.owner()


@pytest.fixture
def claimed(ledger, owner):
    """Returns a function that claims and returns the ids of the jobs that were started."""

    def claim(limit, pipeline=None, **more):
        result = ledger.record(op.Claim(pipeline, owner, limit, **more))
        return [started.row.job_id for started in result.started]

    return claim


def accept(desk, pipeline, count, **more):
    for number in range(count):
        desk.accept(f"{pipeline}-{number}", pipeline=pipeline, **more)


def test_a_large_pipeline_keeps_a_small_one_waiting_for_one_turn(desk, claimed):
    accept(desk, "large", 300)
    accept(desk, "small", 2)

    assert claimed(6) == ["large-0", "small-0", "large-1", "small-1", "large-2", "large-3"]


def test_who_probes_is_taken_from_the_far_end_of_the_line(desk, claimed):
    accept(desk, "p", 30)

    assert claimed(1, far_end=True) == ["p-29"]
    assert claimed(1) == ["p-0"]


def test_a_new_pipeline_has_its_turn_within_a_second_of_its_first_job(desk, claimed, wall):
    accept(desk, "large", 300)
    assert claimed(2) == ["large-0", "large-1"]

    accept(desk, "small", 1)
    wall.now += 0.5

    assert claimed(2) == ["large-2", "small-0"]


def test_one_job_at_a_time_every_pipeline_has_its_turn(desk, claimed):
    for pipeline in ("a", "b", "c"):
        accept(desk, pipeline, 3)

    after, order = "", []
    for _ in range(6):
        (job_id,) = claimed(1, after=after)
        order.append(job_id)
        after = job_id[0]

    assert order == ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1"]


def test_a_pipeline_whose_calls_are_slow_gets_no_more_than_its_share(desk, claimed):
    accept(desk, "quick", 5)
    accept(desk, "slow", 5)

    assert claimed(4, in_hand=(("slow", 3), ("quick", 1))) == ["quick-0", "quick-1", "quick-2", "slow-0"]


def test_within_a_pipeline_the_order_of_acceptance_holds_across_models_and_callers(desk, claimed):
    for number, (model, caller) in enumerate([("m-2", "x"), ("m-1", "x"), ("m-2", "y"), ("m-1", "x"), ("m-2", "x")]):
        desk.accept(f"job-{number}", model=model, caller=caller)

    assert claimed(4) == ["job-0", "job-1", "job-2", "job-3"]


@pytest.mark.parametrize("limit", [1, 7, 30, 100])
def test_a_claim_takes_what_somebody_would_take_who_looked_at_all_jobs(desk, ledger, claimed, limit):
    for number in range(40):
        pipeline, model = f"p{min(number % 11, number % 7)}", f"m{number % 3}"
        desk.accept(f"job-{number:02}", pipeline=pipeline, model=model)
    in_hand = {"p0": 3, "p2": 1, "p3": 9}
    with ledger.ask() as reader:
        waiting = list(reader.jobs(Filters(), states=[State.PENDING]))

    expected = next_turns(waiting, limit=limit, in_hand=in_hand, after="p3")

    assert claimed(limit, in_hand=tuple(in_hand.items()), after="p3") == [job.job_id for job in expected]


def test_a_claim_of_one_pipeline_takes_nothing_of_another(desk, claimed):
    accept(desk, "a", 2)
    accept(desk, "b", 2)

    assert claimed(10, pipeline="b") == ["b-0", "b-1"]


def test_a_claim_takes_only_what_can_be_called_and_says_what_it_left(desk, ledger, owner):
    desk.accept("theirs", caller="other:call")
    desk.accept("unchecked", caller="gemini")
    desk.accept("ours", caller="gemini", checker="checks:json")

    claimed = ledger.record(op.Claim(None, owner, 10, served=(Called("gemini", "checks:json"),)))

    assert [started.row.job_id for started in claimed.started] == ["ours"]
    assert set(claimed.left) == {Lane("captions", "other:call", "", "m"), Lane("captions", "gemini", "", "m")}


def test_no_attempt_is_opened_for_a_model_whose_gate_is_closed(desk, ledger, owner):
    accept(desk, "captions", 3, model="limited", caller="gemini")
    desk.accept("free", model="other", caller="gemini")

    claimed = ledger.record(op.Claim(None, owner, 10, served=(GEMINI,), closed=("limited",)))

    assert [started.row.job_id for started in claimed.started] == ["free"]
    assert claimed.left == (Lane("captions", "gemini", "", "limited"),)
    assert len(desk.line()) == 3


def test_a_job_whose_time_has_not_come_holds_up_nobody_and_is_not_said_to_wait(desk, ledger, wall):
    mine = desk.owner()
    early = desk.retried(desk.running(mine), mine, wait_s=60.0)
    desk.release(early, mine)
    due = desk.accept(caller="gemini").row

    claimed = ledger.record(op.Claim(None, mine, 10, served=(GEMINI,)))

    assert [started.row.id for started in claimed.started] == [due.id]
    assert claimed.left == ()


def test_many_lanes_are_all_found(desk, claimed):
    names = [
        (f"p-{n % 3}", f"c-{n % 2}", "schema:1" if n % 5 else "", f"m-{n % 7}") for n in range(60)
    ]  # every step from one lane to the next: another model, check, caller, pipeline
    for number, (pipeline, caller, checker, model) in enumerate(names):
        desk.accept(f"job-{number}", pipeline=pipeline, caller=caller, checker=checker, model=model)

    assert len(claimed(1000)) == 60


def test_a_job_is_due_when_its_time_has_come_and_not_days_later_when_the_clock_was_set_back(
    desk, ledger, owner, claimed, wall
):
    row = desk.running(owner)
    ledger.record(op.Retried(row.id, owner, 1, op.Closing(), strike=True, wait_s=40.0))
    handed_back = ledger.record(op.Release(row.id, owner))
    assert handed_back.not_before == wall.now + 40.0

    assert claimed(1) == []
    assert not handed_back.is_due(wall.now + 39.0)
    assert handed_back.is_due(wall.now + 40.0)
    wall.now -= 3 * 86_400

    assert handed_back.is_due(wall.now)
    assert claimed(1) == [row.job_id]
