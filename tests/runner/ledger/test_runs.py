"""Which owner runs which pipeline: at most one that wants to be alone, and nothing is left behind unseen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from parked.errors import OwnerLost
from parked.ledger import Ledger, open_ledger
from parked.ledger import operations as op

GEMINI = op.Called("parked.gemini:Gemini", "")
OTHERS = op.Called("mine:call", "")
CAPTIONS = op.Run("captions", GEMINI)
OF_A_RUN = {"caller": GEMINI.caller, "checker": GEMINI.checker}


def enter(desk: Any, owner: int, run: op.Run = CAPTIONS, *, alone: bool = True) -> int | None:
    """The id of the owner that runs the pipeline already."""
    other = desk.ledger.record(op.EnterRun(owner, run, alone))
    return None if other is None else int(other.id)


def leave(desk: Any, owner: int, unless: op.Run | None = CAPTIONS, **more: Any) -> bool:
    left: bool = desk.ledger.record(op.LeaveRun(owner, unless, **more))
    return left


def owner_row(ledger: Ledger, id: int) -> op.OwnerRow:
    with ledger.ask() as reader:
        return {owner.id: owner for owner in reader.owners()}[id]


def test_whoever_wants_to_be_alone_is_told_who_runs_the_pipeline_since_when_and_how(desk, wall):
    first = desk.owner(host="cron-1", pid=4711)
    assert enter(desk, first, alone=False) is None

    other = desk.ledger.record(op.EnterRun(desk.owner(), op.Run("captions", OTHERS), alone=True))

    assert (other.id, other.facts.host, other.facts.pid, other.run) == (first, "cron-1", 4711, CAPTIONS)
    assert other.run_began_at == wall.now


def test_runs_of_other_pipelines_and_runs_that_are_over_are_in_nobodys_way(desk):
    first, second = desk.owner(), desk.owner()
    enter(desk, first)

    assert enter(desk, second, op.Run("titles", GEMINI)) is None
    assert leave(desk, first)
    assert enter(desk, second) is None
    assert enter(desk, first) == second


@pytest.mark.parametrize("end", ["lost", "ended"])
def test_an_owner_that_is_lost_or_has_ended_runs_nothing(desk, end):
    first, second = desk.owner(), desk.owner()
    enter(desk, first)

    desk.ledger.record(op.Lose({first: 0}) if end == "lost" else op.Leave(first))

    assert enter(desk, second) is None
    with pytest.raises(OwnerLost):
        enter(desk, first, alone=False)


def test_of_many_that_want_to_be_alone_at_the_same_moment_one_is(desk):
    owners = [desk.owner() for _ in range(6)]
    ledgers = [open_ledger(desk.ledger.url) for _ in owners]

    with ThreadPoolExecutor(len(owners)) as pool:
        others = list(
            pool.map(lambda ledger, owner: ledger.record(op.EnterRun(owner, CAPTIONS, True)), ledgers, owners)
        )

    for ledger in ledgers:
        ledger.close()
    assert others.count(None) == 1
    assert {other.id for other in others if other is not None} == {owners[others.index(None)]}


def test_nobody_leaves_while_jobs_wait_that_were_accepted_for_it(desk):
    first, second = desk.owner(), desk.owner()
    enter(desk, first)
    job = desk.accept(**OF_A_RUN).row
    assert enter(desk, second) == first, "whoever handed the job over counts on the first"

    assert not leave(desk, first)
    assert enter(desk, second) == first
    desk.start(job, first)
    assert leave(desk, first)


def test_jobs_for_others_and_for_models_that_are_closed_hold_nobody(desk):
    first = desk.owner()
    enter(desk, first)
    desk.accept(**OF_A_RUN | {"caller": "mine:call"})
    desk.accept(**OF_A_RUN, pipeline="titles")
    desk.accept(**OF_A_RUN, model="retired")

    assert not leave(desk, first)
    assert leave(desk, first, closed=("retired",))


def test_whoever_must_leave_leaves_whatever_waits(desk):
    first = desk.owner()
    enter(desk, first)
    desk.accept(**OF_A_RUN)

    assert leave(desk, first, unless=None)
    assert enter(desk, desk.owner()) is None


def test_a_run_that_was_declared_lost_enters_again_as_it_goes_on(desk):
    ledger = desk.ledger
    assert ledger.enter_run(CAPTIONS) is None
    lost = ledger.owner_id
    while (found := owner_row(ledger, lost)).lost_at is None:
        ledger.record(op.Lose({lost: found.beat}))

    assert ledger.sweep() == []
    assert ledger.owner_id != lost
    assert enter(desk, desk.owner()) == ledger.owner_id
    assert ledger.leave_run()
    assert enter(desk, desk.owner()) is None
