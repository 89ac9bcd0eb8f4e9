"""Awaits what callers return, for programs without a loop.

On one loop in a thread of its own, kept for the whole process: a client that a caller made for its first call goes on
working in the next, which it wouldn't on another loop.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from parked.calls import too_late
from parked.course import Raised, Returned

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_guard = allocate_lock()
_loop: AbstractEventLoop | None = None


def awaited(awaitable: Awaitable[Any], timeout_s: float) -> Any:
    """Return or raise what an awaitable comes to, in the context of whoever calls; at the deadline it is cancelled.

    Not for a thread that runs a loop.
    """
    from asyncio import run_coroutine_threadsafe

    outcome = run_coroutine_threadsafe(_outcome(awaitable, timeout_s), _own_loop()).result()
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome.value


async def _outcome(awaitable: Awaitable[Any], timeout_s: float) -> Returned | Raised:
    import asyncio

    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return Returned(await awaitable)
    except BaseException as exc:  # noqa: BLE001 - a SystemExit would end the loop, and be raised nowhere
        return Raised(too_late(timeout_s) if deadline.expired() and isinstance(exc, TimeoutError) else exc)


def _own_loop() -> AbstractEventLoop:
    from asyncio import new_event_loop

    global _loop
    with _guard:
        if _loop is None:
            _loop = new_event_loop()
            threading.Thread(target=_loop.run_forever, name="parked-await", daemon=True).start()
        return _loop


def _forked() -> None:
    global _guard, _loop
    _guard, _loop = allocate_lock(), None  # a forked child has none of its parent's threads


os.register_at_fork(after_in_child=_forked)
