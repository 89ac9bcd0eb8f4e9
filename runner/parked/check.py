"""What judges an answer besides parked itself: a check of the user's own, and whether text may be cut off.

A job remembers both in one short text, so that a replay judges by them again: `mypipeline.checks:check`,
`schema:3f9c0d1e2b4a5678`, `allow_truncated`, or two of them with a comma between.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final, NamedTuple, Self

from parked.course import NEVER_AN_OUTCOME
from parked.judge import Judged, rejected_by_check, worded

Check = Callable[[Any], object]

_ALLOW_TRUNCATED: Final = "allow_truncated"


class CheckerName(NamedTuple):
    """The text by which a job remembers who checks it, taken apart."""

    check: str = ""  # `module:function` or `schema:…`; empty if there is none
    allow_truncated: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = [part for part in text.split(",") if part]
        return cls(",".join(part for part in parts if part != _ALLOW_TRUNCATED), _ALLOW_TRUNCATED in parts)

    def __str__(self) -> str:
        return ",".join(filter(None, (self.check, _ALLOW_TRUNCATED if self.allow_truncated else "")))


class Checker(NamedTuple):
    """What judges answers besides parked itself, ready for use."""

    check: Check | None = None
    allow_truncated: bool = False


def checked(check: Check, judged: Judged) -> Judged:
    """Return what remains of a success after the check.

    The check is handed a copy of the answer. It lets it pass by returning None or True, and finds fault by raising, by
    returning False, or by returning a text that says what is wrong. Anything else it returns is a fault too: a guard
    that has said neither yes nor no has let nobody pass.
    """
    try:
        return passed(judged, check(copy_of(judged.answer)))
    except NEVER_AN_OUTCOME:
        raise
    except BaseException as exc:  # noqa: BLE001 - a user's function may find fault with anything
        return refused(judged, exc)


def passed(judged: Judged, found: object) -> Judged:
    """Return what remains of a success after a check that has returned `found`."""
    if found is None or found is True:
        return judged
    if found is False:
        why = "the check says no"
    elif isinstance(found, str):
        why = found or "the check returned an empty text"
    else:
        why = f"the check returned {type(found).__name__}; it must return None or True for yes, False or a text for no"
    return judged._replace(verdict=rejected_by_check(why), answer=None, text=None)


def refused(judged: Judged, exc: BaseException) -> Judged:
    """Return what remains of a success after a check that has raised."""
    try:
        why = worded(exc)
    except Exception:  # noqa: BLE001 - its text may raise anything too
        why = type(exc).__name__
    return judged._replace(verdict=rejected_by_check(why), answer=None, text=None)


def copy_of(answer: Any) -> Any:
    """Return a copy for the check: what it does to it must not reach what is stored."""
    try:
        return deepcopy(answer)
    except Exception:  # noqa: BLE001 - a foreign object may refuse to be copied in any way
        return answer
