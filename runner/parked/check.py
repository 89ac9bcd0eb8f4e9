"""What judges an answer besides parked itself: a check of the user's own, and whether text may be cut off.

A job remembers both in one short text, so that a replay judges by them again: `mypipeline.checks:check`,
`schema:3f9c0d1e2b4a5678`, `allow_truncated`, or two of them with a comma between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

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

    The check is handed the answer as a JSON value. It finds fault by raising, by returning False, or by returning a
    text that says what is wrong; None, True and anything else let the answer pass.
    """
    try:
        found = check(judged.answer)
    except Exception as exc:  # noqa: BLE001 - a user's function may find fault with any exception
        try:
            found = worded(exc)
        except Exception:  # noqa: BLE001 - its text may raise anything too
            found = type(exc).__name__
    if found is not False and not (isinstance(found, str) and found):
        return judged
    why = found if isinstance(found, str) else "the check says no"
    return judged._replace(verdict=rejected_by_check(why), answer=None, text=None)
