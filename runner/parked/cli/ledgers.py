"""The ledger of a command that takes no jobs on: it is never created, so that nobody looks at an empty one unawares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from parked.settings import Settings

if TYPE_CHECKING:
    from parked.ledger import Ledger

LOOKS: Final = "look"


@contextmanager
def existing_ledger(settings: Settings, *, role: str = LOOKS) -> Iterator[Ledger]:
    """Open the ledger that the settings name, and close it; `role` says to other processes what this one is.

    Raises:
        LedgerMissing: there is none.
    """
    from parked.ledger import open_ledger
    from parked.surroundings.clocks import warn_at_start

    ledger = open_ledger(settings.ledger, create=False, role=role)
    try:
        if role != LOOKS:  # who only looks stores no time
            warn_at_start(ledger)
        yield ledger
    finally:
        ledger.close()
