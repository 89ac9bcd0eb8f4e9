"""SIGTERM and Ctrl-C in a command that runs jobs: the first drains, the second ends at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.output import hint
from parked.cli.signals import STATUS, Heard, arrivals, put_back

if TYPE_CHECKING:
    from parked.pool import Pool

NAMED: Final = 50  # jobs named at most


def run_draining(main: Coroutine[Any, Any, None]) -> None:
    """Run this on a loop of its own, which `Drain` may watch."""
    import asyncio

    with put_back():
        asyncio.run(main)


class Drain:
    def __init__(self) -> None:
        self._arrivals = arrivals()

    @property
    def received(self) -> signal.Signals | None:
        return self._arrivals.first

    def watch(self, pool: Pool, *, drain_s: float) -> None:
        """Drain this pool when a signal comes. To be called on its loop."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        for number in STATUS:
            loop.add_signal_handler(number, self._stop, number, pool, drain_s)

    def exit(self) -> Exit:
        """The status of a command that was told to end."""
        return self._arrivals.exit()

    def _stop(self, number: signal.Signals, pool: Pool, drain_s: float) -> None:
        match self._arrivals.hear(number):
            case Heard.AGAIN:
                # What runs stays with this owner, and is parked as orphaned once its beat is missed.
                lost = pool.unwritten()
                tell_lost(lost)
                os._exit(Exit.SURROUNDINGS if lost else STATUS[number])
            case Heard.FIRST:
                hint(
                    f"{number.name}: no new call starts; those that run get {drain_s:g} s."
                    " The same again, a second later, ends at once"
                )
                pool.stop()


def tell_lost(job_ids: list[str]) -> None:
    """Name the jobs whose answers go with this process."""
    if job_ids:
        named = ", ".join(job_ids[:NAMED]) + (f" and {len(job_ids) - NAMED} more" if len(job_ids) > NAMED else "")
        hint(f"the ledger could not be written: what came of {named} is lost, and they will be parked as orphaned")
