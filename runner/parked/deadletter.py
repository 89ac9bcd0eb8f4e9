"""The functions that the idea was published with, as a thin layer: same names, same values, same printed lines.

Here `call_model` takes the payload alone, unknown failures are retried as often as retryable ones, the server's wishes
are not asked for, and there is no gate. The article kept no memory of successes: a job that has succeeded is called
again, in a batch of its own; a parked one is claimed and replayed by the call.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace as replaced
from itertools import islice
from pathlib import Path
from typing import Any, Final

from parked.arguments import check_function, check_kind, check_whole_number
from parked.course import Hold, Raised, Reply, Rules
from parked.elsewhere import FailedElsewhere, take_over
from parked.errors import TextMissing
from parked.job import ANSWERED, Job, State
from parked.judge import Judged
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.ledger.codec import decode, identity
from parked.ledger.shared import shared_ledger
from parked.ledger.store import Filters
from parked.policy import GiveUp, Policy, Retry, Ruling, backoff_s
from parked.runner import SyncDriver
from parked.running import Running, name_of
from parked.timing import SystemClock
from parked.verdict import Disposition, Kind, Verdict

PIPELINE: Final = "default"

_log = logging.getLogger("parked.replays")

PERMANENT_STATUSES: Final = frozenset({400, 403, 404, 422})
RETRYABLE_STATUSES: Final = frozenset({429, 500, 502, 503, 504})
PERMANENT_MARKERS: Final = ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "SAFETY", "BLOCKED")
RETRYABLE_MARKERS: Final = ("DEADLINE_EXCEEDED", "UNAVAILABLE")


class ApiError(Exception):
    """What `call_model` raises when a call fails."""

    def __init__(self, status_code: int | None, message: str | None = "") -> None:
        super().__init__(status_code, message)
        self.status_code = status_code
        self.message = message

    def __str__(self) -> str:
        return f"{self.status_code}: {self.message}"


def classify_failure(status_code: int | None, message: str | None) -> str:
    """Return `'permanent'`, `'retryable'` or `'unknown'`. A telling status beats words in the message."""
    if status_code in PERMANENT_STATUSES:
        return "permanent"
    if status_code in RETRYABLE_STATUSES:
        return "retryable"
    words = str(message or "").upper()
    if any(marker in words for marker in PERMANENT_MARKERS):
        return "permanent"
    if any(marker in words for marker in RETRYABLE_MARKERS):
        return "retryable"
    return "unknown"


def run_with_dead_letter(
    job_id: str, payload: Any, model: str, call_model: Callable[[Any], Any], max_attempts: int = 4
) -> Any:
    """Call the model until it answers; return the answer, or None once the job is parked.

    `call_model(payload)` raises `ApiError` on failure; any other exception parks the job too. A permanent failure
    parks it at once as `permanent:<status>`, others after `max_attempts` as `exhausted:<status>`.
    """
    job = Job(job_id, model, payload)
    on = _article(_ledger(None), call_model, max_attempts=max_attempts)
    hold = _taken_on(on, job)
    SyncDriver(on).drive(hold, on.trace(hold))
    if hold.row.state is State.PARKED:
        on.say_parked(job_id, hold.row.error_class)
    if hold.row.state not in ANSWERED:
        return None
    return on.returned if hold.verdict is not None and hold.verdict.ok else on.answer(hold)


def park(job_id: str, payload: Any, model: str, error_class: str, error_message: str, attempts: int) -> None:
    """Put a failed job away, with its class, what was said, and how often it was tried."""
    check_kind("error_message", error_message, str, rule="text")
    failed = FailedElsewhere(Job(job_id, model, payload), error_class, error_message, attempts)
    _ledger(None).record(take_over(failed, pipeline=PIPELINE))


def replay(
    call_model: Callable[[Any], Any], limit: int = 20, dry_run: bool = True, path: str | os.PathLike[str] | None = None
) -> dict[str, int | bool]:
    """Call the model once more for parked jobs, oldest first; what fails again goes behind the others.

    Returns `{"scanned", "recovered", "still_failing", "dry_run"}`. A dry run prints what it would do and calls nothing.
    """
    check_whole_number("limit", limit, at_least=0)
    ledger = _ledger(path)
    with ledger.ask() as reader:
        whole = (row for row in reader.jobs(Filters(), states=(State.PARKED,)) if row.erased_at is None)
        parked = list(islice(whole, limit))
    if dry_run:
        for row in parked:
            print(f"[dry-run] would replay {row.job_id} ({row.error_class})")  # noqa: T201 - the article's line
        return {"scanned": len(parked), "recovered": 0, "still_failing": 0, "dry_run": True}
    on = _article(ledger, call_model, max_attempts=1)
    driver = SyncDriver(on)
    replay_id = ledger.record(op.OpenReplay("article", who="replay()", filters="{}"))
    states: Counter[State] = Counter()
    for row in parked:
        try:
            payload = _payload(ledger, row)
        except TextMissing as exc:  # it stays parked, and no other job with it
            _log.warning("job_left job=%s why=%s", json.dumps(row.job_id), json.dumps(f"payload {exc.why}"))
            states[State.REPLAYING] += 1
            continue
        hold = on.hold(row, payload, replay_id=replay_id)
        driver.drive(hold, on.trace(hold))
        states[hold.row.state if hold.called else State.REPLAYING] += 1
    recovered, still_failing = states[State.RECOVERED], states[State.PARKED]
    ledger.record(op.CloseReplay(replay_id, recovered, still_failing, states[State.REPLAYING]))
    return {"scanned": len(parked), "recovered": recovered, "still_failing": still_failing, "dry_run": False}


def dlq_summary(path: str | os.PathLike[str] | None = None) -> None:
    """Print what is parked: one line in all, and one for each error class, largest first."""
    with _ledger(path).ask() as reader:
        classes = Counter(row.error_class for row in reader.jobs(Filters(), states=(State.PARKED,)))
    if not classes:
        print("dead-letter: clean (0 parked)")  # noqa: T201 - the article's line
        return
    print(f"dead-letter: {classes.total()} parked")  # noqa: T201 - as above
    for error_class, jobs in classes.most_common():
        print(f"  {jobs:4d}  {error_class}")  # noqa: T201 - as above


class _Article(Running):
    """The article's rules: its own kinds of failure, its own waits, no gate."""

    returned: Any = None  # by the last call, as parked judges it, and not yet as the ledger keeps it

    def rules_alone(self) -> Rules:
        return Rules(self._judge, has_check=False, rule=self._rule)

    def _judge(self, payload: Any, reply: Reply) -> Judged:
        judged = self.judge(payload, reply)
        self.returned = judged.answer
        if isinstance(reply.outcome, Raised) and isinstance(reply.outcome.error, ApiError):
            error = reply.outcome.error
            kind = Kind(classify_failure(error.status_code, error.message))
            return judged._replace(verdict=replaced(judged.verdict, kind=kind))
        return judged

    def _rule(self, hold: Hold, verdict: Verdict) -> Ruling | None:
        if verdict.ok:
            return None
        strikes = hold.row.strikes + 1
        then: Retry | GiveUp = Retry(backoff_s(strikes, jitter=random.uniform(0, 1)))
        if verdict.kind is Kind.PERMANENT:
            then = GiveUp(Disposition.PERMANENT)
        elif strikes >= self.policy.max_attempts:
            then = GiveUp(Disposition.EXHAUSTED)
        return Ruling(then, strike=True)


class _ArticleClock(SystemClock):
    def sleep(self, wait_s: float, stop: threading.Event) -> None:
        time.sleep(wait_s)  # as the article does: nothing stops these functions but an exception


def _article(ledger: Ledger, call_model: Callable[[Any], Any], *, max_attempts: int) -> _Article:
    check_function("call_model", call_model, rule="payload -> answer")

    def call(payload: Any, model: str) -> Any:
        return call_model(payload)

    return _Article(
        ledger,
        call,
        pipeline=PIPELINE,
        policy=Policy(max_attempts=max_attempts),
        caller=name_of(call_model),
        clock=_ArticleClock(),
    )


def _taken_on(on: _Article, job: Job) -> Hold:
    """Take a job on: a parked or pending one again, any other that is known in a batch of its own."""
    with on.ledger.ask() as reader:
        known = reader.jobs_by_key(job.job_id, pipeline=PIPELINE, batch=None)
    wanted = identity(job.payload) if known else b""
    for row in known:
        if row.state not in (State.PARKED, State.PENDING) or not on.ledger.vault.is_same(row.payload_hash, wanted):
            continue
        if row.state is State.PARKED and row.erased_at is None:
            replay_id = on.ledger.record(op.OpenReplay("article", who="run_with_dead_letter()", filters="{}"))
            return on.hold(row, job.payload, replay_id=replay_id)
        if row.state is State.PENDING:
            return on.hold(row, job.payload)
    on.batch = f"again-{os.urandom(4).hex()}" if known else ""
    accepted: op.Accepted = on.ledger.record(on.accept(job, start=True))
    return on.hold(accepted.row, job.payload, attempt=accepted.attempt)


def _payload(ledger: Ledger, row: op.JobRow) -> Any:
    with ledger.ask() as reader:
        return decode(reader.payload(row.id))


def _ledger(path: str | os.PathLike[str] | None) -> Ledger:
    """The ledger at that path, else the one that the settings name; it is created if it is missing."""
    return shared_ledger(None if path is None else f"sqlite:///{Path(path).absolute()}", role="article")
