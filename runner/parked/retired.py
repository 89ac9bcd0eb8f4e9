"""Jobs that are pending for a model that is retired: nothing goes on with them but another model."""

from __future__ import annotations

from typing import NamedTuple

from parked.job import State
from parked.ledger.store import Filters, Reader
from parked.plain import flag
from parked.reasons import OTHER_MODEL
from parked.verdict import Reason


class Retired(NamedTuple):
    """A model of a pipeline that is paused for good, with jobs pending for it."""

    pipeline: str
    model: str
    batch: str  # of the job that is pending longest


class Pending(NamedTuple):
    """What is pending, by what goes on with it."""

    as_it_is: bool  # some of it needs nothing but a run or a worker; also where nothing is pending
    retired: tuple[Retired, ...]


def pending_by_way_on(reader: Reader, *, pipeline: str | None) -> Pending:
    """Tell apart what is pending of a pipeline; None: of all."""
    retired, jobs = [], 0
    for pause in reader.pauses():
        if pause.reason != Reason.MODEL_NOT_FOUND or pipeline not in (None, pause.pipeline):
            continue
        filters = Filters(pipeline=pause.pipeline, model=pause.model)
        for oldest in reader.jobs(filters, states=(State.PENDING,), limit=1):
            retired.append(Retired(pause.pipeline, pause.model, oldest.batch))
            jobs += reader.count(filters, states=(State.PENDING,))
    if not retired:
        return Pending(as_it_is=True, retired=())
    in_all = reader.count(Filters(pipeline=pipeline), states=(State.PENDING,))
    return Pending(as_it_is=in_all > jobs, retired=tuple(retired))


def with_another_model(command: str, *, pipeline: str | None, batch: str) -> list[str]:
    """Return the command that gives another model to what is pending of a batch, as words; None: in any pipeline.

    `command` is `run`, which calls it, or `submit`, which leaves that to workers. The capitals stand for what somebody
    puts in.
    """
    place = [*(flag("--pipeline", pipeline) if pipeline else []), *(flag("--batch", batch) if batch else [])]
    return [command, "JOBS", *place, "--model", OTHER_MODEL]
