"""When a run stops for a fault that waiting can't mend: whose fault is it, the job's own or everybody's? Pure.

Two jobs that meet a dead key could still be two jobs with a file of their own that nobody may read, so nothing is
believed on the word of two: once the running calls are back, a third job from the far end of the line is tried. Starts
are numbered in their order; "later" means by these numbers, since a quick failure overtakes a slow success.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from parked.verdict import MEANINGS, Kind, Reason, Scope, Verdict

ALL: Final = ""  # the scope of a fault that every model would meet; the others are named by their model
# What the payload of a job can cause, by naming a file, a model or a feature that isn't for everybody.
ITS_OWN_PERHAPS: Final = frozenset({Reason.PERMISSION_DENIED, Reason.MODEL_NOT_FOUND, Reason.NO_QUOTA})
# How many jobs, from different parts of the line, have to say the same before a fault is believed that jobs can have of
# their own: with one, a file of which a quarter is bad would be paused every few nights.
TRIES: Final = 4
# What the gate deals with: never counted as alike.
OUTAGE: Final = frozenset({Reason.OVERLOADED, Reason.SERVER_ERROR, Reason.TIMEOUT, Reason.NETWORK})
QUOTA: Final = frozenset({Reason.RATE_LIMITED, Reason.DAILY_QUOTA_EXHAUSTED})
# A fault of this process before any request went out; no other process needs to know.
STAYS_HERE: Final = frozenset({Reason.CLIENT_FAULT})


def is_everybodys(verdict: Verdict) -> bool:
    """Whether a failure says of itself that every job of its scope would meet it, and that waiting won't mend it."""
    return verdict.kind is Kind.PERMANENT and verdict.scope in (Scope.MODEL, Scope.PROJECT)


def scope_of(verdict: Verdict, model: str) -> str:
    """Return by which name a fault's scope goes: its model, or all."""
    return ALL if verdict.scope is Scope.PROJECT else model


def covers(scope: str, model: str) -> bool:
    return scope in (ALL, model)


class Step(Enum):
    """What a doubt calls for now."""

    GO_ON = auto()
    HOLD = auto()  # start nothing: calls are still under way, or jobs are still being read
    TRY = auto()  # start one job, from the far end of the line, that hasn't met it
    OWN = auto()  # it was the jobs' own: park them
    PAUSE = auto()


@dataclass(slots=True)
class Doubt:
    """A fault that may be everybody's, until a later success clears it or a third job confirms it."""

    scope: str
    reason: Reason
    is_alike: bool = False  # a row of failures that look alike, instead of one that says so itself
    fingerprint: str | None = None  # of such a row; None: by its reason alone
    met: dict[int, int] = field(default_factory=dict)  # job -> number of the start of its call
    tried: set[int] = field(default_factory=set)
    confirmed: int = 0  # of those, how many said the same
    trying: int | None = None
    holding: bool = False
    known_n: int = -1  # of one that was raised elsewhere: when it was heard of

    @property
    def first_n(self) -> int:
        return min(self.met.values(), default=self.known_n)

    @property
    def is_confirmed(self) -> bool:
        its_own_perhaps = self.is_alike or self.reason in ITS_OWN_PERHAPS
        return self.confirmed >= (TRIES if its_own_perhaps else 1)

    def is_same(self, verdict: Verdict, model: str) -> bool:
        """Whether a failure says the same as those that raised the doubt."""
        if self.is_alike:
            return verdict.reason is self.reason and self.fingerprint in (None, verdict.fingerprint)
        if self.reason in OUTAGE:
            return verdict.reason in OUTAGE
        if self.reason in QUOTA:
            return verdict.reason in QUOTA
        return is_everybodys(verdict) and scope_of(verdict, model) == self.scope

    def step(self, *, running: int, untried: int, more: bool) -> Step:
        """Return what to do: `running` calls of the scope are under way, `untried` jobs of it wait and haven't met it.

        `more` says that others may still come.
        """
        if not self.holding:
            if running or untried or more:
                return Step.GO_ON
            return Step.OWN if self.reason in ITS_OWN_PERHAPS and not self.is_alike else Step.PAUSE
        if running:
            return Step.HOLD
        if untried:
            return Step.TRY
        return Step.HOLD if more else Step.PAUSE


class Cleared(NamedTuple):
    """What a success has cleared."""

    jobs: list[int]  # that had met the fault before, and are to be tried again at once
    scopes: list[str]  # that are in no doubt any more


class Doubts:
    """All doubts of a run."""

    def __init__(self, *, stop_after_alike: int) -> None:
        self._stop_after_alike = stop_after_alike
        self._faults: dict[str, Doubt] = {}  # by scope
        self._rows: dict[str, Doubt] = {}  # by model

    def __iter__(self) -> Iterator[Doubt]:
        if not self._faults and not self._rows:
            return iter(())
        return iter([*self._faults.values(), *(row for row in self._rows.values() if row.holding)])

    @property
    def none(self) -> bool:
        return not self._faults and not self._rows

    def holding(self, model: str) -> bool:
        """Whether nothing of that model may be started, but for one that is tried."""
        return any(doubt.holding and covers(doubt.scope, model) for doubt in self)

    def has_met(self, job: int) -> bool:
        """Whether this job waits for a later success, since it has met a fault that may be everybody's."""
        return any(job in doubt.met for doubt in self._faults.values())

    def fault(self, job: int, verdict: Verdict, model: str, *, started_n: int, had_chance: bool) -> bool:
        """A job met a fault that may be everybody's. Return whether it is the job's own.

        `had_chance`: it was tried again after a later call had succeeded.
        """
        scope = scope_of(verdict, model)
        doubt = self._faults.get(scope)
        if had_chance and (doubt is None or not doubt.met or started_n < doubt.first_n):
            return True
        if doubt is None:
            assert verdict.reason is not None
            doubt = self._faults[scope] = Doubt(scope, verdict.reason)
        doubt.holding |= bool(doubt.met.keys() - {job})
        doubt.met[job] = started_n
        return False

    def alike(self, job: int, verdict: Verdict, model: str, *, started_n: int) -> None:
        """A job failed in a way that is its own; a row of such failures raises a doubt."""
        row = self._rows.get(model)
        if row is None or (not row.holding and row.fingerprint != verdict.fingerprint):
            assert verdict.reason is not None
            row = self._rows[model] = Doubt(model, verdict.reason, is_alike=True, fingerprint=verdict.fingerprint)
        if row.is_same(verdict, model):
            row.met[job] = started_n
        row.holding |= 0 < self._stop_after_alike <= len(row.met)

    def from_elsewhere(self, scope: str, reason: Reason, *, n: int) -> None:
        """Another process, or an earlier run, has paused: have one job tried before any other."""
        is_alike = reason not in OUTAGE | QUOTA and not _speaks_for_all(reason)
        table = self._rows if is_alike else self._faults
        if scope not in table or not table[scope].holding:
            table[scope] = Doubt(scope, reason, is_alike=is_alike, holding=True, known_n=n)

    def succeeded(self, model: str, *, started_n: int) -> Cleared:
        """A call was answered: who had met a fault before it began is freed."""
        cleared = Cleared([], [])
        row = self._rows.pop(model, None)
        if row is not None and row.holding:
            cleared.scopes.append(row.scope)
        for scope, doubt in list(self._faults.items()):
            if not covers(scope, model):
                continue
            if not doubt.met and started_n <= doubt.known_n:
                continue
            freed = [job for job, met_n in doubt.met.items() if met_n < started_n]
            cleared.jobs.extend(freed)
            for job in freed:
                del doubt.met[job]
            if freed or not doubt.met:
                doubt.trying = None
                doubt.holding = len(doubt.met) > 1
            if not doubt.met:
                del self._faults[scope]
                cleared.scopes.append(scope)
        return cleared

    def back(self, job: int) -> None:
        """The call of a job that was tried is back, and it neither succeeded nor said the same."""
        for doubt in self:
            if doubt.trying == job:
                doubt.trying = None

    def left(self, job: int) -> None:
        """A job is out of the line, whatever became of it."""
        self.back(job)
        for scope, doubt in list(self._faults.items()):
            if doubt.met.pop(job, None) is not None and not doubt.met and not doubt.holding:
                del self._faults[scope]

    def drop(self, doubt: Doubt) -> None:
        """It is decided."""
        table = self._rows if doubt.is_alike else self._faults
        if table.get(doubt.scope) is doubt:
            del table[doubt.scope]


def _speaks_for_all(reason: Reason) -> bool:
    meaning = MEANINGS[reason]
    return meaning.kind is Kind.PERMANENT and meaning.scope is not Scope.JOB
