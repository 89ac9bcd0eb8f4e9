"""When a model may be called: its gate closes for rate limits and outages, probes, and reopens slowly.

Pure: the clock comes in. Starts and answers of a process are numbered in their order, and "later" means by these
numbers: a call that began before the gate closed proves nothing about the time after it. What the constants cost and
spare was found by simulation (docs/decisions/0020-the-gate.md).
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from typing import Final, NamedTuple

from parked.pace import CUT, Pace

WITNESSES: Final = 5  # different jobs in a row; 3 close healthy models, 8 spend twice the calls in an outage
RECENT: Final = 20  # first attempts, and answers, that are looked at
RECENT_S: Final = 60.0
FORGIVING: Final = 5  # of them failed: no strikes; from 63 innocent jobs parked to 1, where half of all calls fail
CLOSING: Final = 10  # of them failed: closes, though successes trickle in between
BARE: Final = 15  # of them refused without naming a quota or a delay: sets the pace
BARE_WINDOW_S: Final = 20.0
BARE_SHARE: Final = 0.25
PROBE_S: Final = 2.0  # between probes, doubled with each up to:
PROBE_MAX_S: Final = 15.0  # 60 would find the end of an outage a minute late
STALE_S: Final = 60.0  # an outage that no process has probed for so long is nobody's any more
HEALED: Final = 5  # successes that end an outage; one would restart its clock for ever where 2 % get through
# Calls at a time, doubled every so many seconds: at a run's start, and after an outage. By the clock and not by
# answers, so that slow ones don't delay it.
RUN_START: Final = (8, 1.0)
REOPENED: Final = (2, 2.0)
DOUBLINGS_MAX: Final = 30.0


class Why(StrEnum):
    """Why a gate is closed."""

    RATE = "rate"
    OUTAGE = "outage"


class Proven(NamedTuple):
    """An outage that a failed probe has proven, from number to number; `until_n` is None while it lasts."""

    since_n: int
    until_n: int | None


class Gate:
    """One model's gate. Ask `wait_s`, tell `started`, and then how each call ended."""

    def __init__(self, pace: Pace | None = None, *, grows: bool = True) -> None:
        """With `grows`, a run begins with few calls at a time."""
        self.pace = pace or Pace()
        self.why: Why | None = None
        self.until = -math.inf  # closed until then; in an outage, until the next probe
        self.inflight = 0
        self.probe_s = PROBE_S
        self.outage_since: float | None = None  # from the first closing until it is over
        self.refused_since: float | None = None  # from the first refusal until the next success
        self.ok_n = -1  # number of the last success
        self.ok_began_at = -math.inf  # when the latest call began that succeeded
        self._closed_n = -1
        self._good = 0
        self._proven = Proven(0, -1)
        self._streak_n = -1  # number of the first failure of the streak that closed it last
        self._streak: dict[int, int] = {}  # jobs that failed with no success since -> number of the failure
        self._firsts: deque[tuple[float, bool]] = deque(maxlen=RECENT)  # (when, whether it failed)
        self._bare: deque[bool] = deque(maxlen=RECENT)
        # Since when, from how many, doubled every so many seconds.
        self._grow: tuple[float, int, float] | None = None if grows else (-math.inf, *RUN_START)

    @property
    def is_calm(self) -> bool:
        """Whether it is open, with neither an outage nor a refusal behind it that isn't over."""
        return self.why is None and self.outage_since is None and self.refused_since is None

    def closed(self, now: float) -> bool:
        """Whether it is closed: by an outage, or for a delay that hasn't passed."""
        return self.why is Why.OUTAGE or now < self.until

    def limit(self, now: float) -> float:
        """Return how many calls may be under way."""
        since, first, doubled_s = self._grow or (now, *RUN_START)
        return math.floor(first * 2 ** min(DOUBLINGS_MAX, (now - since) / doubled_s))

    def wait_s(self, now: float) -> float:
        """Return how long until one more call may start, in seconds; 0: now.

        While as many as may be are under way, it is when one more may be: an answer can make it sooner.
        """
        if now < self.until:
            return self.until - now
        if self.why is Why.OUTAGE:
            return 0.0
        if self.inflight >= self.limit(now):
            return self._until_one_more_s(now)
        return self.pace.wait_s(now)

    def started(self, now: float) -> None:
        self.inflight += 1
        self.pace.started(now)
        self._grow = self._grow or (now, *RUN_START)
        if self.why is Why.OUTAGE:
            self._next_probe(now)
        if self.why is Why.RATE:
            self.why = None

    def gone(self) -> None:
        """A call under way will tell nothing about this gate."""
        self.inflight = max(0, self.inflight - 1)

    def succeeded(self, now: float, *, started_n: int, n: int, first: bool) -> None:
        """A call was answered. `first` says that it was the job's first attempt in this run."""
        self.ok_n, self.refused_since = n, None
        self._streak.clear()
        self._bare.append(False)
        if first:
            self._firsts.append((now, False))
        self.answered(now, started_n=started_n, n=n)
        self._good += started_n > self._closed_n
        if self.outage_since is not None and self._good >= HEALED:
            self.outage_since, self.probe_s = None, PROBE_S

    def answered(self, now: float, *, started_n: int, n: int) -> None:
        """The service gave an answer that is neither overload nor a refusal, as a blocked prompt: it is there."""
        self.gone()
        if self.why is Why.OUTAGE and started_n > self._closed_n:
            self.reopen(now)
            if self._proven.until_n is None:
                self._proven = self._proven._replace(until_n=n)

    def reopen(self, now: float) -> None:
        """Let calls through again, few at first."""
        self.why, self.until, self._good = None, -math.inf, 0
        self._grow = (now, *REOPENED)

    def failed(
        self,
        now: float,
        *,
        job: int,
        started_n: int,
        n: int,
        left: int,
        workers: int,
        first: bool,
        stubborn: bool,
        bare: bool = False,
    ) -> list[int]:
        """A call met overload, a 5xx, a network fault or its deadline. Return the jobs whose attempt is no strike.

        `left` is how many other jobs may still run, `bare` a 429 that names neither quota nor delay.
        """
        self.gone()
        self._bare.append(bare)
        if first:
            self._firsts.append((now, True))
        if bare and sum(self._bare) >= BARE:
            self.pace.overloaded(now, started_n=started_n, n=n, window_s=BARE_WINDOW_S, share=BARE_SHARE)
        if self.why is Why.OUTAGE:
            if started_n > self._closed_n and self._proven.until_n is not None:
                self._proven = Proven(self._streak_n, None)
            return [job]
        if not stubborn:
            self._streak[job] = n
        failing = sum(failed for at, failed in self._firsts if at > now - RECENT_S)
        if len(self._streak) >= max(2, min(WITNESSES, workers, left + 1)) or (self._streak and failing >= CLOSING):
            return self._close(now, started_n=started_n, n=n, bare=bare)
        return [job] if self.outage_since is not None or failing >= FORGIVING else []

    def refused(self, now: float, *, started_n: int, n: int, delay_s: float) -> None:
        """A call met a 429 that names its quota or its delay. Never a strike."""
        self.gone()
        self.why = self.why or Why.RATE
        if self.refused_since is None:
            self.refused_since = now
        self.until = max(self.until, now + delay_s)
        self.pace.refused(now, started_n=started_n, n=n, delay_s=delay_s, until=self.until)

    def is_stubborn(self, failed_n: int) -> bool:
        """Whether another job has succeeded since that failure, with no proven outage to explain it."""
        since_n, until_n = self._proven
        return self.ok_n > failed_n and not since_n <= failed_n <= (failed_n if until_n is None else until_n)

    def close_for_others(self, now: float, *, wait_s: float, n: int) -> None:
        """Another process saw an outage: probe no sooner than in `wait_s`."""
        if self.why is not Why.OUTAGE:
            self._closed_n, self._good, self._streak_n = n, 0, n
            self.outage_since = now if self.outage_since is None else self.outage_since
        self.why, self.until = Why.OUTAGE, max(self.until, now + wait_s)

    def _close(self, now: float, *, started_n: int, n: int, bare: bool) -> list[int]:
        explained, self._streak_n = list(self._streak), min(self._streak.values())
        self._streak.clear()
        self._firsts.clear()
        self.why, self._closed_n, self._good = Why.OUTAGE, n, 0
        if self.outage_since is None:
            self.outage_since = now
        self._next_probe(now)
        if bare:
            self.pace.overloaded(now, started_n=started_n, n=n, window_s=RECENT_S, share=CUT, but=len(explained))
        return explained

    def _next_probe(self, now: float) -> None:
        self.until, self.probe_s = now + self.probe_s, min(2 * self.probe_s, PROBE_MAX_S)

    def _until_one_more_s(self, now: float) -> float:
        since, first, doubled_s = self._grow or (now, *RUN_START)
        doublings = math.log2((self.inflight + 1) / first)
        return max(0.01, since + doublings * doubled_s - now) if doublings <= DOUBLINGS_MAX else math.inf
