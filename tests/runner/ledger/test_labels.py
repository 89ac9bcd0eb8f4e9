"""What jobs count under is bounded, decided when they first count, and the same for whoever reads the ledger."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parked.errors import JobConflict
from parked.job import State
from parked.ledger import codec, open_ledger
from parked.ledger import operations as op
from parked.ledger.labels import MAX_PAIRS, MAX_PIPELINES, OTHER, Labels


def names(ledger, metric="jobs_accepted"):
    with ledger.ask() as reader:
        return {(row.pipeline, row.model): row.value for row in reader.counters(metric)}


@pytest.fixture
def full(desk, ledger):
    """A ledger that has as many pipelines as it counts by name, each with one parked job."""
    for number in range(MAX_PIPELINES):
        owner = desk.owner()
        desk.park(desk.accept(f"a{number}", pipeline=f"p{number}", start_for=owner).row, owner)
    return ledger


def test_a_pipeline_past_the_bound_counts_as_other_and_keeps_its_name_in_its_row(desk, full):
    row = desk.accept("late", pipeline="one-too-many", model="m").row

    assert row.pipeline == "one-too-many"
    assert names(full)[OTHER, "m"] == 1
    assert len({pipeline for pipeline, _ in names(full)}) == MAX_PIPELINES + 1


def test_every_state_of_a_job_past_the_bound_counts_under_the_same_name(desk, full):
    owner = desk.owner()
    row = desk.park(desk.accept("late", pipeline="one-too-many", start_for=owner).row, owner)
    before = names(full, "parked_now")[OTHER, "m"]

    desk.discard(row)
    desk.restore(row)
    desk.discard(row)

    assert before == 1
    assert names(full, "parked_now")[OTHER, "m"] == 0
    assert names(full, "jobs_discarded") == {(OTHER, "m"): 2}


def test_what_is_known_goes_on_counting_by_its_name(desk, full):
    desk.accept("late", pipeline="one-too-many")
    desk.accept("known", pipeline="p7")

    assert names(full)["p7", "m"] == 2


def test_the_decision_is_kept_in_the_ledger_and_the_same_in_another_process(desk, full, url, at_desk):
    row = desk.accept("late", pipeline="one-too-many").row

    with open_ledger(url) as again:
        other = at_desk(again)
        other.discard(row)
        other.accept("later", pipeline="two-too-many")
        assert other.imbalances() == []

    assert names(full)[OTHER, "m"] == 2


def test_models_past_the_bound_count_as_other_within_their_pipeline(desk, ledger):
    for number in range(MAX_PAIRS + 3):
        desk.accept(f"a{number}", pipeline="one", model=f"m{number}")
    desk.accept("b", pipeline="two", model="m0")

    assert names(ledger)["one", OTHER] == 3
    assert names(ledger)["two", OTHER] == 1
    assert len(names(ledger)) == MAX_PAIRS + 2


def test_a_transaction_that_fails_lets_no_name_in(desk, ledger):
    desk.accept("a", pipeline="one")
    tickets = ledger.submit_many(
        [
            op.Accept("two", "", "b", "m", codec.encode(1), codec.identity(1)),
            op.Discard(4711, "no such job"),
            op.Accept("one", "", "a", "m", codec.encode(2), codec.identity(2)),
        ]
    )
    tickets[0].wait()
    with pytest.raises(JobConflict):
        tickets[2].wait()

    assert names(ledger) == {("one", "m"): 1, ("two", "m"): 1}


def test_the_oldest_is_found_by_the_pipelines_own_name(desk, full, wall):
    wall.now += 60
    owner = desk.owner()
    late = desk.park(desk.accept("late", pipeline="one-too-many", start_for=owner).row, owner)

    with full.ask() as reader:
        oldest = reader.oldest(State.PARKED)
        assert reader.labels().pipeline("one-too-many") == OTHER

    assert len(oldest) == MAX_PIPELINES + 1
    assert oldest["one-too-many", "exhausted:503"] == late.parked_at


def test_a_pipeline_that_is_called_other_shares_what_the_rest_counts_under(desk, full):
    desk.accept("a", pipeline=OTHER)
    desk.accept("b", pipeline="one-too-many")

    assert names(full)[OTHER, "m"] == 2


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whoever_reads_finds_the_name_that_was_counted_under(seed):
    """However many writers decide in turn, each from what is kept."""
    chance = random.Random(seed)
    kept: set[tuple[str, str]] = set()
    counted: dict[tuple[str, str], tuple[str, str]] = {}
    writers = [Labels() for _ in range(2)]
    for _ in range(600):
        which = chance.randrange(2)
        pair = (f"p{chance.randrange(150)}", f"m{chance.randrange(4)}")
        if not writers[which].is_settled(*pair):
            writers[which] = Labels(kept)
            kept.add(writers[which].let_in(*pair))
        name = writers[which].pair(*pair)
        assert counted.setdefault(pair, name) == name
        assert Labels(kept).pair(*pair) == name

    assert len({pipeline for pipeline, _ in kept} - {OTHER}) <= MAX_PIPELINES
    assert len({(pipeline, model) for pipeline, model in kept if model != OTHER}) <= MAX_PAIRS
