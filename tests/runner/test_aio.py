"""The asyncio runner and the pool: concurrency, gates, drains, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections import Counter

import pytest

import parked
from parked.job import State
from parked.ledger.store import Filters
from parked.pool import Pool
from parked.running import Running
from parked.simulator import replies as reply

JOB = parked.Job("a-1", model="m", payload={"contents": "What is six times seven?"})


@pytest.fixture
def ledger_url(url_on_each_database):
    return url_on_each_database


def jobs(count):
    return [parked.Job(f"a-{n}", model="m", payload={"contents": f"{n}?"}) for n in range(count)]


async def outcomes_of(runner, many, **options):
    return [outcome async for outcome in runner.run_many(many, **options)]


def test_awaiting_a_job_gives_its_answer(ledger, gemini, simulator):
    simulator.will_answer(reply.text("42"))

    async def main():
        outcome = await parked.AsyncRunner(ledger, gemini).run(JOB)
        await gemini._client.aio.aclose()
        return outcome

    outcome = asyncio.run(main())

    assert (outcome.state, outcome.text) == (State.SUCCEEDED, "42")


def test_many_jobs_are_called_at_a_time_and_no_more_than_asked_for(ledger):
    running, most = 0, 0

    async def call(payload, model):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return payload

    outcomes = asyncio.run(outcomes_of(parked.AsyncRunner(ledger, call), jobs(300), concurrency=5))

    assert len({outcome.job_id for outcome in outcomes}) == 300
    assert most == 5


def test_a_job_that_waits_holds_no_worker(ledger, clock):
    async def call(payload, model):
        if payload["contents"] == "0?" and not failed:
            failed.append(payload)
            raise ConnectionResetError
        order.append(payload["contents"])
        return "ok"

    failed: list = []
    order: list = []
    asyncio.run(outcomes_of(parked.AsyncRunner(ledger, call, clock=clock), jobs(3), concurrency=1))

    assert order[0] != "0?"
    assert sorted(order) == ["0?", "1?", "2?"]


def test_a_closed_gate_keeps_every_job_of_its_model_waiting(ledger, clock):
    called_at = []

    async def call(payload, model):
        called_at.append((model, clock.now))
        if len(called_at) == 1:
            raise RateLimited
        return "ok"

    begun = clock.now
    many = [parked.Job(f"a-{n}", model="m", payload=n) for n in range(3)]
    outcomes = asyncio.run(outcomes_of(parked.AsyncRunner(ledger, call, clock=clock), many, concurrency=1))

    assert [outcome.state for outcome in outcomes] == [State.SUCCEEDED] * 3
    assert all(at >= begun + 30 for _, at in called_at[1:])


class RateLimited(parked.ApiError):
    def __init__(self):
        super().__init__(429, "Quota exceeded. Please retry in 30s.")


def test_a_plain_function_runs_in_threads(ledger):
    outcomes = asyncio.run(outcomes_of(parked.AsyncRunner(ledger, lambda payload, model: payload), jobs(50)))

    assert len(outcomes) == 50


def test_a_cancelled_job_is_handed_back_with_its_attempt_interrupted(ledger, attempts, states):
    async def main():
        called = asyncio.Event()

        async def call(payload, model):
            called.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(parked.AsyncRunner(ledger, call).run(JOB))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert states() == {State.PENDING: 1}
    assert [attempt.interrupted for attempt in attempts("a-1")] == [True]


def test_a_cancellation_that_is_not_ours_is_an_outcome(ledger, clock):
    async def call(payload, model):
        raise asyncio.CancelledError

    outcome = asyncio.run(parked.AsyncRunner(ledger, call, clock=clock).run(JOB))

    assert outcome.error_class == "exhausted:cancelled"


def test_a_call_is_cancelled_at_its_deadline(ledger, clock):
    async def call(payload, model):
        await asyncio.Event().wait()

    policy = parked.Policy(max_attempts=1, attempt_timeout_s=0.02)
    outcome = asyncio.run(parked.AsyncRunner(ledger, call, clock=clock, policy=policy).run(JOB))

    assert outcome.error_class == "exhausted:timeout"


def test_a_drain_lets_running_calls_end_and_starts_no_other(ledger, states):
    async def main():
        may_end = asyncio.Event()
        calls = []

        async def call(payload, model):
            calls.append(payload)
            if len(calls) == 2:
                runner.stop()
                may_end.set()
            await may_end.wait()
            return "ok"

        runner = parked.AsyncRunner(ledger, call)
        return calls, await outcomes_of(runner, jobs(100), concurrency=2)

    calls, outcomes = asyncio.run(main())

    assert len(calls) == 2
    assert states() == {State.SUCCEEDED: 2, State.PENDING: 98}
    assert Counter(outcome.state for outcome in outcomes) == states()


def test_a_call_that_outlasts_the_drain_is_cut_off_and_its_job_handed_back(ledger, states):
    async def main():
        async def call(payload, model):
            runner.stop()
            await asyncio.Event().wait()

        runner = parked.AsyncRunner(ledger, call, policy=parked.Policy(drain_s=0.01))
        return await outcomes_of(runner, jobs(1))

    (outcome,) = asyncio.run(main())

    assert outcome.state is State.PENDING
    assert states() == {State.PENDING: 1}


def test_leaving_the_loop_early_hands_back_what_runs(ledger, states):
    async def main():
        async def call(payload, model):
            await asyncio.sleep(0)
            return "ok"

        runner = parked.AsyncRunner(ledger, call)
        async with contextlib.aclosing(runner.run_many(jobs(50), concurrency=3)) as outcomes:
            async for _ in outcomes:
                break

    asyncio.run(main())

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_a_system_exit_in_a_call_reaches_whoever_runs_the_jobs(ledger, states):
    def call(payload, model):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        asyncio.run(outcomes_of(parked.AsyncRunner(ledger, call), jobs(3), concurrency=1))

    assert set(states()) == {State.PENDING}


def test_jobs_may_come_from_an_async_source(ledger):
    async def source():
        for job in jobs(3):
            yield job

    async def call(payload, model):
        return "ok"

    outcomes = asyncio.run(outcomes_of(parked.AsyncRunner(ledger, call), source()))

    assert len(outcomes) == 3


def test_known_jobs_come_back_without_a_call(ledger):
    async def call(payload, model):
        return payload

    async def never(payload, model):
        raise AssertionError("called again")

    asyncio.run(outcomes_of(parked.AsyncRunner(ledger, call), jobs(300)))
    outcomes = asyncio.run(outcomes_of(parked.AsyncRunner(ledger, never), jobs(300)))

    assert {outcome.answer["contents"] for outcome in outcomes} == {f"{n}?" for n in range(300)}
    with ledger.ask() as reader:
        assert reader.count(Filters(), states=[State.SUCCEEDED]) == 300


def test_a_stop_while_a_job_is_being_accepted_hands_it_back(ledger, states):
    async def main(pauses):
        async def call(payload, model):
            return "ok"

        runner = parked.AsyncRunner(ledger, call, batch=str(pauses))
        task = asyncio.create_task(runner.run(JOB))
        for _ in range(pauses):
            await asyncio.sleep(0)
        runner.stop()
        return (await task).state

    seen = {asyncio.run(main(pauses)) for pauses in range(1, 30)}

    assert seen <= {State.PENDING, State.SUCCEEDED}
    assert State.RUNNING not in states()


def test_a_loop_that_ends_under_a_run_hands_back_what_runs(ledger, states):
    loop = asyncio.new_event_loop()

    async def main():
        calls = asyncio.Semaphore(0)

        async def call(payload, model):
            calls.release()
            await asyncio.Event().wait()

        runner = parked.AsyncRunner(ledger, call)
        tasks = [loop.create_task(runner.run(job)) for job in jobs(3)]
        for _ in tasks:
            await calls.acquire()
        return tasks

    tasks = loop.run_until_complete(main())
    loop.close()
    del tasks
    gc.collect()

    assert State.RUNNING not in states()


def test_a_check_may_be_awaited(ledger, clock):
    async def call(payload, model):
        return payload

    async def check(answer):
        await asyncio.sleep(0)
        return "never good"

    outcome = asyncio.run(parked.AsyncRunner(ledger, call, check=check, clock=clock).run(JOB))

    assert outcome.error_class == "exhausted:malformed_answer"


def test_slow_checks_run_beside_each_other(ledger):
    together = threading.Barrier(5, timeout=10)

    async def call(payload, model):
        return payload

    def check(answer):
        together.wait()

    outcomes = asyncio.run(outcomes_of(parked.AsyncRunner(ledger, call, check=check), jobs(5), concurrency=5))

    assert {outcome.state for outcome in outcomes} == {State.SUCCEEDED}


def test_a_check_that_hangs_runs_into_the_deadline(ledger, clock):
    may_end = threading.Event()

    async def call(payload, model):
        return payload

    policy = parked.Policy(max_attempts=1, attempt_timeout_s=0.05)
    runner = parked.AsyncRunner(ledger, call, check=lambda answer: may_end.wait(10), clock=clock, policy=policy)
    outcome = asyncio.run(runner.run(JOB))
    may_end.set()

    assert outcome.error_class == "exhausted:malformed_answer"


def test_a_rate_spaces_the_calls_that_start(ledger, clock):
    started_at = []

    async def call(payload, model):
        started_at.append(clock.now)
        return "ok"

    async def main():
        async def chunks():
            yield jobs(5)

        on = Running(ledger, call, clock=clock)
        pool = Pool(on, concurrency=5, rate=2.0)
        return [hold async for hold in pool.run(pool.accepting(on, chunks()))]

    begun = clock.now
    holds = asyncio.run(main())

    assert len(holds) == 5
    assert clock.slept_s
    assert all(at >= begun + 0.5 * n for n, at in enumerate(sorted(started_at)))
