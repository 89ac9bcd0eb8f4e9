"""Who has a turn, on asyncio: asks the line, waits as long as it says, and acts on its news."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from parked.clock import iso_text
from parked.course import Hold
from parked.driver import LoopChannel
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.line import Line
from parked.logs import fields
from parked.lone import NamedDelays
from parked.news import Forgiven, GateMoved, Go, Leaves, News, PaceKept, Pause, Rests, Resumed, TriesAgain
from parked.policy import GiveUp, LetGo, Rest
from parked.running import Stopped
from parked.timing import Clock

STALLED_WAIT_S: Final = 0.2  # how soon to look again whether the ledger can be written

_log = logging.getLogger("parked.gate")


class Surroundings(Protocol):
    ledger: Ledger
    clock: Clock


class Alone:
    """The turns of a job that runs alone: it waits for its backoff, and for what the server has named."""

    def __init__(self, premises: Surroundings, delays: NamedDelays) -> None:
        self._on, self._delays = premises, delays
        self.stopping = False

    async def turn(self, hold: Hold, wait_s: float) -> LetGo | GiveUp | Rest | None:
        if wait_s or self.stopping:
            await self.sleep(wait_s)
        while True:
            wait_s = self._delays.wait_s(hold.model, self._on.clock.monotonic())
            if self._on.ledger.stalled:
                wait_s = max(wait_s, STALLED_WAIT_S)
            if wait_s == 0:
                return None
            await self.sleep(wait_s)

    def leave(self, hold: Hold) -> None:
        """Nobody else waits."""

    async def sleep(self, wait_s: float) -> None:
        if not self.stopping:
            await self._on.clock.asleep(wait_s)
        if self.stopping:
            raise Stopped


class Dispatcher:
    """The turns of a pool's jobs. `changed` is set whenever something has."""

    def __init__(self, premises: Surroundings, line: Line, channel: LoopChannel, changed: asyncio.Event) -> None:
        self._on, self._line, self._channel, self._changed = premises, line, channel, changed
        self._holds: dict[int, Hold] = {}
        self._waiting: dict[int, asyncio.Future[LetGo | GiveUp | Rest | None]] = {}
        self._granted: dict[int, LetGo | GiveUp | Rest | None] = {}  # before they asked
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.pipelines: set[str] = set()  # of all jobs that came in hand: a pause is theirs
        self.heard: list[Callable[[News], None]] = []  # who else is told the news

    # --- for jobs ---

    def enter(self, hold: Hold) -> None:
        """A job comes in hand, to wait for its turn, or with an attempt that is open already.

        It may be in hand already: it rested here (`Rest`), was moved to another model by another process, and claimed;
        or nobody knew whether it was started, so that it was handed back, and is claimed before its course asks again.
        """
        row = hold.row
        if (earlier := self._holds.get(row.id)) is not None:
            self._give_way(earlier, hold)
        self._holds[row.id] = hold
        self.pipelines.add(row.pipeline)
        failed_before = row.calls > (hold.attempt is not None)
        strikes = row.strikes if hold.replay_id is None else 0
        if hold.attempt is None:
            self._line.enter(row.id, hold.model, strikes=strikes, failed_before=failed_before)
        else:
            now = self._on.clock.monotonic()
            self._line.enter_calling(row.id, hold.model, now, strikes=strikes, failed_before=failed_before)
        self.wake()

    def _give_way(self, earlier: Hold, hold: Hold) -> None:
        """Take a hold out of the line that another one of the same job enters."""
        job = earlier.row.id
        if self._line.rests(job):
            earlier.wanted_model = earlier.row.model
            self._answer(job, LetGo())
        else:
            earlier.stands_aside, hold.claimed = True, earlier.claimed
            self._granted.pop(job, None)
        self._line.leave(job)

    async def turn(self, hold: Hold, wait_s: float) -> LetGo | GiveUp | Rest | None:
        """Wait for a job's turn. Its backoff is the line's to keep, since it began with the failure."""
        if self._stopping:
            raise Stopped
        job = hold.row.id
        if job in self._granted:
            return self._granted.pop(job)
        if (told := self._line.again(job)) is not None:
            return told
        future: asyncio.Future[LetGo | GiveUp | Rest | None] = asyncio.get_running_loop().create_future()
        self._waiting[job] = future
        self.wake()
        try:
            return await future
        finally:
            self._waiting.pop(job, None)

    def leave(self, hold: Hold) -> None:
        """A job is out of our hands. Safe to say twice, and when it is in hand anew by now."""
        if self._holds.get(hold.row.id) is not hold:
            return
        self._line.leave(hold.row.id)
        self._holds.pop(hold.row.id, None)
        self._granted.pop(hold.row.id, None)
        self.wake()

    async def sleep(self, wait_s: float) -> None:
        if not self._stopping:
            await self._on.clock.asleep(wait_s)
        if self._stopping:
            raise Stopped

    # --- for claims ---

    def claimable(self) -> tuple[int, tuple[str, ...], float]:
        """As the line says, once nobody in hand can go; as many are kept for the claim (`give_back`)."""
        self._give_turns()
        if self._stopping:
            raise Stopped
        if self._on.ledger.stalled:
            return 0, (), STALLED_WAIT_S
        most, closed, wait_s = self._line.claimable(self._on.clock.monotonic())
        self._heed_news()
        self._line.calling += most
        return most, closed, wait_s

    def give_back(self, workers: int) -> None:
        self._line.calling -= workers
        self.wake()

    # --- running ---

    def wake(self) -> None:
        """Something has changed: look again."""
        self._changed.set()
        self._wake.set()
        if self._task is None and not self._stopping:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """No new attempt starts."""
        self._stopping = True
        self._wake.set()
        self._changed.set()

    def close(self) -> None:
        self.stop()
        if self._task is not None:
            self._task.cancel()

    async def until_changed(self, wait_s: float) -> None:
        """Wait until something has changed, or so long."""
        self._changed.clear()
        await self._either(self._changed, wait_s)
        if self._stopping:
            raise Stopped

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wait_s = self._give_turns()
            await self._either(self._wake, wait_s)

    def _give_turns(self) -> float:
        """Start whoever may start; return how long nobody else may."""
        if self._stopping:
            return math.inf
        while True:
            if self._on.ledger.stalled:
                return STALLED_WAIT_S
            now = self._on.clock.monotonic()
            turn = self._line.next(now)
            self._heed_news()
            if not isinstance(turn, Go):
                # With calls under way, what only time decides is looked at when the next of them is back.
                return turn.wait_s if self._line.calling else min(turn.wait_s, turn.look_s)
            self._line.started(turn.job, now)
            self._answer(turn.job, None)

    def _answer(self, job: int, told: LetGo | GiveUp | Rest | None) -> None:
        future = self._waiting.pop(job, None)
        if future is None:
            self._granted[job] = told
        elif not future.done():
            future.set_result(told)

    def _heed_news(self) -> None:
        news, self._line.news[:] = self._line.news[:], []
        for one in news:
            match one:
                case Forgiven(job):
                    self._forgive(job)
                case Leaves(job, then, _):
                    self._line.leave(job)
                    self._answer(job, then)
                case Rests(job, rest):
                    self._answer(job, rest)
                case GateMoved():
                    self._say_gate(one)
                case PaceKept():
                    self._say_pace(one)
                case Pause() | TriesAgain() | Resumed():
                    self._say_pause(one)
            for tell in self.heard:
                tell(one)

    def _forgive(self, job: int) -> None:
        hold = self._holds.get(job)
        if hold is not None and hold.failed_attempt is not None:
            self._on.ledger.submit(op.Forgive(job, hold.owner_id, hold.failed_attempt))

    def _say_gate(self, one: GateMoved) -> None:
        model, length_s = one.model or "*", round(one.for_s, 1)
        if one.why is None:
            _log.info("gate_reopened", extra=fields(model=model))
        elif one.pauses_in_s is None:
            pace = None if one.per_s is None else per_minute(one.per_s)
            _log.warning(
                "gate_closed", extra=fields(model=model, why=str(one.why), for_s=length_s, calls_per_minute=pace)
            )
        else:
            until = iso_text(self._on.clock.time() + one.pauses_in_s)
            _log.warning("gate_closed", extra=fields(model=model, why=str(one.why), tries_in_s=length_s, until=until))

    def _say_pace(self, one: PaceKept) -> None:
        learnt_at = self._on.clock.time() - (self._on.clock.monotonic() - one.learnt_at)
        _log.info(
            "begins_at_pace",
            extra=fields(model=one.model, calls_per_minute=per_minute(one.per_s), learnt_at=iso_text(learnt_at)),
        )

    def _say_pause(self, one: Pause | TriesAgain | Resumed) -> None:
        what = {"pipeline": ",".join(sorted(self.pipelines)), "model": one.scope or "*"}
        match one:
            case Pause(_, reason, for_s, _, tries_in_s):
                for_s = None if for_s is None else round(for_s, 1)
                _log.warning("paused", extra=fields(**what, reason=str(reason), for_s=for_s))
                if tries_in_s is not None:
                    waits_s = min(tries_in_s, self._line.gives_up_at - self._on.clock.monotonic())
                    until = iso_text(self._on.clock.time() + waits_s)
                    _log.info("waiting", extra=fields(**what, reason=str(reason), until=until))
            case TriesAgain(_, reason):
                _log.info("trying_again", extra=fields(**what, reason=str(reason)))
            case Resumed():
                _log.info("resumed", extra=fields(**what))

    async def _either(self, event: asyncio.Event, wait_s: float) -> None:
        """Wait for an event, or so long on the run's clock."""
        if event.is_set() or wait_s <= 0:
            await asyncio.sleep(0)
            return
        if wait_s == math.inf:
            await event.wait()
            return
        loop = asyncio.get_running_loop()
        both = [loop.create_task(_set(event)), loop.create_task(_slept(self._on.clock, wait_s))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _slept(clock: Clock, wait_s: float) -> None:
    await clock.asleep(wait_s)


def per_minute(per_s: float) -> float:
    return round(60 * per_s, 1)
