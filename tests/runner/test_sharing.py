"""Several processes on one ledger: what one learns, the others know within a few seconds."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import closing

import pytest

import parked
from parked.cli import main as main_command
from parked.gate import Why
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
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


@pytest.mark.parametrize(("days", "begins_at"), [(6, 3.0), (8, None), (-6, 3.0)])
def test_a_pace_is_gone_by_for_a_week_after_the_refusal_that_taught_it(processes, ledger_url, caplog, days, begins_at):
    with parked.open_ledger(ledger_url) as ledger:
        ledger.record(op.Consult((op.GateState("m", None, pace_per_s=3.0, pace_learnt_s=days * 86_400.0),)))
    caplog.set_level(logging.INFO, logger="parked.gate")

    async def ok(payload, model):
        return "ok"

    async def main():
        on, pool = processes(ok)
        await run(on, pool, "a-1", "a-2")
        return on.gates.of("m").pace.per_s

    assert asyncio.run(main()) == begins_at
    said = [record.parked_fields for record in caplog.records if record.getMessage() == "begins_at_pace"]
    assert [(told["model"], told["calls_per_minute"]) for told in said] == ([("m", 180.0)] if begins_at else [])


def test_a_run_that_goes_by_a_pace_does_not_make_it_younger(processes, ledger_url):
    with parked.open_ledger(ledger_url) as ledger:
        ledger.record(op.Consult((op.GateState("m", None, pace_per_s=3.0, pace_learnt_s=6 * 86_400.0),)))

    async def ok(payload, model):
        return "ok"

    async def main():
        await run(*processes(ok), "a-1")

    asyncio.run(main())

    with parked.open_ledger(ledger_url) as ledger:
        (row,) = [row for row in ledger.record(op.Consult()).gates if row.model == "m"]
    assert row.pace_learnt_s == pytest.approx(6 * 86_400.0, abs=60)
    assert row.changed_s < 60


PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
THE_DAY_IS_OVER = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": PER_DAY}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.3s"},
        ],
    }
}


@pytest.mark.parametrize("earlier", [None, 100.0])
@pytest.mark.parametrize("ends", ["at the pause", "before it is known"])
def test_a_day_that_is_over_leaves_the_pace_as_it_was(processes, ledger_url, ends, earlier):
    with parked.open_ledger(ledger_url) as ledger:
        ledger.record(op.Consult((op.GateState("m", None, pace_per_s=earlier),)))

    async def thirty_a_day(payload, model):
        return THE_DAY_IS_OVER if int(payload) >= 30 else "ok"

    async def main():
        on, pool = processes(thirty_a_day)
        running = asyncio.create_task(run(on, pool, *map(str, range(60))))
        if ends == "before it is known":
            await until(lambda: on.gates.of("m").why is Why.RATE)
            pool.stop()
        return await running

    states = asyncio.run(main())

    assert (states.count(State.SUCCEEDED), states.count(State.PARKED)) == (30, 0)
    assert kept_pace(ledger_url) == earlier


def test_a_quota_a_day_that_was_a_minutes_teaches_a_pace(processes, ledger_url):
    opens_at = []

    async def thirty_and_then_more(payload, model):
        opens_at.append(time.monotonic() + 0.3) if int(payload) == 30 else None
        return THE_DAY_IS_OVER if opens_at and time.monotonic() < opens_at[0] else "ok"

    async def main():
        on, pool = processes(thirty_and_then_more)
        return await run(on, pool, *map(str, range(40)))

    states = asyncio.run(main())

    assert states == [State.SUCCEEDED] * 40
    assert kept_pace(ledger_url) > 0


def kept_pace(ledger_url):
    with parked.open_ledger(ledger_url) as ledger:
        (row,) = [row for row in ledger.record(op.Consult()).gates if row.model == "m"]
    return row.pace_per_s


def test_a_gate_that_was_closed_when_the_clock_was_ahead_opens_in_its_time(processes, ledger_url):
    with open_ledger(ledger_url, clock=lambda: time.time() + 3 * 86_400) as ledger:
        ledger.record(op.Consult((op.GateState("m", Why.RATE, closed_for_s=0.2, pace_per_s=None),)))

    async def ok(payload, model):
        return "ok"

    async def main():
        async with asyncio.timeout(20):
            return await run(*processes(ok), "a-1")

    assert asyncio.run(main()) == [State.SUCCEEDED]


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


def test_a_rate_limit_that_another_met_and_that_outlasts_what_is_waited_for_pauses_here_too(processes, ledger_url):
    with open_ledger(ledger_url) as ledger:
        ledger.record(op.Consult((op.GateState("m", Why.RATE, closed_for_s=3600.0, pace_per_s=None),)))

    async def ok(payload, model):
        return "ok"

    async def main():
        async with asyncio.timeout(20):
            return await run(*processes(ok, max_outage_s=900.0), "a-1", "a-2")

    assert asyncio.run(main()) == [State.PENDING, State.PENDING]


def test_without_forgiveness_nobody_waits_for_what_another_met(processes, ledger_url):
    with open_ledger(ledger_url) as ledger:
        ledger.record(op.Consult((op.GateState("m", Why.RATE, closed_for_s=3600.0, pace_per_s=None),)))

    async def ok(payload, model):
        return "ok"

    async def main():
        async with asyncio.timeout(20):
            return await run(*processes(ok, max_outage_s=0.0), "a-1")

    assert asyncio.run(main()) == [State.SUCCEEDED]


@pytest.mark.parametrize(
    "nonsense",
    [
        "INSERT INTO gates (model, pace_per_s, changed_at) VALUES ('m', 'fast', 1)",
        "INSERT INTO gates (model, reason, closed_until, changed_at) VALUES ('m', 'rate', 'noon', 1)",
        "INSERT INTO gates (model, reason, closed_until, changed_at) VALUES ('m', 'rate', 9e15, 'noon')",
        "INSERT INTO pauses (pipeline, model, reason, fault_began_at, since) VALUES ('default', 'm', 'x', 'noon', 1)",
        "INSERT INTO pauses (pipeline, model, reason, fault_began_at, since) VALUES ('default', 'm', 'x', 1, 9e300)",
    ],
)
def test_a_row_that_somebody_filled_with_nonsense_stops_nothing(tmp_path, nonsense, monkeypatch, capsys):
    """On SQLite, which takes text for a number."""
    url = f"sqlite:///{tmp_path}/parked.db"
    monkeypatch.setenv("PARKED_LEDGER", url)
    with open_ledger(url) as ledger:
        ledger.record(op.Accept("default", "", "a", "m", encode("x"), identity("x"), caller="asking:ask"))
    with closing(sqlite3.connect(tmp_path / "parked.db", isolation_level=None)) as behind_its_back:
        behind_its_back.execute(nonsense)
    (tmp_path / "asking.py").write_text("def ask(payload, model):\n    return 'ok'\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert main_command(["work", "--until-empty"]) == 0
    assert main_command(["summary"]) == 0
    assert "clean (0 parked)" in capsys.readouterr().out
