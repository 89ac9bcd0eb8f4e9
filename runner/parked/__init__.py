"""parked: no Gemini job disappears silently.

Runs the calls of a Gemini API pipeline, tells every kind of failure apart, and keeps each failed job in a ledger.
A name is imported from its module when it is first used: a pipeline that only imports parked waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parked.aio import AsyncRunner
    from parked.deadletter import ApiError, classify_failure, dlq_summary, park, replay, run_with_dead_letter
    from parked.errors import (
        InvalidJob,
        JobConflict,
        LedgerMissing,
        LedgerTooNew,
        LedgerUnavailable,
        NotAnswered,
        ParkedError,
        SettingsError,
        TransitionError,
    )
    from parked.gemini import Gemini
    from parked.job import Job, Outcome, State
    from parked.judge import classify, classify_batch_row, classify_http_error
    from parked.ledger import Ledger, open_ledger
    from parked.policy import Policy
    from parked.runner import Runner
    from parked.verdict import Disposition, Kind, Reason, Scope, Verdict
    from parked.version import __version__
    from parked.wrapping import wrap

__all__ = [
    "ApiError",
    "AsyncRunner",
    "Disposition",
    "Gemini",
    "InvalidJob",
    "Job",
    "JobConflict",
    "Kind",
    "Ledger",
    "LedgerMissing",
    "LedgerTooNew",
    "LedgerUnavailable",
    "NotAnswered",
    "Outcome",
    "ParkedError",
    "Policy",
    "Reason",
    "Runner",
    "Scope",
    "SettingsError",
    "State",
    "TransitionError",
    "Verdict",
    "__version__",
    "classify",
    "classify_batch_row",
    "classify_failure",
    "classify_http_error",
    "dlq_summary",
    "open_ledger",
    "park",
    "replay",
    "run_with_dead_letter",
    "wrap",
]

_HOMES = {  # keep in step with the imports above, which are for type checkers; a test compares them
    "aio": "AsyncRunner",
    "deadletter": "ApiError classify_failure dlq_summary park replay run_with_dead_letter",
    "errors": "InvalidJob JobConflict LedgerMissing LedgerTooNew LedgerUnavailable NotAnswered ParkedError"
    " SettingsError TransitionError",
    "gemini": "Gemini",
    "job": "Job Outcome State",
    "judge": "classify classify_batch_row classify_http_error",
    "ledger": "Ledger open_ledger",
    "policy": "Policy",
    "runner": "Runner",
    "verdict": "Disposition Kind Reason Scope Verdict",
    "version": "__version__",
    "wrapping": "wrap",
}
_HOME_OF = {name: f"parked.{module}" for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
