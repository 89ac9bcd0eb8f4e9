"""Whether this machine's clock can be right, judged by others that are at hand."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from parked.clock import span_text

if TYPE_CHECKING:
    from parked.ledger import Ledger

# Certificates, tokens and quotas bear a minute or more; a run that is slow to answer isn't taken for a wrong clock.
FAR_OFF_S: Final = 60.0
SET_IT: Final = "set the clock (timedatectl set-ntp true, or that of the host), then look again"

_log = logging.getLogger("parked.ledger")


def off_by(ours: float, theirs: float) -> str | None:
    """Say how far our clock is off, if it is: `3 hours behind`; both are UTC epoch seconds."""
    difference = ours - theirs
    if abs(difference) <= FAR_OFF_S:
        return None
    return f"{span_text(abs(difference))} {'ahead of' if difference > 0 else 'behind'}"


def from_the_future(ours: float, newest: float | None) -> str | None:
    """Say by how much the newest thing is newer than now, if it is; what is old says nothing of a clock."""
    if newest is None or newest - ours <= FAR_OFF_S:
        return None
    return span_text(newest - ours)


def against_ledger(ours: float, theirs: float, newest: float | None) -> list[str]:
    """Say what a ledger tells of our clock: by its database's, `theirs`, and its newest entry."""
    said = []
    if off := off_by(ours, theirs):
        said.append(f"this machine's clock is {off} that of the ledger's server")
    if by := from_the_future(theirs, newest):
        said.append(f"the ledger's newest entry comes from the future, by {by}: a clock was wrong then, or is now")
    return said


def warn_at_start(ledger: Ledger) -> None:
    """Log that a clock is far off: times that are stored, and waits for a quota, go by it."""
    with ledger.ask() as reader:
        ours = time.time()
        said = against_ledger(ours, reader.clock(), reader.newest())
    for sentence in said:
        _log.warning("clock_far_off: %s; %s", sentence, SET_IT)
