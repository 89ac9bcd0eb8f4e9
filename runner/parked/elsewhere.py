"""Jobs that failed outside of parked: what is known of them, as the operation that takes them over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from parked.errors import InvalidJob
from parked.fingerprint import fingerprint
from parked.job import Job, check_keys, check_name
from parked.judge import classify_http_error
from parked.ledger.codec import encode, identity
from parked.ledger.operations import Closing, TakeOver
from parked.verdict import MEANINGS, Disposition, Kind, Reason, Verdict

MOST_CALLS: Final = 1_000_000_000
RULE: Final = "elsewhere.class"  # of a failure that nothing but its class and message tell of


@dataclass(frozen=True, slots=True)
class FailedElsewhere:
    """A job with the class it was put away under, what was said, and how often it was called."""

    job: Job
    error_class: str | None  # None: it is to be found from the message
    message: str
    attempts: int
    parked_at: float | None = None  # epoch seconds; None: nobody knows


def take_over(
    failed: FailedElsewhere, *, pipeline: str, batch: str = "", caller: str = "", anew: bool = True
) -> TakeOver:
    """Return the operation that parks a job under the class that it had.

    Raises:
        InvalidJob: its payload is no JSON value, its class is no name, or nobody makes so many calls.
    """
    if failed.error_class is not None:
        check_name("error_class", failed.error_class)
    if not isinstance(failed.attempts, int) or not 0 <= failed.attempts <= MOST_CALLS:
        raise InvalidJob(f"attempts must be a whole number from 0 to {MOST_CALLS:,}, got {failed.attempts!r}")
    check_keys(failed.job, pipeline=pipeline, batch=batch, caller=caller, checker="")
    verdict = _verdict(failed.error_class or "", failed.message)
    error_class = failed.error_class
    if error_class is None:
        permanent = verdict.kind is Kind.PERMANENT
        error_class = verdict.error_class(Disposition.PERMANENT if permanent else Disposition.EXHAUSTED)
    payload = encode(failed.job.payload)
    return TakeOver(
        pipeline,
        batch,
        failed.job.job_id,
        failed.job.model,
        payload,
        identity(failed.job.payload),
        error_class,
        Closing.of(verdict),
        calls=failed.attempts,
        caller=caller,
        parked_at=failed.parked_at,
        anew=anew,
    )


def _told(message: str) -> Verdict:
    """What a message means to `parked classify`; unclassified if nothing, or no failure."""
    from parked.pasted import read

    pasted = read(message)
    if pasted is None or pasted.verdict.ok:
        return classify_http_error(0, message)
    return pasted.verdict


def _verdict(error_class: str, message: str) -> Verdict:
    """What a failure judged elsewhere means: by status or reason in its class, by its message if it has none."""
    told = _told(message)
    code = error_class.rpartition(":")[2]
    if code.isascii() and code.isdecimal():
        return told if told.status == int(code) else classify_http_error(int(code), message)
    if not error_class and told.reason is not Reason.UNCLASSIFIED:
        return told
    reason = Reason(code) if code in set(Reason) else Reason.UNCLASSIFIED
    meaning = MEANINGS[reason]
    return replace(
        told,
        rule=RULE,
        kind=meaning.kind,
        reason=reason,
        scope=meaning.scope,
        status=None,
        fingerprint=fingerprint(
            rule=RULE, reason=reason, status=None, quota_id=told.quota_id, finish_reason=None, message=told.message
        ),
    )
