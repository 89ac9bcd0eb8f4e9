"""The end of what removes texts: the ledger's files are rewritten, so that no copy is left in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parked.cli.output import hint
from parked.errors import LedgerUnavailable

if TYPE_CHECKING:
    from parked.ledger import Ledger


def scrub(ledger: Ledger, done: str) -> str:
    """Return why copies are left, and what to do; empty if none are. `done` is what an interrupt says of the rest."""
    try:
        return "" if ledger.scrub() else "others went on using it; give the command again when they are done"
    except LedgerUnavailable as exc:
        return f"{exc}. Once that is mended, give the command again: it goes on there"
    except KeyboardInterrupt:
        hint(f"{done}; copies of their texts are left, so give the command again")
        raise
