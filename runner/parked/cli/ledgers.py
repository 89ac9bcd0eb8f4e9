"""The ledger of a command that takes no jobs on: it is never created, so that nobody looks at an empty one unawares."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from parked.settings import Settings

if TYPE_CHECKING:
    from parked.ledger import Ledger

LOOKS: Final = "look"

_TROUBLE: Final = ("ledger_away", "ledger_denied", "ledger_back")  # as the log calls it


@contextmanager
def existing_ledger(settings: Settings, *, role: str = LOOKS) -> Iterator[Ledger]:
    """Open the ledger that the settings name, and close it; `role` says to other processes what this one is.

    Raises:
        LedgerMissing: there is none.
    """
    from parked.ledger import open_ledger
    from parked.surroundings.clocks import warn_at_start

    # Whoever runs jobs waits for a ledger that is away; of all others the first trouble is the end.
    with trouble_said_once() if role == LOOKS else nullcontext():
        ledger = open_ledger(settings.ledger, create=False, role=role)
        try:
            if role != LOOKS:  # who only looks stores no time
                warn_at_start(ledger)
            yield ledger
        finally:
            ledger.close()


@contextmanager
def trouble_said_once() -> Iterator[None]:
    """For a command that any trouble with its ledger ends: its error says so, and the log needn't say it as well."""
    logger = logging.getLogger("parked.ledger")
    logger.addFilter(_is_no_trouble)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_trouble)


def _is_no_trouble(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_TROUBLE)
