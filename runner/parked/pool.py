"""Many jobs at once: how far ahead they are taken on, how each is run, and how a run is drained.

On asyncio, also behind the sync runner. Who goes next is the line's business (`line.py`, `turns.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from parked.arguments import check_whole_number
from parked.course import Hold
from parked.driver import Driver, LoopChannel, in_thread
from parked.errors import LedgerUnavailable, OwnerLost, ParkedError
from parked.gates import Gates
from parked.job import ANSWERED, Job, State
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.line import Line
from parked.lone import NamedDelays
from parked.pace import Pace
from parked.policy import Policy
from parked.running import Running, Stopped
from parked.sharing import Sharing
from parked.telemetry import JobTrace
from parked.timing import Clock
from parked.turns import Alone, Dispatcher

CHUNK: Final = 256  # jobs accepted in one commit
AHEAD: Final = 32  # jobs in hand beyond those that have a worker, while all is well
# While a gate is closed more are taken in hand: whoever probes is taken from the far end, and a hundred bad jobs at the
# head of a file would else be all that is known of it. Bounded in memory, too.
MOST: Final = 1000
MOST_BYTES: Final = 64_000_000


class Premises(Protocol):
    """What all jobs of a pool have in common, whoever calls them."""

    ledger: Ledger
    policy: Policy
    clock: Clock
    gates: Gates
    delays: NamedDelays


class Handful(NamedTuple):
    """Jobs that come into a pool's hands, and how they are run."""

    on: Running
    holds: list[Hold]


class Pool:
    """Runs the jobs of its sources. Make it on the loop that runs it; use it once."""

    def __init__(
        self,
        premises: Premises,
        *,
        concurrency: int,
        rate: float | None = None,
        alone: bool = False,
        keeps: bool = False,
        resumes: bool = False,
        pipelines: tuple[str, ...] | None = None,
    ) -> None:
        """`rate` bounds how many calls start, in calls a second. `alone` is for one job that has no line.

        `pipelines` are those whose pauses matter here; None: all. With `keeps` jobs stay in hand at a pause, and with
        `resumes` one of them tries now and then.

        Raises:
            SettingsError: the concurrency is no whole number, or under 1.
        """
        check_whole_number("concurrency", concurrency, at_least=1)
        self.premises = premises
        self._channel = LoopChannel(premises.ledger)
        self.line = Line(premises.gates, premises.policy, concurrency, keeps=keeps, resumes=resumes)
        if rate is not None:
            premises.gates.all.pace = Pace(ceiling_per_s=rate)
        self._changed = asyncio.Event()
        self._alone = Alone(premises, premises.delays) if alone else None
        self.turns = Dispatcher(premises, self.line, self._channel, self._changed)
        self._sharing = Sharing(premises, self.line, self._channel, pipelines, lambda: self.turns.pipelines)
        self.turns.heard.append(self._sharing.heard)
        self._drivers: dict[Running, Driver] = {}
        # Enough in hand to keep every worker busy while the next chunk is read and committed; no more, so that memory
        # doesn't grow with the number of jobs.
        self._enough = concurrency + AHEAD
        self._body_bytes = 0
        self._courses: dict[asyncio.Task[None], Hold] = {}
        self._ended: asyncio.Queue[Hold | None] = asyncio.Queue()
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

    async def record_all(self, operations: Sequence[op.Operation]) -> list[Any]:
        """Have operations of a source committed that start nothing; returns their results."""
        return await asyncio.gather(*self._channel.send_many(operations))

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
        while not self._has_room():
            self._changed.clear()
            await self._changed.wait()

    def _has_room(self) -> bool:
        return (
            self._ended.qsize() <= self._enough
            and self._body_bytes <= MOST_BYTES
            and self.line.wants(ahead=self._enough, most=MOST)
        )

    async def until_changed(self, wait_s: float) -> None:
        """Wait until something has changed, or so long."""
        await self.turns.until_changed(wait_s)

    def in_hand(self) -> Counter[str]:
        """How many jobs of each pipeline are under way."""
        return Counter(hold.row.pipeline for hold in self._courses.values())

    # --- running ---

    async def run(self, *sources: AsyncIterable[Handful]) -> AsyncGenerator[Hold, None]:
        """Run what the sources give, one source after the other, and yield each job when it is out of our hands.

        Raises:
            Whatever a source raises, and `LedgerUnavailable`; the other jobs are drained first.
        """
        await self._sharing.begin(self.turns.wake)
        self._feeder = asyncio.create_task(self._feed(sources))
        self._ending = asyncio.create_task(self._end())
        while (hold := await self._ended.get()) is not None:
            self._changed.set()
            yield hold
        await self._ending
        if self._error is not None:
            raise self._error

    async def run_one(self, on: Running, job: Job) -> Hold:
        """Take one job on and run it. It is accepted and started in one operation, if no delay holds it back."""
        trace = on.spans.job(on.name(job))
        open_now = on.delays.wait_s(job.model, on.clock.monotonic()) == 0
        try:
            accepted = await self._channel.record(on.accept(job, start=open_now, span=trace.ids))
        except OwnerLost:  # the job is on, but not started
            accepted = await self._channel.record(on.accept(job, start=open_now, span=trace.ids))
        hold = on.hold(accepted.row, job.payload, attempt=accepted.attempt)
        if hold.attempt is None and hold.row.state is not State.PENDING:
            trace.end(hold.row)
            return hold
        if hold.attempt is not None and self.stopped:
            self.hand_back(hold)
            trace.end(hold.row)
            return hold
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
        if self.stopped:
            return
        self.stopped = True
        self._halt()
        asyncio.get_running_loop().call_later(self.premises.policy.drain_s, self._cut_off)

    def wait_at_most(self, wait_s: float) -> asyncio.TimerHandle:
        """Wait at pauses for no longer than so many seconds from now; return what can call that off."""
        self.line.gives_up_at = self.premises.clock.monotonic() + wait_s
        return asyncio.get_running_loop().call_later(wait_s, self.give_up_waiting)

    def give_up_waiting(self) -> None:
        """Hand back what stays in hand at a pause; it isn't looked into again."""
        self.line.give_up_waiting()
        self.turns.wake()

    def unwritten(self) -> list[str]:
        """The job ids whose outcomes would go with this process if it ended now: the ledger hasn't taken them yet."""
        waiting = {outcome.id for outcome in self.premises.ledger.unwritten}
        return [hold.row.job_id for hold in self._courses.values() if hold.row.id in waiting] + self.lost

    async def close(self) -> None:
        """End at once what still runs; its jobs are released without waiting for the ledger."""
        self._halt()
        self._cut_off()
        self.turns.close()
        self._sharing.end()
        if self._ending is not None:
            self._ending.cancel()
        waiting = (*self._courses, self._feeder, self._ending)
        await asyncio.gather(*[task for task in waiting if task is not None], return_exceptions=True)

    async def _accept(self, on: Running, jobs: list[Job]) -> list[Hold]:
        accepts = [on.accept(job) for job in jobs]
        answers = await asyncio.gather(*self._channel.send_many(accepts))
        holds = []
        for job, accept, accepted in zip(jobs, accepts, answers, strict=True):
            hold = on.hold(accepted.row, job.payload)
            hold.body_bytes = len(accept.payload.data)
            hold.finished = accepted.row.state is not State.PENDING
            hold.was_model = accepted.was_model
            hold.wanted_model = accept.model if accept.model != accepted.row.model else None
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
                # The next source may claim what is pending in the ledger: what is in hand here must have been started.
                while self.line.has_uncalled:
                    self._changed.clear()
                    await self._changed.wait()
            self.line.more = False
            self.turns.wake()
        except Stopped:
            return
        except Exception as exc:  # noqa: BLE001 - raised by `run`, once the others are drained
            self._fail(exc)

    async def _take_in_hand(self, on: Running, holds: list[Hold]) -> None:
        """Open their courses in order, and let go of each: what it comes to hold must not live as long as its chunk."""
        holds.reverse()
        try:
            while holds:
                if holds[-1].attempt is None:  # else it has its turn
                    await self.until_room()
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
                    await in_thread(release.wait)
        self.turns.close()
        self._sharing.end()
        self._ended.put_nowait(None)

    def _open(self, on: Running, hold: Hold, trace: JobTrace | None = None) -> asyncio.Task[None]:
        if on not in self._drivers:
            self._drivers[on] = self._driver(on)
        if self._alone is None:
            self.turns.enter(hold)
        task = asyncio.create_task(self._course(self._drivers[on], hold, trace))
        self._courses[task] = hold
        self._body_bytes += hold.body_bytes
        task.add_done_callback(self._over)
        return task

    async def _course(self, driver: Driver, hold: Hold, trace: JobTrace | None) -> None:
        try:
            has_turn = False
            if hold.attempt is None and self._alone is None:  # before a trace is made for it: many wait, and few run
                told = await self.turns.turn(hold, 0.0)
                if told is not None:
                    hold.finished = True  # it stays what it is in the ledger
                    return
                has_turn = True
            await driver.drive(hold, trace, has_turn=has_turn)
        except (Stopped, asyncio.CancelledError):
            hold.let_go()
        except LedgerUnavailable as exc:
            if hold.called and hold.attempt is not None:
                self.lost.append(hold.row.job_id)
            self._fail(exc)
        except BaseException as exc:  # noqa: BLE001 - also SystemExit, which would end the loop under the others
            self._fail(exc)

    def _driver(self, on: Running) -> Driver:
        if self._alone is not None:
            return Driver(on, self._alone, self._channel, on.rules_alone(), alone=True)
        return Driver(on, self.turns, self._channel, on.rules_in(self.line), alone=False)

    def _over(self, task: asyncio.Task[None]) -> None:
        hold = self._courses.pop(task)
        if task.cancelled():  # before its first step, so that its driver has seen nothing of it
            self.hand_back(hold)
        self._body_bytes -= hold.body_bytes
        if self._alone is None:
            self.turns.leave(hold)
        if not hold.stands_aside:
            self._ended.put_nowait(hold)
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        with suppress(RuntimeError):  # the loop has ended under us
            self.stop()

    def _halt(self) -> None:
        self.turns.stop()
        if self._alone is not None:
            self._alone.stopping = True
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
