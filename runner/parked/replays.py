"""Replays: which parked jobs are to be run again, and running them. What fails again goes behind the others."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from parked.course import Hold
from parked.job import State
from parked.ledger.codec import decode
from parked.ledger.operations import JobRow
from parked.ledger.store import Filters, Reader
from parked.running import Running

SAMPLE: Final = 20  # jobs that a dry run names
PAGE: Final = 64  # jobs whose payloads are read at a time


@dataclass(frozen=True, slots=True)
class Called:
    """Who calls a job and who checks its answer, by name."""

    caller: str
    checker: str


@dataclass(slots=True)
class Choice:
    """The jobs of a replay, oldest first, by who calls them; and what was left, and why."""

    ids: dict[Called, array[int]] = field(default_factory=dict)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)  # (error class, reason) -> jobs
    sample: list[JobRow] = field(default_factory=list)
    not_due: int = 0
    due_at: float | None = None  # when the first of those is due, epoch seconds
    no_caller: Counter[str] = field(default_factory=Counter)  # why not -> jobs
    over_limit: int = 0
    erased: int = 0  # nothing is left of them that could be sent

    @property
    def jobs(self) -> int:
        return sum(map(len, self.ids.values()))


def choose(
    reader: Reader, filters: Filters, *, limit: int | None, now: float, missing: Callable[[Called], str | None]
) -> Choice:
    """Return which of the parked jobs that the filters match can be run again now.

    `missing` says why a job can't be called here, None if it can; it is asked once for each caller and check.
    """
    choice = Choice()
    known: dict[Called, str | None] = {}
    for row in reader.jobs(filters, states=(State.PARKED,)):
        if row.erased_at is not None:
            choice.erased += 1
            continue
        called = Called(row.caller, row.checker)
        if called not in known:
            known[called] = missing(called)
        why_not = known[called]
        if why_not is not None:
            choice.no_caller[why_not] += 1
        elif row.not_before is not None and row.not_before > now:
            choice.not_due += 1
            choice.due_at = min(row.not_before, choice.due_at or row.not_before)
        elif limit is not None and choice.jobs >= limit:
            choice.over_limit += 1
        else:
            choice.ids.setdefault(called, array("q")).append(row.id)
            choice.causes[row.error_class or "", row.reason or ""] += 1
            if len(choice.sample) < SAMPLE:
                choice.sample.append(row)
    return choice


async def replaying(on: Running, ids: array[int], replay_id: int) -> AsyncIterator[list[Hold]]:
    """The source of a pool that runs these jobs again. Each is claimed when its turn comes, if it is still parked."""
    for page in _pages(ids):
        with on.ledger.ask() as reader:
            jobs = reader.jobs_with_payloads(page)
        yield [on.hold(row, decode(body), replay_id=replay_id) for row, body in jobs]


def _pages(ids: array[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), PAGE):
        yield ids[start : start + PAGE].tolist()
