"""The `parked` command."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["end_by_signals", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Without `argv` it is the one that this process was started for."""
    if argv is None:
        end_by_signals()
    from parked.cli.frame import main as framed

    return framed(argv)


def end_by_signals(*, terminated: int = 128 + signal.SIGTERM) -> None:
    """Let Ctrl-C and SIGTERM end this process where nobody has come to handle them yet, or does so any more.

    That is half of the time that a short command takes: while modules are imported, and at the interpreter's end. Left
    to Python, Ctrl-C shows a traceback there; and a container's first process, which the kernel shields from what it
    doesn't handle, would never hear of a SIGTERM. `terminated` is the status after that.
    """
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    statuses = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: terminated}
    for number, default in defaults.items():
        if signal.getsignal(number) is default:
            signal.signal(number, lambda number, _: os._exit(statuses[signal.Signals(number)]))
