"""Several processes on one ledger: what one learns, the others know within a few seconds."""

from __future__ import annotations

import asyncio

import pytest

import parked
from parked.gate import Why
from parked.job import State
from parked.ledger import operations as op
from parked.policy import Policy
from parked.pool import Pool
from parked.running import Running


@pytest.fixture
def ledger_url(url_on_each_database):
    return url_on_each_database


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """A few seconds are a few hundredths here."""
    monkeypatch.setattr("parked.sharing.SHARE_S", 0.05)
    monkeypatch.setattr("parked.gate.PROBE_S", 0.2)


class Overloaded(parked.ApiError):
    def __init__(self):
        super().__init__(503, "The model is overloaded.")


async def chunk(*names):
    yield [parked.Job(name, model="m", payload=name) for name in names]


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def processes(ledger_url):
    """Returns a function that makes a pool with a ledger and an owner of its own, as another process has them."""
    opened = []

    def make(call, **policy):
        ledger = parked.open_ledger(ledger_url)
        opened.append(ledger)
        on = Running(ledger, call, policy=Policy(**policy))
        return on, Pool(on, concurrency=8, pipelines=("default",))

    yield make
    for ledger in opened:
        ledger.close()


async def run(on, pool, *names):
    try:
        return [hold.row.state async for hold in pool.run(pool.accepting(on, chunk(*names)))]
    finally:
        await pool.close()


def test_a_gate_that_one_has_closed_is_closed_for_the_other_which_calls_nothing_meanwhile(processes):
    async def main():
        mended, called = asyncio.Event(), []

        async def fails(payload, model):
            if not mended.is_set():
                raise Overloaded
            return "ok"

        async def counts(payload, model):
            called.append(payload)
            return "ok"

        async def late():
            await asyncio.Event().wait()
            yield []

        ours, theirs = processes(fails), processes(counts)
        first = asyncio.create_task(run(*ours, *[f"a-{n}" for n in range(20)]))
        idle = asyncio.create_task(_drain(theirs[1].run(theirs[1].accepting(theirs[0], late()))))
        await until(lambda: theirs[0].gates.of("m").why is Why.OUTAGE)
        assert called == []

        mended.set()
        assert await first == [State.SUCCEEDED] * 20
        await until(lambda: theirs[0].gates.of("m").why is None)
        assert theirs[0].gates.of("m").limit(theirs[0].clock.monotonic()) <= 8
        theirs[1].stop()
        await idle
        await theirs[1].close()

    asyncio.run(main())


async def _drain(holds):
    async for _ in holds:
        pass


def test_the_pace_of_a_run_is_where_the_next_one_begins(processes, ledger_url):
    with parked.open_ledger(ledger_url) as ledger:
        ledger.record(op.Consult((op.GateState("m", None, pace_per_s=3.0),)))

    async def ok(payload, model):
        return "ok"

    async def main():
        on, pool = processes(ok)
        await run(on, pool, "a-1")
        return on.gates.of("m").pace.per_s

    assert asyncio.run(main()) == 3.0


@pytest.mark.parametrize("pace", [-1.0, 0.0, float("inf"), float("nan")])
def test_a_row_that_makes_no_sense_changes_nothing(processes, ledger_url, pace):
    with parked.open_ledger(ledger_url) as ledger:
        ledger.record(op.Consult((op.GateState("m", "frozen", closed_for_s=1e12, pace_per_s=pace),)))
        ledger.record(op.SetPause("default", "m", "a_reason_of_the_future", 0.0, None, ledger.owner_id))

    async def ok(payload, model):
        return "ok"

    async def main():
        return await run(*processes(ok), "a-1")

    assert asyncio.run(main()) == [State.SUCCEEDED]


def test_a_stale_key_of_one_process_stops_that_process_only(processes):
    class Denied(parked.ApiError):
        def __init__(self):
            super().__init__(401, "API key not valid. Please pass a valid API key.")

    async def main():
        async def stale(payload, model):
            raise Denied

        async def ok(payload, model):
            await asyncio.sleep(0.02)
            return "ok"

        ours, theirs = processes(stale), processes(ok)
        return await asyncio.gather(
            run(*ours, *[f"a-{n}" for n in range(10)]), run(*theirs, *[f"b-{n}" for n in range(60)])
        )

    stopped, answered = asyncio.run(main())

    assert stopped == [State.PENDING] * 10
    assert answered == [State.SUCCEEDED] * 60
