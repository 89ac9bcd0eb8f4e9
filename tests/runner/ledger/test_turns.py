"""Whose turn it is, decided on plain rows."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from parked.ledger.operations import JobRow
from parked.ledger.turns import next_shares, next_turns

pipelines = st.sampled_from("abcd")


def row(id, pipeline):
    return JobRow._make([None] * len(JobRow._fields))._replace(id=id, pipeline=pipeline, place=id)


@given(st.lists(pipelines, max_size=40), st.integers(1, 10), st.dictionaries(pipelines, st.integers(0, 9)), pipelines)
def test_nobody_who_waits_ends_with_less_than_another_that_had_a_turn(names, limit, in_hand, after):
    waiting = [row(id, name) for id, name in enumerate(names)]

    chosen = next_turns(waiting, limit=limit, in_hand=in_hand, after=after)

    assert len(chosen) == min(limit, len(names))
    share = {name: in_hand.get(name, 0) for name in names}
    for job in chosen:
        share[job.pipeline] += 1
    for passed_over in (job for job in waiting if job not in chosen):
        assert all(share[job.pipeline] <= share[passed_over.pipeline] + 1 for job in chosen)


@given(st.lists(pipelines, max_size=40), st.integers(1, 10))
def test_the_jobs_of_a_pipeline_keep_their_order(names, limit):
    waiting = [row(id, name) for id, name in enumerate(names)]

    chosen = next_turns(reversed(waiting), limit=limit, in_hand={}, after="")

    for name in set(names):
        mine = [job.id for job in chosen if job.pipeline == name]
        assert mine == [job.id for job in waiting if job.pipeline == name][: len(mine)]


def test_the_circle_begins_behind_who_went_last():
    waiting = [row(1, "a"), row(2, "b"), row(3, "c")]

    chosen = next_turns(waiting, limit=3, in_hand={}, after="b")

    assert [job.pipeline for job in chosen] == ["c", "a", "b"]


@given(st.lists(pipelines, max_size=40), st.integers(1, 10), st.dictionaries(pipelines, st.integers(0, 9)), pipelines)
def test_shares_are_what_each_pipeline_gets_in_its_turns(names, limit, in_hand, after):
    waiting = [row(id, name) for id, name in enumerate(names)]
    chosen = next_turns(waiting, limit=limit, in_hand=in_hand, after=after)

    shares = next_shares(names, limit=limit, in_hand=in_hand, after=after, there=Counter(names))

    assert shares == Counter(job.pipeline for job in chosen)
