"""What the reason of a parked job means to people: the vocabulary of failures, and the orphans' own two words."""

from __future__ import annotations

from typing import Final, NamedTuple

from parked.ledger.moves import MAYBE_SENT, NOT_SENT
from parked.verdict import MEANINGS, Reason

OTHER_MODEL: Final = "OTHER-MODEL"  # where somebody is to put a name
# Where what is pending for a model may go to another.
ANOTHER_MODEL_HELPS: Final = frozenset({Reason.MODEL_NOT_FOUND, Reason.NO_QUOTA, Reason.OVERLOADED})
# What a replay has to be given, where the same request would fail again; the capitals stand for what somebody puts in.
_OTHER_PAYLOAD: Final = ("--payload", "FILE")
_MENDED_BY: Final[dict[str, tuple[str, str]]] = {
    Reason.INVALID_REQUEST: _OTHER_PAYLOAD,
    Reason.INPUT_TOO_LARGE: _OTHER_PAYLOAD,
    Reason.PROMPT_BLOCKED: _OTHER_PAYLOAD,
    Reason.ANSWER_BLOCKED: _OTHER_PAYLOAD,
    Reason.ANSWER_TRUNCATED: _OTHER_PAYLOAD,
    Reason.MODEL_NOT_FOUND: ("--to-model", OTHER_MODEL),
}


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


def mended_by(reason: str) -> tuple[str, ...]:
    """Return the flags of a replay that can help, as words; empty where the same request may succeed."""
    return _MENDED_BY.get(reason, ())


def explain(reason: str) -> Explained:
    """Return meaning and remedy of a reason; one that only a newer parked knows is `unclassified`."""
    return EXPLAINED.get(reason, EXPLAINED[Reason.UNCLASSIFIED])
