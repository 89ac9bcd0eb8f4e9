"""The clock that a run goes by. Tests bring one of their own, so that nothing ever sleeps."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """UTC epoch seconds: for what is stored and shown, never for a difference."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps: for every difference."""
        ...

    def sleep(self, wait_s: float, stop: threading.Event) -> None:
        """Wait that long, or until `stop` is set."""
        ...

    async def asleep(self, wait_s: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, wait_s: float, stop: threading.Event) -> None:
        stop.wait(wait_s)

    async def asleep(self, wait_s: float) -> None:
        import asyncio

        await asyncio.sleep(wait_s)
