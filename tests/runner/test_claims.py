"""Running what is pending: who is claimed when, what is left, and a ledger that is away."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing
from functools import partial

import pytest

import parked
from parked.claims import LOOK_AGAIN_S, claiming
from parked.job import State
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.operations import Called
from parked.ledger.postgres import PostgresStore
from parked.ledger.postgres_server import Server
from parked.ledger.store import Filters
from parked.pool import Pool
from parked.running import Running


@pytest.fixture
def accept(ledger):
    """Returns a function that accepts jobs as pending."""

    def accept(*job_ids, pipeline="nightly", model="m", caller="ours"):
        for job_id in job_ids:
            ledger.record(op.Accept(pipeline, "", job_id, model, encode(job_id), identity(job_id), caller=caller))

    return accept


def run_pending(ledger, clock, call, *, pipeline=None, concurrency=1, patience_s=math.inf, found=None):
    """Run what is pending until nothing is left, with this caller for `ours`; return the ids in the order of ending."""

    async def main():
        on = Running(ledger, call, caller="ours", clock=clock)
        pool = Pool(on, concurrency=concurrency)

        def find(called):
            if found is not None:
                found.append(called)
            return on if called == Called("ours", "") else None

        source = claiming(pool, find, pipeline=pipeline, until_empty=True, patience_s=patience_s)
        try:
            return [hold.row.job_id async for hold in pool.run(source)]
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.fixture
def work(ledger, clock):
    """Returns a function that runs what is pending until nothing is left, with this caller for `ours`."""
    return partial(run_pending, ledger, clock)


async def ok(payload, model):
    return "ok"


class RateLimited(parked.ApiError):
    def __init__(self):
        super().__init__(429, "Quota exceeded. Please retry in 30s.")


def test_pending_jobs_are_run_in_order_of_acceptance(accept, work, states):
    accept(*[f"j-{n}" for n in range(50)])

    assert work(ok) == [f"j-{n}" for n in range(50)]
    assert states() == {State.SUCCEEDED: 50}


def test_a_small_pipeline_is_not_kept_waiting_by_a_large_one(accept, work):
    accept(*[f"large-{n}" for n in range(200)], pipeline="large")
    accept(*[f"small-{n}" for n in range(5)], pipeline="small")

    order = work(ok)

    assert max(order.index(f"small-{n}") for n in range(5)) < 10


def test_quick_calls_do_not_wait_for_the_slow_ones_of_another_pipeline(accept, work):
    accept(*[f"slow-{n}" for n in range(20)], pipeline="slow")
    accept(*[f"quick-{n}" for n in range(20)], pipeline="quick")
    quick_ended = 0

    async def call(payload, model):
        nonlocal quick_ended
        if payload.startswith("slow"):
            while quick_ended < 20:  # as long as the others are not done
                await asyncio.sleep(0)
        else:
            quick_ended += 1
        return "ok"

    order = work(call, concurrency=4)

    assert all(job_id.startswith("quick") for job_id in order[:18])


def test_a_worker_does_not_end_over_a_job_that_another_is_just_about_to_take(postgres_url, clock):
    """The other one may hand it back; and where it doesn't, it would have been told to be pending."""
    with parked.open_ledger(postgres_url) as ledger, closing(PostgresStore(Server.of(postgres_url))) as other:
        ledger.record(op.Accept("nightly", "", "a", "m", encode(1), identity(1), caller="ours"))
        owner = ledger.record(op.Register(op.OwnerFacts("t", "worker", "h", "", "", 1, "", "1")))
        other.begin()
        other.claim([op.Claim(None, owner, 1)])

        async def asleep(wait_s):
            other.rollback()

        clock.asleep = asleep

        assert run_pending(ledger, clock, ok) == ["a"]


def test_jobs_of_a_caller_that_is_unknown_here_are_left_and_asked_about_once(accept, work, states):
    accept("theirs-1", "theirs-2", caller="elsewhere:call")
    accept("ours")
    found: list = []

    assert work(ok, found=found) == ["ours"]
    assert states() == {State.PENDING: 2, State.SUCCEEDED: 1}
    assert sorted(found) == [Called("elsewhere:call", ""), Called("ours", "")]


def test_nothing_of_a_model_is_claimed_while_its_gate_is_closed(ledger, accept, work, clock, states):
    accept("refused", "waits-1", "waits-2", model="limited")
    accept("free-1", "free-2", model="other")
    called: list = []
    pending: list = []

    asleep = clock.asleep

    async def asleep_at_least(wait_s):
        while wait_s >= 30 and len(called) < 3:  # the delay lasts until the others were called
            await asyncio.sleep(0)
        await asleep(wait_s)

    clock.asleep = asleep_at_least

    async def call(payload, model):
        called.append(payload)
        if len(called) == 1:
            raise RateLimited
        if model == "other":
            with ledger.ask() as reader:
                pending.append(reader.count(Filters(model="limited"), states=[State.PENDING]))
        return "ok"

    work(call)

    assert called[:3] == ["refused", "free-1", "free-2"]
    assert pending == [2, 2]
    assert states() == {State.SUCCEEDED: 5}


def test_jobs_that_come_while_the_last_one_runs_are_run_too(accept, work):
    accept("first")

    async def call(payload, model):
        if payload == "first":
            accept("second")
        return "ok"

    assert work(call) == ["first", "second"]


def test_a_job_starts_within_a_second_since_nobody_looks_away_for_longer(accept, work, clock):
    assert max(LOOK_AGAIN_S) < 0.9

    accept("slow")

    async def call(payload, model):
        while len(clock.slept_s) < 5:
            await asyncio.sleep(0)
        return "ok"

    work(call, concurrency=2)

    assert all(LOOK_AGAIN_S[0] <= slept_s <= LOOK_AGAIN_S[1] for slept_s in clock.slept_s)


@pytest.fixture
def locked(ledger, monkeypatch):
    """Another program's connection to the ledger, which has no patience for its locks."""
    monkeypatch.setattr("parked.ledger.sqlite_file.PATIENCE_S", 0.0)
    other = sqlite3.connect(ledger.url.removeprefix("sqlite:///"), isolation_level=None)
    yield other
    other.close()


def test_a_ledger_that_is_away_is_waited_for(accept, work, clock, locked):
    accept("j-1")
    locked.execute("BEGIN IMMEDIATE")
    asleep = clock.asleep

    async def asleep_until_it_is_back(wait_s):
        await asleep(wait_s)
        if len(clock.slept_s) == 3:
            locked.execute("ROLLBACK")

    clock.asleep = asleep_until_it_is_back

    assert work(ok) == ["j-1"]
    assert clock.slept_s == [1.0, 1.0, 1.0]


def test_a_ledger_that_is_away_for_too_long_ends_the_work(accept, work, locked):
    accept("j-1")
    locked.execute("BEGIN IMMEDIATE")

    with pytest.raises(parked.LedgerUnavailable):
        work(ok, patience_s=5.0)
