"""A progress bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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

    with tqdm(total=total, unit=unit, file=sys.stderr, dynamic_ncols=True) as bar:
        yield Progress(bar)
