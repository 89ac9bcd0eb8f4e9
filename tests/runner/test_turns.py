"""A job that comes in hand while an earlier hold of it is still there, or hasn't said goodbye for the last time."""

from __future__ import annotations

import asyncio

import pytest

from parked.course import Hold
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.pool import Pool
from parked.running import Running
from parked.verdict import Verdict

OK = Verdict(ok=True, rule="value.given")


@pytest.fixture
def row(ledger):
    return ledger.record(op.Accept("p", "", "a", "m", encode(1), identity(1))).row


@pytest.fixture
def with_pool(ledger, clock):
    """Returns a function that runs something with a pool on a loop."""

    def with_pool(do):
        async def main():
            on = Running(ledger, lambda payload, model: "ok", clock=clock)
            pool = Pool(on, concurrency=4)
            try:
                return do(on, pool)
            finally:
                await pool.close()

        return asyncio.run(main())

    return with_pool


def claimed(row):
    return Hold(row._replace(calls=row.calls + 1), 1, owner_id=1, attempt=row.calls + 1, claimed=True)


def test_a_hold_that_is_left_for_good_does_not_take_the_next_one_of_its_job_with_it(row, with_pool):
    """A job that was handed back can be claimed before the task of its first course is over."""

    def come_and_go(on, pool):
        first, second = Hold(row, 1, owner_id=1), claimed(row)
        pool.turns.enter(first)
        pool.turns.leave(first)
        pool.turns.enter(second)

        pool.turns.leave(first)

        assert pool.line.calling == 1
        assert on.rules_in(pool.line).rule(second, OK) is None

    with_pool(come_and_go)


def test_a_job_whose_start_is_in_doubt_and_that_is_claimed_meanwhile_is_one_job(row, with_pool):
    """Its first course waits to ask again, and will find it held; the second tells what became of it."""

    def come_twice(on, pool):
        first, second = Hold(row, 1, owner_id=1), claimed(row)
        pool.turns.enter(first)
        pool.line.started(row.id, on.clock.monotonic())

        pool.turns.enter(second)

        assert pool.line.calling == 1
        assert first.stands_aside
        assert not second.claimed  # it is one of the first one's run

        pool.turns.leave(first)
        assert on.rules_in(pool.line).rule(second, OK) is None
        assert pool.line.calling == 0

    with_pool(come_twice)
