"""The line of jobs in hand: who goes next, what follows a failure, and what that means for the others. Pure.

One place decides for all workers of a run. It knows the gates of the models and what is in doubt; the clock comes in,
and what has to be done outside comes out as news. A job in line waits for a turn, holds one, or is told to leave.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from parked.gate import PROBE_S, RUN_START, Gate, Why
from parked.gates import Gates
from parked.news import Forgiven, GateMoved, Go, Leaves, News, PaceKept, Pause, Rests, Resumed, TriesAgain, Wait, Waits
from parked.pace import Pace
from parked.pauses import ALL, OUTAGE, QUOTA, Doubt, Doubts, Step, covers, is_everybodys, scope_of
from parked.policy import MAX_REFUSALS, GiveUp, LetGo, Policy, Rest, Retry, Ruling, backoff_s, decide
from parked.refusals import Refusals
from parked.standing import InLine, Queue, Stand
from parked.verdict import Disposition, Reason, Verdict

DAY_DELAY_S: Final = 60.0  # of a day's quota that names none
RESUME_S: Final = 300.0  # between two tries in a pause
SOON_S: Final = 5.0
TRIED_AT: Final = (1.0, 0.5, 0.0, 0.75, 0.25)  # where in the line jobs are tried, one after the other
MANY: Final = 1000  # others that may still run, where nobody has counted: more jobs are still being read


@dataclass
class _Paused:
    reason: Reason
    resume_at: float  # when one job is to be tried; infinite: never in this run
    until: float | None


@dataclass
class Line:
    """See the module. `keeps` says that jobs stay in line at a pause, for one of them to try now and then."""

    gates: Gates
    policy: Policy
    workers: int
    keeps: bool = False
    resumes: bool = False  # whether a pause is looked into again in this run
    more: bool = True  # whether jobs may come that are not in line yet
    news: list[News] = field(default_factory=list)  # to be taken by whoever acts
    paused: dict[str, _Paused] = field(default_factory=dict)  # by scope
    jobs: dict[int, InLine] = field(default_factory=dict)
    calling: int = 0  # workers that are taken
    gives_up_at: float = math.inf  # when `give_up_waiting` is to be called
    may_probe: Callable[[str], bool] = lambda model: True  # whether it is this process's turn to

    def __post_init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self._of: dict[str, int] = {}  # jobs in line by model
        self._order = 0
        self._last_probe: int | None = None
        self._before_day: dict[str, tuple[Pace, float]] = {}  # the pace before a day's quota was met, closed until
        self._day_until: dict[str, float] = {}  # when a day's quota is to be asked again
        self._refusals: dict[str, Refusals] = {}  # by scope
        self._resting: Counter[str] = Counter()  # jobs by model that wait at a pause, pending in the ledger
        self._answering: set[str] = set()  # models that have answered in this run
        self._said_closed: dict[str, Why] = {}  # gates that were told to be closed
        self.doubts = Doubts(stop_after_alike=self.policy.stop_after_alike)

    # --- coming and going ---

    def is_paused(self, model: str) -> bool:
        return any(covers(scope, model) for scope in self.paused)

    def is_paused_for_good(self, model: str) -> bool:
        """Whether nothing of that model is started any more in this run."""
        return any(covers(scope, model) and paused.resume_at == math.inf for scope, paused in self.paused.items())

    def enter(self, job: int, model: str, *, strikes: int = 0, failed_before: bool = False) -> None:
        """A job comes into the line; it waits for its turn.

        One that has failed in an earlier run goes right after its model's first success in this one: at the end of the
        line it would never have its turn, where what comes before it ends in a pause every night.
        """
        one = self._come(job, model, strikes, failed_before)
        self._queues.setdefault(model, Queue()).add(one)
        if self.is_paused(model) and not self.keeps:
            self._let_go(one)

    def enter_calling(self, job: int, model: str, now: float, *, strikes: int, failed_before: bool) -> None:
        """A job comes that has its turn already."""
        one = self._come(job, model, strikes, failed_before)
        self._started(one, now)
        for doubt in self.doubts:
            if doubt.holding and doubt.trying is None and covers(doubt.scope, model):
                doubt.trying = job
                doubt.tried.add(job)

    def again(self, job: int) -> LetGo | GiveUp | Rest | None:
        """A job asks for its next turn, once its failure is recorded. Returns what it is told instead."""
        one = self.jobs.get(job)
        if one is None:
            return LetGo()
        if one.told is not None:
            self.leave(job)
            return one.told
        if self._is_to_rest(one):
            return self._rest(one)
        if one.stand is Stand.BETWEEN:
            one.stand = Stand.WAITS
            self._queues.setdefault(one.model, Queue()).add(one)
        return None

    def rests(self, job: int) -> bool:
        """Whether a job waits here at a pause while it is pending in the ledger."""
        return job in self.jobs and self.jobs[job].rests

    def leave(self, job: int) -> None:
        """A job is out of our hands, for whatever reason. Safe to say twice."""
        one = self.jobs.pop(job, None)
        if one is None:
            return
        self._of[one.model] -= 1
        if one.rests:
            self._resting[one.model] -= 1
        if one.stand is Stand.WAITS:
            self._queues[one.model].remove(one)
        if one.stand is Stand.CALLS:
            self.calling -= 1
            self.gates.of(one.model).gone()
            self.gates.all.gone()
        self.doubts.left(job)

    def _come(self, job: int, model: str, strikes: int, failed_before: bool) -> InLine:
        self._order += 1
        one = self.jobs[job] = InLine(job, model, self._order, strikes, failed_before, came_with=strikes)
        if model not in self._of:
            pace = self.gates.of(model).pace
            if pace.is_as_kept and pace.per_s is not None and pace.learnt_at is not None:
                self.news.append(PaceKept(model, pace.per_s, pace.learnt_at))
        self._of[model] = self._of.get(model, 0) + 1
        return one

    def pace_to_keep(self, model: str) -> Pace:
        """Return the pace to leave to the next run: while a day's quota may be over, what that has cut is none."""
        pace, _ = self._before_day.get(model, (self.gates.of(model).pace, 0.0))
        return pace

    # --- turns ---

    @property
    def has_uncalled(self) -> bool:
        """Whether jobs in line haven't been called in this run."""
        return any(queue.fresh or queue.left_over for queue in self._queues.values())

    def wants(self, *, ahead: int, most: int) -> bool:
        """Whether more jobs should be taken in hand: `ahead` that could go now, and up to `most` while a gate is
        closed, since whoever probes is taken from far behind.
        """
        if len(self.jobs) >= most:
            return False
        usable = sum(self._soon(model, queue) for model, queue in self._queues.items())
        return usable < ahead or self._shut

    def next(self, now: float) -> Go | Wait:
        """Return who may start now, or how long nobody may."""
        self._look(now)
        if self.calling >= self.workers:
            return Wait(math.inf, self._deadline_s(now))
        wait_s = math.inf
        best: tuple[int, int, InLine] | None = None
        before_all_s = self.gates.all.wait_s(now)
        for model, queue in self._queues.items():
            if not queue or self.is_paused(model):
                continue
            choices = self._trial(model) if self.doubts.holding(model) else self._choices(model, queue, now)
            gate_s = math.inf
            for rank, one in choices:
                if gate_s == math.inf:
                    gate_s = max(before_all_s, self.gates.of(model).wait_s(now))
                if max(gate_s, one.due - now) > 0:
                    wait_s = min(wait_s, max(gate_s, one.due - now))
                elif best is None or (rank, one.order) < best[:2]:
                    best = (rank, one.order, one)
        if best is None:
            return Wait(wait_s, self._deadline_s(now))
        one = best[2]
        if not self._is_allowed(one.model):
            return Wait(math.inf, self._deadline_s(now))
        return Go(one.job, self._is_probing(one.model))

    def started(self, job: int, now: float) -> None:
        """That job has its turn."""
        one = self.jobs[job]
        self._queues[one.model].remove(one)
        if self._is_probing(one.model):
            self._last_probe = job
        self._started(one, now)
        for doubt in self.doubts:
            if doubt.holding and covers(doubt.scope, one.model):
                doubt.trying = job
                doubt.tried.add(job)

    def waits_for(self, now: float) -> Waits | None:
        """Return what everything waits for, for people; None while calls are under way, or nothing is in the way."""
        if self.calling:
            return None
        tries = [(paused.resume_at, scope, str(paused.reason)) for scope, paused in self.paused.items()]
        ends = [(gate.until, model, str(gate.why)) for model, gate in self.gates.known().items() if gate.until > now]
        soonest = min([*ends, *(each for each in tries if each[0] < math.inf)], default=None)
        return None if soonest is None else Waits(soonest[1], soonest[2], max(0.0, soonest[0] - now))

    @property
    def asks_the_far_end(self) -> bool:
        """Whether the next job is one that probes or is tried."""
        return self._shut

    def claimable(self, now: float) -> tuple[int, tuple[str, ...], float]:
        """Return how many jobs may be claimed and begun at once, of which models none, and for how long if of none.

        Models that are not named may be unknown here.
        """
        self._look(now)
        free = self.workers - self.calling
        wait_s = math.inf if self.calling else self._deadline_s(now)
        before_all_s = self.gates.all.wait_s(now)
        if free <= 0 or before_all_s > 0 or ALL in self.paused:
            return 0, (), min(wait_s, before_all_s) if before_all_s > 0 else wait_s
        if any(doubt.scope == ALL and doubt.holding for doubt in self.doubts):
            trial = not self.calling and all(doubt.trying is None for doubt in self.doubts)
            return (1 if trial else 0), (), wait_s
        closed = []
        # Of models that nobody has met yet no more than a gate lets through at first.
        most = free if len(self.gates.known()) > 1 else min(free, RUN_START[0])
        for model, gate in self.gates.known().items():
            if model == ALL:
                continue
            gate_s = gate.wait_s(now)
            held = self.doubts.holding(model) and (self._running(model) or self._is_tried(model))
            # A claim would find who rests there, though they are in hand.
            if gate_s > 0 or held or self.is_paused(model) or self._resting[model]:
                closed.append(model)
                wait_s = min(wait_s, gate_s) if gate_s > 0 else wait_s
            elif not self._is_allowed(model):
                closed.append(model)
            elif gate.why is not None or gate.pace.per_s is not None or self.doubts.holding(model):
                most = 1
            else:
                most = min(most, max(1, int(gate.limit(now)) - gate.inflight))
        if self.gates.all.why is Why.OUTAGE and not self._is_allowed(ALL):
            return 0, (), wait_s
        if self.gates.all.why is not None or self.gates.all.pace.per_s is not None:
            most = 1
        return most, tuple(closed), wait_s

    # --- what came of a call ---

    def ended(self, job: int, verdict: Verdict, now: float, *, jitter: float, day_left_s: float) -> Ruling | None:
        """Decide what follows for the job, None after a success; what follows for others is in `news`."""
        one = self.jobs[job]
        n = self.gates.number()
        one.stand = Stand.BETWEEN
        self.calling -= 1
        first = one.calls == 1
        if verdict.ok:
            self._succeeded(one, now, n, first)
            self.leave(job)
            self._look(now)
            return None
        one.struck = False
        ruling = self._failed(one, verdict, now, n, first, jitter, day_left_s)
        one.verdict, one.failed_n = verdict, n
        if ruling.strike:
            one.struck = True
        if isinstance(ruling.then, Retry):
            one.due = now + ruling.then.wait_s
            self._look(now)
            if one.told is None and self.is_paused(one.model) and not self.keeps:
                one.told = self._goodbye(one)
            if isinstance(one.told, LetGo) and one.told.strikes is not None:
                ruling = Ruling(one.told, strike=one.told.strikes > one.came_with)
            elif one.told is not None:
                ruling = ruling._replace(then=one.told)
        if not isinstance(ruling.then, Retry):
            self.leave(job)
            self._look(now)
        return ruling

    def _succeeded(self, one: InLine, now: float, n: int, first: bool) -> None:
        for gate in (self.gates.of(one.model), self.gates.all):
            gate.succeeded(now, started_n=one.begun_n, n=n, first=first)
            gate.ok_began_at = max(gate.ok_began_at, one.begun_at)
        for scope in (one.model, ALL):
            self._day_until.pop(scope, None)
            if one.begun_at >= self._before_day.get(scope, (None, math.inf))[1]:
                del self._before_day[scope]  # the day wasn't over
        self._answering.add(one.model)
        cleared = self.doubts.succeeded(one.model, started_n=one.begun_n)
        for job in cleared.jobs:
            if (freed := self.jobs.get(job)) is not None:
                freed.has_chance, freed.due = True, now
        self.news += [Resumed(scope) for scope in cleared.scopes]

    def _failed(
        self, one: InLine, verdict: Verdict, now: float, n: int, first: bool, jitter: float, day_left_s: float
    ) -> Ruling:
        same = next(
            (doubt for doubt in self.doubts if doubt.trying == one.job and doubt.is_same(verdict, one.model)), None
        )
        if same is None:
            self.doubts.back(one.job)
        ruling = self._ruling(one, verdict, now, n, first, jitter, day_left_s)
        if same is not None:
            same.met.setdefault(one.job, one.begun_n)
            same.trying, same.confirmed = None, same.confirmed + 1
            if same.is_confirmed:
                until = now + day_left_s if same.reason is Reason.DAILY_QUOTA_EXHAUSTED else None
                self._pause(same.scope, same.reason, now, one.begun_at, doubt=same, until=until)
        return ruling

    def _ruling(
        self, one: InLine, verdict: Verdict, now: float, n: int, first: bool, jitter: float, day_left_s: float
    ) -> Ruling:
        is_bare = verdict.reason is Reason.RATE_LIMITED and not verdict.quota_id and verdict.retry_after_s is None
        if verdict.reason in QUOTA and not is_bare:
            return self._refused(one, verdict, now, n, day_left_s)
        if is_bare or verdict.reason in OUTAGE:
            return self._met_outage(one, verdict, now, n, first, jitter, is_bare=is_bare)
        for gate in (self.gates.of(one.model), self.gates.all):
            gate.answered(now, started_n=one.begun_n, n=n)
        one.fails += 1
        if is_everybodys(verdict):
            own = self.doubts.fault(one.job, verdict, one.model, started_n=one.begun_n, had_chance=one.has_chance)
            one.has_chance = False
            return Ruling(GiveUp(Disposition.PERMANENT), strike=True) if own else Ruling(Retry(0.0), strike=False)
        self.doubts.alike(one.job, verdict, one.model, started_n=one.begun_n)
        return self._strike(one, verdict, jitter)

    def _refused(self, one: InLine, verdict: Verdict, now: float, n: int, day_left_s: float) -> Ruling:
        """A 429 that names its quota or its delay."""
        scope = scope_of(verdict, one.model)
        gate = self.gates.of(scope)
        is_day = verdict.reason is Reason.DAILY_QUOTA_EXHAUSTED
        delay_s = verdict.shorter_delay_s if is_day else verdict.retry_after_s
        if delay_s is None:
            delay_s = DAY_DELAY_S if is_day else PROBE_S
        for other in {self.gates.of(one.model), self.gates.all} - {gate}:
            other.answered(now, started_n=one.begun_n, n=n)
        one.met_outage = True
        own = False
        if is_day:
            self._refused_for_the_day(one, scope, now, n, delay_s, day_left_s)
        else:
            refusals = self._refusals.setdefault(scope, Refusals(gate))
            own = refusals.met(one.job, now, started_n=one.begun_n, n=n, delay_s=delay_s, before_n=one.refused_n)
        if self.policy.max_outage_s == 0:
            return self._strike(one, verdict, jitter=0.0)
        return self._count_refusal(one, verdict, n, gate, wait_s=delay_s, own=own)

    def _refused_for_the_day(
        self, one: InLine, scope: str, now: float, n: int, delay_s: float, day_left_s: float
    ) -> None:
        gate = self.gates.of(scope)
        pace = copy(gate.pace)
        gate.refused(now, started_n=one.begun_n, n=n, delay_s=delay_s)
        if scope in self.paused:
            gate.pace = pace
        else:
            self._before_day.setdefault(scope, (pace, gate.until))
        ask_again = self._day_until.get(scope)
        if ask_again is None:
            self._day_until[scope] = gate.until
        elif one.begun_at >= ask_again:
            self._pause(scope, Reason.DAILY_QUOTA_EXHAUSTED, now, one.begun_at, until=now + day_left_s)

    def _count_refusal(
        self, one: InLine, verdict: Verdict, n: int, gate: Gate, *, wait_s: float, own: bool = False
    ) -> Ruling:
        """A job that is refused again and again while others succeed is too large for the quota."""
        one.refusals += own or (one.refused_n is not None and gate.ok_n > one.refused_n)
        one.refused_n = n
        if one.refusals >= MAX_REFUSALS:
            return Ruling(GiveUp(Disposition.EXHAUSTED, wait_s=verdict.retry_after_s), strike=False)
        return Ruling(Retry(wait_s), strike=False)

    def _met_outage(
        self, one: InLine, verdict: Verdict, now: float, n: int, first: bool, jitter: float, *, is_bare: bool
    ) -> Ruling:
        one.fails += 1
        everywhere = verdict.reason is Reason.NETWORK
        gate = self.gates.all if everywhere else self.gates.of(one.model)
        left = self._left(one, everywhere=everywhere)
        if everywhere:
            self.gates.of(one.model).gone()
        else:
            self.gates.all.answered(now, started_n=one.begun_n, n=n)
        if self.policy.max_outage_s == 0:
            gate.answered(now, started_n=one.begun_n, n=n)
            return self._strike(one, verdict, jitter)
        if one.failed_n >= 0:
            one.stubborn |= gate.is_stubborn(one.failed_n)
        explained = gate.failed(
            now, job=one.job, started_n=one.begun_n, n=n, left=left, workers=self.workers, first=first,
            stubborn=one.stubborn, bare=is_bare,
        )  # fmt: skip
        for job in explained:
            other = self.jobs.get(job)
            if other is None:
                continue
            other.met_outage = True
            if other is not one and other.struck:
                other.struck = False
                other.strikes -= 1
                self.news.append(Forgiven(job))
        if left == 0 or not (is_bare or one.job in explained):
            return self._strike(one, verdict, jitter)
        wait_s = max(backoff_s(one.fails, jitter=jitter), min(verdict.retry_after_s or 0.0, self.policy.max_wait_s))
        if is_bare:
            return self._count_refusal(one, verdict, n, gate, wait_s=wait_s)
        return Ruling(Retry(wait_s), strike=False)

    def _strike(self, one: InLine, verdict: Verdict, jitter: float) -> Ruling:
        one.strikes += 1
        then = decide(one.strikes, verdict, policy=self.policy, jitter=jitter, day_left_s=0.0)
        return Ruling(then, strike=True)

    # --- choosing ---

    def _started(self, one: InLine, now: float) -> None:
        one.stand, one.begun_n, one.begun_at = Stand.CALLS, self.gates.number(), now
        one.calls += 1
        if one.rests:
            self._resting[one.model] -= 1
            one.rests = False
        self.calling += 1
        self.gates.of(one.model).started(now)
        self.gates.all.started(now)

    def _is_probing(self, model: str) -> bool:
        return Why.OUTAGE in (self.gates.of(model).why, self.gates.all.why)

    def _is_allowed(self, model: str) -> bool:
        """Whether a call may start as far as other processes are concerned: of all that share a ledger one probes."""
        closed = [each for each in (ALL, model) if self.gates.of(each).why is Why.OUTAGE]
        return not closed or self.may_probe(closed[0])

    def _choices(self, model: str, queue: Queue, now: float) -> Iterator[tuple[int, InLine]]:
        """Who may be next, with a rank: lower goes first. One that isn't due tells how long to wait."""
        if self._is_probing(model):
            if (one := self._prober(queue, now)) is not None:
                yield 0, one
            return
        ok_n = self.gates.of(model).ok_n
        soonest: InLine | None = None
        best: tuple[tuple[int, float], InLine] | None = None
        for one in queue.failed:
            if one.due > now:
                soonest = one if soonest is None or one.due < soonest.due else soonest
                continue
            if self.doubts.has_met(one.job):
                continue
            rank = 0 if one.has_chance else 1 if ok_n > one.failed_n else 3
            if best is None or (rank, one.failed_n) < best[0]:
                best = ((rank, one.failed_n), one)
        if best is not None:
            yield best[0][0], best[1]
        if queue.left_over and (model in self._answering or not queue.fresh):
            yield 1, queue.left_over[0]
        elif queue.fresh:
            yield 2, queue.fresh[0]
        elif best is None and soonest is not None:
            yield 3, soonest
        if soonest is not None and ok_n > soonest.failed_n:
            yield 1, soonest

    def _prober(self, queue: Queue, now: float) -> InLine | None:
        """A job that hasn't failed yet, from the far end of the line; never the same twice while another waits."""
        if queue.fresh or queue.left_over:
            return (queue.fresh or queue.left_over)[-1]
        waiting = [one for one in queue.failed if not self.doubts.has_met(one.job)]
        others = [one for one in waiting if one.job != self._last_probe] or waiting
        due = [one for one in others if one.due <= now]
        if due:
            return min(due, key=lambda one: one.begun_n)
        return min(others, key=lambda one: one.due, default=None)

    def _trial(self, model: str) -> Iterator[tuple[int, InLine]]:
        """The one job that is to be tried while all others are held."""
        for doubt in self.doubts:
            if not (doubt.holding and covers(doubt.scope, model)):
                continue
            if self._step(doubt) is not Step.TRY:
                return
            if (one := self._untried(doubt)) is not None and one.model == model:
                yield 0, one
            return

    def _untried(self, doubt: Doubt) -> InLine | None:
        """A job that hasn't met the fault: from the far end of the line, then from its middle, its head, and between.

        Bad jobs often stand together, and those at the end of a file would speak for all of it.
        """
        those = [one for one in self.jobs.values() if self._may_try(doubt, one)]
        best = max(((one.calls == 0, not one.failed_before) for one in those), default=None)
        those = [one for one in those if (one.calls == 0, not one.failed_before) == best]
        if not those:
            return None
        if those[0].calls:
            return min(those, key=lambda one: one.due)
        those.sort(key=lambda one: one.order)
        return those[int((len(those) - 1) * TRIED_AT[len(doubt.tried) % len(TRIED_AT)])]

    def _may_try(self, doubt: Doubt, one: InLine) -> bool:
        return (
            one.stand is Stand.WAITS
            and covers(doubt.scope, one.model)
            and one.job not in doubt.met
            and one.job not in doubt.tried
            and not self.is_paused(one.model)
        )

    def _step(self, doubt: Doubt) -> Step:
        of_scope = [
            one for one in self.jobs.values() if covers(doubt.scope, one.model) and not self.is_paused(one.model)
        ]
        running = sum(one.stand in (Stand.CALLS, Stand.BETWEEN) for one in of_scope)
        # Without a hold, whoever hasn't met it and may still run is to be waited for.
        untried = sum(
            self._may_try(doubt, one) if doubt.holding else one.job not in doubt.met and one.stand is Stand.WAITS
            for one in of_scope
        )
        return doubt.step(running=running, untried=untried, more=self.more)

    def _left(self, one: InLine, *, everywhere: bool) -> int:
        """How many others may still run."""
        others = len(self.jobs) if everywhere else self._of[one.model]
        return others - 1 + (MANY if self.more else 0)

    def _running(self, model: str) -> bool:
        return any(one.stand is Stand.CALLS and one.model == model for one in self.jobs.values())

    def _is_tried(self, model: str) -> bool:
        return any(doubt.trying is not None for doubt in self.doubts if covers(doubt.scope, model))

    @property
    def _shut(self) -> bool:
        return any(gate.why is Why.OUTAGE for gate in self.gates.known().values()) or any(
            doubt.holding for doubt in self.doubts
        )

    def _soon(self, model: str, queue: Queue) -> float:
        """How many of these jobs can go soon: those of a slow model must not keep those of others out of hand."""
        gate = self.gates.of(model)
        if gate.why is not None or self.is_paused(model):
            return 0
        return min(len(queue.fresh), math.inf if gate.pace.per_s is None else SOON_S * gate.pace.per_s)

    # --- pauses ---

    def _look(self, now: float) -> None:
        """See whether time, or what has come back, calls for a pause or ends one."""
        if self._is_calm():
            return
        for scope, paused in list(self.paused.items()):
            if now >= paused.resume_at:
                self._resume(scope, paused, now)
        longest_s = self.policy.max_outage_s
        for model, gate in self.gates.known().items() if longest_s else ():
            if model in self.paused:
                continue
            since = min(
                math.inf if gate.outage_since is None else gate.outage_since,
                math.inf if gate.refused_since is None else gate.refused_since,
            )
            too_long = gate.refused_since is not None and gate.until - gate.refused_since > longest_s
            if now - since >= longest_s or (too_long and gate.why is Why.RATE and model not in self._day_until):
                self._outlasted(model, gate, now, since)
        for doubt in list(self.doubts):
            match self._step(doubt):
                case Step.OWN:
                    self.doubts.drop(doubt)
                    for job in doubt.met:
                        if (one := self.jobs.get(job)) is not None:
                            self._tell(one, GiveUp(Disposition.PERMANENT))
                case Step.PAUSE:
                    began_at = min((self.jobs[job].begun_at for job in doubt.met if job in self.jobs), default=now)
                    self._pause(doubt.scope, doubt.reason, now, began_at, doubt=doubt)
                case _:
                    pass
        self._say_gates(now)

    def _is_calm(self) -> bool:
        """Whether nothing is in the way of any job, so that there is nothing to look at; it is asked for every call."""
        return (
            not self.paused
            and not self._said_closed
            and self.doubts.none
            and all(gate.is_calm for gate in self.gates.known().values())
        )

    def _outlasted(self, model: str, gate: Gate, now: float, since: float) -> None:
        """An outage, or a rate limit, has lasted for longer than is waited for."""
        met = [one for one in self.jobs.values() if covers(model, one.model) and one.verdict is not None]
        last = max(met, key=lambda one: one.failed_n, default=None)
        reason = Reason.RATE_LIMITED if gate.outage_since is None else Reason.OVERLOADED
        if last is not None and last.verdict is not None and last.verdict.reason in OUTAGE | QUOTA:
            reason = last.verdict.reason
        # A day's quota is asked once more when its delay is over, however soon nobody waits for that any more.
        self._pause(model, reason, now, since, until=gate.until if gate.why is Why.RATE else None)
        # With all that is left under way there is nothing to pause yet: it is looked at again when they are back.
        if model in self.paused:
            gate.outage_since = gate.refused_since = None

    def _pause(
        self,
        scope: str,
        reason: Reason,
        now: float,
        began_at: float,
        *,
        doubt: Doubt | None = None,
        until: float | None = None,
    ) -> None:
        if doubt is not None:
            self.doubts.drop(doubt)
        waiting = [one for one in self.jobs.values() if covers(scope, one.model) and one.stand is not Stand.CALLS]
        if scope in self.paused or not (waiting or self.more):
            return  # a pause that leaves nothing pending is none
        if reason is Reason.DAILY_QUOTA_EXHAUSTED:
            # A day that is over says nothing of how many calls a minute takes.
            gate = self.gates.of(scope)
            gate.pace, _ = self._before_day.pop(scope, (gate.pace, 0.0))
        resume_at = now + RESUME_S if until is None else max(until, now)
        if not (self.keeps or self.resumes):
            resume_at = math.inf
        self.paused[scope] = _Paused(reason, resume_at, until)
        for_s, tries_in_s = None if until is None else until - now, None if resume_at == math.inf else resume_at - now
        self.news.append(Pause(scope, reason, for_s, now - began_at, tries_in_s))
        if self.keeps:
            for one in waiting:
                if one.stand is Stand.WAITS and self._is_to_rest(one):
                    self._queues[one.model].remove(one)
                    one.stand = Stand.BETWEEN
                    self.news.append(Rests(one.job, self._rest(one)))
            return
        for one in waiting:
            if doubt is not None and doubt.is_alike and one.job in doubt.met:
                self._tell(one, LetGo(strikes=one.came_with))
            else:
                self._let_go(one)

    def _resume(self, scope: str, paused: _Paused, now: float) -> None:
        """Have one job try whether the cause is mended."""
        del self.paused[scope]
        self.news.append(TriesAgain(scope, paused.reason))
        self._day_until.pop(scope, None)
        self._before_day.pop(scope, None)
        self.doubts.from_elsewhere(scope, paused.reason, n=self.gates.last_n)
        gate = self.gates.of(scope)
        gate.outage_since = gate.refused_since = None
        gate.until = min(gate.until, now)

    def give_up_waiting(self) -> None:
        """Keep nobody in line at a pause any more, nor at one that comes of a try which is under way."""
        self.keeps = self.resumes = False
        for one in list(self.jobs.values()):
            if one.stand is not Stand.CALLS and self.is_paused(one.model):
                self._let_go(one)
        for paused in self.paused.values():
            paused.resume_at = math.inf

    def _let_go(self, one: InLine) -> None:
        self._tell(one, self._goodbye(one))

    def _goodbye(self, one: InLine) -> LetGo | GiveUp:
        """How a job leaves at a pause: one that met an outage with a strike, so that its nights are counted."""
        if self._counts_tonight(one) and one.verdict is not None:
            one.strikes += 1
            if one.strikes >= self.policy.max_attempts:
                return GiveUp(Disposition.EXHAUSTED, wait_s=one.verdict.retry_after_s)
            return LetGo(strikes=one.strikes)
        return LetGo()

    def _counts_tonight(self, one: InLine) -> bool:
        """Whether a job gets a strike for the outage that it has met, if it goes at the pause that is now."""
        scope = next((scope for scope in self.paused if covers(scope, one.model)), None)
        reason = None if scope is None else self.paused[scope].reason
        return reason in OUTAGE | {Reason.RATE_LIMITED} and one.met_outage

    def _is_to_rest(self, one: InLine) -> bool:
        """Whether a job that stays in line at a pause is still held in the ledger: it was called here."""
        return self.keeps and one.calls > 0 and not one.rests and one.told is None and self.is_paused(one.model)

    def _rest(self, one: InLine) -> Rest:
        one.rests = True
        self._resting[one.model] += 1
        return Rest(one.strikes + 1 if self._counts_tonight(one) else None)

    def _tell(self, one: InLine, then: LetGo | GiveUp) -> None:
        if one.told is not None:
            return
        one.told = then
        if one.stand is Stand.WAITS:
            self._queues[one.model].remove(one)
            one.stand = Stand.TOLD
            self.news.append(Leaves(one.job, then, one.verdict))

    def _deadline_s(self, now: float) -> float:
        """How long until time alone changes something."""
        if self._is_calm():
            return math.inf
        ends = [paused.resume_at for paused in self.paused.values()]
        if self.policy.max_outage_s:
            for model, gate in self.gates.known().items():
                if model not in self.paused:
                    ends += [
                        since + self.policy.max_outage_s
                        for since in (gate.outage_since, gate.refused_since)
                        if since is not None
                    ]
        return min((end for end in ends if end > now), default=math.inf) - now

    def _say_gates(self, now: float) -> None:
        for model, gate in self.gates.known().items():
            why = gate.why if gate.why is not None and gate.closed(now) else None
            if self._said_closed.get(model) is not why:
                if why is None:
                    del self._said_closed[model]
                else:
                    self._said_closed[model] = why
                pauses_in_s = None
                if why is Why.OUTAGE and gate.outage_since is not None:
                    pauses_in_s = max(0.0, gate.outage_since + self.policy.max_outage_s - now)
                self.news.append(GateMoved(model, why, max(0.0, gate.until - now), pauses_in_s, gate.pace.per_s))
