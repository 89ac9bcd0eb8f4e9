"""What processes on one ledger know of each other's gates and pauses, and how each is told.

Every few seconds each process tells how its gates stand, where that has changed, and reads how they stand elsewhere.
What is written by a newer parked, or makes no sense, changes nothing here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from parked.driver import LoopChannel
from parked.errors import ParkedError
from parked.gate import STALE_S, Gate, Why
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.line import Line
from parked.news import GateMoved, News, Pause, Resumed
from parked.pace import Pace, is_kept
from parked.pauses import ALL, OUTAGE, STAYS_HERE
from parked.timing import Clock
from parked.verdict import Reason

SHARE_S: Final = 2.0  # how often; in real time, so that a run's clock has no part in it
SAME_S: Final = 0.001
LONGEST_S: Final = 86_400.0  # no gate is closed for longer, whatever a row says


class Surroundings(Protocol):
    ledger: Ledger
    clock: Clock


class Sharing:
    """One pool's part in it: it runs jobs of these pipelines (None: of any), and `in_hand` says of which just now."""

    def __init__(
        self,
        premises: Surroundings,
        line: Line,
        channel: LoopChannel,
        pipelines: tuple[str, ...] | None,
        in_hand: Callable[[], Iterable[str]],
    ) -> None:
        self._on, self._line, self._channel, self._pipelines, self._in_hand = (
            premises,
            line,
            channel,
            pipelines,
            in_hand,
        )
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, tuple[op.GateState, float]] = {}  # by model; when, by the clock of the run
        self._seen: dict[str, float] = {}  # when a row was written that is known here, by the ledger's clock
        self._moved = asyncio.Event()
        self._noted: set[str] = set()  # models for which the ledger was seen to note an outage
        self._closed_elsewhere: set[str] = set()  # gates that are closed here because others said so
        self._heard_of: dict[tuple[str, str], float] = {}  # pauses that were looked into -> when they began
        self._ours: set[tuple[str, str]] = set()  # pauses that this process has written
        self._pauses: list[op.PauseRow] = []
        self._wake: Callable[[], None] = lambda: None
        self._allowed: set[str] = set()
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def begin(self, wake: Callable[[], None]) -> None:
        """Read what is known, begin with the pace that was kept, and go on reading. `wake` is called on changes."""
        self._wake = wake
        self._line.may_probe = self.may_probe
        with suppress(ParkedError):  # the ledger is away, or too old for this; the run finds out by itself
            consulted: op.Consulted = await self._channel.record(op.Consult())
            now = self._on.clock.monotonic()
            for row in consulted.gates:
                if row.model != ALL and is_kept(row.pace_per_s, learnt_s=row.pace_learnt_s):
                    self._line.gates.start_at(row.model, row.pace_per_s or 0.0, learnt_at=now - row.pace_learnt_s)
            self._heed(consulted)
        self._task = asyncio.get_running_loop().create_task(self._keep_sharing())

    def end(self) -> None:
        """Leave what was learned to the next run. Safe to say twice."""
        task, self._task = self._task, None
        if task is None:
            return
        for each in (task, *self._asking.values()):
            each.cancel()
        now = self._on.clock.monotonic()
        for pause in self._pauses:
            if (ok_at := self._ok_at(pause.model)) > -math.inf:
                self._submit(op.ClearPause(pause.pipeline, pause.model, now - ok_at))
        self._submit(op.Consult(self._states(all_of_them=True)))

    def may_probe(self, model: str) -> bool:
        """Whether this process may probe now; the first time it is asked, it begins to ask the ledger."""
        if model in self._allowed:
            self._allowed.discard(model)
            self._closed_elsewhere.discard(model)
            return True
        if model not in self._asking:
            self._asking[model] = asyncio.get_running_loop().create_task(self._ask_to_probe(model))
        return False

    def heard(self, news: News) -> None:
        """What the line says that others need to know."""
        if isinstance(news, Pause) and news.reason not in STAYS_HERE:
            for pipeline in self._in_hand():
                self._ours.add((pipeline, news.scope))
                self._submit(
                    op.SetPause(
                        pipeline, news.scope, news.reason, max(0.0, news.began_s), news.for_s, self._on.ledger.owner_id
                    )
                )
        elif isinstance(news, GateMoved):
            self._moved.set()
        elif isinstance(news, Resumed):
            self._clear(news.scope)

    async def _keep_sharing(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SHARE_S):
                    await self._moved.wait()
            with suppress(ParkedError):
                if self._moved.is_set():
                    self._moved.clear()
                    await self._tell()
                else:
                    # Read before told: what another has reopened must not be closed again by what was true before.
                    self._heed(await self._channel.record(op.Consult()))
                    await self._tell(lasting=True)
            self._wake()

    async def _tell(self, *, lasting: bool = False) -> None:
        """Tell what has changed; with `lasting` also that a gate is still closed, and until when by now."""
        states = self._states(lasting=lasting)
        if not states:
            return
        consulted: op.Consulted = await self._channel.record(op.Consult(states))
        for row in consulted.gates:
            if any(state.model == row.model for state in states):
                self._seen[row.model] = consulted.now - row.changed_s

    async def _ask_to_probe(self, model: str) -> None:
        gate = self._line.gates.of(model)
        try:
            await self._tell()
            wait_s: float = await self._channel.record(
                op.ClaimProbe(model, self._on.ledger.owner_id, max(1.0, gate.probe_s / 2))
            )
        except ParkedError:
            wait_s = 0.0  # without a ledger nobody else can be asked
        finally:
            self._asking.pop(model, None)
        if wait_s > 0:
            gate.until = max(gate.until, self._on.clock.monotonic() + wait_s)
        else:
            self._allowed.add(model)
        self._wake()

    def _states(self, *, all_of_them: bool = False, lasting: bool = False) -> tuple[op.GateState, ...]:
        """How the gates stand here, of those that have changed."""
        now = self._on.clock.monotonic()
        changed = []
        for model, gate in self._line.gates.known().items():
            if model in self._closed_elsewhere and gate.why is Why.OUTAGE:
                continue  # known from others: it is theirs to tell, until this process has probed it
            state = _state(model, gate, self._line.pace_to_keep(model), now)
            told, told_at = self._told.get(model, (None, now))
            if told is not None and told.pace_per_s is not None and state.pace_per_s is None:
                state = state._replace(pace_per_s=0.0)  # what had cut it was a job's own, and was taken back
            if told is None and state.why is None and state.pace_per_s is None and not all_of_them:
                continue
            if all_of_them or told is None or _differs(told, state, passed_s=now - told_at if lasting else 0.0):
                self._told[model] = (state, now)
                changed.append(state)
        return tuple(changed)

    def _heed(self, consulted: op.Consulted) -> None:
        now = self._on.clock.monotonic()
        for row in consulted.gates:
            changed_at = consulted.now - row.changed_s
            if abs(changed_at - self._seen.get(row.model, -math.inf)) > SAME_S:
                self._seen[row.model] = changed_at
                self._heed_gate(row, now)
        pipelines = self._pipelines
        self._pauses = [pause for pause in consulted.pauses if pipelines is None or pause.pipeline in pipelines]
        for pause in self._pauses:
            self._heed_pause(pause, consulted.now)

    def _heed_gate(self, row: op.GateRow, now: float) -> None:
        if self._line.policy.max_outage_s == 0:
            return  # nothing is waited for that the job itself hasn't met
        gate = self._line.gates.of(row.model)
        # No longer than it was closed for when it was written: the ledger's clock may have been set back since.
        wait_s = 0.0 if row.closed_for_s is None else min(row.closed_for_s + min(0.0, row.changed_s), LONGEST_S)
        if row.why == Why.OUTAGE and wait_s > -STALE_S:
            self._noted.add(row.model)
            if gate.why is not Why.OUTAGE:
                self._closed_elsewhere.add(row.model)
                gate.close_for_others(now, wait_s=max(0.0, wait_s), n=self._line.gates.last_n)
        elif row.why == Why.RATE and wait_s > 0:
            if now + wait_s > gate.until:
                gate.why, gate.until = gate.why or Why.RATE, now + wait_s
                # Since when it is waited: what outlasts `max_outage_s` pauses, wherever it was met.
                if gate.refused_since is None:
                    gate.refused_since = now - max(0.0, row.changed_s)
        elif row.why is None and row.model in self._noted:
            self._noted.discard(row.model)
            self._closed_elsewhere.discard(row.model)
            if gate.why is Why.OUTAGE:
                gate.reopen(now)

    def _heed_pause(self, pause: op.PauseRow, ledger_now: float) -> None:
        key = (pause.pipeline, pause.model)
        ok_ago_s = self._on.clock.monotonic() - self._ok_at(pause.model)
        if ledger_now - ok_ago_s > pause.fault_began_at:
            self._submit(op.ClearPause(pause.pipeline, pause.model, ok_ago_s))
            return
        if self._heard_of.get(key) == pause.fault_began_at or key in self._ours:
            return
        self._heard_of[key] = pause.fault_began_at
        with suppress(ValueError):  # a reason that only a newer parked knows
            reason = Reason(pause.reason)
            if reason not in OUTAGE | {Reason.RATE_LIMITED}:  # what waiting mends is the gate's
                self._line.doubts.from_elsewhere(pause.model, reason, n=self._line.gates.last_n)

    def _clear(self, scope: str) -> None:
        now, ok_at = self._on.clock.monotonic(), self._ok_at(scope)
        for pipeline in {pause.pipeline for pause in self._pauses} | {pipeline for pipeline, _ in self._ours}:
            self._ours.discard((pipeline, scope))
            if ok_at > -math.inf:
                self._submit(op.ClearPause(pipeline, scope, now - ok_at))

    def _ok_at(self, scope: str) -> float:
        """When the latest successful call began, of any model that the scope covers."""
        gates = self._line.gates.known().items()
        return max((gate.ok_began_at for model, gate in gates if scope in (ALL, model)), default=-math.inf)

    def _submit(self, operation: op.Operation) -> None:
        with suppress(ParkedError):
            self._on.ledger.submit(operation)


def _state(model: str, gate: Gate, pace: Pace, now: float) -> op.GateState:
    why = gate.why if gate.closed(now) else None
    return op.GateState(
        model,
        why,
        closed_for_s=max(0.0, gate.until - now) if why else 0.0,
        probe_interval_s=gate.probe_s,
        pace_per_s=None if pace.never_cut else pace.per_s,
        pace_learnt_s=None if pace.learnt_at is None else now - pace.learnt_at,
        outage_for_s=None if gate.outage_since is None else now - gate.outage_since,
        success_began_s=None if gate.ok_began_at == -math.inf else now - gate.ok_began_at,
    )


def _differs(told: op.GateState, state: op.GateState, *, passed_s: float) -> bool:
    """Whether a change is worth a write. By `passed_s` a gate that was told to be closed is to open sooner now."""
    if told.why != state.why or (state.why is not None and state.closed_for_s > told.closed_for_s - passed_s + SAME_S):
        return True
    old, new = told.pace_per_s, state.pace_per_s
    return bool(old) != bool(new) or bool(old and new and abs(new / old - 1) > 0.05)
