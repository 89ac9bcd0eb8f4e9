"""Many jobs at once: who gets a worker, how far ahead jobs are taken on, and how a run is drained.

On asyncio, also behind the sync runner: a job that waits for its backoff or at a closed gate holds no worker, and one
place decides who goes next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from parked.course import Hold
from parked.driver import Driver, LoopChannel
from parked.errors import LedgerUnavailable, OwnerLost, ParkedError, SettingsError
from parked.gate import Gates
from parked.job import ANSWERED, Job, State
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.policy import Policy
from parked.running import Running, Stopped
from parked.telemetry import JobTrace
from parked.timing import Clock

CHUNK: Final = 256  # jobs accepted in one commit
AHEAD: Final = 32  # jobs in hand beyond those that have a worker, at most
STALLED_WAIT_S: Final = 0.2  # how soon to look again whether the ledger can be written


class Premises(Protocol):
    """What all jobs of a pool have in common, whoever calls them."""

    ledger: Ledger
    policy: Policy
    clock: Clock
    gates: Gates


class Handful(NamedTuple):
    """Jobs that come into a pool's hands, and how they are run."""

    on: Running
    holds: list[Hold]


class Workers:
    """The right to call, for so many at a time, in the order of asking."""

    def __init__(self, premises: Premises, concurrency: int, *, rate: float | None) -> None:
        self._premises = premises
        self._free = asyncio.Semaphore(concurrency)
        self._between_s = 1 / rate if rate else 0.0
        self._next_at = 0.0  # monotonic; when the next call may start at that rate
        self.stopping = False

    async def take(self, model: str, *, has_one: bool) -> None:
        """Wait for a worker, at a moment when the model's gate is open and the ledger takes what a call brings.

        `has_one` says that the asker holds a worker already; it is given back while there is something to wait for.
        """
        clock = self._premises.clock
        if self._between_s:
            now = clock.monotonic()
            at = max(now, self._next_at)
            self._next_at = at + self._between_s
            if at > now:
                if has_one:
                    self.give_back()
                    has_one = False
                await self.sleep(at - now)
        while True:
            if not has_one:
                await self.take_any()
            wait_s = self._wait_s(self._premises.gates.wait_s(model, clock.monotonic()))
            if wait_s == 0:
                return
            self.give_back()
            has_one = False
            await self.sleep(wait_s)

    async def take_any(self) -> None:
        """Wait for a worker, whatever it will call."""
        await self._free.acquire()
        if self.stopping:
            self.give_back()
            raise Stopped

    async def take_several(self, most: int) -> int:
        """Wait for one worker, at a moment when some model may be called, and take what else is free.

        Returns how many.
        """
        while True:
            await self.take_any()
            wait_s = self._wait_s(self._premises.gates.wait_for_any_s(self._premises.clock.monotonic()))
            if wait_s == 0:
                break
            self.give_back()
            await self.sleep(wait_s)
        taken = 1
        while taken < most and not self._free.locked():
            await self._free.acquire()
            taken += 1
        return taken

    def give_back(self, workers: int = 1) -> None:
        for _ in range(workers):
            self._free.release()

    async def sleep(self, wait_s: float) -> None:
        if not self.stopping:
            await self._premises.clock.asleep(wait_s)
        if self.stopping:
            raise Stopped

    def _wait_s(self, gate_s: float) -> float:
        """A gate's wait, or longer: while an outcome waits for the ledger, no call may start."""
        return max(gate_s, STALLED_WAIT_S) if self._premises.ledger.stalled else gate_s


class Pool:
    """Runs the jobs of its sources. Make it on the loop that runs it; use it once."""

    def __init__(self, premises: Premises, *, concurrency: int, rate: float | None = None, alone: bool = False) -> None:
        """`rate` bounds how many calls start, in calls a second.

        Raises:
            SettingsError: a concurrency under 1.
        """
        if concurrency < 1:
            raise SettingsError(f"concurrency must be a whole number from 1, got {concurrency!r}")
        self.premises = premises
        self.workers = Workers(premises, concurrency, rate=rate)
        self._channel = LoopChannel(premises.ledger)
        self._drivers: dict[Running, Driver] = {}
        self._alone = alone
        # Enough in hand to keep every worker busy while the next chunk is read and committed; no more, so that memory
        # doesn't grow with the number of jobs.
        self._enough = concurrency + AHEAD
        self._courses: dict[asyncio.Task[None], Hold] = {}
        self._ended: asyncio.Queue[Hold | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self.stopped = False  # whether it was told to drain
        self.lost: list[str] = []  # job ids whose outcomes the ledger never took; they will be parked as orphaned

    # --- sources: what is to be run, and what is known already (as finished holds) ---

    async def accepting(self, on: Running, chunks: AsyncIterable[list[Job]]) -> AsyncIterator[Handful]:
        """Take jobs on, a chunk a commit.

        Raises:
            InvalidJob, JobConflict: misuse; the jobs of earlier chunks have been taken on.
            LedgerUnavailable: nothing of this chunk was taken on.
        """
        async for jobs in chunks:
            yield Handful(on, await self._accept(on, jobs))

    async def record_all(self, operations: Sequence[op.Operation]) -> None:
        """Have operations of a source committed."""
        await asyncio.gather(*self._channel.send_many(operations))

    async def started(self, operation: op.Operation) -> Any:
        """Have an operation committed that starts jobs for a source. If nobody waits any more, they are handed back."""
        return await self._channel.record(operation)

    def hand_back(self, hold: Hold) -> None:
        """Nobody is going to run this job here."""
        if hold.attempt is not None:
            self.premises.ledger.hand_back(hold.release())
        hold.let_go()

    async def until_room(self) -> None:
        """Wait until more jobs may be taken in hand."""
        await self._until_open(self._enough)

    def in_hand(self) -> Counter[str]:
        """How many jobs of each pipeline are under way."""
        return Counter(hold.row.pipeline for hold in self._courses.values())

    # --- running ---

    async def run(self, *sources: AsyncIterable[Handful]) -> AsyncGenerator[Hold, None]:
        """Run what the sources give, one source after the other, and yield each job when it is out of our hands.

        Raises:
            Whatever a source raises, and `LedgerUnavailable`; the other jobs are drained first.
        """
        self._feeder = asyncio.create_task(self._feed(sources))
        self._ending = asyncio.create_task(self._end())
        while (hold := await self._ended.get()) is not None:
            self._changed.set()
            yield hold
        await self._ending
        if self._error is not None:
            raise self._error

    async def run_one(self, on: Running, job: Job) -> Hold:
        """Take one job on and run it. It is accepted and started in one operation, if its gate is open."""
        trace = on.spans.job(on.name(job))
        open_now = on.gates.wait_s(job.model, on.clock.monotonic()) == 0
        try:
            accepted = await self._channel.record(on.accept(job, start=open_now, span=trace.ids))
        except OwnerLost:  # the job is on, but not started
            accepted = await self._channel.record(on.accept(job, start=open_now, span=trace.ids))
        hold = on.hold(accepted.row, job.payload, attempt=accepted.attempt)
        if hold.attempt is None and hold.row.state is not State.PENDING:
            trace.end(hold.row)
            return hold
        if hold.attempt is not None:
            if self.workers.stopping:
                self.hand_back(hold)
                trace.end(hold.row)
                return hold
            await self.workers.take_any()
        task = self._open(on, hold, trace)
        try:
            await asyncio.shield(task)
        except GeneratorExit:  # the loop has ended under us: nothing can be awaited any more
            if task.get_loop().is_closed() and not hold.finished:  # perhaps before the course began
                self.hand_back(hold)
            raise
        except BaseException:
            await self.close()
            raise
        if self._error is not None:
            raise self._error
        return hold

    def stop(self) -> None:
        """Drain: no new attempt starts, running calls get `drain_s`, then their jobs are released."""
        if self.workers.stopping:
            return
        self.stopped = True
        self._halt()
        asyncio.get_running_loop().call_later(self.premises.policy.drain_s, self._cut_off)

    def unwritten(self) -> list[str]:
        """The job ids whose outcomes would go with this process if it ended now: the ledger hasn't taken them yet."""
        waiting = {outcome.id for outcome in self.premises.ledger.unwritten}
        return [hold.row.job_id for hold in self._courses.values() if hold.row.id in waiting] + self.lost

    async def close(self) -> None:
        """End at once what still runs; its jobs are released without waiting for the ledger."""
        self._halt()
        self._cut_off()
        if self._ending is not None:
            self._ending.cancel()
        waiting = (*self._courses, self._feeder, self._ending)
        await asyncio.gather(*[task for task in waiting if task is not None], return_exceptions=True)

    async def _accept(self, on: Running, jobs: list[Job]) -> list[Hold]:
        futures = self._channel.send_many(on.accept(job) for job in jobs)
        holds = []
        for job, accepted in zip(jobs, await asyncio.gather(*futures), strict=True):
            hold = on.hold(accepted.row, job.payload)
            hold.finished = accepted.row.state is not State.PENDING
            holds.append(hold)
        self._read_answers(holds)
        return holds

    def _read_answers(self, holds: list[Hold]) -> None:
        """Read what was answered before, all of a chunk at once."""
        answered = {hold.row.id: hold for hold in holds if hold.row.state in ANSWERED}
        if answered:
            with self.premises.ledger.ask() as reader:
                for id, body in reader.answer_bodies(tuple(answered)).items():
                    answered[id].stored = body

    async def _feed(self, sources: tuple[AsyncIterable[Handful], ...]) -> None:
        try:
            for source in sources:
                async for on, holds in source:
                    await self._take_in_hand(on, holds)
                await self._until_open(0)
        except Stopped:
            return
        except Exception as exc:  # noqa: BLE001 - raised by `run`, once the others are drained
            self._fail(exc)

    async def _take_in_hand(self, on: Running, holds: list[Hold]) -> None:
        """Open their courses in order, and let go of each: what it comes to hold must not live as long as its chunk."""
        holds.reverse()
        try:
            while holds:
                if holds[-1].attempt is None:  # else it has a worker, which others wait for
                    await self._until_open(self._enough)
                hold = holds.pop()
                if hold.finished:
                    self._ended.put_nowait(hold)
                else:
                    self._open(on, hold)
        finally:
            for hold in reversed(holds):  # the run was stopped; they stay what they are in the ledger
                self._ended.put_nowait(hold)

    async def _end(self) -> None:
        """After the last course: see its releases committed, and tell whoever takes the results."""
        assert self._feeder is not None
        await asyncio.gather(self._feeder, return_exceptions=True)
        await self._until_open(0)
        for driver in self._drivers.values():
            for release in driver.releases:
                with suppress(ParkedError):
                    await asyncio.to_thread(release.wait)
        self._ended.put_nowait(None)

    def _open(self, on: Running, hold: Hold, trace: JobTrace | None = None) -> asyncio.Task[None]:
        if on not in self._drivers:
            self._drivers[on] = Driver(on, self.workers, self._channel, alone=self._alone)
        task = asyncio.create_task(self._course(self._drivers[on], hold, trace))
        self._courses[task] = hold
        task.add_done_callback(self._over)
        return task

    async def _course(self, driver: Driver, hold: Hold, trace: JobTrace | None) -> None:
        try:
            if hold.attempt is None:  # before anything else is made for it: many wait here, and few run
                await self.workers.take_any()
            await driver.drive(hold, trace)
        except (Stopped, asyncio.CancelledError):
            hold.let_go()
        except LedgerUnavailable as exc:
            if hold.called and hold.attempt is not None:
                self.lost.append(hold.row.job_id)
            self._fail(exc)
        except BaseException as exc:  # noqa: BLE001 - also SystemExit, which would end the loop under the others
            self._fail(exc)

    def _over(self, task: asyncio.Task[None]) -> None:
        hold = self._courses.pop(task)
        if task.cancelled():  # before its first step, so that its driver has seen nothing of it
            self.hand_back(hold)
        self._ended.put_nowait(hold)
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        with suppress(RuntimeError):  # the loop has ended under us
            self.stop()

    def _halt(self) -> None:
        self.workers.stopping = True
        if self._feeder is not None:
            self._feeder.cancel()
        for task, hold in self._courses.items():
            if hold.attempt is None:  # waits for its turn or its backoff
                task.cancel()

    def _cut_off(self) -> None:
        for task in self._courses:
            task.cancel()

    async def _until_open(self, most: int) -> None:
        """Wait until at most so many jobs are in hand: under way, or not taken by whoever takes the results."""
        while len(self._courses) + self._ended.qsize() > most:
            self._changed.clear()
            await self._changed.wait()
