"""A user's own judgement of an answer that is otherwise a success."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parked.judge import Judged, rejected_by_check, worded

Check = Callable[[Any], object]


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
