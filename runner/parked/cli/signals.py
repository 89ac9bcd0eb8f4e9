"""SIGTERM, Ctrl-C, a closed terminal: the first lets a command clean up behind itself, another one ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import Final

from parked.cli.exits import Exit

# `timeout`, shells and supervisors signal a process and its group, so that one signal comes twice. Who takes its second
# arrival for a second signal leaves orphans behind, each time that `timeout` ends a run.
SAME_SIGNAL_S: Final = 1.0

# A stop that was swallowed comes again after so long, when whatever swallowed it is over.
AGAIN_AFTER_S: Final = 0.05

STATUS: Final = {
    signal.SIGTERM: Exit.TERMINATED,
    signal.SIGINT: Exit.INTERRUPTED,
    signal.SIGHUP: Exit.HUNG_UP,  # killed by it, a run would leave orphans behind whenever a connection breaks
}


class Stopped(KeyboardInterrupt):
    """The command was told to end.

    A `KeyboardInterrupt`, since whoever cleans up after Ctrl-C should do so after SIGTERM: psycopg takes back the
    statement that it waits for.

    Where it strikes may be a place that no exception leaves: a finalizer, a callback of C code, a bare `except`. Then
    it is dropped before its command has ended, and comes again.
    """

    def __init__(self, number: signal.Signals, arrivals: Arrivals) -> None:
        self.status = STATUS[number]
        super().__init__(self.status)
        self._number, self._arrivals = number, arrivals

    def __del__(self) -> None:
        self._arrivals.swallowed(self._number)


class Heard(StrEnum):
    FIRST = "first"
    ECHO = "echo"  # the first once more
    AGAIN = "again"  # a second signal


class Arrivals:
    """The signals that this command was sent. `first` is the one that it was told to end by; None: it goes on."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.broke_off = False  # whether it has raised `Stopped` in the midst of something
        self._first_at = 0.0
        self._repeats = False  # whether the next one is the first once more, for who has swallowed it
        self._over = False
        self._ending = threading.Lock()

    def hear(self, number: int) -> Heard:
        now = time.monotonic()
        if self._repeats or self.first is None:
            self._repeats = False
            self.first, self._first_at = signal.Signals(number), now
            return Heard.FIRST
        return Heard.ECHO if self.first == number and now - self._first_at < SAME_SIGNAL_S else Heard.AGAIN

    def exit(self) -> Exit:
        """The status of a command that was told to end."""
        assert self.first is not None
        return STATUS[self.first]

    def swallowed(self, number: signal.Signals) -> None:
        """Let this one come again, unless the command has ended by it."""
        if not self._over:
            timer = threading.Timer(AGAIN_AFTER_S, self._repeat, (number,))
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        """The command has ended: nothing comes again."""
        with self._ending:
            self._over = True

    def _repeat(self, number: signal.Signals) -> None:
        with self._ending:
            if not self._over:
                self._repeats = True
                os.kill(os.getpid(), number)


_arrivals = Arrivals()  # of this process, as signals are


def arrivals() -> Arrivals:
    """Those of the command that runs."""
    return _arrivals


@contextmanager
def stopping() -> Iterator[None]:
    """Around a command: a signal raises `Stopped` wherever its main thread is."""
    global _arrivals
    _arrivals = Arrivals()

    def stop(number: int) -> None:
        _arrivals.broke_off = True
        raise Stopped(signal.Signals(number), _arrivals)

    with _handled_by(stop), _untold():
        try:
            yield
        finally:
            _arrivals.end()


@contextmanager
def noting() -> Iterator[Arrivals]:
    """Meanwhile a signal is only noted, so that whoever works in steps can end behind one and say what was done."""
    with _handled_by(lambda number: None):
        yield _arrivals


def take(handle: Callable[[int, FrameType | None], None]) -> None:
    """From now on signals are handled so. To be called in the main thread."""
    for number in STATUS:
        # `nohup`, and a shell that starts something behind it, have a signal ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)


@contextmanager
def put_back() -> Iterator[None]:
    """Afterwards signals do what they do now."""
    before = {number: signal.getsignal(number) for number in STATUS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _untold() -> Iterator[None]:
    """Nothing is said of a `Stopped` that Python can't raise where it struck, since it comes again."""
    before = sys.unraisablehook

    def tell(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, Stopped):
            before(lost)

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _handled_by(first: Callable[[int], None]) -> Iterator[None]:
    """The first signal is handled so, another one ends the process at once."""

    def handle(number: int, _: object) -> None:
        match _arrivals.hear(number):
            case Heard.FIRST:
                first(number)
            case Heard.AGAIN:
                os._exit(STATUS[signal.Signals(number)])

    with put_back():
        if threading.current_thread() is threading.main_thread():
            take(handle)
        yield
