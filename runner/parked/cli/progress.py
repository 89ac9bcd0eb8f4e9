"""A progress bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncio import Handle

LOOK_S: Final = 1.0
UNKNOWN_SIZE: Final = {"ncols": 80, "nrows": 24}  # of a terminal that doesn't say how large it is


class Progress:
    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    @property
    def is_shown(self) -> bool:
        return self._bar is not None

    def say(self, text: str) -> None:
        """What is waited for, before the bar; nothing if it is empty."""
        if self._bar is not None:
            self._bar.set_description_str(text)

    def advance(self, *, parked: int, by: int = 1) -> None:
        """One more is done, or so many; `parked` is how many of all of them are parked."""
        if self._bar is None:
            return
        if parked:
            self._bar.set_postfix(parked=parked, refresh=False)
        self._bar.update(by)


@contextmanager
def progress(total: int, *, unit: str = "job") -> Iterator[Progress]:
    if sys.stderr is None or not sys.stderr.isatty():
        yield Progress()
        return
    from tqdm import tqdm

    size = {"dynamic_ncols": True} if os.get_terminal_size(sys.stderr.fileno()).columns else UNKNOWN_SIZE
    with tqdm(total=total, unit=unit, file=sys.stderr, **size) as bar:
        yield Progress(bar)


@contextmanager
def watching(shown: Progress, text: Callable[[], str]) -> Iterator[None]:
    """Say every second what is waited for, where there is a bar. To be entered on a loop."""
    if not shown.is_shown:
        yield
        return
    from asyncio import get_running_loop

    loop = get_running_loop()
    timer: Handle

    def look() -> None:
        nonlocal timer
        shown.say(text())
        timer = loop.call_later(LOOK_S, look)

    timer = loop.call_soon(look)
    try:
        yield
    finally:
        timer.cancel()
