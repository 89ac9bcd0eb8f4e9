"""The `parked-exporter` command; `python -m parked_exporter.cli` is the same."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from parked.cli import end_by_signals

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar until a signal ends it, and return the exit status. Without `argv` it is what this process is."""
    if argv is None:
        # A sidecar that was told to end has ended well; a check that was told to has found out nothing.
        end_by_signals(terminated=128 + signal.SIGTERM if "--check" in sys.argv else 0)
    from parked_exporter.command import run

    return run(argv)


if __name__ == "__main__":
    raise SystemExit(main())
