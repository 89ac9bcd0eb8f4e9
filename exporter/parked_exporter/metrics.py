"""The table of metrics: names, types, labels, help, and where each comes from in what the ledger holds. Pure.

Nothing is kept here between scrapes and nothing is computed that the ledger doesn't hold. `docs/metrics.md` is made
from this table: `python -m parked_exporter.metrics > docs/metrics.md`.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from parked.job import State
from parked.ledger.books import SET_BY_THE_LATEST
from parked.ledger.counters import FAMILIES, Metric
from parked.ledger.labels import MAX_PAIRS, MAX_PIPELINES, OTHER
from parked.ledger.moves import MAYBE_SENT, NOT_SENT
from parked.ledger.store import CounterRow
from parked.rules import HTTP_RULES
from parked.verdict import MEANINGS, Disposition, Kind, Reason

AUDIT_MARK: Final = "audit"
TASK_MARKS: Final = "task:"  # what their names begin with
EVERY: Final = "*"  # as a model: all of them


_JOB: Final = ("pipeline", "model")
_PARKED: Final = (*_JOB, "error_class", "reason")


def reason_label(reason: str) -> str:
    """A reason that only a newer parked knows is `other`."""
    return reason if reason in set(Reason) else OTHER


def task_mark(task: str) -> str:
    """The mark that holds when a scheduled task last succeeded, as epoch seconds."""
    return TASK_MARKS + task


@dataclass(frozen=True, slots=True)
class Readings:
    """What one look into the ledger found: all of one snapshot. Times are epoch seconds."""

    ledger: str  # the short random word that names it
    counters: Mapping[Metric, tuple[CounterRow, ...]]
    oldest: Mapping[State, Mapping[tuple[str, str], float]]  # (pipeline, error class or '') -> since when
    owners: Mapping[str, int]  # alive, lost -> how many
    audit: AuditFound | None  # None: rows were never counted
    task_successes: Mapping[str, float]
    leases: Mapping[str, Mapping[str, Any]]  # task -> who holds it
    pauses: Sequence[tuple[str, str, str]] = ()  # pipeline, model (`*`: all), reason
    size_bytes: int = 0
    gates: Sequence[tuple[str, str, bool]] = ()  # model (`*`: all), why, whether it is closed for that now


@dataclass(frozen=True, slots=True)
class AuditFound:
    """The mark that the audit leaves: when rows were last counted, and by how many each pipeline was off."""

    at: float
    differences: Mapping[str, float]  # pipeline -> jobs; only those that were off

    @classmethod
    def from_mark(cls, mark: Any) -> AuditFound | None:
        return None if mark is None else cls(at=mark["at"], differences=mark["differences"])

    def as_mark(self) -> dict[str, Any]:
        return {"at": self.at, "differences": dict(self.differences)}


class Series(NamedTuple):
    """One series: its labels (without `ledger`), its value, and the row whose trace is its exemplar."""

    labels: Mapping[str, str]
    value: float
    row: CounterRow | None = None


class Type(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric of the ledger. Each of its series also has the label `ledger`."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str
    series: Callable[[Readings], Iterable[Series]]  # of a histogram: one a bucket, `le` among the labels, and `sum`


@dataclass(frozen=True, slots=True)
class OwnSpec:
    """One metric of the sidecar itself: without the label `ledger`, and there when the ledger is away."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str


# --- where the series come from ----------------------------------------------------------------------------------


# The codes of the classes that parked itself gives; others come from elsewhere, or with a status that is new.
LISTED_CODES: Final = frozenset(
    {str(status) for rule in HTTP_RULES for status in rule.statuses} | set(Reason) | {MAYBE_SENT, NOT_SENT}
)


def class_label(error_class: str) -> str:
    """The class as a label: a closed set. The ledger keeps the others by their names."""
    disposition, _, code = error_class.partition(":")
    is_listed = disposition in set(Disposition) and code in LISTED_CODES
    return error_class if is_listed or not error_class else OTHER


def labels_of(row: CounterRow) -> dict[str, str]:
    """Name what a row of counters holds, as its family says: `trigger/result` in `b` gives two labels."""
    family = FAMILIES[Metric(row.metric)]
    labels = {"pipeline": row.pipeline, "model": row.model, family.a: row.a}
    labels.update(zip(family.b.split("/"), row.b.split("/"), strict=False))
    if family.a == "error_class":
        labels["error_class"] = class_label(row.a)
    return labels


def counted(metric: Metric) -> Callable[[Readings], Iterator[Series]]:
    """The series of a family that is shown as it is kept; classes that share a label are added up.

    Of times the latest counts.
    """
    together = max if metric in SET_BY_THE_LATEST else operator.add

    def series(readings: Readings) -> Iterator[Series]:
        found: dict[tuple[str, ...], Series] = {}
        for row in readings.counters.get(metric, ()):
            one = Series(labels_of(row), row.value, row)
            # The bucket of a duration is no label of its family, and still tells its rows apart.
            key = (*one.labels.values(), row.b)
            if key in found:
                one = one._replace(value=together(found[key].value, one.value))
            found[key] = one
        yield from found.values()

    return series


# The status under which the API usually reports a reason; the other reasons are their own code. A reason that comes
# under several has its zero under the first, and the others begin when they are first seen.
USUAL_STATUS: Final[dict[Reason, int]] = {
    Reason.RATE_LIMITED: 429,
    Reason.DAILY_QUOTA_EXHAUSTED: 429,
    Reason.NO_QUOTA: 429,
    Reason.BILLING_REQUIRED: 429,
    Reason.OVERLOADED: 503,
    Reason.SERVER_ERROR: 500,
    Reason.TIMEOUT: 504,
    Reason.CANCELLED: 499,
    Reason.RESOURCE_NOT_READY: 400,
    Reason.AUTH_INVALID: 401,
    Reason.PERMISSION_DENIED: 403,
    Reason.ACCOUNT_SUSPENDED: 403,
    Reason.LOCATION_UNSUPPORTED: 400,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.RESOURCE_MISSING: 403,
    Reason.INVALID_REQUEST: 400,
    Reason.INPUT_TOO_LARGE: 400,
}


def usual_class(reason: Reason) -> str:
    """The error class under which a job with this reason is usually parked, e.g. `exhausted:503`."""
    disposition = Disposition.PERMANENT if MEANINGS[reason].kind is Kind.PERMANENT else Disposition.EXHAUSTED
    return f"{disposition}:{USUAL_STATUS.get(reason, reason)}"


# One class per reason. The reason of an orphan is its code.
USUAL_CLASSES: Final = (
    *((usual_class(reason), str(reason)) for reason in Reason),
    *((f"{Disposition.ORPHANED}:{code}", code) for code in (MAYBE_SENT, NOT_SENT)),
)


def parked_by_runs(readings: Readings) -> Iterator[Series]:
    """`jobs_parked`, with a zero for each reason and each pipeline and model that ever accepted a job.

    Without the zero, a series would be born at 1 and `increase()` would miss the first failure.
    """
    moved = set()
    for one in counted(Metric.JOBS_PARKED)(readings):
        moved.add(tuple(one.labels[name] for name in _PARKED))
        yield one
    for row in readings.counters.get(Metric.JOBS_ACCEPTED, ()):
        for error_class, reason in USUAL_CLASSES:
            if (row.pipeline, row.model, error_class, reason) not in moved:
                labels = {"pipeline": row.pipeline, "model": row.model, "error_class": error_class, "reason": reason}
                yield Series(labels, 0.0)


def unaccounted(readings: Readings) -> Iterator[Series]:
    """The larger of two differences: accepted against the states, by counters; counters against rows, by the audit."""
    balance: dict[str, float] = defaultdict(float)
    for row in readings.counters.get(Metric.JOBS_ACCEPTED, ()):
        balance[row.pipeline] += row.value
    for row in readings.counters.get(Metric.LEDGER_JOBS, ()):
        balance[row.pipeline] -= row.value
    found = readings.audit.differences if readings.audit is not None else {}
    for pipeline in sorted({*balance, *found}):
        yield Series({"pipeline": pipeline}, max(abs(balance[pipeline]), found.get(pipeline, 0.0)))


def oldest_in(state: State) -> Callable[[Readings], Iterator[Series]]:
    """Since when the oldest job is in that state, by pipeline and, of parked ones, error class."""

    def series(readings: Readings) -> Iterator[Series]:
        oldest: dict[tuple[str, str], float] = {}
        for (pipeline, error_class), since in readings.oldest.get(state, {}).items():
            key = (pipeline, class_label(error_class))
            oldest[key] = min(since, oldest.get(key, since))
        for (pipeline, error_class), since in oldest.items():
            yield Series({"pipeline": pipeline, "error_class": error_class}, since)

    return series


def audited_at(readings: Readings) -> Iterator[Series]:
    if readings.audit is not None:
        yield Series({}, readings.audit.at)


def owners_by_state(readings: Readings) -> Iterator[Series]:
    for state, count in readings.owners.items():
        yield Series({"state": state}, count)


def pauses(readings: Readings) -> Iterator[Series]:
    """Those that are, and as 0 those that ever were: one that ended would look like a target that was lost."""
    ever = {(row.pipeline, row.model or EVERY, reason_label(row.a)) for row in readings.counters.get(Metric.PAUSES, ())}
    for pipeline, model, reason in sorted(ever | set(readings.pauses)):
        is_paused = (pipeline, model, reason) in readings.pauses
        yield Series({"pipeline": pipeline, "model": model, "reason": reason}, is_paused)


def gates(readings: Readings) -> Iterator[Series]:
    closed: dict[tuple[str, str], bool] = {}
    for model, why, is_closed in readings.gates:
        closed[model, why] = is_closed or closed.get((model, why), False)
    for (model, why), is_closed in sorted(closed.items()):
        yield Series({"model": model, "reason": why}, is_closed)


def task_successes(readings: Readings) -> Iterator[Series]:
    for task, at in readings.task_successes.items():
        yield Series({"task": task}, at)


def size(readings: Readings) -> Iterator[Series]:
    yield Series({}, readings.size_bytes)


# --- the table ---------------------------------------------------------------------------------------------------

METRICS: Final = (
    Spec(
        "parked_jobs", Type.GAUGE, _PARKED,
        "Jobs that are parked now: they failed and wait for a replay or a person.",
        counted(Metric.PARKED_NOW),
    ),
    Spec(
        "parked_oldest_parked_timestamp_seconds", Type.GAUGE, ("pipeline", "error_class"),
        "When the job that has been parked longest was parked.",
        oldest_in(State.PARKED),
    ),
    Spec(
        "parked_oldest_pending_timestamp_seconds", Type.GAUGE, ("pipeline",),
        "When the job that has been pending longest was accepted.",
        oldest_in(State.PENDING),
    ),
    Spec(
        "parked_oldest_running_timestamp_seconds", Type.GAUGE, ("pipeline",),
        "When the job that has been running longest was started.",
        oldest_in(State.RUNNING),
    ),
    Spec(
        "parked_ledger_jobs", Type.GAUGE, ("pipeline", "state"),
        "Jobs in the ledger by their state now; forgotten ones are those whose rows retention has removed.",
        counted(Metric.LEDGER_JOBS),
    ),
    Spec(
        "parked_unaccounted_jobs", Type.GAUGE, ("pipeline",),
        "Jobs that were accepted and are in no state, or rows that differ from the counters: it must be 0.",
        unaccounted,
    ),
    Spec(
        "parked_audit_timestamp_seconds", Type.GAUGE, (),
        "When the rows of the ledger were last counted against its counters.",
        audited_at,
    ),
    Spec(
        "parked_jobs_accepted_total", Type.COUNTER, _JOB,
        "Jobs taken on, each counted once.",
        counted(Metric.JOBS_ACCEPTED),
    ),
    Spec(
        "parked_jobs_succeeded_total", Type.COUNTER, _JOB,
        "Jobs answered in their run.",
        counted(Metric.JOBS_SUCCEEDED),
    ),
    Spec(
        "parked_jobs_parked_total", Type.COUNTER, _PARKED,
        "Jobs parked by a run, each counted once; a replay that fails again does not count.",
        parked_by_runs,
    ),
    Spec(
        "parked_last_parked_timestamp_seconds", Type.GAUGE, ("pipeline", "error_class"),
        "When a run last parked a job.",
        counted(Metric.LAST_PARKED),
    ),
    Spec(
        "parked_jobs_recovered_total", Type.COUNTER, _PARKED,
        "Parked jobs that were answered after all, by the class they had been parked under.",
        counted(Metric.JOBS_RECOVERED),
    ),
    Spec(
        "parked_jobs_discarded_total", Type.COUNTER, _PARKED,
        "Jobs that a person put away for good, by the class they had been parked under.",
        counted(Metric.JOBS_DISCARDED),
    ),
    Spec(
        "parked_replayed_jobs_total", Type.COUNTER, (*_JOB, "error_class", "trigger", "result"),
        "Jobs that a replay has tried, by the class they had before and what came of it: recovered, parked_again, or"
        " released (put back as it was, at a pause or an end).",
        counted(Metric.JOBS_REPLAYED),
    ),
    Spec(
        "parked_attempts_total", Type.COUNTER, (*_JOB, "kind", "reason"),
        "Calls of the model by how they ended; kind and reason are ok for an answer.",
        counted(Metric.ATTEMPTS),
    ),
    Spec(
        "parked_attempt_duration_seconds", Type.HISTOGRAM, (*_JOB, "kind"),
        "How long calls of the model took.",
        counted(Metric.ATTEMPT_DURATION),
    ),
    Spec(
        "parked_tokens_total", Type.COUNTER, (*_JOB, "direction", "kind"),
        "Tokens that were billed, also those of attempts that failed.",
        counted(Metric.TOKENS),
    ),
    Spec(
        "parked_answer_deliveries_total", Type.COUNTER, (*_JOB, "result"),
        "Answers of recovered jobs handed to PARKED_ON_ANSWER: delivered, failed (tried again), or given_up.",
        counted(Metric.DELIVERIES),
    ),
    Spec(
        "parked_pipeline_paused", Type.GAUGE, ("pipeline", "model", "reason"),
        "Whether nothing of the pipeline's model (*: of all) is started, for a fault that all jobs would meet: 1 or 0.",
        pauses,
    ),
    Spec(
        "parked_gate_closed", Type.GAUGE, ("model", "reason"),
        "Whether calls of the model (*: of all models) wait for a rate limit (rate) or an outage to end: 1 or 0.",
        gates,
    ),
    Spec(
        "parked_last_accepted_timestamp_seconds", Type.GAUGE, ("pipeline",),
        "When a job was last taken on.",
        counted(Metric.LAST_ACCEPTED),
    ),
    Spec(
        "parked_last_success_timestamp_seconds", Type.GAUGE, ("pipeline",),
        "When a job was last answered.",
        counted(Metric.LAST_SUCCESS),
    ),
    Spec(
        "parked_owners", Type.GAUGE, ("state",),
        "Processes that may hold jobs: alive now, or declared lost in the last 24 hours.",
        owners_by_state,
    ),
    Spec(
        "parked_task_last_success_timestamp_seconds", Type.GAUGE, ("task",),
        "When a scheduled task of a sidecar last succeeded.",
        task_successes,
    ),
    Spec(
        "parked_ledger_bytes", Type.GAUGE, (),
        "What the ledger takes up on the disk: the SQLite file and its WAL, or the tables of PostgreSQL.",
        size,
    ),
)  # fmt: skip

LEDGER_UP: Final = OwnSpec(
    "parked_ledger_up", Type.GAUGE, (), "Whether this sidecar could read the ledger for this scrape: 1 or 0."
)
LEDGER_WRITABLE: Final = OwnSpec(
    "parked_ledger_writable", Type.GAUGE, (),
    "Whether the last scheduled task of this sidecar could write to the ledger: 1 or 0; absent if it runs none.",
)  # fmt: skip
SCRAPE_DURATION: Final = OwnSpec(
    "parked_scrape_duration_seconds", Type.GAUGE, (), "How long this sidecar took to read the ledger for this scrape."
)
TASK_FAILURES: Final = OwnSpec(
    "parked_task_failures_total", Type.COUNTER, ("task",),
    "Runs of a scheduled task that failed in this sidecar since it started, or took so long that they seem to hang.",
)  # fmt: skip
BUILD_INFO: Final = OwnSpec(
    "parked_build_info", Type.GAUGE, ("version",), "Which version of parked this sidecar is; always 1."
)
OWN_METRICS: Final = (LEDGER_UP, LEDGER_WRITABLE, SCRAPE_DURATION, TASK_FAILURES, BUILD_INFO)


def as_markdown() -> str:
    """The table as a page for people."""
    lines = [
        "# Metrics",
        "",
        "Made from the table in `exporter/parked_exporter/metrics.py`; a test compares the two.",
        "",
        "Each series of a ledger also has the label `ledger`, the short random word that names it; those marked * are",
        "the sidecar's own and have none. HELP and TYPE lines are always there. Series of a ledger are absent while it",
        "can't be read (`parked_ledger_up 0`), and a time has no series while there is nothing to tell.",
        "`parked_jobs_parked_total` is 0 for one class of every reason, for each pipeline and model that ever accepted",
        "a job; the others begin when they are first moved. Counters and buckets carry the sampled trace that last",
        "moved them as an exemplar, in the OpenMetrics format.",
        "",
        f"Labels are bounded. The first {MAX_PIPELINES} pipelines and {MAX_PAIRS} pairs of pipeline and model that a",
        f"ledger counts go by their own names, all others by `{OTHER}`; a name that is in stays in. An error class",
        f"is `{OTHER}` if its code is neither a reason nor a status that the rules list. `parked list` knows all of",
        "them by their own names.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for spec in (*METRICS, *OWN_METRICS):
        star = " *" if isinstance(spec, OwnSpec) else ""
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        lines.append(f"| `{spec.name}`{star} | {spec.type} | {labels} | {spec.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")  # noqa: T201 - the page is what this program is for
