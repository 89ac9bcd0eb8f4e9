"""Outages in compressed time: the real SDK against the simulator, a real ledger, and a clock that runs fifty times."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

import parked
from parked import sharing
from parked.job import State
from parked.policy import Policy
from parked.simulator import replies as reply
from parked.summary import summarise

pytestmark = pytest.mark.slow

FASTER = 50


class FastClock:
    """The machine's clock, running so many times."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def time(self) -> float:
        return 1_800_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self.began) * FASTER

    def sleep(self, wait_s, stop) -> None:
        stop.wait(wait_s / FASTER)

    async def asleep(self, wait_s: float) -> None:
        await asyncio.sleep(wait_s / FASTER)


@pytest.fixture
def fast(ledger_url):
    """A clock that runs fast, and a ledger that goes by it."""
    clock = FastClock()
    with parked.open_ledger(ledger_url, clock=clock.time) as ledger:
        yield clock, ledger


@pytest.fixture
def run(fast, gemini):
    """Returns a function that runs so many jobs and counts how they ended."""
    clock, ledger = fast

    def run(count, *, concurrency=8, **policy):
        runner = parked.AsyncRunner(ledger, gemini, clock=clock, policy=Policy(**policy))
        jobs = [parked.Job(f"a-{n}", model="m", payload={"contents": f"{n}?"}) for n in range(count)]

        async def main():
            ended = Counter([outcome.state async for outcome in runner.run_many(jobs, concurrency=concurrency)])
            await gemini._client.aio.aclose()
            return ended

        ended = asyncio.run(main())
        with ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
        return ended

    return run


def test_two_minutes_of_503_park_nobody_and_cost_few_calls(run, fast, simulator):
    clock, _ = fast
    in_outage: list = []

    def overloaded(request):
        if 5 < clock.monotonic() < 125:
            in_outage.append(request)
            return reply.overloaded()
        return None

    simulator.answers(overloaded)
    ended = run(400)

    assert ended == {State.SUCCEEDED: 400}
    assert 0 < len(in_outage) <= 8 + 25


def test_stubborn_jobs_first_in_the_line_are_parked_and_the_others_answered(run, simulator):
    simulator.answers(lambda request: reply.server_error() if int(request.text[:-1]) < 20 else None)

    assert run(100) == {State.PARKED: 20, State.SUCCEEDED: 80}


def test_a_rate_limit_is_waited_for_and_nobody_is_parked(run, fast, simulator):
    clock, _ = fast
    refused: list = []

    def limited(request):
        if len(refused) < 3 and clock.monotonic() > 1:
            refused.append(request)
            return reply.rate_limited(retry_delay_s=20)
        return None

    simulator.answers(limited)

    assert run(60) == {State.SUCCEEDED: 60}
    assert len(refused) == 3


def test_an_outage_that_lasts_leaves_its_jobs_pending(run, fast, simulator):
    simulator.answers(lambda request: reply.overloaded())

    assert run(20, max_outage_s=60.0) == {State.PENDING: 20}
    _, ledger = fast
    with ledger.ask() as reader:
        assert [(row.model, row.reason) for row in reader.pauses()] == [("m", "overloaded")]


def test_the_log_says_lengths_as_people_do(run, simulator, caplog):
    simulator.will_answer(reply.rate_limited(retry_delay_s=1.23456789))

    run(3, concurrency=1)

    (closed,) = [record.parked_fields for record in caplog.records if record.getMessage() == "gate_closed"]
    assert closed["for_s"] == round(closed["for_s"], 1)


def test_an_outage_stands_in_the_ledger_for_as_long_as_it_lasts(run, fast, simulator, monkeypatch):
    monkeypatch.setattr(sharing, "SHARE_S", sharing.SHARE_S / FASTER)
    clock, ledger = fast
    noted = []

    def overloaded(request):
        with ledger.ask() as reader:
            now = clock.time()
            noted.append((clock.monotonic(), [gate.until - now for gate in summarise(reader, where="", now=now).gates]))
        return reply.overloaded()

    simulator.answers(overloaded)

    run(20, max_outage_s=400.0)

    late = [untils for at, untils in noted if at > 120]
    assert len(late) > 10
    assert all(len(untils) == 1 and untils[0] > -2 * 15 for untils in late)


def test_a_job_that_is_too_large_for_its_quota_leaves_no_pace_for_the_next_run(run, fast, simulator):
    clock, ledger = fast

    def answer(request):
        return reply.rate_limited(retry_delay_s=5) if request.text == "50?" else reply.text("42")

    simulator.answers(answer)

    assert run(400) == {State.SUCCEEDED: 399, State.PARKED: 1}

    with ledger.ask() as reader:
        assert summarise(reader, where=ledger.where, now=clock.time()).paces == ()


def test_the_log_says_the_pace_that_a_refusal_has_set(run, simulator, caplog):
    simulator.will_answer(*(reply.text("42") for _ in range(10)), reply.rate_limited(retry_delay_s=2))

    run(20, concurrency=1)

    (closed,) = [record.parked_fields for record in caplog.records if record.getMessage() == "gate_closed"]
    assert 0 < closed["calls_per_minute"] < 10 / 2 * 60
