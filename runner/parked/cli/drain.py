"""SIGTERM, Ctrl-C and a closed terminal in a command that runs jobs: the first drains, the second ends at once."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.output import hint
from parked.cli.signals import STATUS, Heard, arrivals, noting, put_back, take

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

    from parked.pool import Pool

NAMED: Final = 50  # jobs named at most
LAST_COMMIT_S: Final = 1.0  # how long a second signal waits for what is just being written, while the ledger is there
LOOK_AGAIN_S: Final = 0.005
MOST_BYTES: Final = 4096  # of signals read at once


class Drain:
    """Runs a command's work on a loop, and drains its pool when a signal comes.

    A signal comes as a byte of a socket, as with a loop's own handlers. Those are no use before and after the loop has
    run: it opens and closes its own socket, and one that strikes just then is lost or leaves the loop half made.
    """

    def __init__(self) -> None:
        self._arrivals = arrivals()
        self._pool: Pool | None = None
        self._drain_s = 0.0

    @property
    def received(self) -> signal.Signals | None:
        return self._arrivals.first

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on a loop of its own."""
        with noting():
            import asyncio

            async def heeding() -> None:
                with self._heeding(asyncio.get_running_loop()):
                    await work()

            with asyncio.Runner() as runner:
                runner.get_loop()  # where there can be none, no coroutine is left that nobody awaits
                runner.run(heeding())

    def watch(self, pool: Pool, *, drain_s: float) -> None:
        """From now on it is this pool that drains. To be called on its loop."""
        self._pool, self._drain_s = pool, drain_s
        if self.received is not None:  # before there was a pool
            self._drain(self.received)

    def exit(self) -> Exit:
        """The status of a command that was told to end."""
        return self._arrivals.exit()

    @contextmanager
    def _heeding(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        coming, sink = socket.socketpair()
        with closing(coming), closing(sink):
            coming.setblocking(False)
            sink.setblocking(False)
            loop.add_reader(coming, self._hear, coming)
            before = signal.set_wakeup_fd(sink.fileno(), warn_on_full_buffer=False)
            try:
                with put_back():
                    take(_nothing)
                    yield
            finally:  # signals are noted again
                signal.set_wakeup_fd(before)
                loop.remove_reader(coming)
                self._pool = None
                self._hear(coming)

    def _hear(self, coming: socket.socket) -> None:
        with suppress(BlockingIOError):
            for number in coming.recv(MOST_BYTES):
                if number in STATUS:
                    self._stop(signal.Signals(number))

    def _stop(self, number: signal.Signals) -> None:
        match self._arrivals.hear(number):
            case Heard.AGAIN:
                # What runs stays with this owner, and is parked as orphaned once its beat is missed.
                lost = [] if self._pool is None else _unwritten(self._pool)
                tell_lost(lost)
                os._exit(Exit.SURROUNDINGS if lost else STATUS[number])
            case Heard.FIRST if self._pool is not None:
                self._drain(number)

    def _drain(self, number: signal.Signals) -> None:
        assert self._pool is not None
        hint(
            f"{number.name}: no new call starts; those that run get {self._drain_s:g} s."
            " The same again, a second later, ends at once"
        )
        self._pool.stop()


def tell_lost(job_ids: list[str]) -> None:
    """Name the jobs whose answers go with this process."""
    if job_ids:
        named = ", ".join(job_ids[:NAMED]) + (f" and {len(job_ids) - NAMED} more" if len(job_ids) > NAMED else "")
        hint(f"the ledger could not be written: what came of {named} is lost, and they will be parked as orphaned")


def _unwritten(pool: Pool) -> list[str]:
    """The jobs whose outcomes the ledger won't take. What is just being committed isn't lost: it is waited for."""
    ends = time.monotonic() + LAST_COMMIT_S
    pool.premises.ledger.look()  # the loop, which stands still, may have handed it in without
    while lost := pool.unwritten():
        if pool.premises.ledger.stalled or time.monotonic() >= ends:
            break
        time.sleep(LOOK_AGAIN_S)
    return lost


def _nothing(number: int, frame: FrameType | None) -> None:
    """Python writes the byte only for a signal that has a handler."""
