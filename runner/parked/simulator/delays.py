"""How long an answer takes: always the same, or drawn anew for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final

MAX_DELAY_S: Final = 3600.0
_Z95: Final = 1.6448536269514722  # where the normal distribution has left 95 % behind


@dataclass(frozen=True, slots=True)
class Fixed:
    seconds: float = 0.0

    def draw(self, random: Random) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Uniform:
    least_s: float
    most_s: float

    def draw(self, random: Random) -> float:
        return random.uniform(self.least_s, self.most_s)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """As answers of a model are spread: most near the median, some many times as long."""

    median_s: float
    p95_s: float  # 19 of 20 take at most as long

    def draw(self, random: Random) -> float:
        sigma = math.log(self.p95_s / self.median_s) / _Z95
        return min(MAX_DELAY_S, random.lognormvariate(math.log(self.median_s), sigma))


Delay = Fixed | Uniform | Lognormal
