"""Replays that the sidecar begins by itself: which pipelines are due, which of their jobs may run, and running them.

By the same rules as `parked replay`: canaries first, and through the gates, the checks and the pace that all processes
on the ledger share. What runs jobs, and google-genai with it, is imported once there is a job to run.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Final

from parked.errors import ParkedError, SettingsError
from parked.job import State
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.ledger.moves import AUTO
from parked.ledger.store import Filters, Reader
from parked.logs import fields
from parked.pauses import ALL, OUTAGE
from parked.policy import Policy

if TYPE_CHECKING:
    from parked.callers import Callers
    from parked.pool import Pool
    from parked.replays import Choice, Results
    from parked.running import Running
    from parked_exporter.schedule import Context

NAME: Final = "auto_replay"  # of the task, its lease, and the mark that says when which entry last began
ROLE: Final = "sidecar"  # of owners
OTHERS: Final = "*"  # in the settings: every pipeline that isn't named
LOOK_S: Final = 15.0  # how often it is looked which pipelines are due, at most
LEASE_S: Final = 60.0
RENEW_S: Final = 15.0  # a replay may take longer than the lease
HEED_S: Final = 0.05  # how soon a running replay sees that the sidecar is to end
LOOKED_AT: Final = 10_000  # jobs among which a replay chooses: of a million it would take longer than it may run
CONCURRENCY: Final = 8  # as `parked replay`
TRY_AGAIN_S: Final = 300.0  # one job tries a pause that a sidecar has found, as a worker's does

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoReplay:
    """What is replayed by itself, as the settings say."""

    every_s: Mapping[str, float]  # by pipeline, or `OTHERS`
    classes: tuple[str, ...]  # error classes, `*` stands for any code
    limit: int  # jobs of one replay
    most: int  # replays of one job that count
    policy: Policy = field(default_factory=Policy)
    call: str | None = None  # the function that stands in for callers without a name
    told: set[str] = field(default_factory=set)  # why jobs were left, each said once

    @property
    def look_s(self) -> float:
        """How often to look whether one is due."""
        return min(LOOK_S, max(1.0, min(self.every_s.values()) / 2))

    def entry(self, pipeline: str) -> str | None:
        """Which entry of the settings a pipeline goes by; None: it isn't replayed by itself."""
        return next((name for name in (pipeline, OTHERS) if name in self.every_s), None)

    def allows(self, error_class: str) -> bool:
        return any(fnmatchcase(error_class, allowed) for allowed in self.classes)


def replay_parked_jobs(ledger: Ledger, context: Context) -> None:
    """Replay the parked jobs of the pipelines that are due, one pipeline after the other."""
    settings, now = context.auto_replay, context.now()
    assert settings is not None
    with ledger.ask() as reader:
        began: dict[str, float] = reader.mark(NAME) or {}
        due = {name for name, every_s in settings.every_s.items() if is_due(began.get(name), every_s=every_s, now=now)}
        if not due:
            return
        classes = reader.oldest(State.PARKED)
    ledger.record(op.SetMark(NAME, began | dict.fromkeys(due, now)))
    pipelines = {pipeline for pipeline, error_class in classes if settings.allows(error_class)}
    failed: Exception | None = None
    for pipeline in sorted(pipelines):
        if settings.entry(pipeline) not in due or context.stopping.is_set():
            continue
        try:
            _replay(ledger, context, settings, pipeline)
        except Exception as exc:  # noqa: BLE001 - raised below: one pipeline must not keep the next from its turn
            failed = failed or exc
    if failed is not None:
        raise failed


def is_due(began: float | None, *, every_s: float, now: float) -> bool:
    """Whether the next round is due, the last one having begun then. A clock that was set back delays none."""
    return began is None or not 0 <= now - began < every_s


def paused_models(reader: Reader, pipeline: str, *, now: float) -> Set[str]:
    """The models of a pipeline (`ALL`: all) that are paused for what waiting can't mend, or not yet.

    An outage is not among it: whether it is over, nobody knows until somebody tries. Nor, now and then, is what a
    sidecar has found: a pause of pending jobs ends when they are run, but nobody else tries a parked one.
    """
    sidecars = {owner.id for owner in reader.owners_alive() if owner.facts.role == ROLE}
    return {
        pause.model
        for pause in reader.pauses()
        if pause.pipeline == pipeline
        and pause.reason not in OUTAGE
        and (pause.until is None or pause.until > now)
        and not (
            pause.until is None
            and pause.owner_id in sidecars
            and is_due(pause.fault_began_at, every_s=TRY_AGAIN_S, now=now)
        )
    }


def candidates(reader: Reader, settings: AutoReplay, pipeline: str, *, now: float) -> Iterator[op.JobRow]:
    """The parked jobs of a pipeline that may be replayed by themselves now, oldest first, whoever calls them."""
    paused = paused_models(reader, pipeline, now=now)
    of_classes = [
        reader.jobs(Filters(pipeline=pipeline, error_class=allowed), states=(State.PARKED,))
        for allowed in settings.classes
    ]
    last = None
    for row in heapq.merge(*of_classes, key=lambda row: (row.place, row.id)):
        if row.id == last:  # two entries allow its class
            continue
        last = row.id
        may = row.erased_at is None and row.auto_replays < settings.most and not paused & {ALL, row.model}
        if may and row.is_due(now):
            yield row


def _replay(ledger: Ledger, context: Context, settings: AutoReplay, pipeline: str) -> None:
    """Choose the jobs of a pipeline and run them."""
    now = context.now()
    with ledger.ask() as reader:
        if next(candidates(reader, settings, pipeline, now=now), None) is None:
            return

        from parked.callers import Callers
        from parked.replays import Results, choose, entered

        callers = Callers(ledger, settings.policy, stand_in=settings.call)
        refusal = _refusal(callers, settings.told, unreadable=reader.unreadable(State.PARKED, pipeline=pipeline))
        may = (row for row in candidates(reader, settings, pipeline, now=now) if refusal(row) is None)
        choice = choose(islice(may, LOOKED_AT), limit=None, now=now, refusal=refusal)
    if not choice.jobs:
        return
    said = {"pipeline": pipeline, "error_class": ",".join(settings.classes)}
    replay = op.OpenReplay(NAME, f"sidecar@{socket.gethostname()}", json.dumps(said), AUTO)
    results, began = Results(), context.monotonic()
    with entered(ledger, replay, results, pipeline=pipeline) as replay_id:
        try:
            asyncio.run(_run(ledger, context, pipeline, choice, callers, replay_id, results))
        finally:
            results.not_run = results.begun - results.recovered - results.parked_again
            _tell(pipeline, replay_id, results, for_s=context.monotonic() - began)


def _refusal(callers: Callers, told: set[str], *, unreadable: Mapping[int, str]) -> Callable[[op.JobRow], str | None]:
    """Why a job can't be called here, None if it can; each reason is logged once.

    `unreadable` are the jobs whose payload can't be read here, and why.
    """
    known: dict[op.Called, str | None] = {}

    def missing(called: op.Called) -> str | None:
        try:
            callers.running(called)
        except SettingsError as exc:
            return tell(str(exc), caller=called.caller, checker=called.checker)
        return None

    def tell(why: str, **names: str) -> str:
        if why not in told:
            told.add(why)
            log.warning("jobs_left", extra=fields(**names, why=why))
        return why

    def refusal(row: op.JobRow) -> str | None:
        if row.id in unreadable:
            return tell(f"payload {unreadable[row.id]}")
        called = op.Called(row.caller, row.checker)
        if called not in known:
            known[called] = missing(called)
        return known[called]

    return refusal


async def _run(
    ledger: Ledger,
    context: Context,
    pipeline: str,
    choice: Choice,
    callers: Callers,
    replay_id: int,
    results: Results,
) -> None:
    """Run the jobs. When the sidecar ends, those under way are released at once."""
    from parked.pool import Pool
    from parked.replays import Bound, replayed

    assert context.auto_replay is not None
    bound = Bound(context.auto_replay.limit, choice.order)
    pools: list[Pool] = []

    def make_pool(on: Running) -> Pool:
        pools.append(Pool(on, concurrency=CONCURRENCY, pipelines=(pipeline,)))
        return pools[-1]

    async def run() -> None:
        for called, causes in choice.ids.items():
            async for _ in replayed(
                callers.running(called), causes, replay_id, results=results, make_pool=make_pool, bound=bound
            ):
                pass
            if results.stopped:
                return

    running = asyncio.create_task(run())
    watching = asyncio.create_task(_watch(ledger, context, running, pools))
    try:
        await running
    except asyncio.CancelledError:
        if not context.stopping.is_set():
            raise
        results.stopped = True
    finally:
        watching.cancel()
        await callers.aclose()


async def _watch(ledger: Ledger, context: Context, running: asyncio.Task[None], pools: list[Pool]) -> None:
    """End the replay when the sidecar ends, and keep its lease; if another sidecar has that, drain."""
    from parked.driver import LoopChannel

    channel, renewed_at = LoopChannel(ledger), context.monotonic()
    while True:
        await asyncio.sleep(HEED_S)
        if context.stopping.is_set():
            running.cancel()
            return
        if context.monotonic() - renewed_at < RENEW_S:
            continue
        renewed_at = context.monotonic()
        with suppress(ParkedError):  # a ledger that is away gives the lease to nobody else either
            if not await channel.record(op.TakeLease(NAME, ledger.owner_id, LEASE_S)):
                log.warning("lease_lost", extra=fields(task=NAME))
                for pool in pools:
                    pool.stop()
                return


def _tell(pipeline: str, replay_id: int, results: Results, *, for_s: float) -> None:
    if results.lost:
        log.error("answers_lost", extra=fields(pipeline=pipeline, job_ids=results.lost))
    log.info(
        "auto_replayed",
        extra=fields(
            pipeline=pipeline,
            replay=replay_id,
            recovered=results.recovered,
            parked_again=results.parked_again,
            spared=results.spared,
            not_run=results.not_run,
            for_s=round(for_s, 1),
        ),
    )
