"""Many processes on one ledger, killed at random and looked after: see `Arena.run`."""

from __future__ import annotations

import os
import random
import re
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from parked.errors import LedgerMissing, LedgerUnavailable
from parked.ledger import Ledger, open_ledger
from parked.owners import _start_and_state
from torture import laws
from torture.api import Api
from torture.cast import HABITS, SERVER, Kind, Moment, Task, Writer, moments, server_moments, words_of
from torture.laws import Calls, Snapshot
from torture.nursery import Ended, Nursery, Started

LOOK_S: Final = 0.02
PATIENCE_S: Final = 120.0  # without any news
BETWEEN_S: Final = 0.5  # between the end of a process by itself and the next one of its role
SHORT: Final = ("submit", "import")  # so short that most kills would be theirs
ENOUGH_PENDING: Final = 60  # jobs; then nothing more is submitted
ENOUGH_PARKED: Final = 4  # jobs; from then on they are replayed
SURROUNDINGS: Final = 3
PENDING: Final = 4
ENDS_WELL: Final = frozenset({0, 1, PENDING})
AUDIT: Final = "audit"
# What no user may ever be told.
NEVER_SAID: Final = re.compile(r"Traceback|a bug in parked|database is locked|beat_failed|answers_not_delivered")


@dataclass
class Process:
    name: str
    role: str
    moment: Moment | None
    task: Task | None
    found_ledger: bool  # whether there was one to be found when it was started
    began_at: float = 0.0
    pid: int = 0
    process_start: str = ""
    killed: bool = False


class Death(NamedTuple):
    """One line of the report."""

    who: str
    when: str
    held: int  # jobs that it had in its hands


@dataclass
class Arena:
    """One ledger, and all who use it. Make a new one for each run."""

    folder: Path
    url: str
    seed: int
    nursery: Nursery
    api: Api
    server: Any = None  # a `servers.Postgres`, where there is one to be killed
    deaths: list[Death] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._calls = Calls()
        self._moments = {role: moments(self.seed, role) for role in HABITS}
        self._server_moments = server_moments(self.seed)
        self._writers = {
            role: Writer(role, self.folder, random.Random(f"{self.seed}/{role}/jobs"))
            for role, habits in HABITS.items()
            if habits.jobs
        }
        self._processes: dict[str, Process] = {}
        self._started: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._ledger: Ledger | None = None
        self._last = Snapshot({}, {}, {}, {}, {})
        self._all_calls = 0
        self._statuses: set[int] = set()  # of those that ended by themselves
        self._news_at = time.monotonic()
        self._selector = selectors.DefaultSelector()

    # --- the whole run ---

    def run(self, kills: int) -> None:
        """Let them work and die until so many were killed, looking after the laws; then see everything to its end."""
        for heard in (self.nursery, self.api):
            self._selector.register(heard, selectors.EVENT_READ)
        server_calls = next(self._server_moments)
        try:
            while len(self.deaths) < kills:
                for role in HABITS:
                    self._start_if_due(role)
                self._turn()
                for process in list(self._processes.values()):
                    self._kill_if_due(process)
                if self.server is not None and self._all_calls >= server_calls:
                    self._kill_server()
                    server_calls = self._all_calls + next(self._server_moments)
            self._finish()
        finally:
            self._end_all()
            self._selector.close()
            if self._ledger is not None:
                self._ledger.close()

    # --- processes ---

    def _start_if_due(self, role: str) -> None:
        if any(process.role == role for process in self._processes.values()):
            return
        if time.monotonic() < self._not_before.get(role, 0.0):
            return
        states = Counter(job.state for job in self._last.jobs.values())
        if role == "submit" and states["pending"] > ENOUGH_PENDING:
            return
        if role == "replay" and states["parked"] < ENOUGH_PARKED:
            return
        self._start(role, next(self._moments[role]))

    def _start(self, role: str, moment: Moment | None, words: list[str] | None = None) -> Process:
        writer = self._writers.get(role)
        task = writer.next() if writer and words is None else None
        self._started[role] += 1
        name = f"{role}.{self._started[role]}"
        process = Process(name, role, moment, task, found_ledger=self._ledger is not None)
        self._processes[name] = process
        cpu_s = moment.amount if moment is not None and moment.kind is Kind.CPU else None
        self.nursery.start(name, words or words_of(role, task), self._env(name), cpu_s=cpu_s)
        return process

    def _env(self, name: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TZ")}
        return kept | {
            "PARKED_LEDGER": self.url,
            "GEMINI_API_KEY": name,
            "GOOGLE_GEMINI_BASE_URL": self.api.url,
            "PARKED_MAX_ATTEMPTS": "2",
            "PARKED_DRAIN_S": "5",
        }

    def _kill_if_due(self, process: Process) -> None:
        moment = process.moment
        if moment is None or process.killed or not process.pid:
            return
        calls = moment.kind is Kind.CALLS and self._calls.by[process.name] >= moment.amount
        wall = moment.kind is Kind.WALL and time.monotonic() - process.began_at >= moment.amount
        if calls or wall:
            process.killed = True
            self.nursery.kill(process.name, signal.SIGKILL)

    def _turn(self, timeout_s: float = LOOK_S) -> None:
        """Take in what has happened."""
        for key, _ in self._selector.select(timeout_s):
            self._news_at = time.monotonic()
            if key.fileobj is self.nursery:
                for news in self.nursery.hear():
                    self._heard(news)
            else:
                self._hear_calls()
        assert time.monotonic() - self._news_at < PATIENCE_S, (
            f"nothing happens any more; alive: {list(self._processes)}"
        )

    def _hear_calls(self) -> None:
        for call in self.api.hear():
            self._all_calls += 1
            self._calls.add(call)

    def _heard(self, news: Started | Ended) -> None:
        process = self._processes[news.name]
        if isinstance(news, Started):
            process.pid, process.process_start, process.began_at = news.pid, news.process_start, time.monotonic()
            return
        del self._processes[news.name]
        # Told to end before it could listen: no other end than a kill.
        too_early = news.status == -signal.SIGTERM and process.moment is None
        if news.status in (-signal.SIGKILL, -signal.SIGPROF) or too_early:
            self._after_kill(process)
            return
        self._ended(process, news.status)

    def _ended(self, process: Process, status: int) -> None:
        """A process came to its end before its moment."""
        self._statuses.add(status)
        said = self.nursery.log(process.name).read_text("utf-8", "replace")
        assert not NEVER_SAID.search(said), f"{process.name} said: {said}"
        away = status == SURROUNDINGS and self.server is not None
        ends_well = ENDS_WELL | {143} if process.moment is None else ENDS_WELL
        # A replay or a worker that comes before the first run finds no ledger.
        no_ledger = status == SURROUNDINGS and not process.found_ledger
        assert process.role != AUDIT or status == 0, f"the audit ended with {status}: {said}"
        assert status in ends_well or away or no_ledger, f"{process.name} ended with {status}: {said}"
        self._not_before[process.role] = time.monotonic() + BETWEEN_S
        if process.task is not None and status in ENDS_WELL:
            # A run that left jobs to others, or in backoff, is given the same file again.
            process.task.done = status in (0, 1)

    def _kill_server(self) -> None:
        self.server.kill()
        self.server.start()
        self.deaths.append(Death(SERVER, f"after {self._all_calls} calls of all", 0))
        self._look_after(None)

    # --- the laws ---

    def _after_kill(self, process: Process) -> None:
        held = self._look_after(process)
        self.deaths.append(Death(process.name, str(process.moment), held))
        if process.role in SHORT:
            self._not_before[process.role] = time.monotonic() + BETWEEN_S

    def _look_after(self, process: Process | None) -> int:
        """Sweep, as the next process does, and hold all that is there against the laws."""
        said = "" if process is None else self.nursery.log(process.name).read_text("utf-8", "replace")
        assert not NEVER_SAID.search(said), f"{process} said: {said}"
        if not self._open():
            return 0
        assert self._ledger is not None
        self._hear_calls()
        asked = Counter(self._calls.asked)
        before = self._patiently(lambda ledger: laws.look(ledger))
        self._patiently(lambda ledger: ledger.sweep())
        after = self._patiently(lambda ledger: laws.look(ledger))
        living = [(p.pid, p.process_start) for p in self._processes.values() if _lives(p)]
        self._hear_calls()
        laws.check_calls_before(asked, before)
        laws.check_calls_after(after, self._calls)
        laws.check_nothing_vanished(self._last, before)
        laws.check_nothing_vanished(before, after)
        laws.check_nobody_living_is_lost(after, living)
        for task in self._tasks():
            if task.out is not None and not task.done:
                laws.check_output(task.out, whole=False)
        self._last = after
        if process is None:
            return 0
        held: int = laws.check_orphans(process.pid, process.process_start, before, after)
        return held

    def _open(self) -> bool:
        """Whether there is a ledger; it is opened once there is."""
        if self._ledger is not None:
            return True
        try:
            self._ledger = open_ledger(self.url, create=False, migrate=False, role="torture", write_patience_s=60)
        except LedgerMissing:
            return False
        return True

    def _patiently(self, act: Callable[[Ledger], Any]) -> Any:
        """A server that was killed has broken our connections, too: once more, then."""
        assert self._ledger is not None
        for tries_left in (2, 1, 0):
            try:
                return act(self._ledger)
            except LedgerUnavailable:
                if self.server is None or not tries_left:
                    raise
        raise AssertionError

    def _tasks(self) -> Iterator[Task]:
        for writer in self._writers.values():
            yield from writer.tasks

    # --- the end ---

    def _finish(self) -> None:
        """Nobody is killed any more: each file to its end, what is pending, what was orphaned; then the last look."""
        for process in self._processes.values():
            process.moment = None
        self._end_all(signal.SIGTERM)
        # Of an arena in which everybody died at once there may be no ledger: who takes jobs on makes it.
        last = {role: writer.tasks[-1] if writer.tasks else writer.next() for role, writer in self._writers.items()}
        self._together((role, words_of(role, task)) for role, task in last.items())
        orphans = ["parked", "replay", "--class", "orphaned:*", "--all", "--canary", "0", "--apply"]
        # A job that was handed back in its backoff isn't due for a second or two.
        while PENDING in self._together([("work", ["parked", "work", "--until-empty"])]):
            pass
        self._together([("replay", orphans)])
        self._together((task.role, words_of(task.role, task)) for task in self._tasks() if task.out is not None)
        self._together([(AUDIT, ["parked", "audit"])])
        self._look_after(None)
        self._check_the_end()

    def _together(self, commands: Iterable[tuple[str, list[str]]]) -> set[int]:
        """Run these to their ends, side by side, and return with which statuses they ended."""
        self._statuses.clear()
        for role, words in commands:
            self._start(role, None, words)
        while self._processes:
            self._turn()
        return self._statuses

    def _check_the_end(self) -> None:
        """Every job of every file is in the ledger once, at an end; and each answer once in the file of its run."""
        there = Counter((job.pipeline, job.batch, job.job_id) for job in self._last.jobs.values())
        texts = {
            (job.pipeline, job.batch, job.job_id): self._last.answers.get(job.id) for job in self._last.jobs.values()
        }
        for task in self._tasks():
            wanted = [(task.pipeline, task.batch, id) for id in task.prompts]
            missing = [key for key in wanted if there[key] != 1]
            assert not missing, f"not in the ledger once: {missing}"
            if task.out is None:
                continue
            answered = {key[2]: text for key in wanted if (text := texts[key]) is not None}
            assert laws.check_output(task.out, whole=True) == answered, f"{task.out} does not hold what was answered"
        states = Counter(job.state for job in self._last.jobs.values())
        assert states.keys() <= {"succeeded", "recovered", "parked"}, states
        orphans = [job for job in self._last.jobs.values() if (job.error_class or "").startswith("orphaned")]
        left = [job for job in orphans if job.state == "parked"]
        # One that a drained replay gave back in its backoff wasn't due yet.
        assert all(job.not_before is not None for job in left), f"replayed, and orphaned still: {left}"

    def _end_all(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End those that still run."""
        if how is signal.SIGKILL:
            for name in self._processes:
                self.nursery.kill(name, how)
            self._processes.clear()
            return
        asked: set[str] = set()
        while self._processes:
            for process in self._processes.values():
                if process.pid and process.name not in asked:
                    asked.add(process.name)
                    self.nursery.kill(process.name, how)
            self._turn()


def _lives(process: Process) -> bool:
    """Whether it still runs, whatever the nursery has told us of it yet."""
    start, state = _start_and_state(process.pid) if process.pid else ("", "")
    return start == process.process_start and state not in "ZX"
