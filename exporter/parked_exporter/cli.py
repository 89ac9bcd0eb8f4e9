"""The `parked-exporter` command; `python -m parked_exporter.cli` is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parked.cli import end_by_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar until a signal ends it, and return the exit status. Without `argv` it is what this process is."""
    if argv is None:
        end_by_ctrl_c()
    from parked_exporter.command import run

    return run(argv)


if __name__ == "__main__":
    raise SystemExit(main())
