"""Runners for asyncio, and the pool for programs without a loop. Loaded on first use."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

from parked.calls import call_threads
from parked.course import Hold, Raised
from parked.driver import wake
from parked.errors import ParkedError, SettingsError
from parked.job import Job, Outcome
from parked.pool import CHUNK, Pool
from parked.running import BaseRunner, Running

GATHER_S: Final = 0.05  # how long a chunk is gathered before it is accepted as it is

_T = TypeVar("_T")


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
    """`run_many` for a program without a loop: the pool runs on a loop in a thread, and is pulled from here."""

    def __init__(self, on: Running, jobs: Iterable[Job], *, concurrency: int) -> None:
        self._on = on
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="parked-pool", daemon=True)
        self._thread.start()
        self._pool = self._await(self._make(concurrency))
        self._holds = self._pool.run(self._pool.accepting(on, chunked(jobs)))

    def __iter__(self) -> Iterator[Outcome]:
        while (hold := self._await(self._next())) is not None:
            if isinstance(hold, Raised):
                raise hold.error
            yield self._on.outcome(hold)

    def stop(self) -> None:
        """Drain. Safe in any thread and in a signal handler."""
        self._loop.call_soon_threadsafe(self._pool.stop)

    def close(self) -> None:
        self._await(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _make(self, concurrency: int) -> Pool:
        return Pool(self._on, concurrency=concurrency, pipelines=(self._on.pipeline,))

    async def _next(self) -> Hold | Raised | None:
        try:
            return await anext(self._holds, None)
        except BaseException as exc:  # noqa: BLE001 - a SystemExit would end the loop, and be raised nowhere
            return Raised(exc)

    def _await(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


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
