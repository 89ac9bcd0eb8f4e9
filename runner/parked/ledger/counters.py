"""The families of counters that a ledger keeps, as data: what `a` and `b` mean, and whether they only grow.

Counters change in the same transaction as the job, so what a scrape shows is what the ledger holds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

# Upper bounds in seconds; answers of Gemini take from a fraction of a second to minutes. `inf` ends every histogram.
DURATION_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class Family(NamedTuple):
    a: str  # what the first free label holds; empty: nothing
    b: str
    is_gauge: bool = False  # may fall, or is set; else it only grows
    per_model: bool = True  # False: `model` is empty


class Metric(StrEnum):
    JOBS_ACCEPTED = "jobs_accepted"
    JOBS_SUCCEEDED = "jobs_succeeded"
    JOBS_PARKED = "jobs_parked"  # by a run, once each
    JOBS_RECOVERED = "jobs_recovered"
    JOBS_DISCARDED = "jobs_discarded"
    JOBS_REPLAYED = "jobs_replayed"
    PARKED_NOW = "parked_now"
    LEDGER_JOBS = "ledger_jobs"  # rows by state now
    ATTEMPTS = "attempts"
    ATTEMPT_DURATION = "attempt_duration"
    TOKENS = "tokens"
    PAUSES = "pauses"  # by each process that paused
    DELIVERIES = "deliveries"  # of answers of recovered jobs, to a function of the user's
    LAST_ACCEPTED = "last_accepted"  # the gauges of time hold epoch seconds
    LAST_SUCCESS = "last_success"
    LAST_PARKED = "last_parked"


FAMILIES: Final[dict[Metric, Family]] = {
    Metric.JOBS_ACCEPTED: Family("", ""),
    Metric.JOBS_SUCCEEDED: Family("", ""),
    Metric.JOBS_PARKED: Family("error_class", "reason"),
    Metric.JOBS_RECOVERED: Family("error_class", "reason"),
    Metric.JOBS_DISCARDED: Family("error_class", "reason"),
    Metric.JOBS_REPLAYED: Family("error_class", "trigger/result"),
    Metric.PARKED_NOW: Family("error_class", "reason", is_gauge=True),
    Metric.LEDGER_JOBS: Family("state", "", is_gauge=True, per_model=False),
    Metric.ATTEMPTS: Family("kind", "reason"),
    Metric.ATTEMPT_DURATION: Family("kind", "upper bound in s, or `sum`"),
    Metric.TOKENS: Family("direction", "kind"),
    Metric.PAUSES: Family("reason", ""),
    Metric.DELIVERIES: Family("result", ""),
    Metric.LAST_ACCEPTED: Family("", "", is_gauge=True, per_model=False),
    Metric.LAST_SUCCESS: Family("", "", is_gauge=True, per_model=False),
    Metric.LAST_PARKED: Family("error_class", "", is_gauge=True, per_model=False),
}


class Move(NamedTuple):
    """One change of one label set. `value` is added, or set where the family is one of the `last_…` gauges."""

    metric: Metric
    pipeline: str
    model: str
    a: str
    b: str
    value: float
    trace_id: str | None = None  # the sampled span behind it, for exemplars
    span_id: str | None = None
    example: float | None = None  # what the exemplar shows, where it isn't `value`: a duration


def duration_bucket(duration_s: float) -> str:
    """The one bucket that counts this duration; it is made cumulative when it is rendered."""
    return next((f"{bound:g}" for bound in DURATION_BOUNDS_S if duration_s <= bound), "inf")
