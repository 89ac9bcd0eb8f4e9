"""Runs a module as `python -m` would, in a process whose seconds pass faster.

    python bench/fast.py --since 81234.5 --speeds 0:2,40:30,590:2 -m parked.cli run jobs.jsonl

`--since` is a moment on the machine's monotonic clock, which all processes share: those that are given the same moment
and the same speeds agree about the time at any moment. Until then a second lasts a second; `40:30` says that from the
40th second on, by the faster clock, 30 of its seconds pass in one.

Faster are `time.monotonic`, `time.time` and `time.sleep`, what an event loop or a selector waits for, and waits of the
`threading` module. Not faster are waits for a bare lock, so that a ledger's owner beats every 5 s of the real clock.
"""

from __future__ import annotations

import argparse
import runpy
import selectors
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Stretch(NamedTuple):
    real_at: float  # both in seconds since the clock's beginning
    fast_at: float
    speed: float


class FastClock:
    """From the machine's monotonic seconds to faster ones, and back."""

    def __init__(self, since: float, speeds: list[tuple[float, float]]) -> None:
        self._since = since
        self._stretches = [Stretch(float("-inf"), float("-inf"), 1.0)]
        real_at = 0.0
        for number, (fast_at, speed) in enumerate(speeds):
            if number:
                before = self._stretches[-1]
                real_at = before.real_at + (fast_at - before.fast_at) / before.speed
            self._stretches.append(Stretch(real_at, fast_at, speed))

    def fast(self, real: float) -> float:
        at = real - self._since
        stretch = next(each for each in reversed(self._stretches) if each.real_at <= at)
        if stretch.real_at == float("-inf"):
            return real
        return self._since + stretch.fast_at + (at - stretch.real_at) * stretch.speed

    def real(self, fast: float) -> float:
        at = fast - self._since
        stretch = next(each for each in reversed(self._stretches) if each.fast_at <= at)
        if stretch.fast_at == float("-inf"):
            return fast
        return self._since + stretch.real_at + (at - stretch.fast_at) / stretch.speed


def hurry(clock: FastClock) -> None:
    """From now on this process goes by that clock."""
    monotonic, wall, sleep = time.monotonic, time.time, time.sleep
    wall_offset = wall() - monotonic()

    def fast_monotonic() -> float:
        return clock.fast(monotonic())

    def real_s(wait_s: float) -> float:
        now = monotonic()
        return max(0.0, clock.real(clock.fast(now) + wait_s) - now)

    time.monotonic = fast_monotonic
    time.time = lambda: wall_offset + fast_monotonic()
    time.sleep = lambda wait_s: sleep(real_s(wait_s))
    threading._time = fast_monotonic  # type: ignore[attr-defined]  # its own name for time.monotonic
    threading.Condition.wait = _hurried(threading.Condition.wait, real_s)  # type: ignore[method-assign]
    for selector in (selectors.DefaultSelector, selectors.SelectSelector, selectors.PollSelector):
        selector.select = _hurried(selector.select, real_s)  # type: ignore[method-assign]


def _hurried(wait: Callable[..., Any], real_s: Callable[[float], float]) -> Callable[..., Any]:
    def hurried(self: Any, timeout: float | None = None) -> Any:
        return wait(self, real_s(timeout) if timeout is not None and timeout > 0 else timeout)

    return hurried


def _speeds(text: str) -> list[tuple[float, float]]:
    return [(float(at), float(speed)) for at, _, speed in (part.partition(":") for part in text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", type=float, default=time.monotonic(), help="default: now")
    parser.add_argument("--speeds", type=_speeds, required=True, help="from 0 on, e.g. 0:10")
    parser.add_argument("-m", dest="module", required=True)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    hurry(FastClock(args.since, args.speeds))
    sys.argv = [args.module, *args.words]
    runpy.run_module(args.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
