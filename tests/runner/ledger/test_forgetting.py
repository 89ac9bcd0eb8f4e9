"""Retention: finished jobs go, counted as forgotten; what nobody has seen yet stays."""

from __future__ import annotations

import pytest

from parked.job import State
from parked.ledger import operations as op
from parked.ledger.store import Filters

LATER = 1e12


@pytest.fixture
def owner(desk):
    return desk.owner()


@pytest.fixture
def forgettable(ledger):
    """Returns a function that names the jobs that may go."""

    def ask(before=LATER, after=0, limit=100):
        with ledger.ask() as reader:
            return reader.forgettable(before, after=after, limit=limit)

    return ask


@pytest.fixture
def finished(desk, ledger, owner):
    """An answered job that was handed out, a recovered one that was, and a discarded one."""
    answered = desk.answer(desk.running(owner), owner)
    parked = desk.park(desk.running(owner), owner)
    replay = ledger.record(op.OpenReplay("r", "me", "{}"))
    recovered = desk.answer(desk.start(parked, owner, replay).row, owner)
    discarded = ledger.record(op.Discard(desk.park(desk.running(owner), owner).id, "of no use"))
    ledger.record(op.HandOut((answered.id, recovered.id)))
    return [answered, recovered, discarded]


def test_a_finished_job_goes_with_all_that_belongs_to_it(desk, ledger, finished, forgettable):
    assert forgettable() == [row.id for row in finished]

    assert ledger.record(op.Forget(tuple(row.id for row in finished))) == 3

    with ledger.ask() as reader:
        assert list(reader.jobs(Filters(), states=list(State))) == []
        assert [reader.attempts(row.id) for row in finished] == [[], [], []]
        assert reader.answer(finished[0].id) is None
        counted = {row.a: row.value for row in reader.counters("ledger_jobs") if row.value}
        assert counted == {State.FORGOTTEN: 3}
        assert [row.value for row in reader.counters("jobs_accepted")] == [3]
    assert desk.imbalances() == []


def test_what_is_not_finished_or_was_not_handed_out_stays(desk, ledger, owner, forgettable):
    rows = [desk.pending(), desk.running(owner), desk.park(desk.running(owner), owner)]
    rows.append(desk.answer(desk.running(owner), owner))

    assert forgettable() == []
    assert ledger.record(op.Forget(tuple(row.id for row in rows))) == 0

    with ledger.ask() as reader:
        assert len(list(reader.jobs(Filters(), states=list(State)))) == 4


def test_an_erased_answer_that_nobody_can_be_handed_does_not_keep_its_job(desk, ledger, owner, forgettable):
    row = desk.answer(desk.running(owner), owner)
    ledger.record(op.Erase(row.id, "asked for"))

    assert forgettable() == [row.id]


def test_only_what_finished_before_that_time_may_go_a_page_at_a_time(finished, forgettable):
    first, *rest = [row.id for row in finished]

    assert forgettable(before=finished[0].finished_at) == []
    assert forgettable(limit=1) == [first]
    assert forgettable(after=first) == rest


def test_a_job_that_was_forgotten_can_be_accepted_anew(desk, ledger, finished):
    ledger.record(op.Forget((finished[0].id,)))

    again = desk.accept(finished[0].job_id, pipeline=finished[0].pipeline)

    assert again.created
    assert again.row.id > finished[-1].id  # ids are never used again: a late answer names the one it had


def test_a_late_answer_of_a_forgotten_job_is_refused(desk, ledger, owner, finished):
    from parked.errors import TransitionError

    ledger.record(op.Forget((finished[0].id,)))

    with pytest.raises(TransitionError):
        desk.answer(finished[0], owner)
