"""What a ledger holds that somebody should know of: what is parked and why, what is new, and what waits.

For the `summary` command and the sidecar's daily one. It carries ids, classes, reasons and fingerprints, and no
text of a user, a model or a server.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from parked.clock import iso_text, minute_text, span_text
from parked.job import State
from parked.ledger.store import Cause, Filters, Reader
from parked.plain import printable
from parked.reasons import explain, going_on

LAST_SUMMARY: Final = "last_summary"  # the mark that a scheduled summary leaves: when it was made, in epoch seconds

SHOWN_CAUSES: Final = 10
ERASED_REMEDY: Final = "discard them, after a replay of others with this cause: they were erased and can't run again"
_WAITING: Final = (State.PENDING, State.RUNNING, State.REPLAYING)


@dataclass(frozen=True, slots=True)
class ParkedClass:
    error_class: str
    jobs: int
    new: int  # of them parked since `Summary.since`; 0 if that is None


@dataclass(frozen=True, slots=True)
class ParkedCause:
    """Parked jobs that share a fingerprint; those that were erased are a cause of their own."""

    fingerprint: str | None
    error_class: str
    reason: str
    remedy: str  # what an operator does
    jobs: int
    new: int
    first_parked_at: float
    last_parked_at: float
    job_id: str  # one of them
    pipeline: str
    batch: str
    erased: bool


@dataclass(frozen=True, slots=True)
class Oldest:
    """Where the job stands that is parked longest."""

    pipeline: str
    error_class: str
    parked_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs of a pipeline that have no end yet."""

    pipeline: str
    state: State  # pending, running or replaying
    jobs: int
    since: float | None  # when the oldest of them came into that state; None while they are replayed


@dataclass(frozen=True, slots=True)
class Paused:
    """Nothing of a pipeline's model is started, until one of its jobs is answered again."""

    pipeline: str
    model: str  # empty: all
    reason: str
    since: float
    until: float | None  # when its cause ends by itself; None: nobody knows


@dataclass(frozen=True, slots=True)
class Summary:
    ledger: str  # the full name of the ledger that was read
    made_at: float
    since: float | None  # what "new" counts from; None: nobody has said, and no scheduled summary was made yet
    parked: int
    new: int
    classes: tuple[ParkedClass, ...]  # largest first, as are the causes
    causes: tuple[ParkedCause, ...]
    oldest: Oldest | None
    waiting: tuple[Waiting, ...]
    pauses: tuple[Paused, ...]


def summarise(reader: Reader, *, where: str, since: float | None = None, now: float | None = None) -> Summary:
    """Read the summary of a ledger, whose full name is `where`.

    Without `since`, what is new counts from the last scheduled summary (`LAST_SUMMARY`).
    """
    if since is None:
        since = reader.mark(LAST_SUMMARY)
    causes = reader.causes(Filters())
    jobs_by_class: Counter[str] = Counter()
    new_by_class: Counter[str] = Counter()
    new_by_cause: Counter[tuple[str | None, str, str, bool]] = Counter()
    for cause in causes:
        jobs_by_class[cause.error_class] += cause.jobs
    for cause in [] if since is None else reader.causes(Filters(since=since)):
        new_by_class[cause.error_class] += cause.jobs
        new_by_cause[_identity(cause)] += cause.jobs
    return Summary(
        ledger=where,
        made_at=time.time() if now is None else now,
        since=since,
        parked=jobs_by_class.total(),
        new=new_by_class.total(),
        classes=tuple(
            ParkedClass(name, jobs, new_by_class[name])
            for name, jobs in sorted(jobs_by_class.items(), key=lambda item: (-item[1], item[0]))
        ),
        causes=tuple(
            _parked_cause(cause, new=new_by_cause[_identity(cause)])
            for cause in sorted(causes, key=lambda cause: (-cause.jobs, cause.first_parked_at))
        ),
        oldest=_oldest(reader),
        waiting=_waiting(reader),
        pauses=tuple(Paused(row.pipeline, row.model, row.reason, row.since, row.until) for row in reader.pauses()),
    )


def remedy_of(cause: Cause) -> str:
    """Return what to do about a cause."""
    return ERASED_REMEDY if cause.erased else explain(cause.reason).remedy


def render(summary: Summary) -> str:
    """Return the summary as text. Its first line names the ledger."""
    lines = [f"ledger {summary.ledger}", _headline(summary)]
    lines += [f"  {group.jobs:4}  {group.error_class}" for group in summary.classes]
    if summary.oldest is not None:
        at = summary.oldest.parked_at
        lines.append(
            f"oldest: {minute_text(at)} ({span_text(summary.made_at - at)} ago),"
            f" {summary.oldest.error_class} of {summary.oldest.pipeline}"
        )
    if summary.causes:
        lines.append("causes:")
        lines += [_cause_line(cause, summary) for cause in summary.causes[:SHOWN_CAUSES]]
    if len(summary.causes) > SHOWN_CAUSES:
        lines.append(f"  and {len(summary.causes) - SHOWN_CAUSES} more")
    for group in summary.waiting:
        since = "" if group.since is None else f", the oldest since {minute_text(group.since)}"
        lines.append(f"{group.state}: {group.jobs} of {group.pipeline}{since}")
    for pause in summary.pauses:
        until = "" if pause.until is None else f" until {minute_text(pause.until)}"
        lines.append(
            f"paused: {pause.pipeline}, {pause.model or 'all models'}, since {minute_text(pause.since)}{until}:"
            f" {pause.reason}, {going_on(explain(pause.reason).remedy)}"
        )
    return "\n".join(map(printable, lines))


def next_commands(summary: Summary) -> list[list[str]]:
    """Return what to type next, each as words: look at the largest cause, run or discard it, run what is pending."""
    commands: list[list[str]] = []
    if summary.causes:
        cause = next((cause for cause in summary.causes if not cause.erased), summary.causes[0])
        chosen = ["--class", cause.error_class]
        if cause.fingerprint is not None:
            chosen = ["--fingerprint", cause.fingerprint]
        advised = ["discard", *chosen, "--reason", "erased"] if cause.erased else ["replay", *chosen]
        commands += [["list", *chosen], advised]
    commands += [
        ["run", "JOBS", "--pipeline", group.pipeline] for group in summary.waiting if group.state is State.PENDING
    ]
    return commands


def as_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as docs/cli-json.md describes it. Times are ISO 8601 in UTC."""
    oldest = summary.oldest
    return {
        "ledger": summary.ledger,
        "made_at": iso_text(summary.made_at),
        "since": iso_text(summary.since),
        "parked": summary.parked,
        "new": summary.new,
        "classes": [
            {"error_class": group.error_class, "jobs": group.jobs, "new": group.new} for group in summary.classes
        ],
        "causes": [
            {
                "fingerprint": cause.fingerprint,
                "error_class": cause.error_class,
                "reason": cause.reason,
                "remedy": cause.remedy,
                "erased": cause.erased,
                "jobs": cause.jobs,
                "new": cause.new,
                "first_parked_at": iso_text(cause.first_parked_at),
                "last_parked_at": iso_text(cause.last_parked_at),
                "example": {"job_id": cause.job_id, "pipeline": cause.pipeline, "batch": cause.batch},
            }
            for cause in summary.causes
        ],
        "oldest": oldest
        and {
            "pipeline": oldest.pipeline,
            "error_class": oldest.error_class,
            "parked_at": iso_text(oldest.parked_at),
        },
        "waiting": [
            {"pipeline": group.pipeline, "state": group.state, "jobs": group.jobs, "since": iso_text(group.since)}
            for group in summary.waiting
        ],
        "pauses": [
            {
                "pipeline": pause.pipeline,
                "model": pause.model or None,
                "reason": pause.reason,
                "since": iso_text(pause.since),
                "until": iso_text(pause.until),
            }
            for pause in summary.pauses
        ],
    }


def _headline(summary: Summary) -> str:
    if not summary.parked:
        return "dead-letter: clean (0 parked)"
    new = "" if summary.since is None else f", {summary.new} of them since {minute_text(summary.since)}"
    return f"dead-letter: {summary.parked} parked{new}"


def _cause_line(cause: ParkedCause, summary: Summary) -> str:
    new = f", {cause.new} new" if summary.since is not None else ""
    example = f"{cause.pipeline}/{cause.batch}/{cause.job_id}" if cause.batch else f"{cause.pipeline}/{cause.job_id}"
    erased = " erased," if cause.erased else ""
    return (
        f"  {cause.jobs:4}  {cause.error_class} {cause.reason} [{cause.fingerprint or '-'}]{new},"
        f"{erased} since {minute_text(cause.first_parked_at)}, e.g. {example}: {cause.remedy}"
    )


def _identity(cause: Cause) -> tuple[str | None, str, str, bool]:
    return cause.fingerprint, cause.error_class, cause.reason, cause.erased


def _parked_cause(cause: Cause, *, new: int) -> ParkedCause:
    example = cause.example
    return ParkedCause(
        fingerprint=cause.fingerprint,
        error_class=cause.error_class,
        reason=cause.reason,
        remedy=remedy_of(cause),
        jobs=cause.jobs,
        new=new,
        first_parked_at=cause.first_parked_at,
        last_parked_at=cause.last_parked_at,
        job_id=example.job_id,
        pipeline=example.pipeline,
        batch=example.batch,
        erased=cause.erased,
    )


def _oldest(reader: Reader) -> Oldest | None:
    oldest = [Oldest(pipeline, name, at) for (pipeline, name), at in reader.oldest(State.PARKED).items()]
    return min(oldest, key=lambda one: one.parked_at, default=None)


def _waiting(reader: Reader) -> tuple[Waiting, ...]:
    counts = reader.states()
    since: dict[tuple[str, State], float] = {}
    for state in (State.PENDING, State.RUNNING):
        for (pipeline, _), at in reader.oldest(state).items():
            since[pipeline, state] = min(at, since.get((pipeline, state), at))
    return tuple(
        Waiting(pipeline, state, jobs, since.get((pipeline, state)))
        for state in _WAITING
        for (pipeline, counted), jobs in sorted(counts.items())
        if counted is state and jobs
    )
