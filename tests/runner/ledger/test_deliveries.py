"""Answers of recovered jobs on their way to a function of the user's; and how often a job was replayed by itself."""

from __future__ import annotations

import pytest

from parked.job import State
from parked.ledger import operations as op

NEVER = 1e12


@pytest.fixture
def owner(desk):
    return desk.owner()


@pytest.fixture
def due(ledger, wall):
    """Returns a function that names the jobs whose answers are due, each with how often they were tried."""

    def ask(since=NEVER, limit=100):
        with ledger.ask() as reader:
            found = reader.undelivered(since=since, now=wall.now, limit=limit)
        return [(one.answer.job.id, one.tries) for one in found]

    return ask


def recovered(desk, owner):
    return desk.answer(desk.replaying(owner), owner)


def test_the_answer_of_a_recovered_job_is_due_until_it_was_taken_and_then_handed_out(desk, ledger, owner, due):
    desk.answer(desk.running(owner), owner)  # a run hands its answers out itself
    row = recovered(desk, owner)

    assert due() == [(row.id, 0)]

    ledger.record(op.NoteDelivery(row.id))

    assert due() == []
    with ledger.ask() as reader:
        answer = reader.answer(row.id)
    assert answer is not None
    assert answer.handed_out_at is not None


def test_one_that_failed_is_due_again_after_its_wait_and_never_after_the_last(desk, ledger, owner, due, wall):
    row = recovered(desk, owner)

    ledger.record(op.NoteDelivery(row.id, fault="OSError", wait_s=30.0))
    assert due() == []
    wall.now += 30.0
    assert due() == [(row.id, 1)]

    ledger.record(op.NoteDelivery(row.id, fault="OSError"))
    wall.now += 1e6
    assert due() == []
    with ledger.ask() as reader:
        answer = reader.answer(row.id)
    assert answer is not None
    assert answer.handed_out_at is None  # it is left for `parked answers --new`


def test_a_clock_that_is_set_back_holds_no_answer_for_days(desk, ledger, owner, due, wall):
    row = recovered(desk, owner)
    ledger.record(op.NoteDelivery(row.id, fault="OSError", wait_s=30.0))

    wall.now -= 7 * 86_400.0

    assert due() == [(row.id, 1)]


def test_an_answer_that_was_handed_out_is_due_only_if_it_came_after_deliveries_began(desk, ledger, owner, due, wall):
    row = recovered(desk, owner)
    ledger.record(op.HandOut((row.id,)))

    assert due(since=wall.now + 1) == []
    assert due(since=wall.now) == [(row.id, 0)]


def test_an_answer_that_came_late_for_a_parked_job_is_due(desk, ledger, owner, due):
    lost = desk.running(owner)
    desk.lose(owner)

    row = desk.answer(lost, owner, attempt=1)

    assert row.state is State.RECOVERED
    assert due() == [(row.id, 0)]


def test_a_job_that_is_restored_with_an_answer_is_due(desk, ledger, owner, due):
    lost = desk.running(owner)
    desk.lose(owner)
    desk.discard(lost)
    desk.answer(lost, owner, attempt=1)
    assert due() == []

    row = desk.restore(lost)

    assert row.state is State.RECOVERED
    assert due() == [(row.id, 0)]


def test_an_erased_answer_is_delivered_to_nobody(desk, ledger, owner, due):
    ledger.record(op.Erase(recovered(desk, owner).id, "asked for"))

    assert due() == []


def test_the_longest_due_goes_first_a_page_at_a_time(desk, ledger, owner, due, wall):
    rows = []
    for _ in range(3):
        rows.append(recovered(desk, owner))
        wall.now += 1.0

    assert due(limit=2) == [(row.id, 0) for row in rows[:2]]


def test_deliveries_are_counted_by_what_came_of_them(desk, ledger, owner):
    first, second = recovered(desk, owner), recovered(desk, owner)
    ledger.record(op.NoteDelivery(first.id, fault="OSError", wait_s=1.0))
    ledger.record(op.NoteDelivery(first.id))
    ledger.record(op.NoteDelivery(second.id, fault="OSError"))
    ledger.record(op.HandOut((first.id,)))
    ledger.record(op.Forget((first.id,)))
    ledger.record(op.NoteDelivery(first.id))  # forgotten meanwhile

    with ledger.ask() as reader:
        counted = {row.a: row.value for row in reader.counters("deliveries")}
    assert counted == {"failed": 1, "delivered": 1, "given_up": 1}
    assert desk.imbalances() == []


# --- how often by itself -----------------------------------------------------------------------------------------


def test_only_replays_that_a_sidecar_began_count_as_such(desk, ledger, owner):
    parked = desk.park(desk.replaying(owner), owner)
    assert (parked.replays, parked.auto_replays) == (1, 0)

    for times in (1, 2):
        parked = desk.park(desk.start(parked, owner, desk.replay("auto")).row, owner)
        assert (parked.replays, parked.auto_replays) == (times + 1, times)


def test_one_that_was_handed_back_does_not_count(desk, ledger, owner):
    held = desk.start(desk.parked(), owner, desk.replay("auto")).row
    assert held.auto_replays == 1

    assert desk.release(held, owner).auto_replays == 0


def test_one_whose_process_died_counts(desk, ledger, owner):
    held = desk.start(desk.parked(), owner, desk.replay("auto")).row

    (parked,) = desk.lose(owner)

    assert (parked.id, parked.error_class, parked.auto_replays) == (held.id, "orphaned:maybe_sent", 1)


def test_a_replay_that_fails_is_counted_with_its_trigger_and_not_as_parked_by_a_run(desk, ledger, owner):
    parked = desk.parked()
    parked = desk.park(desk.start(parked, owner, desk.replay("auto")).row, owner)
    parked = desk.release(desk.start(parked, owner, desk.replay("auto")).row, owner)
    held = desk.start(parked, owner, desk.replay("auto")).row
    desk.lose(owner)
    other = desk.owner()
    desk.answer(desk.start(held, other, desk.replay("auto")).row, other)

    with ledger.ask() as reader:
        by_runs = [row.value for row in reader.counters("jobs_parked")]
        replayed = {(row.a, row.b): row.value for row in reader.counters("jobs_replayed")}
    assert by_runs == [1]
    assert replayed == {
        ("exhausted:503", "auto/parked_again"): 2,
        ("exhausted:503", "auto/released"): 1,
        ("orphaned:maybe_sent", "auto/recovered"): 1,
    }
    assert desk.imbalances() == []
