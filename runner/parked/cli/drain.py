"""SIGTERM and Ctrl-C in a command that runs jobs: the first drains, the second ends at once."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.output import hint

if TYPE_CHECKING:
    from parked.pool import Pool

# `timeout`, shells and supervisors signal a process and its group, so that one signal comes twice.
SAME_SIGNAL_S: Final = 1.0
NAMED: Final = 50  # jobs named at most

_STATUS: Final = {signal.SIGTERM: Exit.TERMINATED, signal.SIGINT: Exit.INTERRUPTED}


class Drain:
    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._received_at = 0.0

    def watch(self, pool: Pool, *, drain_s: float) -> None:
        """Drain this pool when a signal comes. To be called on its loop."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        for number in _STATUS:
            loop.add_signal_handler(number, self._stop, number, pool, drain_s)

    def exit(self) -> Exit:
        """The status of a command that was told to end."""
        assert self.received is not None
        return _STATUS[self.received]

    def _stop(self, number: signal.Signals, pool: Pool, drain_s: float) -> None:
        now = time.monotonic()
        if self.received is number and now - self._received_at < SAME_SIGNAL_S:
            return
        if self.received is not None:
            # What runs stays with this owner, and is parked as orphaned once its beat is missed.
            lost = pool.unwritten()
            tell_lost(lost)
            os._exit(Exit.SURROUNDINGS if lost else _STATUS[number])
        self.received, self._received_at = number, now
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
