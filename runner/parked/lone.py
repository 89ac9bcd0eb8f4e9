"""When a job that runs alone may call its model: not while a delay lasts that the server has named. Pure.

A lone run has no line, and so no gate: it can't tell an outage from its own fault. But what one call was told to leave
alone, the next ones of the same runner leave alone too.
"""

from __future__ import annotations

from typing import Final

from parked.verdict import Reason, Scope, Verdict

UNNAMED_DELAY_S: Final = 2.0  # a rate limit that names its quota and no delay closes for as long as a first probe waits


class _Delay:
    """Until a moment on the caller's monotonic clock."""

    def __init__(self) -> None:
        self.until = float("-inf")

    def wait_s(self, now: float) -> float:
        """Return how long until a call may start, in seconds; 0 means now."""
        return max(0.0, self.until - now)

    def extend(self, delay_s: float, *, now: float) -> None:
        """Wait for that long; a longer wait stays as it is."""
        self.until = max(self.until, now + delay_s)


class NamedDelays:
    """What servers have asked for, by model. A limit that isn't per model holds for all of them."""

    def __init__(self) -> None:
        self._all = _Delay()
        self._models: dict[str, _Delay] = {}

    def wait_s(self, model: str, now: float) -> float:
        """Return how long until that model may be called, in seconds; 0 means now."""
        delay = self._models.get(model)
        wait_s = self._all.wait_s(now)
        return wait_s if delay is None else max(wait_s, delay.wait_s(now))

    def heed(self, model: str, verdict: Verdict, *, longest_s: float, now: float) -> None:
        """Leave alone what a failed attempt says is to be left alone, for as long as it says.

        A delay longer than `longest_s` holds for nobody: the job that met it is parked, and others may find it changed.
        """
        delay_s = closing_s(verdict)
        if delay_s is None or delay_s > longest_s:
            return
        delay = self._all if verdict.scope is Scope.PROJECT else self._models.setdefault(model, _Delay())
        delay.extend(delay_s, now=now)


def closing_s(verdict: Verdict) -> float | None:
    """Return for how long a verdict asks to be left alone, in seconds; None if it doesn't.

    Only a refusal that speaks for more than its own job does: one that names its delay, or a rate limit that names
    its quota. A bare 429 is no more than overload, and only its own job waits.
    """
    if verdict.ok or verdict.scope is Scope.JOB:
        return None
    if verdict.reason is Reason.RATE_LIMITED and verdict.retry_after_s is None and verdict.quota_id:
        return UNNAMED_DELAY_S
    if verdict.reason in (Reason.RATE_LIMITED, Reason.OVERLOADED):
        return verdict.retry_after_s
    return None
