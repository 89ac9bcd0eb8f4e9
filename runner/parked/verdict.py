"""What an attempt's outcome means. The vocabulary is closed; what decides is in `rules.py` and `judge.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    RETRYABLE = "retryable"  # the same request may succeed later
    PERMANENT = "permanent"  # it can't until somebody changes input, configuration or code
    UNKNOWN = "unknown"  # no evidence; tried at most twice


class Scope(StrEnum):
    JOB = "job"  # this job's own fault
    MODEL = "model"  # every job on that model would fail
    PROJECT = "project"  # every job would fail


class Disposition(StrEnum):
    PERMANENT = "permanent"
    EXHAUSTED = "exhausted"
    ORPHANED = "orphaned"


class Reason(StrEnum):
    RATE_LIMITED = "rate_limited"
    DAILY_QUOTA_EXHAUSTED = "daily_quota_exhausted"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    NETWORK = "network"
    RESOURCE_NOT_READY = "resource_not_ready"
    RECITATION = "recitation"
    REPETITION_LOOP = "repetition_loop"
    EMPTY_ANSWER = "empty_answer"
    STREAM_INTERRUPTED = "stream_interrupted"
    MALFORMED_ANSWER = "malformed_answer"
    BAD_RESPONSE_BODY = "bad_response_body"
    NO_QUOTA = "no_quota"
    BILLING_REQUIRED = "billing_required"
    AUTH_INVALID = "auth_invalid"
    PERMISSION_DENIED = "permission_denied"
    ACCOUNT_SUSPENDED = "account_suspended"
    LOCATION_UNSUPPORTED = "location_unsupported"
    MODEL_NOT_FOUND = "model_not_found"
    CLIENT_FAULT = "client_fault"
    RESOURCE_MISSING = "resource_missing"
    INVALID_REQUEST = "invalid_request"
    INPUT_TOO_LARGE = "input_too_large"
    PROMPT_BLOCKED = "prompt_blocked"
    ANSWER_BLOCKED = "answer_blocked"
    ANSWER_TRUNCATED = "answer_truncated"
    STOPPED_OTHER = "stopped_other"
    MISSING_RESULT = "missing_result"
    UNCLASSIFIED = "unclassified"


class Meaning(NamedTuple):
    """What a reason says: its kind (fixed), its usual scope, and two sentences for people."""

    kind: Kind
    scope: Scope
    meaning: str
    remedy: str  # what an operator does


MEANINGS: Final[dict[Reason, Meaning]] = {
    Reason.RATE_LIMITED: Meaning(
        Kind.RETRYABLE,
        Scope.MODEL,
        "429 for a short window, or without evidence of another window",
        "replay once it has passed; lower the rate if it lasts",
    ),
    Reason.DAILY_QUOTA_EXHAUSTED: Meaning(
        Kind.RETRYABLE,
        Scope.MODEL,
        "a per-day quota is used up",
        "replay after midnight Pacific time, or raise the quota",
    ),
    Reason.OVERLOADED: Meaning(
        Kind.RETRYABLE,
        Scope.MODEL,
        "503, the model is overloaded",
        "replay once it has passed; switch model if it lasts",
    ),
    Reason.SERVER_ERROR: Meaning(
        Kind.RETRYABLE,
        Scope.JOB,
        "500 or 502, a fault inside the service",
        "if one job repeats it, shrink or change its input",
    ),
    Reason.TIMEOUT: Meaning(
        Kind.RETRYABLE,
        Scope.JOB,
        "the server's or our own deadline passed before the answer came",
        "raise the timeout or split the job",
    ),
    Reason.CANCELLED: Meaning(Kind.RETRYABLE, Scope.JOB, "the call was cancelled before an answer came", "replay"),
    Reason.NETWORK: Meaning(
        Kind.RETRYABLE,
        Scope.JOB,
        "no usable HTTP answer: DNS, connect, TLS, reset, a body cut in the middle",
        "check the network if many",
    ),
    Reason.RESOURCE_NOT_READY: Meaning(
        Kind.RETRYABLE,
        Scope.JOB,
        "an uploaded file is still being processed",
        "wait for ACTIVE before sending, then replay",
    ),
    Reason.RECITATION: Meaning(
        Kind.RETRYABLE,
        Scope.JOB,
        "stopped for closeness to a source",
        "replay; reword or raise the temperature if it repeats",
    ),
    Reason.REPETITION_LOOP: Meaning(
        Kind.RETRYABLE,
        Scope.JOB,
        "ran to the token limit repeating one unit",
        "replay; change prompt or schema if it repeats",
    ),
    Reason.EMPTY_ANSWER: Meaning(
        Kind.RETRYABLE, Scope.JOB, "an HTTP 200 without an answer and without a stated cause", "replay"
    ),
    Reason.STREAM_INTERRUPTED: Meaning(Kind.RETRYABLE, Scope.JOB, "a stream ended without a finish reason", "replay"),
    Reason.MALFORMED_ANSWER: Meaning(
        Kind.RETRYABLE,
        Scope.JOB,
        "unusable output: a broken function call, JSON that doesn't parse, or refused by the pipeline's own check",
        "replay; simplify tools or schema, or look at the check, if it repeats",
    ),
    Reason.BAD_RESPONSE_BODY: Meaning(
        Kind.RETRYABLE, Scope.JOB, "the response body could not be parsed at all", "check proxies if many"
    ),
    Reason.NO_QUOTA: Meaning(
        Kind.PERMANENT,
        Scope.MODEL,
        "the limit is 0: this tier has no access",
        "enable billing or change the model, then replay",
    ),
    Reason.BILLING_REQUIRED: Meaning(
        Kind.PERMANENT,
        Scope.PROJECT,
        "credits used up, billing off, or a paid tier is needed here",
        "pay or link billing, then replay",
    ),
    Reason.AUTH_INVALID: Meaning(
        Kind.PERMANENT,
        Scope.PROJECT,
        "the key or token is invalid, expired, leaked, missing or doubled",
        "replace the credential, then replay",
    ),
    Reason.PERMISSION_DENIED: Meaning(
        Kind.PERMANENT,
        Scope.PROJECT,
        "the API is off, a role is missing, the key is restricted, or the project is wrong",
        "fix access, then replay",
    ),
    Reason.ACCOUNT_SUSPENDED: Meaning(
        Kind.PERMANENT,
        Scope.PROJECT,
        "project, key or account is suspended or limited",
        "contact Google; stop sending",
    ),
    Reason.LOCATION_UNSUPPORTED: Meaning(
        Kind.PERMANENT, Scope.PROJECT, "the calls leave from an unsupported region", "move the worker, then replay"
    ),
    Reason.MODEL_NOT_FOUND: Meaning(
        Kind.PERMANENT,
        Scope.MODEL,
        "the model's name is retired, wrong, or not in this region",
        "change the model, then replay",
    ),
    Reason.CLIENT_FAULT: Meaning(
        Kind.PERMANENT,
        Scope.PROJECT,
        "this process failed before any request went out: credentials, CA store, closed client, a call not awaited",
        "fix the worker, then replay",
    ),
    Reason.RESOURCE_MISSING: Meaning(
        Kind.PERMANENT, Scope.JOB, "a file, cache or stored result is gone", "upload or rebuild it, then replay"
    ),
    Reason.INVALID_REQUEST: Meaning(
        Kind.PERMANENT,
        Scope.JOB,
        "the API or the SDK refuses this request",
        "fix input or code; if many jobs share the message, fix the config",
    ),
    Reason.INPUT_TOO_LARGE: Meaning(
        Kind.PERMANENT, Scope.JOB, "over the token window or the size limit", "split the input"
    ),
    Reason.PROMPT_BLOCKED: Meaning(Kind.PERMANENT, Scope.JOB, "the prompt was refused", "change the input"),
    Reason.ANSWER_BLOCKED: Meaning(
        Kind.PERMANENT, Scope.JOB, "the answer was withheld by a filter", "change the input"
    ),
    Reason.ANSWER_TRUNCATED: Meaning(
        Kind.PERMANENT,
        Scope.JOB,
        "stopped at the output token limit, with or without text",
        "raise the limit or cap thinking, then replay",
    ),
    Reason.STOPPED_OTHER: Meaning(
        Kind.UNKNOWN,
        Scope.JOB,
        "stopped for a reason that names no cause, or one newer than this code",
        "look at the job",
    ),
    Reason.MISSING_RESULT: Meaning(
        Kind.UNKNOWN,
        Scope.JOB,
        "a batch gave neither answer nor error for the request",
        "look at the batch, resubmit",
    ),
    Reason.UNCLASSIFIED: Meaning(Kind.UNKNOWN, Scope.JOB, "nothing identifies the cause", "look at the error"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one outcome means. If `ok`, then kind, reason, scope, retry_after_s, status and fingerprint are None."""

    ok: bool
    rule: str  # the name of the rule that decided, e.g. `http.429.per_day`; also for a success
    kind: Kind | None = None
    reason: Reason | None = None
    scope: Scope | None = None
    retry_after_s: float | None = None  # what the server asks for; None if it does not say
    status: int | None = None  # the HTTP status, or the `code` of an `error` body; None if the fault came as neither
    fingerprint: str | None = None  # shared by failures with one cause, stable across processes and releases
    message: str = ""  # what the server or the exception said: scrubbed of secrets and cut. User text: ledger only
    quota_id: str | None = None  # the quota that a 429 names, e.g. `GenerateRequestsPerDayPerProjectPerModel-FreeTier`
    # What a server asks for although the day's quota is used up: it speaks for a shorter window, and is worth one try.
    shorter_delay_s: float | None = None

    @property
    def code(self) -> str:
        """The second half of an error class: the status where the fault came as one, else the reason."""
        return str(self.status) if self.status is not None else str(self.reason)

    def error_class(self, disposition: Disposition) -> str:
        """The class under which a job with this verdict is parked, e.g. `permanent:400`."""
        return f"{disposition}:{self.code}"
