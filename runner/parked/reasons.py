"""What the reason of a parked job means to people: the vocabulary of failures, and the orphans' own two words."""

from __future__ import annotations

from typing import Final, NamedTuple

from parked.ledger.moves import MAYBE_SENT, NOT_SENT
from parked.verdict import MEANINGS, Reason

# Where what is pending for a model may go to another.
ANOTHER_MODEL_HELPS: Final = frozenset({Reason.MODEL_NOT_FOUND, Reason.NO_QUOTA, Reason.OVERLOADED})


class Explained(NamedTuple):
    meaning: str
    remedy: str  # what an operator does


ORPHANED: Final = {
    MAYBE_SENT: Explained(
        "its process was lost during a call, which may have been made and billed",
        "replay, unless a second call for it would do harm",
    ),
    NOT_SENT: Explained("its process was lost between two calls", "replay"),
}
EXPLAINED: Final[dict[str, Explained]] = {
    **{reason: Explained(known.meaning, known.remedy) for reason, known in MEANINGS.items()},
    **ORPHANED,
}


def going_on(remedy: str) -> str:
    """A remedy for jobs that are pending, and so need no replay."""
    text = remedy.replace(", then replay", "").replace("replay once", "go on once")
    return text.replace("replay after", "go on after")


def explain(reason: str) -> Explained:
    """Return meaning and remedy of a reason; one that only a newer parked knows is `unclassified`."""
    return EXPLAINED.get(reason, EXPLAINED[Reason.UNCLASSIFIED])
