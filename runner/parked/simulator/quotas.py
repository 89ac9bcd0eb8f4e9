"""Quotas as the API keeps them: how many requests or tokens it takes in a minute or a day.

Pure: the clock comes in, in seconds since the first request, and never goes back. What is refused is charged nothing,
and what one quota refuses is charged to none.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, assert_never

MINUTE_S: Final = 60.0
MINUTES_A_DAY: Final = 1440
_ROUNDING: Final = 1e-9  # of a bucket's level; without it a bucket could stay short of whole by a rounding for ever


class Counted(StrEnum):
    REQUESTS = "requests"
    TOKENS = "tokens"  # of the prompt


class Period(StrEnum):
    MINUTE = "minute"
    DAY = "day"


class Window(StrEnum):
    FIXED = "fixed"  # everything is given back at once, at the end of each period
    SLIDING = "sliding"  # each request is given back one period after it came
    BUCKET = "bucket"  # given back evenly, up to what the bucket holds


class Said(StrEnum):
    """What a refusal names."""

    QUOTA = "quota"
    DELAY = "delay"


@dataclass(frozen=True, slots=True)
class Quota:
    limit: int  # for each period; 0 only in a refusal's words, of a model that the project has no access to
    counted: Counted = Counted.REQUESTS
    per: Period = Period.MINUTE
    window: Window = Window.FIXED
    holds: int | None = None  # of a bucket, which begins full; None: as much as the limit
    resets_at_s: float | None = None  # when a fixed window ends for the first time; None: after one period
    per_model: bool = True  # else one for all models of the project
    id: str | None = None  # what a refusal calls it; None: what the API calls such a quota
    says: frozenset[Said] = frozenset(Said)


class Refusal(NamedTuple):
    """Which quotas have no room, and how long the server says to wait."""

    violated: tuple[Quota, ...]
    delay_s: float  # until all minutes' quotas have room again; for the day's alone, until the running minute ends


class Meter(Protocol):
    """What is left of one quota."""

    def wait_s(self, cost: int, now: float) -> float:
        """Return how long until there is room, if nobody else comes; 0 means now.

        For a cost that never finds room it is the length of a period, as a server says that doesn't look at it.
        """
        ...

    def charge(self, cost: int, now: float) -> None: ...


class FixedMeter:
    def __init__(self, limit: int, *, period_s: float, resets_at_s: float) -> None:
        self._limit, self._period_s, self._ends_at = limit, period_s, resets_at_s
        self._used = 0

    def wait_s(self, cost: int, now: float) -> float:
        self._move_on(now)
        return 0.0 if self._used + cost <= self._limit else self._ends_at - now

    def charge(self, cost: int, now: float) -> None:
        self._move_on(now)
        self._used += cost

    def _move_on(self, now: float) -> None:
        if now >= self._ends_at:
            self._ends_at += self._period_s * (1 + math.floor((now - self._ends_at) / self._period_s))
            self._used = 0


class SlidingMeter:
    def __init__(self, limit: int, *, period_s: float) -> None:
        self._limit, self._period_s = limit, period_s
        self._charged: deque[tuple[float, int]] = deque()  # when each is given back, and what it cost
        self._used = 0

    def wait_s(self, cost: int, now: float) -> float:
        self._move_on(now)
        used = self._used
        if used + cost <= self._limit:
            return 0.0
        for back_at, charged in self._charged:
            used -= charged
            if used + cost <= self._limit:
                return back_at - now
        return self._period_s

    def charge(self, cost: int, now: float) -> None:
        self._move_on(now)
        self._charged.append((now + self._period_s, cost))
        self._used += cost

    def _move_on(self, now: float) -> None:
        while self._charged and self._charged[0][0] <= now:
            self._used -= self._charged.popleft()[1]


class BucketMeter:
    def __init__(self, limit: int, *, period_s: float, holds: int) -> None:
        self._rate, self._period_s, self._holds = limit / period_s, period_s, holds
        self._level, self._at = float(holds), 0.0

    def wait_s(self, cost: int, now: float) -> float:
        self._move_on(now)
        if cost > self._holds:
            return self._period_s
        short = cost - self._level
        return 0.0 if short <= _ROUNDING else short / self._rate

    def charge(self, cost: int, now: float) -> None:
        self._move_on(now)
        self._level -= cost

    def _move_on(self, now: float) -> None:
        self._level = min(float(self._holds), self._level + (now - self._at) * self._rate)
        self._at = now


@dataclass(slots=True)
class Meters:
    """Several quotas that are asked together: a request goes through if all of them have room."""

    quotas: tuple[Quota, ...]
    minute_s: float = MINUTE_S  # how long a minute lasts, and a day 1440 times as long
    _meters: dict[tuple[int, str], Meter] = field(default_factory=dict)  # by the quota's place, and the model

    def admit(self, model: str, tokens: int, now: float) -> Refusal | None:
        """Charge a request to all quotas, or return what refuses it."""
        asked = [
            (quota, self._meter(place, model), 1 if quota.counted is Counted.REQUESTS else tokens)
            for place, quota in enumerate(self.quotas)
        ]
        waits = [(quota, wait_s) for quota, meter, cost in asked if (wait_s := meter.wait_s(cost, now)) > 0]
        if waits:
            return Refusal(tuple(quota for quota, _ in waits), self._delay_s(waits, now))
        for _, meter, cost in asked:
            meter.charge(cost, now)
        return None

    def _meter(self, place: int, model: str) -> Meter:
        quota = self.quotas[place]
        key = (place, model if quota.per_model else "")
        if key not in self._meters:
            self._meters[key] = meter_of(quota, minute_s=self.minute_s)
        return self._meters[key]

    def _delay_s(self, waits: Iterable[tuple[Quota, float]], now: float) -> float:
        minutes = [wait_s for quota, wait_s in waits if quota.per is Period.MINUTE]
        # To the next millisecond, as it is named: whoever comes back then finds room.
        return math.ceil(1000 * (max(minutes) if minutes else self.minute_s - now % self.minute_s)) / 1000


def meter_of(quota: Quota, *, minute_s: float = MINUTE_S) -> Meter:
    """Return a full meter of that quota, as of second 0."""
    period_s = minute_s if quota.per is Period.MINUTE else MINUTES_A_DAY * minute_s
    match quota.window:
        case Window.FIXED:
            resets_at_s = period_s if quota.resets_at_s is None else quota.resets_at_s
            return FixedMeter(quota.limit, period_s=period_s, resets_at_s=resets_at_s)
        case Window.SLIDING:
            return SlidingMeter(quota.limit, period_s=period_s)
        case Window.BUCKET:
            return BucketMeter(
                quota.limit, period_s=period_s, holds=quota.limit if quota.holds is None else quota.holds
            )
        case _:
            assert_never(quota.window)
