"""Replays: which parked jobs are to be run again, and running them. What fails again goes behind the others.

Canaries go first: a few jobs of each cause. A cause none of whose canaries recovers isn't mended yet, and its other
jobs are not called.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from parked.course import Hold
from parked.errors import TextMissing
from parked.job import State
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.ledger.codec import decode, encode
from parked.ledger.operations import Called, JobRow
from parked.pool import Handful, Pool
from parked.running import Running
from parked.telemetry import Spans

_log = logging.getLogger("parked.replays")

SAMPLE: Final = 20  # jobs that a dry run names
PAGE: Final = 64  # jobs whose payloads are read at a time
CANARIES: Final = 3  # of each cause


class Cause(NamedTuple):
    """What jobs have in common that fail alike."""

    error_class: str
    reason: str
    fingerprint: str | None


@dataclass(slots=True)
class Choice:
    """The jobs of a replay, oldest first, by who calls them and why they failed; and what was left, and why."""

    ids: dict[Called, dict[Cause, array[int]]] = field(default_factory=dict)
    order: array[int] = field(default_factory=lambda: array("q"))  # all of them
    sample: list[JobRow] = field(default_factory=list)
    not_due: int = 0
    due_at: float | None = None  # when the first of those is due, epoch seconds
    refused: Counter[str] = field(default_factory=Counter)  # why jobs can't be called here -> jobs
    over_limit: int = 0

    @property
    def jobs(self) -> int:
        return sum(len(ids) for causes in self.ids.values() for ids in causes.values())

    def causes(self) -> list[tuple[Cause, int]]:
        """Each cause with its number of jobs, largest first."""
        jobs: Counter[Cause] = Counter()
        for causes in self.ids.values():
            for cause, ids in causes.items():
                jobs[cause] += len(ids)
        return jobs.most_common()


@dataclass(frozen=True, slots=True)
class Mending:
    """What is sent instead of what failed: a payload for each job by its id, or another model for all."""

    payloads: dict[str, Any] | None = None  # None: as they are
    model: str | None = None

    def operation(self, row: JobRow, *, note: str) -> op.Mend | None:
        """The operation that mends this job; None if nothing changes."""
        if self.payloads is None and self.model is None:
            return None
        payload = None if self.payloads is None else encode(self.payloads[row.job_id])
        return op.Mend(row.id, payload, self.model, note=note)


@dataclass(slots=True)
class Results:
    """What came of a replay, counted as it runs."""

    begun: int = 0  # jobs whose turn was to come; the next are about them
    recovered: int = 0
    parked_again: int = 0
    not_run: int = 0  # released, at a pause say; erased, or in other hands by the time of their turn
    spared: int = 0  # not tried, since canaries of their cause have failed and none recovered
    stopped: bool = False  # drained before its end
    lost: list[str] = field(default_factory=list)  # job ids whose outcomes the ledger never took

    def add(self, hold: Hold) -> None:
        if hold.called and hold.row.state is State.RECOVERED:
            self.recovered += 1
        elif has_failed(hold) and not hold.handed_back:
            self.parked_again += 1
        else:
            self.not_run += 1


@dataclass(frozen=True, slots=True)
class Bound:
    """How many jobs a replay runs at most, canaries included."""

    jobs: int
    order: array[int]  # all that it may run, oldest first

    def room(self, results: Results) -> int:
        return self.jobs - results.begun

    def oldest(self, ids: list[array[int]], results: Results) -> array[int]:
        """The oldest of these, as many as there is room for."""
        wanted = {id for some in ids for id in some}
        return array("q", islice((id for id in self.order if id in wanted), self.room(results)))


def has_failed(hold: Hold) -> bool:
    """Whether a replay has called this job in vain."""
    return hold.called and hold.finished and hold.row.state is State.PARKED


def choose(rows: Iterable[JobRow], *, limit: int | None, now: float, refusal: Callable[[JobRow], str | None]) -> Choice:
    """Return which of these parked jobs, oldest first, can be run again now.

    `refusal` says why a job can't be called here, None if it can.
    """
    choice = Choice()
    for row in rows:
        if (why := refusal(row)) is not None:
            choice.refused[why] += 1
        elif row.not_before is not None and not row.is_due(now):
            choice.not_due += 1
            choice.due_at = min(row.not_before, choice.due_at or row.not_before)
        elif limit is not None and choice.jobs >= limit:
            choice.over_limit += 1
        else:
            causes = choice.ids.setdefault(Called(row.caller, row.checker), {})
            cause = Cause(row.error_class or "", row.reason or "", row.fingerprint)
            causes.setdefault(cause, array("q")).append(row.id)
            choice.order.append(row.id)
            if len(choice.sample) < SAMPLE:
                choice.sample.append(row)
    return choice


@contextmanager
def entered(ledger: Ledger, replay: op.OpenReplay, results: Results, *, pipeline: str | None) -> Iterator[int]:
    """Enter a replay in the ledger and as a span, and note at its end what it came to. Yields its id."""
    replay_id: int = ledger.record(replay)
    trace = Spans().replay(replay_id, trigger=replay.trigger, pipeline=pipeline)
    try:
        with trace.current():
            yield replay_id
    finally:
        with suppress(Exception):  # the replay's row is for people; what became of the jobs is in their own
            ledger.record(op.CloseReplay(replay_id, results.recovered, results.parked_again, results.not_run))
        trace.end(
            recovered=results.recovered,
            parked_again=results.parked_again,
            not_run=results.not_run,
            spared=results.spared,
        )


async def replayed(
    on: Running,
    causes: dict[Cause, array[int]],
    replay_id: int,
    *,
    results: Results,
    make_pool: Callable[[Running], Pool],
    canaries: int = CANARIES,
    mending: Mending | None = None,
    bound: Bound | None = None,
) -> AsyncIterator[Hold]:
    """Run these jobs again, canaries first (0: all at once), and yield each when it is out of our hands.

    `make_pool` makes a pool for each of the two rounds. `results` counts along. With a `bound` what was spared takes
    nobody's place: a large cause that isn't mended must not keep the others from their turn, replay after replay.
    """
    mending = mending or Mending()
    left = dict(causes)
    while left and not results.stopped and (bound is None or bound.room(results)):
        first = _first(left, each=canaries, room=None if bound is None else bound.room(results))
        cause_of = {id: cause for cause, ids in first.items() for id in ids} if canaries else {}
        healed: set[Cause] = set()
        failed: set[Cause] = set()
        async for hold in _round(on, list(first.values()), replay_id, mending, make_pool, results):
            results.add(hold)
            if (cause := cause_of.get(hold.row.id)) is not None:
                if hold.row.state is State.RECOVERED:
                    healed.add(cause)
                elif has_failed(hold):
                    failed.add(cause)
            yield hold
        left = {cause: rest for cause, ids in left.items() if (rest := ids[len(first.get(cause, ())) :])}
        results.spared += sum(len(left.pop(cause)) for cause in failed - healed if cause in left)
        followers = [left.pop(cause) for cause in healed if cause in left]
        if bound is not None:
            followers = [bound.oldest(followers, results)]
        if not results.stopped:
            async for hold in _round(on, followers, replay_id, mending, make_pool, results):
                results.add(hold)
                yield hold
        # What is left has told nothing: its canaries were taken by another replay. The next ones do.


def _first(left: dict[Cause, array[int]], *, each: int, room: int | None) -> dict[Cause, array[int]]:
    """The first so many jobs of each cause (0: all), as far as there is room."""
    first = {}
    for cause, ids in left.items():
        some = (ids[:each] if each else ids)[:room]
        if room is not None:
            room -= len(some)
        if some:
            first[cause] = some
    return first


async def _round(
    on: Running,
    ids: list[array[int]],
    replay_id: int,
    mending: Mending,
    make_pool: Callable[[Running], Pool],
    results: Results,
) -> AsyncIterator[Hold]:
    if not any(ids):
        return
    results.begun += sum(map(len, ids))
    pool = make_pool(on)
    try:
        async for hold in pool.run(_replaying(on, pool, ids, replay_id, mending)):
            yield hold
    finally:
        results.stopped |= pool.stopped
        await pool.close()
        results.lost += pool.lost


async def _replaying(
    on: Running, pool: Pool, ids: list[array[int]], replay_id: int, mending: Mending
) -> AsyncIterator[Handful]:
    """The source of a pool that runs these jobs again. Each is claimed when its turn comes, if it is still parked."""
    for page in _pages(ids):
        with on.ledger.ask() as reader:
            jobs = reader.jobs_with_payloads(page)
        mends = [mend for job in jobs if (mend := mending.operation(job.row, note=f"for replay #{replay_id}"))]
        if mends:
            await pool.record_all(mends)
            with on.ledger.ask() as reader:
                jobs = reader.jobs_with_payloads(page)
        holds = []
        for job in jobs:
            if job.row.erased_at is not None:  # meanwhile; there is nothing to send
                gone = Hold(job.row, None, on.ledger.owner_id, replay_id=replay_id, finished=True)
                holds.append(gone)
                continue
            # Not what was stored of it: that may be nothing.
            given = None if mending.payloads is None else mending.payloads.get(job.row.job_id)
            try:
                payload = decode(job.payload) if given is None else given
            except TextMissing as exc:  # it stays parked, and no other job with it
                _log.warning("job_left job=%s why=%s", json.dumps(job.row.job_id), json.dumps(f"payload {exc.why}"))
                holds.append(Hold(job.row, None, on.ledger.owner_id, replay_id=replay_id, finished=True))
                continue
            hold = on.hold(job.row, payload, replay_id=replay_id)
            hold.other_model = job.model
            holds.append(hold)
        yield Handful(on, holds)


def _pages(ids: list[array[int]]) -> Iterator[list[int]]:
    for each in ids:
        for start in range(0, len(each), PAGE):
            yield each[start : start + PAGE].tolist()
