"""What a command says of jobs that nobody runs: at its start of orphans, at its end of those that are still pending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parked.cli.output import counted, hint
from parked.clock import minute_text
from parked.job import State

if TYPE_CHECKING:
    from parked.ledger import Ledger
    from parked.ledger.operations import JobRow


def tell_pending(ledger: Ledger, *, pipeline: str | None, go_on: str) -> int:
    """Say how many jobs of a pipeline (None: of all) are pending, since when, and which command goes on with them.

    Returns how many.
    """
    from parked.ledger.store import Filters

    filters = Filters(pipeline=pipeline)
    with ledger.ask() as reader:
        pending = reader.count(filters, states=(State.PENDING,))
        oldest = next(iter(reader.jobs(filters, states=(State.PENDING,), limit=1)), None)
    if oldest is not None:
        whose = "" if pipeline is None else f" of the pipeline {pipeline!r}"
        hint(f"{counted(pending, 'job')}{whose} pending since {minute_text(oldest.accepted_at)}; to go on: {go_on}")
    return pending


def tell_orphans(orphans: list[JobRow]) -> None:
    """Say that a process has died, and what became of its jobs."""
    if orphans:
        hint(
            f"{counted(len(orphans), 'job')} of a process that died parked as orphaned: their calls may have been made"
        )
