"""The asyncio driver of courses, and the channel by which the ledger answers a loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, assert_never

from parked.calls import Call, call_threads
from parked.check import copy_of, passed, refused
from parked.course import NEVER_AN_OUTCOME, Ask, Hold, Inspect, Raised, Record, Reply, Returned, Rules, Turn, course
from parked.errors import LedgerUnavailable, OwnerLost
from parked.judge import Judged
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.ledger.writer import Ticket
from parked.policy import GiveUp, LetGo, Rest
from parked.running import CallModel, Running
from parked.telemetry import JobTrace

_T = TypeVar("_T")

GATE_WAIT_S: Final = 0.5  # a longer wait for a turn than its backoff is worth telling of
AWAY_S: Final = 1.0  # how soon to try again to start a job while the ledger is away


class Turns(Protocol):
    """Who may call, and when."""

    async def turn(self, hold: Hold, wait_s: float) -> LetGo | GiveUp | Rest | None:
        """Wait for a job's turn, `wait_s` at least. Returns what it is told instead, if it is not to call."""
        ...

    def leave(self, hold: Hold) -> None:
        """A job is out of our hands."""
        ...

    async def sleep(self, wait_s: float) -> None: ...


class LoopChannel:
    """How the writer answers an event loop: one wake-up for all operations of a commit."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._look_is_due = False

    async def record(self, operation: op.Operation) -> Any:
        """Have an operation committed and return its result.

        Whatever ends the waiting, jobs that the operation starts are handed back.
        """
        ticket = Ticket(operation, self)
        try:
            return await self._handed_in([ticket])[0]
        except BaseException:
            self._ledger.forsake(ticket)
            raise

    def send_many(self, operations: Iterable[op.Operation]) -> list[asyncio.Future[Any]]:
        """Hand in operations that start nothing."""
        return self._handed_in([Ticket(operation, self) for operation in operations])

    def _handed_in(self, tickets: list[Ticket]) -> list[asyncio.Future[Any]]:
        futures = [self._loop.create_future() for _ in tickets]
        self._waiting.update(zip(tickets, futures, strict=True))
        self._ledger.hand_in(tickets, look=False)
        if not self._look_is_due:
            # Two turns of the loop later: what answers of this turn lead to, the next claim, then shares their commit.
            self._look_is_due = True
            self._loop.call_soon(self._loop.call_soon, self._look)
        return futures

    def _look(self) -> None:
        self._look_is_due = False
        self._ledger.look()

    def deliver(self, tickets: list[Ticket]) -> None:
        """Called by the writer's thread. A loop that has ended waits for nothing any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_Delivery(self._ledger, self._resolve, tickets))

    def _resolve(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            future = self._waiting.pop(ticket)
            if future.done():  # cancelled meanwhile
                continue
            if ticket.error is not None:
                future.set_exception(ticket.error)
            else:
                future.set_result(ticket.result)


class _Delivery:
    """Answers on their way to a loop. If it is closed before they arrive, it drops them, and nobody has them."""

    def __init__(self, ledger: Ledger, resolve: Callable[[list[Ticket]], None], tickets: list[Ticket]) -> None:
        self._ledger, self._resolve, self._tickets = ledger, resolve, tickets

    def __call__(self) -> None:
        tickets, self._tickets = self._tickets, []
        self._resolve(tickets)

    def __del__(self) -> None:
        for ticket in self._tickets:
            self._ledger.forsake(ticket)


class Driver:
    """Does what courses ask for, on the running loop."""

    def __init__(self, on: Running, turns: Turns, channel: LoopChannel, rules: Rules, *, alone: bool) -> None:
        self.releases: list[Ticket] = []  # of courses that were ended early
        self._on, self._turns, self._channel, self._alone = on, turns, channel, alone
        self._rules = rules
        self._acall = _awaitable(on.call_model)

    async def drive(self, hold: Hold, trace: JobTrace | None = None, *, has_turn: bool = False) -> None:
        """Run one course to its end; with `has_turn` it needn't wait for its first.

        Whatever ends it early, the job is handed back without waiting.
        """
        trace = trace or self._on.trace(hold)
        steps = course(hold, self._rules, span=trace.ids)
        try:
            effect = next(steps)
            while True:
                match effect:
                    case Record(operation):
                        result = await self._record(operation, hold)
                        trace.recorded(operation, hold.judged.finish_reasons if hold.judged else ())
                    case Turn(_, wait_s):
                        result = None if has_turn else await self._turn(hold, wait_s, trace)
                        has_turn = False
                    case Ask():
                        result = await self._ask(effect, hold, trace)
                    case Inspect(judged):
                        result = await self._inspect(judged)
                    case _:
                        assert_never(effect)
                try:
                    effect = steps.send(result)
                except StopIteration:
                    return
        finally:
            # First of all, and without a future: the loop may have ended under this course.
            if not hold.finished:
                release = self._on.ledger.hand_back(hold.release())
                if release is not None:
                    self.releases.append(release)
            trace.end(hold.row)
            with suppress(RuntimeError):
                self._turns.leave(hold)

    async def _turn(self, hold: Hold, wait_s: float, trace: JobTrace) -> LetGo | GiveUp | Rest | None:
        begun = self._on.clock.monotonic()
        told = await self._turns.turn(hold, wait_s)
        waited_s = self._on.clock.monotonic() - begun - wait_s
        if waited_s >= GATE_WAIT_S:
            trace.waited(waited_s)
        return told

    async def _record(self, operation: op.Operation, hold: Hold) -> Any:
        """Have an operation committed. A start waits for a ledger that is away; an outcome does so in the writer."""
        clock, ledger = self._on.clock, self._on.ledger
        gives_up = clock.monotonic() + ledger.write_patience_s
        while True:
            try:
                return await self._channel.record(operation)
            except OwnerLost:
                operation = self._on.renewed(hold, operation)
            except LedgerUnavailable:
                if self._alone or not isinstance(operation, op.Start) or clock.monotonic() >= gives_up:
                    raise
                await self._turns.sleep(AWAY_S)

    async def _ask(self, ask: Ask, hold: Hold, trace: JobTrace) -> Reply:
        on = self._on
        begun = on.clock.monotonic()
        with trace.asking(ask.attempt, ask.payload):
            try:
                async with asyncio.timeout(on.policy.attempt_timeout_s):
                    outcome = await self._call(ask, hold)
            except TimeoutError:
                return on.timed_out(trace.attempt_ids())
        trace.came(outcome)
        return Reply(outcome, on.clock.monotonic() - begun, trace.attempt_ids())

    async def _inspect(self, judged: Judged) -> Judged:
        """Let the check look, beside the loop and within the deadline of an attempt."""
        check, timeout_s = self._on.check, self._on.policy.attempt_timeout_s
        assert check is not None
        try:
            async with asyncio.timeout(timeout_s):
                if inspect.iscoroutinefunction(check):
                    return passed(judged, await check(copy_of(judged.answer)))
                call = call_threads().start(lambda: self._on.inspect(judged))
                await _end_of(call)
        except TimeoutError:
            return passed(judged, f"the check was not done within {timeout_s:g} s")
        except asyncio.CancelledError as exc:
            if _cancels_us():
                raise
            return refused(judged, exc)
        except NEVER_AN_OUTCOME:
            raise
        except BaseException as exc:  # noqa: BLE001 - a check finds fault with anything
            return refused(judged, exc)
        if isinstance(call.outcome, Raised):
            raise call.outcome.error  # what `inspect` lets through ends programs
        assert call.outcome is not None
        inspected: Judged = call.outcome.value
        return inspected

    async def _call(self, ask: Ask, hold: Hold) -> Returned | Raised:
        """Call the model. Every way that can end is an outcome, but for what is meant for us."""
        try:
            if self._acall is not None:
                return Returned(await self._acall(ask.payload, ask.model))
            outcome = await self._call_in_thread(ask, hold)
            if isinstance(outcome, Returned) and inspect.isawaitable(outcome.value):
                return Returned(await outcome.value)
            return outcome
        except asyncio.CancelledError as exc:
            if _cancels_us():
                raise
            return Raised(exc)
        except NEVER_AN_OUTCOME:
            raise
        except BaseException as exc:  # noqa: BLE001 - the one place around the attempt: it becomes a verdict
            return Raised(exc)

    async def _call_in_thread(self, ask: Ask, hold: Hold) -> Returned | Raised:
        context = contextvars.copy_context()
        call = call_threads().start(lambda: context.run(self._on.call_model, ask.payload, ask.model))
        try:
            await _end_of(call)
        except asyncio.CancelledError:
            call.give_up(self._on.late(hold))
            raise
        assert call.outcome is not None
        if isinstance(call.outcome, Raised) and isinstance(call.outcome.error, NEVER_AN_OUTCOME):
            raise call.outcome.error
        return call.outcome


def _cancels_us() -> bool:
    """Whether a cancellation is meant for the task that runs, and wasn't just raised by what it called."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _end_of(call: Call) -> None:
    """Wait until a call in a thread is over."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    call.then(lambda _: wake(loop, over))
    await over


async def in_thread(function: Callable[[], _T]) -> _T:
    """As `asyncio.to_thread`, but in one of the threads for calls: asyncio's own need one more when their loop ends."""
    call = call_threads().start(function)
    await _end_of(call)
    if isinstance(call.outcome, Raised):
        raise call.outcome.error
    assert call.outcome is not None
    value: _T = call.outcome.value
    return value


def wake(loop: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
    """From another thread: what `over` waits for has happened. A loop that has ended waits for nothing any more."""
    try:
        loop.call_soon_threadsafe(_set, over)
    except RuntimeError:
        return


def _set(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _awaitable(call_model: CallModel) -> Callable[[Any, str], Awaitable[Any]] | None:
    """Return how the caller is awaited, or None if it is a plain function."""
    acall = getattr(call_model, "acall", None)
    if acall is not None:
        return acall  # type: ignore[no-any-return]  # whatever has `acall` says what it is by that name
    if inspect.iscoroutinefunction(call_model) or inspect.iscoroutinefunction(type(call_model).__call__):
        return call_model
    return None
