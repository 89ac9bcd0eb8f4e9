"""How many calls a second a model takes: measured at its refusals, kept, and grown again. Pure: the clock comes in.

Concurrency is no rate: a single worker with answers of a second makes 60 calls a minute, and below that only a pace can
keep to a quota. The constants were found by simulation (docs/decisions/0020-the-gate.md).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

WINDOW_S: Final = 60.0  # quotas are counted by the minute
CUT: Final = 0.95  # of what was measured; leaves room for jitter and neighbours
BLIND_CUT: Final = 0.7  # at most so much is taken off at once while under BLIND calls were seen
BLIND: Final = 5
GROWTH: Final = 0.01  # the first step up, doubled with each
GROWTH_MAX: Final = 0.5
GROW_AFTER_CALLS: Final = 100
GROW_AFTER_S: Final = (15.0, 60.0)  # at the earliest, at the latest
SLOWEST_PER_S: Final = 1 / 30  # slower than that never recovers within a run
KEPT_S: Final = 7 * 86_400.0  # a pace that was learnt longer ago tells nothing of a quota, a tier or a key of today
LONG_DELAY_S: Final = 10.0  # a delay that long means that the window begins anew after it


def is_kept(per_s: float | None, *, learnt_s: float) -> bool:
    """Whether a run is to begin with this pace, learnt so long ago; negative if a clock was set back since."""
    return per_s is not None and 0 < per_s < math.inf and abs(learnt_s) <= KEPT_S


class Pace:
    """One model's pace: None until something has set it."""

    def __init__(
        self,
        start_per_s: float | None = None,
        *,
        ceiling_per_s: float | None = None,
        learnt_at: float | None = None,
    ) -> None:
        """`start_per_s` was learnt in an earlier run, at `learnt_at` by the clock of this one; None: nobody knows."""
        self.ceiling_per_s = ceiling_per_s
        self.learnt_at = learnt_at  # when a refusal last set it
        self.per_s = ceiling_per_s if start_per_s is None else max(SLOWEST_PER_S, start_per_s)
        if self.per_s is not None and ceiling_per_s is not None:
            self.per_s = min(self.per_s, ceiling_per_s)
        self._begun: deque[float] = deque()  # when the calls of the last minute began
        self._next_at = -math.inf
        self._measured_since: float | None = None
        self._reopens_at = -math.inf  # after the last refusal
        self._cut_n = -1  # only calls begun after this number tell of the pace as it is
        self._step = GROWTH
        self._clean_at: float | None = None if start_per_s is None else -math.inf  # no refusal since; None: never cut

    @property
    def never_cut(self) -> bool:
        return self._clean_at is None

    @property
    def cut_n(self) -> int:
        """Number of the refusal that cut it last; negative: none has."""
        return self._cut_n

    @property
    def is_as_kept(self) -> bool:
        """Whether it comes from an earlier run, and nobody has gone by it in this one."""
        return self._clean_at == -math.inf

    def wait_s(self, now: float) -> float:
        """Return how long until the next call is due, in seconds; the pace grows by being asked."""
        if self.per_s is None:
            return 0.0
        if self.is_as_kept:  # a pace that was kept from an earlier run: its first step counts from here
            self._clean_at = now
        shortest_s, longest_s = GROW_AFTER_S
        if self._clean_at is not None and now - self._clean_at >= min(
            longest_s, max(shortest_s, GROW_AFTER_CALLS / self.per_s)
        ):
            self.per_s = min(self.per_s * (1 + self._step), self.ceiling_per_s or math.inf)
            self._step, self._clean_at = min(2 * self._step, GROWTH_MAX), now
        return max(0.0, self._next_at - now)

    def started(self, now: float) -> None:
        self._begun.append(now)
        while self._begun[0] < now - WINDOW_S:
            self._begun.popleft()
        if self._measured_since is None:
            self._measured_since = now
        if self.per_s is not None:
            self._next_at = max(self._next_at, now) + 1 / self.per_s

    def refused(self, now: float, *, started_n: int, n: int, delay_s: float, until: float) -> None:
        """A call was refused for its quota: take back its count, and cut the pace, once a closing.

        One that was refused before any other has begun since the last closing tells nothing of the pace.
        `until` is when the gate reopens; `started_n` and `n` are the numbers of the call's start and of its answer.
        """
        if self._begun:
            self._begun.pop()
        self._next_at = max(self._next_at, until)
        reopened_at, self._reopens_at = self._reopens_at, max(self._reopens_at, until)
        if started_n < self._cut_n or not any(at >= reopened_at for at in self._begun):
            return
        since = now if self._measured_since is None else self._measured_since
        span_s, calls, old = now - since, sum(at >= since for at in self._begun), self.per_s
        seen = calls / WINDOW_S if span_s >= WINDOW_S else calls / max(span_s + delay_s, 0.05)
        if old is not None:
            seen = min(old, seen if calls >= BLIND else max(seen, old * BLIND_CUT))
        self._cut(CUT * seen, now, n=n, clean_at=now + delay_s)
        if old is None or delay_s >= LONG_DELAY_S:
            self._measured_since = until

    def overloaded(self, now: float, *, started_n: int, n: int, window_s: float, share: float, but: int = 0) -> None:
        """Refusals that name nothing set the pace too: to this share of what was called in the last `window_s`.

        `but` of those calls are not counted: they were refused.
        """
        if started_n > self._cut_n:
            calls = sum(at >= now - window_s for at in self._begun)
            self._cut(share * max(0, calls - but) / window_s, now, n=n, clean_at=now)

    def _cut(self, per_s: float, now: float, *, n: int, clean_at: float) -> None:
        slowest_per_s = min(SLOWEST_PER_S, self.ceiling_per_s or math.inf)
        self.per_s = max(slowest_per_s, min(self.per_s or per_s, per_s))
        self._cut_n, self._step, self._clean_at, self.learnt_at = n, GROWTH, clean_at, now
