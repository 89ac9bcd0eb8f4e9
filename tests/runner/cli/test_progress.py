"""The bar of `run` and `replay`, on a real terminal."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
from contextlib import closing, suppress

import pytest

from parked.cli.progress import progress


@pytest.mark.parametrize("columns", [100, 0], ids=["of a size", "that says no size"])
def test_a_terminal_shows_how_far_it_is_and_what_is_waited_for(monkeypatch, columns):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30 if columns else 0, columns, 0, 0))
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress(3) as shown:
            shown.say("waiting 7 s to see whether m answers again")
    monkeypatch.undo()
    said = read_all(ours)

    assert "0/3" in said
    assert "waiting 7 s" in said


def read_all(terminal: int) -> str:
    """What was written to a terminal that nobody writes to any more, which it tells by an error."""
    said = b""
    with closing(os.fdopen(terminal, "rb", buffering=0)) as seen, suppress(OSError):
        while part := seen.read(10_000):
            said += part
    return said.decode()
