"""However a run is ended: each job is in its right state, and what ended the run is raised or recorded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import parked
from parked.calls import Threads
from parked.course import Hold
from parked.driver import LoopChannel
from parked.job import State
from parked.ledger import operations as op
from parked.ledger.vault import Vault
from parked.pool import Pool
from parked.running import Running

JOB = parked.Job("a-1", model="m", payload={"contents": "What is six times seven?"})
WAIT_S = 10.0
ONCE = parked.Policy(max_attempts=1)


@pytest.fixture
def ledger_url(url_on_each_database):
    return url_on_each_database


class Foreign(BaseException):
    """Not an Exception: a library's own way out."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


def many(count: int) -> list[parked.Job]:
    return [parked.Job(f"a-{n}", model="m", payload=n) for n in range(count)]


# --- the four ways to run a job, each with the same caller and check -------------------------------------------


def run_alone(ledger: Any, call: Any, **options: Any) -> parked.Outcome:
    return parked.Runner(ledger, call, **options).run(JOB)


def run_among_many(ledger: Any, call: Any, **options: Any) -> parked.Outcome:
    outcome: parked.Outcome
    (outcome,) = parked.Runner(ledger, call, **options).run_many([JOB])
    return outcome


def await_alone(ledger: Any, call: Any, **options: Any) -> parked.Outcome:
    async def acall(payload, model):
        return call(payload, model)

    return asyncio.run(parked.AsyncRunner(ledger, acall, **options).run(JOB))


def await_among_many(ledger: Any, call: Any, **options: Any) -> parked.Outcome:
    async def main():
        runner = parked.AsyncRunner(ledger, call, **options)  # a plain function: in threads
        async with contextlib.aclosing(runner.run_many([JOB])) as outcomes:
            return [outcome async for outcome in outcomes]

    outcome: parked.Outcome
    (outcome,) = asyncio.run(main())
    return outcome


@pytest.fixture(params=[run_alone, run_among_many, await_alone, await_among_many], ids=lambda way: way.__name__)
def run(request, ledger, clock) -> Callable[..., parked.Outcome]:
    return partial(request.param, ledger, clock=clock)


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*given):
        raise error

    return function


OUTCOMES = [
    MemoryError(), RecursionError("too deep"), StopIteration(1), StopAsyncIteration(), asyncio.CancelledError(),
    Foreign(), Unspeakable(), Endless(), ExceptionGroup("several", [ValueError("a"), Unspeakable()]),
    BaseExceptionGroup("several", [Foreign(), ValueError("a")]), TimeoutError(),
]  # fmt: skip
ENDS = [KeyboardInterrupt(), SystemExit(3), GeneratorExit()]


def answering(payload, model):
    return "42"


def test_whatever_a_call_raises_is_an_outcome(run, states):
    outcomes = [run(raising(error), policy=ONCE, batch=str(n)) for n, error in enumerate(OUTCOMES)]

    assert {outcome.error_class.partition(":")[0] for outcome in outcomes} == {"exhausted"}
    assert states() == {State.PARKED: len(OUTCOMES)}


async def slow_answer(text: str) -> str:
    await asyncio.sleep(0)
    return text


class Awaits:
    async def __call__(self, payload: Any, model: str) -> str:
        return await slow_answer("42")


def parts(*text: str) -> Any:
    yield from text


async def aparts(*text: str) -> Any:
    for part in text:
        yield part


async def aanswering(payload: Any, model: str) -> str:
    return await slow_answer("42")


@pytest.mark.parametrize(
    "call", [aanswering, Awaits(), partial(aanswering), lambda payload, model: slow_answer("42")],
    ids=["async def", "object", "partial", "lambda"],
)  # fmt: skip
@pytest.mark.parametrize("way", [run_alone, run_among_many, await_among_many], ids=lambda way: way.__name__)
def test_what_a_call_returns_to_be_awaited_is_awaited(way, ledger, states, call):
    outcome = way(ledger, call)

    assert (outcome.state, outcome.text) == (State.SUCCEEDED, "42")
    assert states() == {State.SUCCEEDED: 1}


@pytest.mark.parametrize("later", [parts, aparts], ids=lambda later: later.__name__)
def test_a_stream_that_nobody_has_read_is_no_answer(run, states, attempts, later):
    outcome = run(lambda payload, model: later("4", "2"))

    assert outcome.state in (State.PARKED, State.PENDING)  # among many it pauses the run, since each would fail so
    assert [attempt.rule for attempt in attempts("a-1")] == ["value.not_run"]
    assert State.SUCCEEDED not in states()


@pytest.mark.parametrize("later", [parts, aparts], ids=lambda later: later.__name__)
@pytest.mark.parametrize("make", [parked.Runner, parked.AsyncRunner])
def test_a_function_that_yields_is_refused_when_the_runner_is_made(ledger, make, later):
    with pytest.raises(parked.SettingsError, match=rf"call_model yields, .*test_ends:{later.__name__} must return"):
        make(ledger, later)
    with pytest.raises(parked.SettingsError, match="check yields"):
        make(ledger, answering, check=later)


def test_an_awaited_call_alone_ends_as_any_other_does(ledger, clock, states):
    async def call(payload, model):
        raise errors.pop()

    errors = [*OUTCOMES]
    for number in range(len(OUTCOMES)):
        assert run_alone(ledger, call, policy=ONCE, batch=str(number), clock=clock).state is State.PARKED

    assert states() == {State.PARKED: len(OUTCOMES)}


def test_what_ends_a_program_in_an_awaited_call_alone_hands_the_job_back_and_is_raised(ledger, states):
    async def call(payload, model):
        raise error

    for error in ENDS:
        with pytest.raises(type(error)):
            run_alone(ledger, call)

    assert states() == {State.PENDING: 1}
    assert run_alone(ledger, aanswering).state is State.SUCCEEDED  # what awaits goes on working


def test_an_awaited_call_alone_is_cancelled_at_its_deadline(ledger, attempts):
    cancelled = threading.Event()

    async def call(payload, model):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    outcome = run_alone(ledger, call, policy=parked.Policy(max_attempts=1, attempt_timeout_s=0.05))

    assert outcome.error_class == "exhausted:timeout"
    assert cancelled.wait(WAIT_S)
    assert [attempt.message for attempt in attempts("a-1")] == ["TimeoutError: no answer within 0.05 s"]


def test_awaited_calls_alone_share_a_loop_so_that_a_client_serves_many(ledger):
    loops = set()

    async def call(payload, model):
        loops.add(asyncio.get_running_loop())
        return "42"

    runner = parked.Runner(ledger, call)
    for job in many(3):
        runner.run(job)

    assert len(loops) == 1


def test_a_forked_child_awaits_on_a_loop_of_its_own(ledger_url, tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(FORKING)
    forked = subprocess.run(
        [sys.executable, "-W", "error", script, ledger_url], check=False, capture_output=True, text=True, timeout=60
    )

    assert (forked.stdout, forked.stderr) == ("parent 42\nchild 42\n", "")


FORKING = """
import os, sys
import parked
async def call(payload, model):
    return "42"
def run(who):
    job = parked.Job(who, model="m", payload=1)
    print(who, parked.Runner(ledger, call).run(job).text, flush=True)
ledger = parked.open_ledger(sys.argv[1])
run("parent")
if (child := os.fork()) == 0:
    run("child")
    ledger.close()
    os._exit(0)
os.waitpid(child, 0)
ledger.close()
"""


def test_whatever_a_check_raises_finds_fault_with_the_answer(run, states):
    outcomes = [run(answering, check=raising(error), policy=ONCE, batch=str(n)) for n, error in enumerate(OUTCOMES)]

    assert {outcome.error_class for outcome in outcomes} == {"exhausted:malformed_answer"}
    assert states() == {State.PARKED: len(OUTCOMES)}


def test_what_ends_a_program_in_a_call_hands_the_job_back_and_is_raised(run, states, attempts):
    for error in ENDS:
        with pytest.raises(type(error)):
            run(raising(error))

    assert states() == {State.PENDING: 1}
    assert [attempt.interrupted for attempt in attempts("a-1")] == [True] * len(ENDS)


def test_what_ends_a_program_in_a_check_hands_the_job_back_and_is_raised(run, states, attempts):
    for error in ENDS:
        with pytest.raises(type(error)):
            run(answering, check=raising(error))

    assert states() == {State.PENDING: 1}
    assert [attempt.interrupted for attempt in attempts("a-1")] == [True] * len(ENDS)


def test_a_check_that_is_awaited_may_raise_anything_too(ledger, clock, states):
    async def call(payload, model):
        return "42"

    async def check(answer):
        raise errors.pop()

    errors: list[BaseException] = [asyncio.CancelledError(), Foreign(), Unspeakable(), MemoryError()]
    outcome = asyncio.run(parked.AsyncRunner(ledger, call, check=check, clock=clock).run(JOB))

    assert not errors
    assert outcome.error_class == "exhausted:malformed_answer"
    assert states() == {State.PARKED: 1}


# --- who takes the results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("progress"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_whoever_takes_the_results_may_raise_and_what_runs_is_handed_back(ledger, clock, states, error):
    def take():
        for _ in parked.Runner(ledger, answering, clock=clock).run_many(many(50), concurrency=3):
            raise error

    with pytest.raises(type(error)):
        take()
    gc.collect()

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_whoever_awaits_the_results_may_raise_and_what_runs_is_handed_back(ledger, states):
    async def call(payload, model):
        await asyncio.sleep(0)
        return "42"

    async def take():
        async for _ in parked.AsyncRunner(ledger, call).run_many(many(50), concurrency=3):
            raise ValueError("progress")

    with pytest.raises(ValueError, match="progress"):
        asyncio.run(take())

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_a_source_of_jobs_may_raise_and_what_was_taken_on_is_run(ledger, clock, states):
    def source():
        yield from many(300)
        raise ValueError("the source")

    def take():
        return list(parked.Runner(ledger, answering, clock=clock).run_many(source()))

    with pytest.raises(ValueError, match="the source"):
        take()

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


DYING = """
import parked, sys, threading
called = threading.Event()
def call(payload, model):
    called.set()
    if payload:
        threading.Event().wait()
    return "42"
ledger = parked.open_ledger(sys.argv[1])
jobs = [parked.Job(f"a-{n}", model="m", payload=n) for n in range(6)]
for outcome in parked.Runner(ledger, call).run_many(jobs, concurrency=6):
    raise ValueError("an error that nobody catches")
"""


def test_a_program_that_dies_of_an_error_of_its_own_hands_back_what_runs(ledger, states):
    died = subprocess.run([sys.executable, "-c", DYING, ledger.url], check=False, capture_output=True, timeout=60)

    assert died.returncode == 1
    assert b"nobody catches" in died.stderr
    assert states() == {State.SUCCEEDED: 1, State.PENDING: 5}


INTERRUPTED = """
import gc, os, parked, signal, sys, threading
def jobs():
    yield from [parked.Job(f"a-{n}", model="m", payload=n) for n in range(3)]
    if sys.argv[2] == "source":
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()
begun = threading.Barrier(3, action=lambda: os.kill(os.getpid(), signal.SIGINT))
def call(payload, model):
    begun.wait()
    threading.Event().wait()
ledger = parked.open_ledger(sys.argv[1])
try:
    list(parked.Runner(ledger, call).run_many(jobs(), concurrency=3))
except KeyboardInterrupt as exc:
    del exc
    gc.collect()
    print(sorted(thread.name for thread in threading.enumerate() if thread.name != "parked-call"))
    ledger.close()
"""


@pytest.mark.parametrize("during", ["call", "source"])
def test_ctrl_c_hands_back_what_run_many_ran_without_a_complaint_and_leaves_no_thread(ledger, states, during):
    command = [sys.executable, "-c", INTERRUPTED, ledger.url, during]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout in ("['MainThread', 'parked-ledger']\n", "['MainThread']\n")
    assert set(states()) <= {State.PENDING}


FORKED_MEANWHILE = """
import os, parked, signal, sys, threading

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "parked.aio":
            importing.set()
            forked.wait(1.0)

importing, forked = threading.Event(), threading.Event()
sys.meta_path.insert(0, Finder())
ledger = parked.open_ledger(sys.argv[1])
runner = parked.Runner(ledger, lambda payload, model: "42")

def run(name):
    (outcome,) = runner.run_many([parked.Job(name, model="m", payload=1)])
    assert outcome.answer == "42"

thread = threading.Thread(target=run, args=("a-1",))
thread.start()
importing.wait()
child = os.fork()
if not child:
    signal.alarm(30)
    run("a-2")
    ledger.close()
    os._exit(0)
forked.set()
thread.join()
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_child_that_is_forked_while_another_thread_begins_to_run_jobs_can_run_its_own(ledger, states):
    command = [sys.executable, "-c", FORKED_MEANWHILE, ledger.url]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert states() == {State.SUCCEEDED: 2}


def test_a_concurrency_that_cannot_be_leaves_no_thread(ledger):
    with pytest.raises(parked.SettingsError, match="concurrency"):
        list(parked.Runner(ledger, answering).run_many([JOB], concurrency=0))
    gc.collect()

    for thread in threading.enumerate():
        if thread.name == "parked-pool":
            thread.join(timeout=30)
            assert not thread.is_alive()


# --- cancellation ----------------------------------------------------------------------------------------------


class Waiting:
    """A call that hangs, and says when it began."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def acall(self, payload: Any, model: str) -> Any:
        self.begun.set()
        await asyncio.Event().wait()

    def __call__(self, payload: Any, model: str) -> Any:
        raise AssertionError("it is awaited")


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_job_that_is_cancelled_in_its_call_is_handed_back(ledger, states, attempts, times):
    async def main():
        call = Waiting()
        task = asyncio.create_task(parked.AsyncRunner(ledger, call).run(JOB))
        await call.begun.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert states() == {State.PENDING: 1}
    assert [attempt.interrupted for attempt in attempts("a-1")] == [True]


@pytest.mark.parametrize("times", [1, 2])
def test_a_job_that_is_cancelled_in_its_backoff_is_handed_back(ledger, states, attempts, times):
    async def main():
        async def call(payload, model):
            asyncio.get_running_loop().call_later(0.05, cancel)
            raise ConnectionResetError

        def cancel():
            for _ in range(times):
                task.cancel()

        task = asyncio.create_task(parked.AsyncRunner(ledger, call).run(JOB))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert states() == {State.PENDING: 1}
    assert [attempt.interrupted for attempt in attempts("a-1")] == [False]


def test_a_call_that_answers_although_it_is_cancelled_keeps_its_answer(ledger, states):
    async def main():
        begun = asyncio.Event()

        async def call(payload, model):
            begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "42"

        task = asyncio.create_task(parked.AsyncRunner(ledger, call).run(JOB))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert states() == {State.SUCCEEDED: 1}


def test_a_job_that_is_cancelled_at_any_step_is_held_by_nobody(ledger, states):
    async def main(steps):
        async def call(payload, model):
            return "42"

        runner = parked.AsyncRunner(ledger, call, batch=str(steps))
        task = asyncio.create_task(runner.run(JOB))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for steps in range(40):
        asyncio.run(main(steps))

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_many_jobs_that_are_cancelled_at_any_step_are_held_by_nobody(ledger, states):
    async def take(batch):
        async def call(payload, model):
            return "42"

        async for _ in parked.AsyncRunner(ledger, call, batch=batch).run_many(many(6), concurrency=4):
            pass

    async def main(steps):
        task = asyncio.create_task(take(str(steps)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for steps in range(40):
        asyncio.run(main(steps))

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_a_course_that_is_ended_before_its_first_step_hands_back_what_was_started_for_it(ledger, states):
    """As where a claim and the end of its pool come in one step of the loop."""

    async def main():
        on = Running(ledger, answering)
        pool = Pool(on, concurrency=1)
        accepted = ledger.record(on.accept(JOB, start=True))
        pool._open(on, Hold(accepted.row, JOB.payload, accepted.row.owner_id, attempt=accepted.attempt))
        await pool.close()

    asyncio.run(main())

    assert states() == {State.PENDING: 1}


def test_a_cancelled_second_run_of_a_job_takes_nothing_from_the_first(ledger, states):
    async def main():
        call, answer = Waiting(), asyncio.Event()

        async def first(payload, model):
            call.begun.set()
            await answer.wait()
            return "42"

        one = asyncio.create_task(parked.AsyncRunner(ledger, first).run(JOB))
        await call.begun.wait()
        for steps in range(20):
            other = asyncio.create_task(parked.AsyncRunner(ledger, call).run(JOB))
            for _ in range(steps):
                await asyncio.sleep(0)
            other.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await other
        with ledger.ask() as reader:
            (row,) = reader.jobs_by_key("a-1", pipeline=None, batch=None)
        answer.set()
        return row.state, (await one).state

    assert asyncio.run(main()) == (State.RUNNING, State.SUCCEEDED)
    assert states() == {State.SUCCEEDED: 1}


# --- loops that end --------------------------------------------------------------------------------------------


def test_a_call_that_stops_its_loop_hands_the_job_back(ledger, states):
    async def call(payload, model):
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="stopped"):
        asyncio.run(parked.AsyncRunner(ledger, call).run(JOB))

    assert states() == {State.PENDING: 1}


@pytest.mark.parametrize("delivered", [False, True], ids=["before its delivery", "before its step"])
def test_a_loop_that_is_closed_after_a_commit_hands_back_what_was_started(ledger, states, monkeypatch, delivered):
    """Also where somebody keeps the task, so that nothing of it is ever collected."""
    handed_in, closed, done = threading.Event(), threading.Event(), threading.Event()
    real = LoopChannel.deliver

    def deliver(channel, tickets):
        if delivered:
            real(channel, tickets)
        handed_in.set()
        assert closed.wait(WAIT_S)
        if not delivered:
            real(channel, tickets)
        done.set()

    monkeypatch.setattr(LoopChannel, "deliver", deliver)
    loop = asyncio.new_event_loop()
    assert ledger.owner_id

    def stop():
        assert handed_in.wait(WAIT_S)  # blocks the loop: what is delivered stays in its queue
        loop.stop()

    task = loop.create_task(parked.AsyncRunner(ledger, answering).run(JOB))
    loop.call_soon(stop)
    loop.run_forever()
    loop.close()
    closed.set()
    assert done.wait(WAIT_S)

    assert not task.done()
    assert states() == {State.PENDING: 1}


def test_a_loop_that_is_closed_at_any_step_leaves_no_job_held(ledger, states, monkeypatch):
    # Python tells of courses that nobody can end any more, when it collects them; what is asked is what became of the
    # jobs. It is not to tell pytest, which keeps what it hears of, with all frames below: a collection that comes while
    # the next course begins, as it often does with -X dev, would keep that course from being collected.
    monkeypatch.setattr(sys, "unraisablehook", lambda told: None)

    async def call(payload, model):
        for _ in range(5):
            await asyncio.sleep(0)
        return "42"

    async def some(steps):
        for _ in range(steps):
            await asyncio.sleep(0)

    for steps in range(60):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *given: None)  # it complains of tasks that were never ended
        task = loop.create_task(parked.AsyncRunner(ledger, call, batch=str(steps)).run(JOB))
        loop.run_until_complete(some(steps))
        loop.close()
        del loop, task
    gc.collect()

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_a_course_that_is_collected_after_its_ledger_was_closed_says_nothing(ledger_url):
    """A warning of an exception that nobody can catch would fail this test."""

    async def call(payload, model):
        await asyncio.Event().wait()

    async def some():
        for _ in range(200):
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *given: None)
    with parked.open_ledger(ledger_url) as closing:
        tasks = [loop.create_task(parked.AsyncRunner(closing, call, batch=str(n)).run(JOB)) for n in range(3)]
        loop.run_until_complete(some())
    loop.close()

    del loop, tasks
    gc.collect()


# --- interrupts ------------------------------------------------------------------------------------------------


def test_a_second_interrupt_loses_nothing(ledger, states, attempts):
    """Ctrl-C again, while the first is being dealt with."""

    class Twice(parked.Runner):
        def _hand_back(self, *given):
            super()._hand_back(*given)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Twice(ledger, raising(KeyboardInterrupt())).run(JOB)

    assert states() == {State.PENDING: 1}
    assert [attempt.interrupted for attempt in attempts("a-1")] == [True]


def until(happened: Callable[[], bool]) -> None:
    ends, pause = time.monotonic() + WAIT_S, threading.Event()
    while not happened():
        assert time.monotonic() < ends
        pause.wait(0.01)


class Alarm(Exception):
    """What a signal handler of a program raises wherever the program stands."""


# In a callback of the garbage collector, of which Hypothesis has one, an exception is reported and goes nowhere.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
def test_a_signal_at_any_moment_leaves_no_job_held(ledger, states, error):
    def ring(*given):
        raise error

    before = signal.signal(signal.SIGALRM, ring)
    moments = random.Random(7)
    assert ledger.owner_id
    try:
        for number in range(150):
            runner = parked.Runner(ledger, answering)
            with contextlib.suppress(error):
                try:
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00005, 0.004))
                    runner.run(parked.Job(f"a-{number}", "m", 1))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


def test_a_run_from_deep_inside_a_program_leaves_no_job_held(ledger, states):
    def run_below(frames, job):
        if frames:
            return run_below(frames - 1, job)
        return parked.Runner(ledger, answering).run(job)

    here = len(__import__("inspect").stack())
    limit = sys.getrecursionlimit()
    ended = set()
    for spare in range(1, 70):
        try:
            ended.add(run_below(limit - here - spare, parked.Job(f"a-{spare}", "m", 1)).state)
        except RecursionError:
            ended.add(None)

    assert ended == {None, State.SUCCEEDED}
    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


# --- what hangs ------------------------------------------------------------------------------------------------


def test_a_call_that_hangs_runs_into_its_deadline(ledger, clock, states):
    async def call(payload, model):
        await asyncio.Event().wait()

    may_end = threading.Event()
    policy = parked.Policy(max_attempts=1, attempt_timeout_s=0.05)
    ways = (
        partial(run_alone, call=lambda payload, model: may_end.wait(WAIT_S)),
        partial(run_among_many, call=lambda payload, model: may_end.wait(WAIT_S)),
    )
    outcomes = [way(ledger, clock=clock, policy=policy, batch=str(n)) for n, way in enumerate(ways)]
    runner = parked.AsyncRunner(ledger, call, clock=clock, policy=policy, batch="awaited")
    outcomes.append(asyncio.run(runner.run(JOB)))
    assert {outcome.error_class for outcome in outcomes} == {"exhausted:timeout"}

    may_end.set()
    until(lambda: states() == {State.RECOVERED: 2, State.PARKED: 1})


def test_an_answer_that_comes_late_and_is_not_to_be_stored_is_dropped_and_its_job_stays_as_it_is(
    ledger_url, clock, monkeypatch
):
    threads = Threads()
    monkeypatch.setattr("parked.calls._threads", threads)
    may_end = threading.Event()
    policy = parked.Policy(max_attempts=1, attempt_timeout_s=0.05)
    with parked.open_ledger(ledger_url, vault=Vault(omits=True)) as ledger:
        run_alone(ledger, lambda payload, model: may_end.wait(WAIT_S), clock=clock, policy=policy)

        may_end.set()
        until(lambda: threads._free == 1)  # the call is over, with all that was to be done about it
        ledger.record(op.SetMark("settled", True))  # after all that was handed in before

        with ledger.ask() as reader:
            (row,) = reader.jobs_by_key(JOB.job_id, pipeline=None, batch=None)
            assert (row.state, row.error_class, reader.answer(row.id)) == (State.PARKED, "exhausted:timeout", None)
            assert reader.imbalances(thorough=True) == []


def test_an_answer_that_comes_after_its_ledger_was_closed_is_named_in_the_log(ledger_url, clock, caplog):
    may_end = threading.Event()
    policy = parked.Policy(max_attempts=1, attempt_timeout_s=0.05)
    with parked.open_ledger(ledger_url) as closing:
        run_alone(closing, lambda payload, model: may_end.wait(WAIT_S), clock=clock, policy=policy)

    may_end.set()

    until(lambda: "late_answer_lost job=1" in caplog.text)


# --- a replay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_what_ends_a_replay_parks_its_job_again_with_the_class_it_had(ledger, states, attempts, error):
    parked.Runner(ledger, raising(ConnectionResetError()), policy=ONCE).run(JOB)
    replay_id = ledger.record(op.OpenReplay("r", "me", "{}"))

    async def main():
        on = Running(ledger, raising(error))
        with ledger.ask() as reader:
            (row,) = reader.jobs_by_key("a-1", pipeline=None, batch=None)

        async def source():
            from parked.pool import Handful

            yield Handful(on, [on.hold(row, JOB.payload, replay_id=replay_id)])

        return [hold async for hold in Pool(on, concurrency=1).run(source())]

    with pytest.raises(type(error)):
        asyncio.run(main())

    assert states() == {State.PARKED: 1}
    assert [attempt.interrupted for attempt in attempts("a-1")] == [False, True]
