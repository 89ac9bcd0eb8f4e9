"""A connection to PostgreSQL that doesn't wait for ever for a server that is there and says nothing.

TCP's own timeouts notice a network or a machine that is gone. They don't notice a server whose disk hangs, nor one
behind a proxy that still takes what is sent.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")


class Silent(psycopg.OperationalError):
    """The server has said nothing for too long; the connection is closed."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    silence_s: float | None = None  # how long an answer is waited for; None: for ever

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Every answer is waited for here, in a generator that psycopg resumes ten times a second if nothing comes."""
        if self.silence_s is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(time.monotonic() + self.silence_s, gen), *args, **kwargs)
        except Silent:
            self.close()  # whatever comes yet, nobody would know what it answers
            raise


def _until(deadline: float, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The same generator, for as long as something comes or the deadline isn't over."""
    try:
        wanted = next(gen)
        while True:
            came = yield wanted
            if not came and time.monotonic() >= deadline:
                raise Silent("the server has said nothing for too long")
            wanted = gen.send(came)
    except StopIteration as end:
        value: T = end.value
        return value
