"""What the sidecar does on a schedule: a table of tasks, each a plain function that runs without a scheduler.

Several sidecars may share a ledger: a task runs where its lease is. A task that fails or hangs costs itself alone;
neither the other tasks nor a scrape nor SIGTERM waits for it.
"""

from __future__ import annotations

import logging
import random
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any, Final

from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from parked import cron as cron_text
from parked import logs
from parked.cli.output import command_on
from parked.cron import Cron
from parked.errors import LedgerMissing, LedgerReplaced, LedgerUnavailable, ParkedError
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.ledger.databases import from_anywhere
from parked.ledger.store import Imbalance
from parked.owners import LOST_AFTER_S
from parked.summary import LAST_COUNTS, LAST_SUMMARY, as_json, next_commands, render, summarise, title
from parked_exporter import auto_replay, deliveries
from parked_exporter.auto_replay import AutoReplay
from parked_exporter.metrics import AUDIT_MARK, AuditFound, task_mark
from parked_exporter.notify import NOTICE_MARK, NotDue, Notice, Sender
from parked_exporter.peers import Peers

FULL_AUDIT_MARK: Final = "full_audit"
NAMED_IN_LOG: Final = 20
FORGOTTEN_AT_ONCE: Final = 500
SWEEP_S: Final = LOST_AFTER_S / 2  # an owner is lost after that time without a beat; look twice in it
# How soon a task is tried again that another sidecar has. That one counts as lost 35 s after its death at the latest:
# its tasks are taken over within a minute, also those that run once an hour or a day.
LOOK_AGAIN_S: Final = 20.0
TRY_AGAIN_S: Final = 60.0  # one that goes by cron and failed; those with an interval wait for their next turn
JITTER: Final = 0.1  # of an interval, so that several sidecars don't come all at once
CRON_JITTER_S: Final = 5.0
CLOCKS_APART_S: Final = 3600.0  # a last run that lies further ahead than this was noted before the clock was set back
CLOCK_S: Final = 1.0  # how soon it is noticed that the wall clock was set back, or that a task hangs
SET_BACK_S: Final = 1.0  # by so much; less than that comes from slewing, and delays nothing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """What the tasks go by besides the ledger."""

    retention_s: float | None = None  # how long finished jobs stay; None: for good
    notify: tuple[str, ...] = field(default=(), repr=False)  # where the summary goes besides the log
    settings: Mapping[str, str] = field(default_factory=dict)  # digests, to be compared with those of other sidecars
    messages: bool = False  # whether the summary tells what was said when jobs failed
    auto_replay: AutoReplay | None = None
    on_answer: str | None = None  # the function that takes the answers of recovered jobs, by name
    stopping: threading.Event = field(default_factory=threading.Event)  # set when the sidecar ends
    host: str = field(default_factory=socket.gethostname)
    now: Callable[[], float] = time.time  # epoch seconds
    monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    run: Callable[[Ledger, Context], None]
    every_s: float | None = None  # None: by cron
    at: Cron | None = None  # None, where there is no interval: when PARKED_SUMMARY_CRON says
    after: str = ""  # it also runs when this task has succeeded
    # Outlives a run that comes late. None: it takes no lease, every sidecar does it.
    lease_s: float | None = 60.0
    takes_s: float = 120.0  # a run that takes longer is said to be still running, and counts as failed
    heeds_stopping: bool = False  # ends in a moment when it is told to; the ledger is left after that


# --- the tasks ---------------------------------------------------------------------------------------------------


def sweep_orphans(ledger: Ledger, context: Context) -> None:
    """Park the jobs of owners that are gone. The ledger watches their beats, and says in the log who is lost."""
    ledger.sweep()


def audit(ledger: Ledger, context: Context) -> None:
    """Count the rows against the counters, and leave what was found for /metrics."""
    with ledger.ask() as reader:
        imbalances = reader.imbalances()
        by_row = AuditFound.from_mark(reader.mark(FULL_AUDIT_MARK))
    differences = _differences(imbalances)
    for pipeline, difference in {} if by_row is None else by_row.differences.items():
        differences[pipeline] = max(differences.get(pipeline, 0.0), difference)
    ledger.record(op.SetMark(AUDIT_MARK, AuditFound(context.now(), differences).as_mark()))


def audit_by_row(ledger: Ledger, context: Context) -> None:
    """Check every row as `parked audit` does. What it finds stays on /metrics until it finds it mended."""
    with ledger.ask() as reader:
        imbalances = reader.imbalances(thorough=True)
    found = AuditFound(context.now(), _differences(imbalances))
    ledger.record(op.SetMark(FULL_AUDIT_MARK, found.as_mark()))


def _differences(imbalances: Sequence[Imbalance]) -> dict[str, float]:
    """By how many jobs each pipeline is off. Each finding is logged."""
    differences: dict[str, float] = defaultdict(float)
    for one in imbalances:
        # A row in the wrong state is missing in one count and too much in another: one job, not two.
        differences[one.pipeline] = max(differences[one.pipeline], abs(one.counted - one.found))
        ids = {"job_ids": one.job_ids[:NAMED_IN_LOG]} if one.job_ids else {}
        log.error(
            "audit_found_imbalance",
            extra=logs.fields(pipeline=one.pipeline, what=one.what, counted=one.counted, found=one.found, **ids),
        )
    return differences


def summarise_to_log(ledger: Ledger, context: Context) -> None:
    """Say what is parked, also when nothing is: then its absence means something. `notify` sends the same."""
    with ledger.ask() as reader:
        summary = summarise(reader, where=ledger.where, now=context.now(), messages=context.messages)
    commands = [command_on(from_anywhere(ledger.url), *words) for words in next_commands(summary)]
    text = render(summary)
    line = title(summary, host=context.host)
    facts = logs.fields(title=line, **as_json(summary, commands), text=text)
    log.info("summary", extra=facts | logs.as_text("title", "ledger", "parked", "new", "recovered", "discarded"))
    notice = Notice(
        summary.made_at,
        title=line,
        body="\n  ".join([f"{text}\nnext, on {context.host}:", *commands]) if commands else text,
        good=not summary.parked and not summary.pauses,
    )
    marks = {
        NOTICE_MARK: notice.as_mark(),
        LAST_COUNTS: summary.counts.as_mark(summary.made_at),
        LAST_SUMMARY: summary.made_at,
    }
    for ticket in ledger.submit_many([op.SetMark(name, value) for name, value in marks.items()]):
        ticket.wait()


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
    # In a quiet hour: it reads every row.
    Task("full_audit", audit_by_row, at=cron_text.parse("30 3 * * *"), lease_s=3600, takes_s=3600),
)
AUTO_REPLAY: Final = Task(
    # A round waits for the end of an outage up to a quarter of an hour, in each pipeline that meets one.
    auto_replay.NAME, auto_replay.replay_parked_jobs, every_s=auto_replay.LOOK_S, takes_s=4 * 3600,
    heeds_stopping=True,
)  # fmt: skip
ON_ANSWER: Final = Task(deliveries.NAME, deliveries.deliver_answers, every_s=deliveries.LOOK_S, heeds_stopping=True)
RETENTION: Final = Task("retention", forget_old_jobs, every_s=3600, lease_s=5400, takes_s=3600)


def notify_task(urls: Sequence[str]) -> Task:
    """Send what the last summary left to be sent; again, less and less often, to those who could not be reached."""
    sender = Sender(urls)
    takes_s = 120.0 * len(urls)  # a courier lives for 30 s
    return Task(
        "notify",
        lambda ledger, context: sender.send(ledger, now=context.now()),
        every_s=60,
        after="summary",
        lease_s=takes_s,
        takes_s=takes_s,
    )


def peers_task(settings: Mapping[str, str]) -> Task:
    """Say which settings differ from those of another sidecar."""
    peers = Peers(settings)
    return Task("peers", lambda ledger, context: peers.compare(ledger), every_s=60, lease_s=None)


def tasks_for(context: Context) -> tuple[Task, ...]:
    """The tasks that are switched on."""
    tasks = list(SCHEDULE)
    if context.settings:
        tasks.append(peers_task(context.settings))
    if context.notify:
        tasks.append(notify_task(context.notify))
    if context.retention_s is not None:
        tasks.append(RETENTION)
    if context.auto_replay is not None:
        tasks.append(replace(AUTO_REPLAY, every_s=context.auto_replay.look_s))
    if context.on_answer is not None:
        tasks.append(ON_ANSWER)
    return tuple(tasks)


def run_task(task: Task, ledger: Ledger, context: Context) -> bool:
    """Run a task if its lease can be had, and note in the ledger that it succeeded. False: another sidecar has it."""
    if task.lease_s is not None and not _has_lease(task.name, task.lease_s, ledger):
        return False
    task.run(ledger, context)
    ledger.record(op.SetMark(task_mark(task.name), context.now()))
    return True


def _has_lease(name: str, lease_s: float, ledger: Ledger) -> bool:
    """A holder that died on this machine is known at once; it is looked for if there is one."""
    if ledger.record(op.TakeLease(name, ledger.owner_id, lease_s)):
        return True
    ledger.sweep()
    taken: bool = ledger.record(op.TakeLease(name, ledger.owner_id, lease_s))
    return taken


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
        self._tasks = {task.name: task for task in tasks}
        self._began: dict[str, float] = {}  # of each task that runs now
        self._hanging: set[str] = set()  # those of them that were reported
        self._threads: dict[str, threading.Thread] = {}  # in which those run that are waited for at the end
        self._looked_after: set[str] = set()  # those that go by cron, since the start
        self._troubles: dict[str, str] = {}  # why each task can't be done, so that it is said once
        self._writable = False
        self._unwritable: dict[str, None] = {}  # why it can't be written: all that was said since it could, in order
        self._missing = ""  # that there is none, as it was said since one could be written
        self._telling = threading.Lock()
        self._failures = {task.name: 0 for task in tasks}
        self._scheduler = BackgroundScheduler(
            executors={"default": _DaemonThreads()},
            # A run that is late, after a suspended laptop say, is made up for once.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone=UTC,
        )
        # It would log each run, and each of those that wait for a task that hangs, as text.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._by_interval = {task.name for task in tasks if task.every_s is not None}
        self._stopping = threading.Event()
        for task in tasks:
            run: Callable[[Task], None]
            if task.every_s is None:
                when = task.at or cron
                run, trigger = partial(self._run_by_cron, when, zone), _ByCron(when, zone)
            else:
                every_s = task.every_s
                run, trigger = self._run, IntervalTrigger(seconds=every_s, jitter=JITTER * every_s, timezone=UTC)
            self._scheduler.add_job(run, trigger, args=(task,), id=task.name, next_run_time=datetime.now(UTC))

    @property
    def running(self) -> bool:
        return bool(self._scheduler.running)

    @property
    def writable(self) -> bool:
        """Whether the task that ran last could write to the ledger."""
        return self._writable

    @property
    def unwritable(self) -> str | None:
        """Why the tasks can't write to the ledger; None if they can, or there is none."""
        with self._telling:
            return next(reversed(self._unwritable), None)

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
        self._context.stopping.set()
        self._scheduler.shutdown(wait=False)
        leaving = threading.Thread(target=self._leave, args=(patience_s * 0.8,), name="parked-leave", daemon=True)
        leaving.start()
        leaving.join(patience_s)

    def _mind_the_clock(self) -> None:
        """APScheduler goes by the wall clock: when that was set back, no task would run until its old time came again.

        One that was set forward needs nothing: what it skipped is made up for once. Tasks that hang are noticed here.
        """
        ahead = self._context.now() - self._context.monotonic()
        while not self._stopping.wait(CLOCK_S):
            self._report_hanging()
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
        if task.heeds_stopping:
            self._threads[task.name] = threading.current_thread()
        try:
            ran = run_task(task, self._current(), self._context)
        except LedgerMissing as exc:  # no failure: where there is no ledger, nothing is due
            self._note_missing(str(exc))
        except NotDue:
            self._note_written()
        except LedgerUnavailable as exc:
            if not self._context.stopping.is_set():  # else it was closed under the task
                self._failures[task.name] += 1
                self._note_unwritable(str(exc))
                self._try_again(task)
        except Exception as exc:  # whatever breaks this run, the next one is made
            self._failures[task.name] += 1
            why = str(exc) if isinstance(exc, ParkedError) else type(exc).__name__  # a foreign text may quote anything
            self._say_once(task, logging.ERROR, "task_failed", why)
            log.debug("task_failed", exc_info=True, extra=logs.fields(task=task.name))
            self._try_again(task)
        else:
            self._note_written()
            if ran:
                self._note_success(task)
            else:
                self._soon(task.name, LOOK_AGAIN_S)
        finally:
            del self._began[task.name]
            self._hanging.discard(task.name)
            self._threads.pop(task.name, None)

    def _note_success(self, task: Task) -> None:
        if self._troubles.pop(task.name, None) is not None:
            log.info("task_works_again", extra=logs.fields(task=task.name))
        for other in self._tasks.values():
            if other.after == task.name:
                self._soon(other.name, 0.0)

    def _try_again(self, task: Task) -> None:
        if task.every_s is None:
            self._soon(task.name, TRY_AGAIN_S)

    def _soon(self, name: str, in_s: float) -> None:
        """Have a task run in so many seconds, unless it does before."""
        at = datetime.now(UTC) + timedelta(seconds=in_s)
        with suppress(JobLookupError):  # the schedule has ended meanwhile
            job = self._scheduler.get_job(name)
            if job is not None and (job.next_run_time is None or at < job.next_run_time):
                job.modify(next_run_time=at)

    def _run_by_cron(self, cron: Cron, zone: tzinfo, task: Task) -> None:
        """Run a task that is due: its time has come, or came while no sidecar was there, and none has done it since.

        One that never ran has missed nothing before this one started.
        """
        try:
            with self._current().ask() as reader:
                last = reader.mark(task_mark(task.name))
        except ParkedError:  # said by the tasks with an interval
            self._soon(task.name, TRY_AGAIN_S)
            return
        is_first_look = task.name not in self._looked_after
        self._looked_after.add(task.name)
        if not is_first_look if last is None else self._is_due(last, cron, zone):
            self._run(task)

    def _is_due(self, last: float, cron: Cron, zone: tzinfo) -> bool:
        now = self._context.now()
        due = cron.next_after(datetime.fromtimestamp(last, UTC), zone)
        return last - now > CLOCKS_APART_S or (due is not None and due.timestamp() <= now)

    def _current(self) -> Ledger:
        """The ledger with this sidecar as an owner; opened anew where another one has taken its place."""
        with self._opening:
            found = self._open_ledger()
            try:
                is_same = self._ledger is not None and _is_there(self._ledger) and self._ledger.name == found.name
            except BaseException:  # nobody else knows of it
                found.close()
                raise
            if self._ledger is not None and is_same:
                found.close()
                return self._ledger
            if self._ledger is not None:  # a task may still be in it, and must not be waited for
                log.warning("ledger_replaced", extra=logs.fields(was=_known_name(self._ledger), now=found.name))
                threading.Thread(target=self._ledger.close, name="parked-leave", daemon=True).start()
            self._ledger = found
            if self._context.stopping.is_set():  # `_leave` may have looked before, and found none to close
                found.close()
                raise LedgerUnavailable("this sidecar is ending")
            return found

    def _leave(self, patience_s: float) -> None:
        deadline = self._context.monotonic() + patience_s
        for thread in tuple(self._threads.values()):  # what they release is written before this owner leaves
            thread.join(max(0.0, deadline - self._context.monotonic()))
        if self._ledger is not None:
            self._ledger.close()

    def _say_once(self, task: Task, level: int, event: str, why: str) -> None:
        if self._troubles.get(task.name) != why:
            self._troubles[task.name] = why
            log.log(level, event, extra=logs.fields(task=task.name, why=why))

    def _note_written(self) -> None:
        with self._telling:
            self._writable = True
            was_unwritable, self._unwritable = bool(self._unwritable or self._missing), {}
            self._missing = ""
        if was_unwritable:
            log.info("ledger_writable")

    def _note_missing(self, why: str) -> None:
        """All tasks wait for the same; it is said once."""
        with self._telling:
            self._writable = False
            is_new, self._missing = why != self._missing, why
        if is_new:
            log.info("ledger_missing", extra=logs.fields(why=why))

    def _note_unwritable(self, why: str) -> None:
        """All tasks meet the same; it is said once."""
        with self._telling:
            self._writable = False
            is_new = why not in self._unwritable
            self._unwritable[why] = None
        if is_new:
            log.error("ledger_unwritable", extra=logs.fields(why=why))

    def _report_hanging(self) -> None:
        """Once a run."""
        now = self._context.monotonic()
        for name, began in tuple(self._began.items()):
            if name not in self._hanging and now - began > self._tasks[name].takes_s:
                self._hanging.add(name)
                self._failures[name] += 1
                log.warning("task_still_running", extra=logs.fields(task=name, for_s=round(now - began)))


def _is_there(ledger: Ledger) -> bool:
    """Whether what was opened once is still what its URL leads to: a backup that was put back has the same name."""
    try:
        with ledger.ask():
            return True
    except LedgerReplaced:
        return False
    except LedgerUnavailable:  # for a moment, say: no reason to leave it, and to be another owner from now on
        return True


def _known_name(ledger: Ledger) -> str | None:
    """The name of what was opened once, if it was read before it was replaced."""
    try:
        return ledger.name
    except LedgerUnavailable:
        return None


class _ByCron(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Fires when cron would; `parked.cron` says why it isn't APScheduler's own trigger."""

    def __init__(self, cron: Cron, zone: tzinfo) -> None:
        self._cron = cron
        self._zone = zone

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        due = self._cron.next_after(previous_fire_time or now, self._zone)
        return due and due + timedelta(seconds=random.uniform(0, CRON_JITTER_S))


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
