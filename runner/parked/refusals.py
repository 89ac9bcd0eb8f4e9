"""Whose a refusal is: the quota's, which all share, or that of one job which is larger than its quota. Pure.

A job that is refused again, though others were answered since and nobody new was refused, is refused for its own sake:
it says nothing of how many calls a minute the model takes, and what the pace lost to it is given back.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Final, NamedTuple

from parked.gate import Gate
from parked.pace import Pace

CUTS: Final = 32  # that are remembered; more than a job is refused for
OWN: Final = 2  # such refusals of a job, and what it has cut is given back; one may be chance
KNOWN: Final = 3  # such refusals, and all that follow are its own, even where it is the only job left


class _Cut(NamedTuple):
    n: int  # number of the refusal
    job: int
    before: Pace


class Refusals:
    """Those at one gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._last_new_n = -1  # number of the refusal with which a job that had met none has closed the gate last
        self._own: dict[int, int] = {}  # refusals of their own by job
        self._cuts: deque[_Cut] = deque(maxlen=CUTS)

    def met(self, job: int, now: float, *, started_n: int, n: int, delay_s: float, before_n: int | None) -> bool:
        """A call was refused. Returns whether that was for the job's own sake, so that all others go on.

        `before_n` is the number of this job's refusal before, None if it is the first.
        """
        gate = self._gate
        is_known = self._own.get(job, 0) >= KNOWN
        if before_n is not None and before_n >= self._last_new_n and (gate.ok_n > before_n or is_known):
            gate.answered(now, started_n=started_n, n=n)
            self._own[job] = self._own.get(job, 0) + 1
            self._take_back()
            return True
        pace = copy(gate.pace)
        gate.refused(now, started_n=started_n, n=n, delay_s=delay_s)
        if gate.pace.cut_n == n:
            self._cuts.append(_Cut(n, job, pace))
        if before_n is None and started_n > self._last_new_n:  # else it was under way when the gate closed
            self._last_new_n = n
        return False

    def _take_back(self) -> None:
        """Go on at the pace from before the latest cuts, as far as they were made by such jobs."""
        while self._cuts and self._cuts[-1].n == self._gate.pace.cut_n and self._own.get(self._cuts[-1].job, 0) >= OWN:
            self._gate.pace = self._cuts.pop().before
