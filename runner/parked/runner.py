"""The sync driver: runs courses in the caller's thread, and many of them through the pool."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Iterable, Iterator
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, assert_never

from parked.awaiting import awaited
from parked.calls import Call, call_threads
from parked.course import NEVER_AN_OUTCOME, Ask, Effect, Hold, Inspect, Raised, Record, Reply, Turn, course
from parked.errors import OwnerLost, ParkedError, SettingsError
from parked.job import Job, Outcome, State
from parked.ledger import operations as op
from parked.ledger.writer import Ticket
from parked.running import BaseRunner, Running, Stopped
from parked.telemetry import JobTrace

if TYPE_CHECKING:
    from parked.aio import PoolThread

STALLED_WAIT_S = 0.2  # how soon to look again whether the ledger can be written

# No fork meanwhile: the child would wait for ever for an import that a thread of its parent was in the midst of.
_importing = threading.RLock()
os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)


class SyncDriver:
    """Does what courses ask for, in the thread that asks."""

    def __init__(self, on: Running) -> None:
        self.stopping = threading.Event()
        self._on = on
        self._rules = on.rules_alone()
        self._calls: set[Call] = set()

    def stop(self) -> None:
        self.stopping.set()
        timer = threading.Timer(self._on.policy.drain_s, self._cut_off)
        timer.daemon = True
        timer.start()

    def drive(self, hold: Hold, trace: JobTrace) -> None:
        """Do what a course asks for. Whatever ends it early, the job is handed back without waiting."""
        steps = course(hold, self._rules, span=trace.ids)
        try:
            effect = next(steps)
            while True:
                effect = steps.send(self._perform(effect, hold, trace))
        except StopIteration:
            return
        finally:
            if not hold.finished:
                self._on.ledger.hand_back(hold.release())
            trace.end(hold.row)

    def _perform(self, effect: Effect, hold: Hold, trace: JobTrace) -> Any:
        match effect:
            case Record(operation):
                try:
                    result = self._on.ledger.record(operation)
                except OwnerLost:
                    result = self._on.ledger.record(self._on.renewed(hold, operation))
                trace.recorded(operation, hold.judged.finish_reasons if hold.judged else ())
                return result
            case Turn(model, wait_s):
                return self._turn(model, wait_s)
            case Ask():
                return self._ask(effect, hold, trace)
            case Inspect(judged):
                return self._on.inspect(judged)
            case _:
                assert_never(effect)

    def _turn(self, model: str, wait_s: float) -> None:
        on = self._on
        if wait_s:
            self._sleep(wait_s)
        while True:
            wait_s = on.delays.wait_s(model, on.clock.monotonic())
            if on.ledger.stalled:
                wait_s = max(wait_s, STALLED_WAIT_S)
            if wait_s == 0 and not self.stopping.is_set():
                return
            self._sleep(wait_s)

    def _sleep(self, wait_s: float) -> None:
        self._on.clock.sleep(wait_s, self.stopping)
        if self.stopping.is_set():
            raise Stopped

    def _ask(self, ask: Ask, hold: Hold, trace: JobTrace) -> Reply:
        on = self._on
        begun = on.clock.monotonic()
        with trace.asking(ask.attempt, ask.payload):
            context = contextvars.copy_context()
            call = call_threads().start(lambda: context.run(self._call, ask))
            self._calls.add(call)
            try:
                in_time = call.wait(on.policy.attempt_timeout_s)
            except BaseException as exc:  # Ctrl-C reaches us here; the call goes on by itself, or has just ended
                call.interrupt(exc)
                call.give_up(on.late(hold))
                raise
            finally:
                self._calls.discard(call)
        if call.interrupted is not None:
            call.give_up(on.late(hold))
            raise call.interrupted
        if not in_time:
            call.give_up(on.late(hold))
            return on.timed_out(trace.attempt_ids())
        assert call.outcome is not None
        if isinstance(call.outcome, Raised) and isinstance(call.outcome.error, NEVER_AN_OUTCOME):
            raise call.outcome.error
        trace.came(call.outcome)
        return Reply(call.outcome, on.clock.monotonic() - begun, trace.attempt_ids())

    def _call(self, ask: Ask) -> Any:
        """Call the model, in a thread of its own. Whatever has to be awaited for the answer is awaited."""
        returned = self._on.call_model(ask.payload, ask.model)
        return awaited(returned, self._on.policy.attempt_timeout_s) if isawaitable(returned) else returned

    def _cut_off(self) -> None:
        for call in tuple(self._calls):
            call.interrupt(Stopped())


class Runner(BaseRunner):
    """Runs jobs: each is committed before its first call, retried by the policy, and ends answered or parked."""

    def _set_up(self) -> None:
        if iscoroutinefunction(self._on.check):
            raise SettingsError("a check that has to be awaited needs an AsyncRunner")
        self._driver = SyncDriver(self._on)
        self._pools: set[PoolThread] = set()

    def run(self, job: Job) -> Outcome:
        """Run one job to its end. A job that is known already is not called again; its outcome is given back.

        Raises:
            InvalidJob, JobConflict: misuse; nothing was taken on.
            LedgerUnavailable: the ledger can't be written; nothing was taken on.
        """
        if self._driver.stopping.is_set():
            raise ParkedError("this runner was stopped; make another to go on")
        on = self._on
        trace = on.spans.job(on.name(job))
        taken: Ticket | None = None
        hold: Hold | None = None
        try:
            open_now = on.delays.wait_s(job.model, on.clock.monotonic()) == 0
            taken = Ticket(on.accept(job, start=open_now, span=trace.ids))
            on.ledger.hand_in((taken,))
            try:
                accepted: op.Accepted = taken.wait()
            except OwnerLost:  # the job is on, but not started
                taken = Ticket(on.accept(job, start=open_now, span=trace.ids))
                on.ledger.hand_in((taken,))
                accepted = taken.wait()
            hold = on.hold(accepted.row, job.payload, attempt=accepted.attempt)
            if accepted.attempt is None and accepted.row.state is not State.PENDING:
                hold.finished = True
                trace.end(hold.row)
            else:
                self._driver.drive(hold, trace)
        except Stopped:
            assert hold is not None
            hold.let_go()
        except BaseException:
            self._hand_back(hold, taken)
            raise
        return on.outcome(hold)

    def run_many(self, jobs: Iterable[Job], *, concurrency: int = 32) -> Iterator[Outcome]:
        """Run many jobs, `concurrency` calls at a time, and yield outcomes as they come.

        Raises what `run` raises. Jobs that are under way then are released.
        """
        with _importing:
            from parked.aio import PoolThread

        pool = PoolThread(self._on, jobs, concurrency=concurrency)
        self._pools.add(pool)
        try:
            yield from pool
        finally:
            self._pools.discard(pool)
            pool.close()

    def stop(self) -> None:
        """Drain: no new attempt starts, running calls get `drain_s`, then their jobs are released. Safe anywhere."""
        self._driver.stop()
        for pool in tuple(self._pools):
            pool.stop()

    def _hand_back(self, hold: Hold | None, taken: Ticket | None) -> None:
        """Whatever was started for a job that nobody runs any more is released, wherever an interrupt came."""
        if hold is not None:
            if not hold.finished:
                self._on.ledger.hand_back(hold.release())
        elif taken is not None:
            self._on.ledger.forsake(taken)
