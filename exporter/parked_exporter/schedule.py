"""What the sidecar does on a schedule: a table of tasks, each a plain function that runs without a scheduler.

Several sidecars may share a ledger: a task runs where its lease is. A task that fails or hangs costs itself alone;
neither the other tasks nor a scrape nor SIGTERM waits for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any, Final

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobSubmissionEvent
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from parked import logs
from parked.cron import Cron
from parked.errors import LedgerMissing, LedgerUnavailable, ParkedError
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.owners import LOST_AFTER_S
from parked.summary import LAST_SUMMARY, as_json, render, summarise
from parked_exporter.metrics import AUDIT_MARK, AuditFound, task_mark

FORGOTTEN_AT_ONCE: Final = 500
SWEEP_S: Final = LOST_AFTER_S / 2  # an owner is lost after that time without a beat; look twice in it
CLOCK_S: Final = 5.0  # how soon it is noticed that the wall clock was set back
SET_BACK_S: Final = 1.0  # by so much; less than that comes from slewing, and delays nothing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """What the tasks go by besides the ledger."""

    retention_s: float | None = None  # how long finished jobs stay; None: for good
    now: Callable[[], float] = time.time  # epoch seconds
    monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    run: Callable[[Ledger, Context], None]
    every_s: float | None = None  # None: when PARKED_SUMMARY_CRON says
    # Outlives a run that comes late, and another sidecar has the task within a minute or so when its holder dies.
    lease_s: float = 60.0


# --- the tasks ---------------------------------------------------------------------------------------------------


def sweep_orphans(ledger: Ledger, context: Context) -> None:
    """Park the jobs of owners that are gone. The ledger watches their beats, and says in the log who is lost."""
    ledger.sweep()


def audit(ledger: Ledger, context: Context) -> None:
    """Count the rows against the counters, and leave what was found for /metrics."""
    with ledger.ask() as reader:
        imbalances = reader.imbalances()
    differences: dict[str, float] = defaultdict(float)
    for one in imbalances:
        # A row in the wrong state is missing in one count and too much in another: one job, not two.
        differences[one.pipeline] = max(differences[one.pipeline], abs(one.counted - one.found))
        log.error(
            "audit_found_imbalance",
            extra=logs.fields(pipeline=one.pipeline, what=one.what, counted=one.counted, found=one.found),
        )
    ledger.record(op.SetMark(AUDIT_MARK, AuditFound(context.now(), differences).as_mark()))


def summarise_to_log(ledger: Ledger, context: Context) -> None:
    """Say what is parked, also when nothing is: then its absence means something."""
    with ledger.ask() as reader:
        summary = summarise(reader, where=ledger.where, now=context.now())
    log.info("summary", extra=logs.fields(text=render(summary), **as_json(summary)))
    ledger.record(op.SetMark(LAST_SUMMARY, summary.made_at))


def forget_old_jobs(ledger: Ledger, context: Context) -> None:
    """Remove what finished long ago and was handed out. A few at a time, so that no writer waits for it."""
    assert context.retention_s is not None
    before, last, gone = context.now() - context.retention_s, 0, 0
    while True:
        with ledger.ask() as reader:  # anew each time: a long snapshot would hold up the database's own cleaning
            ids = reader.forgettable(before, after=last, limit=FORGOTTEN_AT_ONCE)
        if not ids:
            break
        gone += ledger.record(op.Forget(tuple(ids)))
        last = ids[-1]
    if gone:
        log.info("jobs_forgotten", extra=logs.fields(jobs=gone))


SCHEDULE: Final = (
    Task("orphan_sweep", sweep_orphans, every_s=SWEEP_S),
    # At a million jobs it takes a tenth of a second.
    Task("audit", audit, every_s=60, lease_s=90),
    Task("summary", summarise_to_log),
)
RETENTION: Final = Task("retention", forget_old_jobs, every_s=3600, lease_s=600)


def tasks_for(context: Context) -> tuple[Task, ...]:
    """The tasks that are switched on."""
    return SCHEDULE if context.retention_s is None else (*SCHEDULE, RETENTION)


def run_task(task: Task, ledger: Ledger, context: Context) -> bool:
    """Run a task if its lease can be had, and note in the ledger that it succeeded. False: another sidecar has it."""
    if not ledger.record(op.TakeLease(task.name, ledger.owner_id, task.lease_s)):
        return False
    task.run(ledger, context)
    ledger.record(op.SetMark(task_mark(task.name), context.now()))
    return True


# --- running them ------------------------------------------------------------------------------------------------


class Schedule:
    """Runs the tasks on a ledger, which need not be there yet. Never raises; what fails is counted and logged."""

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        *,
        cron: Cron,
        zone: tzinfo,
        tasks: Sequence[Task] = SCHEDULE,
        context: Context | None = None,
    ) -> None:
        self._open_ledger = open_ledger
        self._ledger: Ledger | None = None
        self._opening = threading.Lock()
        self._context = context or Context()
        self._began: dict[str, float] = {}  # of each task that runs now
        self._looked_after: set[str] = set()  # those that go by cron, since the start
        self._troubles: dict[str, str] = {}  # why each task can't be done, so that it is said once
        self._writable = False
        self._failures = {task.name: 0 for task in tasks}
        self._scheduler = BackgroundScheduler(
            executors={"default": _DaemonThreads()},
            # A run that is late, after a suspended laptop say, is made up for once.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone=UTC,
        )
        # It would log each run, and each of those that wait for a task that hangs, as text.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._scheduler.add_listener(self._note_hanging, EVENT_JOB_MAX_INSTANCES)
        self._by_interval = {task.name for task in tasks if task.every_s is not None}
        self._stopping = threading.Event()
        for task in tasks:
            run: Callable[[Task], None]
            if task.every_s is None:
                run, trigger = partial(self._run_by_cron, cron, zone), _ByCron(cron, zone)
            else:
                run, trigger = self._run, IntervalTrigger(seconds=task.every_s, timezone=UTC)
            self._scheduler.add_job(run, trigger, args=(task,), id=task.name, next_run_time=datetime.now(UTC))

    @property
    def running(self) -> bool:
        return bool(self._scheduler.running)

    @property
    def writable(self) -> bool:
        """Whether the task that ran last could write to the ledger."""
        return self._writable

    @property
    def failures(self) -> Mapping[str, int]:
        """How many runs of each task failed since this sidecar started."""
        return self._failures

    def start(self) -> None:
        self._scheduler.start()
        threading.Thread(target=self._mind_the_clock, name="parked-clock", daemon=True).start()

    def stop(self, *, patience_s: float) -> None:
        """Start no more runs and leave the ledger; what doesn't end within the patience is left behind."""
        self._stopping.set()
        self._scheduler.shutdown(wait=False)
        leaving = threading.Thread(target=self._leave, name="parked-leave", daemon=True)
        leaving.start()
        leaving.join(patience_s)

    def _mind_the_clock(self) -> None:
        """APScheduler goes by the wall clock: when that was set back, no task would run until its old time came again.

        One that was set forward needs nothing: what it skipped is made up for once.
        """
        ahead = self._context.now() - self._context.monotonic()
        while not self._stopping.wait(CLOCK_S):
            was, ahead = ahead, self._context.now() - self._context.monotonic()
            if was - ahead < SET_BACK_S:
                continue
            log.warning("clock_was_set_back", extra=logs.fields(by_s=round(was - ahead)))
            for job in self._scheduler.get_jobs():
                now = datetime.now(UTC)
                at = now if job.id in self._by_interval else job.trigger.get_next_fire_time(None, now)
                job.modify(next_run_time=at)

    def _run(self, task: Task) -> None:
        self._began[task.name] = self._context.monotonic()
        try:
            run_task(task, self._current(), self._context)
        except LedgerMissing as exc:  # no failure: where there is no ledger, nothing is due
            self._writable = False
            self._say_once(task, logging.INFO, "task_waits", str(exc))
        except Exception as exc:  # whatever breaks this run, the next one is made
            self._failures[task.name] += 1
            self._writable = self._writable and not isinstance(exc, LedgerUnavailable)
            why = str(exc) if isinstance(exc, ParkedError) else type(exc).__name__  # a foreign text may quote anything
            self._say_once(task, logging.ERROR, "task_failed", why)
            log.debug("task_failed", exc_info=True, extra=logs.fields(task=task.name))
        else:
            self._writable = True
            if self._troubles.pop(task.name, None) is not None:
                log.info("task_works_again", extra=logs.fields(task=task.name))
        finally:
            del self._began[task.name]

    def _run_by_cron(self, cron: Cron, zone: tzinfo, task: Task) -> None:
        """Run a task; at the start only if its time passed while no sidecar was there."""
        if task.name in self._looked_after or self._was_missed(task, cron, zone):
            self._run(task)
        self._looked_after.add(task.name)

    def _was_missed(self, task: Task, cron: Cron, zone: tzinfo) -> bool:
        """One that never ran has missed nothing."""
        try:
            with self._current().ask() as reader:
                last = reader.mark(task_mark(task.name))
        except ParkedError:  # said by the tasks that run at the start
            return False
        due = None if last is None else cron.next_after(datetime.fromtimestamp(last, UTC), zone)
        return due is not None and due <= datetime.fromtimestamp(self._context.now(), UTC)

    def _current(self) -> Ledger:
        """The ledger with this sidecar as an owner; opened anew where another one has taken its place."""
        with self._opening:
            found = self._open_ledger()
            if self._ledger is not None and self._ledger.name == found.name:
                found.close()
                return self._ledger
            if self._ledger is not None:  # a task may still be in it, and must not be waited for
                threading.Thread(target=self._ledger.close, name="parked-leave", daemon=True).start()
            self._ledger = found
            return found

    def _leave(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

    def _say_once(self, task: Task, level: int, event: str, why: str) -> None:
        if self._troubles.get(task.name) != why:
            self._troubles[task.name] = why
            log.log(level, event, extra=logs.fields(task=task.name, why=why))

    def _note_hanging(self, event: JobSubmissionEvent) -> None:
        began = self._began.get(event.job_id)
        if began is not None:
            log.warning(
                "task_still_running",
                extra=logs.fields(task=event.job_id, for_s=round(self._context.monotonic() - began)),
            )


class _ByCron(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Fires when cron would; `parked.cron` says why it isn't APScheduler's own trigger."""

    def __init__(self, cron: Cron, zone: tzinfo) -> None:
        self._cron = cron
        self._zone = zone

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        return self._cron.next_after(previous_fire_time or now, self._zone)


class _DaemonThreads(BaseExecutor):  # type: ignore[misc]  # APScheduler has no types
    """A thread a run, which the end of the process doesn't wait for. APScheduler's own pool would, for ever."""

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        name = f"parked-task-{job.id}"
        threading.Thread(target=self._run, args=(job, run_times), name=name, daemon=True).start()

    def _run(self, job: Any, run_times: list[datetime]) -> None:
        try:
            events = run_job(job, "default", run_times, self._logger.name)
        except Exception:  # noqa: BLE001 - else APScheduler would think for ever that the task still runs
            self._run_job_error(job.id, *sys.exc_info()[1:])
        else:
            self._run_job_success(job.id, events)
