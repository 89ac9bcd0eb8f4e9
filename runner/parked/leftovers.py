"""What earlier runs of a pipeline have left over after a failure: taken in hand beside the jobs of a file.

Where it goes in the line is the line's business: right after its model's first success in this run. Behind the file's
own it would never have its turn, where those end in a pause every night.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

from parked.errors import TextMissing
from parked.job import Job, State
from parked.ledger.codec import decode
from parked.ledger.operations import Called
from parked.ledger.store import Filters
from parked.pool import Handful
from parked.running import Running

PAGE: Final = 64  # jobs whose payloads are read at a time


def failed_before(on: Running, jobs: Iterable[Job]) -> list[int]:
    """Return the pending jobs of the pipeline that were called before, but for these, which are run anyway; by id."""
    called = Called(on.caller, on.checker)
    with on.ledger.ask() as reader:
        left = {
            (row.batch, row.job_id): row.id
            for row in reader.jobs(Filters(pipeline=on.pipeline), states=(State.PENDING,))
            if row.calls and row.erased_at is None and Called(row.caller, row.checker) == called
        }
    if left:
        for job in jobs:
            left.pop((on.batch, job.job_id), None)
    return list(left.values())


async def beside(own: AsyncIterator[Handful], on: Running, ids: list[int]) -> AsyncIterator[Handful]:
    """The jobs of a file, and after its first ones those that were left over."""
    async for handful in own:
        yield handful
        left, ids = ids, []
        for start in range(0, len(left), PAGE):
            yield _taken_up(on, left[start : start + PAGE])
    if ids:
        yield _taken_up(on, ids)


def _taken_up(on: Running, ids: list[int]) -> Handful:
    with on.ledger.ask() as reader:
        jobs = reader.jobs_with_payloads(ids)
    holds = []
    for job in jobs:
        try:
            payload = decode(job.payload)
        except TextMissing:  # whoever claims it says so
            continue
        hold = on.hold(job.row, payload)
        hold.other_model, hold.claimed, hold.body_bytes = job.model, True, len(job.payload.data)
        hold.finished = job.row.state is not State.PENDING
        holds.append(hold)
    return Handful(on, holds)
