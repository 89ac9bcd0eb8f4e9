"""Runners for asyncio, and the pool for programs without a loop. Loaded on first use."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from parked.calls import call_threads
from parked.course import Hold, Raised
from parked.driver import wake
from parked.errors import ParkedError, SettingsError
from parked.job import Job, Outcome
from parked.pool import CHUNK, Pool
from parked.running import BaseRunner, Running

GATHER_S: Final = 0.05  # how long a chunk is gathered before it is accepted as it is


class AsyncRunner(BaseRunner):
    """`Runner` with `await`. `call_model` may be a coroutine function; a plain one runs in threads."""

    def _set_up(self) -> None:
        self._pools: set[Pool] = set()
        self._stopped = False

    async def run(self, job: Job) -> Outcome:
        """Run one job to its end, as `Runner.run`. Cancelled, it hands the job back and raises the cancellation."""
        if self._stopped:
            raise ParkedError("this runner was stopped; make another to go on")
        pool = Pool(self._on, concurrency=1, alone=True)
        self._pools.add(pool)
        try:
            return self._on.outcome(await pool.run_one(self._on, job))
        finally:
            self._pools.discard(pool)

    async def run_many(
        self, jobs: Iterable[Job] | AsyncIterable[Job], *, concurrency: int = 32
    ) -> AsyncGenerator[Outcome, None]:
        """Run many jobs, `concurrency` calls at a time, and yield outcomes as they come.

        A plain iterable is read in a thread of its own, up to a few hundred jobs ahead.
        """
        pool = Pool(self._on, concurrency=concurrency, pipelines=(self._on.pipeline,))
        self._pools.add(pool)
        try:
            async for hold in pool.run(pool.accepting(self._on, chunked(jobs))):
                yield self._on.outcome(hold)
        finally:
            self._pools.discard(pool)
            await pool.close()

    def stop(self) -> None:
        """Drain, as `Runner.stop`. To be called on the loop."""
        self._stopped = True
        for pool in tuple(self._pools):
            pool.stop()


class PoolThread:
    """`run_many` for a program without a loop: the pool runs on a loop in a thread, and is pulled from here.

    Ctrl-C strikes whoever pulls, wherever that is just now. So all that could be left half done is done in the thread,
    which ends by itself once it is told to, or nobody pulls any more.
    """

    def __init__(self, on: Running, jobs: Iterable[Job], *, concurrency: int) -> None:
        self._on = on
        self._work = _PoolWork(on, jobs, concurrency)
        self._end = weakref.finalize(self, self._work.end)
        self._thread = threading.Thread(target=self._work.run, name="parked-pool", daemon=True)
        self._thread.start()
        self._work.begun.result()

    def __iter__(self) -> Iterator[Outcome]:
        while (hold := self._work.pull().result()) is not None:
            yield self._on.outcome(hold)

    def stop(self) -> None:
        """Drain. Safe in any thread and in a signal handler."""
        self._work.stop()

    def close(self) -> None:
        """End at once what still runs; its jobs are released. Returns when nothing runs any more."""
        self._end()
        self._thread.join()
        if self._work.failure is not None:
            raise self._work.failure


class _PoolWork:
    """What a `PoolThread` does in its thread. It doesn't know who pulls, so that it can tell when nobody does."""

    def __init__(self, on: Running, jobs: Iterable[Job], concurrency: int) -> None:
        self.begun: Future[None] = Future()
        self.failure: BaseException | None = None
        self._on, self._jobs, self._concurrency = on, jobs, concurrency
        self._told_to_end = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event
        self._pool: Pool
        self._holds: AsyncGenerator[Hold, None]
        self._pulling: asyncio.Task[None]

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as exc:  # noqa: BLE001 - raised to whoever waits
            self.failure = exc
            if not self.begun.done():
                self.begun.set_exception(exc)

    def pull(self) -> Future[Hold | None]:
        """Ask for the next job that is out of the pool's hands; None: there is none any more."""
        assert self._loop is not None
        pulled: Future[Hold | None] = Future()
        self._loop.call_soon_threadsafe(self._pull, pulled)
        return pulled

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._pool.stop)

    def end(self) -> None:
        """Safe in any thread, at any time, and while garbage is collected."""
        self._told_to_end = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._over.set)

    async def _main(self) -> None:
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(self._on, concurrency=self._concurrency, pipelines=(self._on.pipeline,))
        self._holds = self._pool.run(self._pool.accepting(self._on, chunked(self._jobs)))
        self.begun.set_result(None)
        if not self._told_to_end:
            await self._over.wait()
        await self._pool.close()

    def _pull(self, pulled: Future[Hold | None]) -> None:
        self._pulling = asyncio.ensure_future(self._next(pulled))

    async def _next(self, pulled: Future[Hold | None]) -> None:
        try:
            pulled.set_result(await anext(self._holds, None))
        except BaseException as exc:  # noqa: BLE001 - a SystemExit would end the loop, and be raised nowhere
            pulled.set_exception(exc)


async def chunked(jobs: Iterable[Job] | AsyncIterable[Job]) -> AsyncIterator[list[Job]]:
    """Gather jobs for one commit each: as many as there are within a moment, so that a slow source isn't waited for."""
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield [job]
        return
    try:
        iterator, loop = iter(jobs), asyncio.get_running_loop()
    except TypeError as exc:
        raise SettingsError(
            f"jobs must be a list or another iterable of parked.Job, got {type(jobs).__name__}"
        ) from exc
    while True:
        over: asyncio.Future[None] = loop.create_future()
        call = call_threads().start(lambda: _gather(iterator))
        call.then(lambda _, over=over: wake(loop, over))  # type: ignore[misc]  # mypy can't see the default
        await over
        if isinstance(call.outcome, Raised):
            raise call.outcome.error
        assert call.outcome is not None
        if not call.outcome.value:
            return
        yield call.outcome.value


def _gather(jobs: Iterator[Job]) -> list[Job]:
    begun, chunk = time.monotonic(), []
    for job in jobs:
        chunk.append(job)
        if len(chunk) == CHUNK or time.monotonic() - begun > GATHER_S:
            break
    return chunk
