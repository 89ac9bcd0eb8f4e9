"""The `parked` command."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["end_by_ctrl_c", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Without `argv` it is the one that this process was started for."""
    if argv is None:
        end_by_ctrl_c()
    from parked.cli.frame import main as framed

    return framed(argv)


def end_by_ctrl_c() -> None:
    """Let Ctrl-C end this process without a traceback, where nobody has come to handle it yet, or does so any more.

    That is half of the time that a short command takes: while modules are imported, and at the interpreter's end.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
