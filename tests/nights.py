"""Nights in virtual time: the product's line, gates and pauses against a service that a test makes up.

No ledger, no model and no waiting: ten minutes of an outage pass in milliseconds, and every start is known.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from parked.gates import Gates
from parked.line import Line
from parked.news import Forgiven, Go, Leaves, Pause, Rests, Resumed
from parked.pauses import OUTAGE
from parked.policy import GiveUp, LetGo, Policy, Rest, Retry
from parked.verdict import MEANINGS, Reason, Verdict

OK = Verdict(True, "test")
AHEAD, MOST = 32, 1000
DAY_LEFT_S = 20_000.0


def failed(reason: Reason, *, retry_after_s: float | None = None, quota_id: str | None = None) -> Verdict:
    """A failure, with what its reason usually means; its fingerprint is the reason."""
    meaning = MEANINGS[reason]
    return Verdict(
        False, "test", meaning.kind, reason, meaning.scope, retry_after_s, fingerprint=reason, quota_id=quota_id
    )


class Call(NamedTuple):
    job: int
    model: str
    at: float
    attempt: int  # of this night, 1-based
    random: random.Random


Service = Callable[[Call], tuple[Verdict, float]]  # what comes back, and after how many seconds


class Made(NamedTuple):
    """A call that was made."""

    job: int
    at: float
    verdict: Verdict
    lasts_s: float


@dataclass
class Night:
    """One run over some jobs (id -> model), and what came of it."""

    jobs: dict[int, str]
    service: Service
    workers: int = 64
    policy: Policy = field(default_factory=Policy)
    gates: Gates = field(default_factory=Gates)
    seed: int = 1
    begins_at: float = 0.0
    strikes: dict[int, int] = field(default_factory=dict)  # from earlier nights
    failed_before: frozenset[int] = frozenset()
    paused: tuple[tuple[str, Reason], ...] = ()  # pauses that an earlier night has left
    waits: bool = False  # at pauses, as with --wait
    longest_s: float = 1_000_000.0

    answered: dict[int, float] = field(default_factory=dict)  # job -> when
    parked: dict[int, float] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    pauses: list[Pause] = field(default_factory=list)
    calls: list[Made] = field(default_factory=list)
    held_at_pauses: int = 0  # most jobs that the ledger held for a run that only waited
    took_s: float = 0.0

    def run(self) -> Night:
        _Run(self).run()
        return self

    def calls_between(self, since: float, until: float) -> int:
        return sum(since <= call.at < until for call in self.calls)

    def answers_per_s(self, since: float, until: float) -> float:
        return sum(since <= at < until for at in self.answered.values()) / (until - since)

    def refused(self) -> int:
        return sum(call.verdict.reason is Reason.RATE_LIMITED for call in self.calls)


class _Run:
    """The driver: does what the pool does, without waiting."""

    def __init__(self, night: Night) -> None:
        self.night, self.now = night, night.begins_at
        self.random = random.Random(night.seed)
        self.line = Line(night.gates, night.policy, night.workers, keeps=night.waits, resumes=night.waits)
        self.held: set[int] = set()  # in the ledger
        for scope, reason in night.paused:
            if reason in OUTAGE:  # what waiting mends is not asked about
                continue
            self.line.doubts.from_elsewhere(scope, reason, n=night.gates.last_n)
        self.events: list[tuple[float, int, int | None, Verdict]] = []
        self.sequence = 0
        self.attempts: Counter[int] = Counter()
        self.strikes = dict(night.strikes)
        self.not_before: dict[int, float] = {}
        self.wakes_at = math.inf

    def run(self) -> None:
        left = iter(self.night.jobs.items())
        while True:
            self._feed(left)
            self._start()
            self._heed_news()
            if not self.events:
                if self.line.jobs or self.line.more:
                    raise AssertionError(f"stuck at {self.now} with {len(self.line.jobs)} jobs in line")
                break
            at, _, job, verdict = heapq.heappop(self.events)
            self.now = max(self.now, at)
            assert self.now < self.night.longest_s, f"no end: {len(self.line.jobs)} in line, {self.line}"
            if job is None:
                self.wakes_at = math.inf
            else:
                self._end(job, verdict)
        self.night.took_s = (
            max((call.at + call.lasts_s for call in self.night.calls), default=self.now) - self.night.begins_at
        )
        self.night.strikes = {job: self.strikes.get(job, 0) for job in self.night.pending}

    def _feed(self, left: Iterable[tuple[int, str]]) -> None:
        while self.line.more and self.line.wants(ahead=self.night.workers + AHEAD, most=MOST):
            job, model = next(iter(left), (None, ""))
            if job is None:
                self.line.more = False
                return
            self.line.enter(job, model, strikes=self.strikes.get(job, 0), failed_before=job in self.night.failed_before)

    def _start(self) -> None:
        while True:
            turn = self.line.next(self.now)
            self._heed_news()
            if not isinstance(turn, Go):
                break
            job = turn.job
            assert self.now >= self.not_before.get(job, 0.0) - 1e-6, "called within its backoff"
            self.line.started(job, self.now)
            self.held.add(job)
            assert self.line.calling <= self.night.workers
            self.attempts[job] += 1
            model = self.night.jobs[job]
            verdict, lasts_s = self.night.service(Call(job, model, self.now, self.attempts[job], self.random))
            self.night.calls.append(Made(job, self.now, verdict, lasts_s))
            self._at(self.now + lasts_s, job, verdict)
        wakes_at = self.now + max(min(turn.wait_s, turn.look_s), 1e-6)
        if wakes_at < self.wakes_at - 1e-9 and (self.line.jobs or self.line.more):
            self.wakes_at = wakes_at
            self._at(wakes_at, None, OK)

    def _at(self, at: float, job: int | None, verdict: Verdict) -> None:
        if at < math.inf:
            self.sequence += 1
            heapq.heappush(self.events, (at, self.sequence, job, verdict))

    def _end(self, job: int, verdict: Verdict) -> None:
        ruling = self.line.ended(job, verdict, self.now, jitter=self.random.random(), day_left_s=DAY_LEFT_S)
        if ruling is None:
            self.held.discard(job)
            self.night.answered[job] = self.now
        else:
            self.strikes[job] = self.strikes.get(job, 0) + ruling.strike
            if isinstance(ruling.then, Retry):
                self.not_before[job] = self.now + ruling.then.wait_s
                if (told := self.line.again(job)) is not None:
                    self._leaves(job, told)
            else:
                self._leaves(job, ruling.then)
        self._heed_news()

    def _leaves(self, job: int, then: LetGo | GiveUp | Rest | Retry) -> None:
        self.held.discard(job)
        if isinstance(then, Rest):
            assert self.line.again(job) is None
            return
        if isinstance(then, GiveUp):
            self.night.parked[job] = self.now
            return
        assert isinstance(then, LetGo)
        self.night.pending.add(job)
        if then.strikes is not None:
            self.strikes[job] = then.strikes

    def _heed_news(self) -> None:
        news, self.line.news[:] = self.line.news[:], []
        for one in news:
            match one:
                case Forgiven(job):
                    self.strikes[job] -= 1
                    assert self.strikes[job] >= 0
                case Leaves(job, then, _):
                    self._leaves(job, then)
                    self.line.leave(job)
                case Rests(job, rest):
                    self._leaves(job, rest)
                case Pause():
                    self.night.pauses.append(one)
                case Resumed(_):
                    pass
                case _:
                    pass
        if self.line.paused and not self.line.calling:
            self.night.held_at_pauses = max(self.night.held_at_pauses, len(self.held))
