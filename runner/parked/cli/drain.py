"""SIGTERM and Ctrl-C in a command that runs jobs: the first drains, the second ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.output import hint

if TYPE_CHECKING:
    from parked.pool import Pool

_STATUS: Final = {signal.SIGTERM: Exit.TERMINATED, signal.SIGINT: Exit.INTERRUPTED}


class Drain:
    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def watch(self, pool: Pool, *, drain_s: float) -> None:
        """Drain this pool when a signal comes. To be called on its loop."""
        loop = asyncio.get_running_loop()
        for number in _STATUS:
            loop.add_signal_handler(number, self._stop, number, pool, drain_s)

    def exit(self) -> Exit:
        """The status of a command that was told to end."""
        assert self.received is not None
        return _STATUS[self.received]

    def _stop(self, number: signal.Signals, pool: Pool, drain_s: float) -> None:
        if self.received is not None:
            # What runs stays with this owner, and is parked as orphaned once its beat is missed.
            os._exit(_STATUS[number])
        self.received = number
        hint(f"{number.name}: no new call starts; those that run get {drain_s:g} s. The same again ends at once")
        pool.stop()
