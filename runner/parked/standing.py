"""How a job stands in line, and the jobs of one model that wait."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from parked.policy import GiveUp, LetGo
from parked.verdict import Verdict


class Stand(Enum):
    WAITS = auto()  # for its turn
    CALLS = auto()
    BETWEEN = auto()  # what came of its call is being recorded
    TOLD = auto()  # to leave; it hears of it when it asks for its turn


@dataclass(slots=True, eq=False)
class InLine:
    """A job in line."""

    job: int
    model: str
    order: int
    strikes: int
    failed_before: bool  # in an earlier run
    stand: Stand = Stand.WAITS
    came_with: int = 0  # strikes
    calls: int = 0  # in this run
    fails: int = 0  # in this run, refusals not counted
    refusals: int = 0  # for a quota, while others were answered
    refused_n: int | None = None  # number of its last refusal
    failed_n: int = -1  # number of its last failure
    begun_n: int = -1  # number of its last start
    begun_at: float = 0.0
    due: float = -math.inf
    struck: bool = False  # its last attempt is a strike
    stubborn: bool = False
    met_outage: bool = False
    has_chance: bool = False  # it met a fault that may be everybody's, and a later call has succeeded
    verdict: Verdict | None = None  # of its last failure
    told: LetGo | GiveUp | None = None
    rests: bool = False  # it was called, and is pending in the ledger while it waits at a pause


class Queue:
    """The jobs of one model that wait."""

    def __init__(self) -> None:
        self.fresh: deque[InLine] = deque()  # not called in this run, in their order
        self.left_over: deque[InLine] = deque()  # the same, but they have failed in an earlier run
        self.failed: list[InLine] = []

    def __bool__(self) -> bool:
        return bool(self.fresh or self.left_over or self.failed)

    def add(self, one: InLine) -> None:
        self._where(one).append(one)

    def remove(self, one: InLine) -> None:
        self._where(one).remove(one)

    def _where(self, one: InLine) -> deque[InLine] | list[InLine]:
        if one.calls:
            return self.failed
        return self.left_over if one.failed_before else self.fresh
