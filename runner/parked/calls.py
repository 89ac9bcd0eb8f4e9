"""Calls that can't be cancelled: run in daemon threads, so that each has a deadline and none holds up the exit."""

from __future__ import annotations

import logging
import os
import threading
from _thread import allocate_lock
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from parked.course import Raised, Returned

_log = logging.getLogger("parked")


class Call:
    """One call under way in a thread. Whoever waits may give up; the outcome then goes to a callback."""

    __slots__ = ("_begun", "_callback", "_done", "_function", "_given_up", "_guard", "interrupted", "outcome")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.outcome: Returned | Raised | None = None  # None until the function has ended
        self.interrupted: BaseException | None = None  # why nobody waits any more
        self._function = function
        self._callback: Callable[[Call], None] | None = None
        self._begun = self._given_up = False
        self._guard = allocate_lock()
        self._done = allocate_lock()  # held until there is nothing to wait for; the cheapest thing to wait on
        self._done.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the call was over, or interrupted, in time."""
        return self._done.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def then(self, callback: Callable[[Call], None]) -> None:
        """Have `callback` called with this call once it is over: in its thread, or here if it is over already."""
        with self._guard:
            if self.outcome is None:
                self._callback = callback
                return
        callback(self)

    def give_up(self, callback: Callable[[Call], None]) -> None:
        """Nobody waits any more: `callback` is told of it once it is over; where it hasn't begun, it is never made."""
        with self._guard:
            if not self._begun:
                self._given_up = True
                return
        self.then(callback)

    def interrupt(self, why: BaseException) -> None:
        """End the waiting, not the call."""
        with self._guard:
            if self.outcome is not None or self.interrupted is not None:
                return
            self.interrupted = why
        self._done.release()

    def run(self) -> None:
        with self._guard:
            if self._given_up:
                return
            self._begun = True
        outcome: Returned | Raised
        try:
            outcome = Returned(self._function())
        except BaseException as exc:  # noqa: BLE001 - every way a call can end is an outcome, judged by its caller
            outcome = Raised(exc)
        with self._guard:
            self.outcome = outcome
            callback, waited_for = self._callback, self.interrupted is None
        if waited_for:
            self._done.release()
        if callback is not None:
            callback(self)


class Threads:
    """Daemon threads that make calls; one more is started whenever none is free.

    Where no more can be started (a container's limit of processes, `ulimit -u`), calls wait for one that is there.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Call] = SimpleQueue()
        self._guard = allocate_lock()
        self._free = 0  # less those that calls wait for
        self._started = 0
        self._told = False

    def start(self, function: Callable[[], Any]) -> Call:
        """
        Raises:
            RuntimeError: not even one thread can be started.
        """
        call = Call(function)
        with self._guard:
            spawn = self._free <= 0
            self._free -= not spawn
        if spawn and not self._spawn():
            with self._guard:
                self._free -= 1
        self._waiting.put(call)
        return call

    def _spawn(self) -> bool:
        """Return whether there is one more."""
        try:
            threading.Thread(target=self._work, name="parked-call", daemon=True).start()
        except RuntimeError as exc:
            if not self._started or "can't start new thread" not in str(exc):  # at the end of a program none runs on
                raise
            if not self._told:
                self._told = True
                _log.warning(
                    "no_more_threads started=%d: calls wait for one of them; call fewer at a time, or raise the limit"
                    " of processes (--pids-limit, TasksMax=, ulimit -u)",
                    self._started,
                )
            return False
        self._started += 1
        return True

    def _work(self) -> None:
        while True:
            self._waiting.get().run()
            with self._guard:
                self._free += 1


_threads = Threads()


def too_late(timeout_s: float) -> TimeoutError:
    """What an attempt came to whose deadline passed."""
    return TimeoutError(f"no answer within {timeout_s:g} s")


def call_threads() -> Threads:
    """The threads of this process; one set for all runners, so that none leaves idle threads behind."""
    return _threads


def _forked() -> None:
    global _threads
    _threads = Threads()  # a forked child has none of its parent's threads


os.register_at_fork(after_in_child=_forked)
