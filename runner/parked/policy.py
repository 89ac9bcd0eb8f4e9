"""What follows a failure: the numbers of a policy, and the pure decision made with them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from parked.arguments import check_seconds, check_whole_number
from parked.verdict import Disposition, Kind, Reason, Verdict

MAX_BACKOFF_S: Final = 30.0
UNKNOWN_ATTEMPTS: Final = 2  # without evidence a third try is hope
# A job that is refused this often is too large for its quota. Simulated: at 30 % random refusals four would park
# 9 of 2,000 innocent jobs, eight none.
MAX_REFUSALS: Final = 8


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers by which a runner retries. Lengths are in seconds."""

    max_attempts: int = 4  # strikes after which a job is parked
    max_wait_s: float = 120.0  # a longer wait isn't slept: the job is parked, and a replay honours the wait
    max_outage_s: float = 900.0  # how long an outage or a rate limit is waited for and explains failures; 0: never
    stop_after_alike: int = 20  # different jobs in a row that failed alike, after which one is tried first; 0: never
    attempt_timeout_s: float = 600.0  # the deadline of one call
    drain_s: float = 20.0  # how long running calls are waited for when a run is stopped

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_s"):
                check_seconds(name, value, zero=name != "attempt_timeout_s")
            else:
                check_whole_number(name, value, at_least=1 if name == "max_attempts" else 0)


class Retry(NamedTuple):
    wait_s: float


class GiveUp(NamedTuple):
    disposition: Disposition
    wait_s: float | None = None  # before this has passed a replay would be in vain


class LetGo(NamedTuple):
    """The job goes back to the ledger, to the end of the line, as pending or parked as it was."""

    strikes: int | None = None  # how many are held against it then; None: as many as now


class Rest(NamedTuple):
    """The job goes back to the ledger as pending and stays in line: whoever dies in a long wait leaves no orphans."""

    strikes: int | None = None  # how many are held against it if nothing comes after this; None: as many as now


class Ruling(NamedTuple):
    """What follows a failure, and whether the attempt counts against the job."""

    then: Retry | GiveUp | LetGo
    strike: bool


def decide(strikes: int, verdict: Verdict, *, policy: Policy, jitter: float, day_left_s: float) -> Retry | GiveUp:
    """Decide what follows a failure that counts against its job. Pure.

    `strikes` counts the attempts held against it in this run or replay, the failed one included. `jitter` is a random
    number from 0 to 1; `day_left_s` is how long it takes until the daily quotas are reset.
    """
    if verdict.kind is Kind.PERMANENT:
        return GiveUp(Disposition.PERMANENT)
    if verdict.reason is Reason.DAILY_QUOTA_EXHAUSTED:
        return GiveUp(Disposition.EXHAUSTED, wait_s=day_left_s)
    most = policy.max_attempts if verdict.kind is Kind.RETRYABLE else min(policy.max_attempts, UNKNOWN_ATTEMPTS)
    if strikes >= most:
        return GiveUp(Disposition.EXHAUSTED, wait_s=verdict.retry_after_s)
    wait_s = verdict.retry_after_s
    if wait_s is None:
        wait_s = backoff_s(strikes, jitter=jitter)
    if wait_s > policy.max_wait_s:
        return GiveUp(Disposition.EXHAUSTED, wait_s=wait_s)
    return Retry(wait_s)


def backoff_s(strikes: int, *, jitter: float) -> float:
    """Return the wait after that many strikes, in seconds: doubled each time up to a bound, plus the jitter."""
    return min(2.0 ** min(strikes, 10), MAX_BACKOFF_S) + jitter
