"""When a model may be called. Pure: the clock comes in.

One 429 slows every worker on its model: left alone, 64 workers would each spend an attempt on one full minute.
"""

from __future__ import annotations

from typing import Final

from parked.verdict import Reason, Scope, Verdict

UNNAMED_DELAY_S: Final = 2.0  # a rate limit that names its quota and no delay closes for as long as a first probe waits


class Gate:
    """One model's gate: open, or closed until a moment on the caller's monotonic clock."""

    def __init__(self) -> None:
        self.until = float("-inf")

    def wait_s(self, now: float) -> float:
        """Return how long until a call may start, in seconds; 0 means now."""
        return max(0.0, self.until - now)

    def close(self, delay_s: float, *, now: float) -> None:
        """Close for that long. A gate that is closed for longer stays so."""
        self.until = max(self.until, now + delay_s)


class Gates:
    """The gates of one process, by model. A limit that isn't per model closes all of them."""

    def __init__(self) -> None:
        self._all = Gate()
        self._models: dict[str, Gate] = {}

    def wait_s(self, model: str, now: float) -> float:
        """Return how long until that model may be called, in seconds; 0 means now."""
        gate = self._models.get(model)
        wait_s = self._all.wait_s(now)
        return wait_s if gate is None else max(wait_s, gate.wait_s(now))

    def wait_for_any_s(self, now: float) -> float:
        """Return how long until any model may be called, in seconds; 0 means now."""
        return self._all.wait_s(now)

    def closed(self, now: float) -> tuple[str, ...]:
        """Return the models that are not to be called now, though others may be."""
        return tuple(model for model, gate in self._models.items() if gate.wait_s(now) > 0)

    def heed(self, model: str, verdict: Verdict, *, longest_s: float, now: float) -> None:
        """Close what a failed attempt says is to be left alone, for as long as it says.

        A delay longer than `longest_s` closes nothing: the job that met it is parked, and others may find it changed.
        """
        delay_s = closing_s(verdict)
        if delay_s is None or delay_s > longest_s:
            return
        gate = self._all if verdict.scope is Scope.PROJECT else self._models.setdefault(model, Gate())
        gate.close(delay_s, now=now)


def closing_s(verdict: Verdict) -> float | None:
    """Return for how long a verdict closes its gate, in seconds; None if it doesn't.

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
