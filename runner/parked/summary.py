"""What a ledger holds that somebody should know of: what is parked and why, what is new, and what waits.

For the `summary` command and the sidecar's daily one. It carries ids, classes, reasons and fingerprints, and no
text of a user, a model or a server, unless it is asked for messages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from parked.clock import iso_text, minute_text, span_text
from parked.gate import STALE_S
from parked.gate import Why as GateWhy
from parked.job import State
from parked.ledger.counters import Metric
from parked.ledger.operations import JobRow
from parked.ledger.store import Cause, CauseCount, Filters, Reader
from parked.owners import gone_here
from parked.pace import KEPT_S, is_kept
from parked.plain import flag, number_text, printable
from parked.reasons import explain, going_on, mended_by
from parked.retired import Retired, pending_by_way_on, with_another_model

LAST_SUMMARY: Final = "last_summary"  # the mark that a scheduled summary leaves: when it was made, in epoch seconds
LAST_COUNTS: Final = "last_summary_counts"  # another: what had been counted then, as `Counts`, and `at`: the same time

SHOWN_CAUSES: Final = 10
SHOWN_PAUSES: Final = 2  # in a title
SHOWN_CHARS: Final = 300  # of a message; it may go to a chat
MAX_CAUSES: Final = 100  # each takes a look-up, and a line of the log holds them all
ERASED_REMEDY: Final = "discard them, after a replay of others with this cause: they were erased and can't run again"
SWEPT: Final = "the next run, worker, replay or sidecar parks what it had in hand"
_WAITING: Final = (State.PENDING, State.RUNNING, State.REPLAYING)
_RUNS_JOBS: Final = frozenset({"runner", "worker"})  # the roles of owners that start pending jobs


class WaitsFor(StrEnum):
    """Why jobs are pending."""

    PAUSE = "pause"  # something of their pipeline is paused
    GATE = "gate"  # a gate that its models share is closed
    TURN = "turn"  # a run or worker is there
    RUNNER = "runner"  # none is


_WAITS_TEXT: Final = {
    WaitsFor.PAUSE: "paused",
    WaitsFor.GATE: "waiting for a gate to open",
    WaitsFor.TURN: "waiting for their turn",
    WaitsFor.RUNNER: "no run or worker is there for them; the next of the pipeline takes them up",
}
_GATE_TEXT: Final[dict[str, str]] = {GateWhy.RATE: "a rate limit", GateWhy.OUTAGE: "an outage"}


@dataclass(frozen=True, slots=True)
class Counts:
    """What the ledger has counted in all."""

    recovered: int = 0  # jobs
    discarded: int = 0  # each time, of a job that was restored in between
    failed_tokens: int = 0  # billed for attempts that failed

    @classmethod
    def of(cls, reader: Reader) -> Self:
        counted: Counter[Metric] = Counter()
        for row in reader.counters(Metric.JOBS_RECOVERED, Metric.JOBS_DISCARDED, Metric.TOKENS):
            if row.metric != Metric.TOKENS or row.b != "ok":
                counted[Metric(row.metric)] += int(row.value)
        return cls(counted[Metric.JOBS_RECOVERED], counted[Metric.JOBS_DISCARDED], counted[Metric.TOKENS])

    def since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(_values(self), _values(before), strict=True)))

    def as_mark(self, at: float) -> dict[str, Any]:
        return {**asdict(self), "at": at}


def _values(counts: Counts) -> tuple[int, ...]:
    return counts.recovered, counts.discarded, counts.failed_tokens


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
    message: str | None = None  # what was said when that one failed; None: it isn't to be told


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
    waits_for: WaitsFor | None  # why they are pending; None in the other states
    gone: int = 0  # of them in the hands of processes that are certainly gone, though nobody has parked them yet
    retired: tuple[Retired, ...] = ()  # the models of pending ones that only another one goes on with


@dataclass(frozen=True, slots=True)
class Paused:
    """Nothing of a pipeline's model is started, until one of its jobs is answered again."""

    pipeline: str
    model: str  # empty: all
    reason: str
    since: float
    until: float | None  # when its cause ends by itself; None: nobody knows
    met_by: tuple[str, str] | None  # id and batch of a pending job that met the fault


@dataclass(frozen=True, slots=True)
class Closed:
    """A gate that is closed: no call of its model starts."""

    model: str  # empty: of any
    why: str  # `rate` or `outage`
    until: float  # when it is tried again


@dataclass(frozen=True, slots=True)
class Paced:
    """At which pace the next run begins to call a model."""

    model: str
    per_minute: float
    learnt_at: float  # when a refusal last set it
    until: float  # when it is too old to be gone by


@dataclass(frozen=True, slots=True)
class Summary:
    ledger: str  # the full name of the ledger that was read
    made_at: float
    since: float | None  # what "new" counts from; None: nobody has said, and no scheduled summary was made yet
    parked: int
    new: int
    classes: tuple[ParkedClass, ...]  # largest first, as are the causes
    causes: tuple[ParkedCause, ...]  # at most MAX_CAUSES
    causes_in_all: int
    oldest: Oldest | None
    waiting: tuple[Waiting, ...]
    pauses: tuple[Paused, ...]
    gates: tuple[Closed, ...]
    counts: Counts  # in all
    # Of these, since the last scheduled summary; all of them if there was none. None: it is another time that "new"
    # counts from, and of that nobody has kept them.
    lately: Counts | None
    paces: tuple[Paced, ...]


def summarise(
    reader: Reader, *, where: str, since: float | None = None, now: float | None = None, messages: bool = False
) -> Summary:
    """Read the summary of a ledger, whose full name is `where`; with `messages` what was said of each cause, too.

    Without `since`, what is new counts from the last scheduled summary (`LAST_SUMMARY`).
    """
    now = time.time() if now is None else now
    counts = Counts.of(reader)
    lately = None
    if since is None:
        since = reader.mark(LAST_SUMMARY)
        lately = _lately(counts, since=since, mark=reader.mark(LAST_COUNTS))
    causes = sorted(reader.cause_counts(since=since), key=lambda cause: (-cause.jobs, cause.first_parked_at))
    jobs_by_class: Counter[str] = Counter()
    new_by_class: Counter[str] = Counter()
    for cause in causes:
        jobs_by_class[cause.error_class] += cause.jobs
        new_by_class[cause.error_class] += cause.new
    pauses = tuple(
        Paused(
            row.pipeline, row.model, row.reason, row.since, row.until,
            met_by=reader.first_that_met(row.reason, pipeline=row.pipeline),
        )
        for row in reader.pauses()
    )  # fmt: skip
    gates = _closed(reader, now=now)
    return Summary(
        ledger=where,
        made_at=now,
        since=since,
        parked=jobs_by_class.total(),
        new=new_by_class.total(),
        classes=tuple(
            ParkedClass(name, jobs, new_by_class[name])
            for name, jobs in sorted(jobs_by_class.items(), key=lambda item: (-item[1], item[0]))
        ),
        causes=tuple(
            _parked_cause(
                cause,
                reader.job(cause.example),
                message_of(reader, cause.example, cause.fingerprint) if messages else None,
            )
            for cause in causes[:MAX_CAUSES]
        ),
        causes_in_all=len(causes),
        oldest=_oldest(reader),
        waiting=_waiting(reader, pauses=pauses, gates=gates),
        pauses=pauses,
        gates=gates,
        counts=counts,
        lately=lately,
        paces=tuple(
            Paced(pace.model, 60 * pace.per_s, pace.learnt_at, pace.learnt_at + KEPT_S)
            for pace in reader.paces()
            if is_kept(pace.per_s, learnt_s=now - pace.learnt_at)
        ),
    )


def remedy_of(cause: Cause | CauseCount) -> str:
    """Return what to do about a cause."""
    return ERASED_REMEDY if cause.erased else explain(cause.reason).remedy


def message_of(reader: Reader, job: int, fingerprint: str | None) -> str:
    """Return what was said when a job failed so, scrubbed as it is stored; empty for an orphan."""
    said = (attempt for attempt in reversed(reader.attempts(job)) if attempt.message)
    return next((attempt.message for attempt in said if attempt.fingerprint == fingerprint), "")


def render(summary: Summary) -> str:
    """Return the summary as text. Its first line names the ledger."""
    lines = [f"ledger {summary.ledger}", headline(summary)]
    lines += [f"  {group.jobs:4}  {group.error_class}" for group in summary.classes]
    if summary.oldest is not None:
        at = summary.oldest.parked_at
        lines.append(
            f"oldest: {minute_text(at)} ({span_text(summary.made_at - at)} ago),"
            f" {summary.oldest.error_class} of {summary.oldest.pipeline}"
        )
    if summary.causes:
        lines.append("causes:")
        for cause in summary.causes[:SHOWN_CAUSES]:
            lines.append(_cause_line(cause, summary))
            if cause.message:
                lines.append(f"        {_cut(cause.message)}")
    if summary.causes_in_all > SHOWN_CAUSES:
        lines.append(f"  and {summary.causes_in_all - SHOWN_CAUSES} more")
    for group in summary.waiting:
        since = "" if group.since is None else f", the oldest since {minute_text(group.since)}"
        why = "" if group.waits_for is None else f": {_WAITS_TEXT[group.waits_for]}"
        gone = f"; {group.gone} of a process that is gone: {SWEPT}" if group.gone else ""
        lines.append(f"{group.state}: {group.jobs} of {group.pipeline}{since}{why}{gone}")
    for pause in summary.pauses:
        until = "" if pause.until is None else f" until {minute_text(pause.until)}"
        lines.append(
            f"paused: {pause.pipeline}, {pause.model or 'all models'}, since {minute_text(pause.since)}{until}:"
            f" {pause.reason}, {going_on(explain(pause.reason).remedy)}"
        )
    for gate in summary.gates:
        why = _GATE_TEXT.get(gate.why, gate.why)
        lines.append(f"closed for {why}: {gate.model or 'all models'}, next try {minute_text(gate.until)}")
    lines += [
        f"pace: {pace.model} begins at {number_text(pace.per_minute)} calls a minute,"
        f" learnt {minute_text(pace.learnt_at)}"
        for pace in summary.paces
    ]
    lines += _lately_lines(summary)
    return "\n".join(map(printable, lines))


def next_commands(summary: Summary) -> list[list[str]]:
    """Return what to type next, each as words.

    Look at the largest cause, run or discard it; at a job that met the fault of a pause; run what is pending, of a
    model that is retired with another.
    """
    commands: list[list[str]] = []
    if summary.causes:
        cause = next((cause for cause in summary.causes if not cause.erased), summary.causes[0])
        chosen = ["--class", cause.error_class]
        if cause.fingerprint is not None:
            chosen = ["--fingerprint", cause.fingerprint]
        advised = (
            ["discard", *chosen, "--reason", "erased"]
            if cause.erased
            else ["replay", *chosen, *mended_by(cause.reason)]
        )
        commands += [["list", *chosen], advised]
    for pause in summary.pauses:
        if pause.met_by is not None:
            job_id, batch = pause.met_by
            place = [*flag("--pipeline", pause.pipeline), *(flag("--batch", batch) if batch else [])]
            commands.append(["show", *place, *(["--"] if job_id.startswith("-") else []), job_id])
    for group in summary.waiting:
        if group.state is State.PENDING:
            commands += [with_another_model("submit", pipeline=one.pipeline, batch=one.batch) for one in group.retired]
            commands.append(["work", *flag("--pipeline", group.pipeline), "--until-empty"])
    return commands


def as_json(summary: Summary, commands: Sequence[str]) -> dict[str, Any]:
    """Return the summary as docs/cli-json.md describes it, with what to type next. Times are ISO 8601 in UTC."""
    oldest, lately = summary.oldest, summary.lately
    return {
        "ledger": summary.ledger,
        "made_at": iso_text(summary.made_at),
        "since": iso_text(summary.since),
        "parked": summary.parked,
        "new": summary.new,
        "classes": [
            {"error_class": group.error_class, "jobs": group.jobs, "new": group.new} for group in summary.classes
        ],
        "causes_in_all": summary.causes_in_all,
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
                "message": cause.message,
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
            {
                "pipeline": group.pipeline,
                "state": group.state,
                "jobs": group.jobs,
                "since": iso_text(group.since),
                "waits_for": group.waits_for,
                "gone": group.gone,
            }
            for group in summary.waiting
        ],
        "pauses": [
            {
                "pipeline": pause.pipeline,
                "model": pause.model or None,
                "reason": pause.reason,
                "since": iso_text(pause.since),
                "until": iso_text(pause.until),
                "met_by": pause.met_by and {"job_id": pause.met_by[0], "batch": pause.met_by[1]},
            }
            for pause in summary.pauses
        ],
        "gates": [
            {"model": gate.model or None, "why": gate.why, "until": iso_text(gate.until)} for gate in summary.gates
        ],
        "paces": [
            {
                "model": pace.model,
                "calls_per_minute": pace.per_minute,
                "learnt_at": iso_text(pace.learnt_at),
                "until": iso_text(pace.until),
            }
            for pace in summary.paces
        ],
        "recovered": lately and lately.recovered,
        "discarded": lately and lately.discarded,
        "failed_tokens": lately and lately.failed_tokens,
        "next": list(commands),
    }


def headline(summary: Summary) -> str:
    """Return the one line that says how it stands."""
    if not summary.parked:
        return "dead-letter: clean (0 parked)"
    new = "" if summary.since is None else f", {summary.new} of them since {minute_text(summary.since)}"
    return f"dead-letter: {summary.parked} parked{new}"


def title(summary: Summary, *, host: str) -> str:
    """Return the one line that somebody may see of it, on a phone say: also what waits or is paused, and where.

    When nothing does and nothing is parked it is the same line everywhere.
    """
    waiting = {state: sum(group.jobs for group in summary.waiting if group.state is state) for state in _WAITING}
    parts = [f"{jobs} {state}" for state, jobs in waiting.items() if jobs and state is not State.RUNNING]
    parts += [f"{pause.pipeline} paused by {pause.reason}" for pause in summary.pauses[:SHOWN_PAUSES]]
    if len(summary.pauses) > SHOWN_PAUSES:
        parts.append(f"{len(summary.pauses) - SHOWN_PAUSES} more paused")
    if not summary.parked and not parts:
        return headline(summary)
    stands = headline(summary) if summary.parked else "dead-letter: 0 parked"
    return printable(f"{', '.join([stands, *parts])} (on {host})")


def _cause_line(cause: ParkedCause, summary: Summary) -> str:
    new = f", {cause.new} new" if summary.since is not None else ""
    example = f"{cause.pipeline}/{cause.batch}/{cause.job_id}" if cause.batch else f"{cause.pipeline}/{cause.job_id}"
    erased = " erased," if cause.erased else ""
    return (
        f"  {cause.jobs:4}  {cause.error_class} {cause.reason} [{cause.fingerprint or '-'}]{new},"
        f"{erased} since {minute_text(cause.first_parked_at)}, e.g. {example}: {cause.remedy}"
    )


def _cut(message: str) -> str:
    return message if len(message) <= SHOWN_CHARS else f"{message[: SHOWN_CHARS - 1]}…"


def _parked_cause(cause: CauseCount, example: JobRow, message: str | None) -> ParkedCause:
    return ParkedCause(
        fingerprint=cause.fingerprint,
        error_class=cause.error_class,
        reason=cause.reason,
        remedy=remedy_of(cause),
        jobs=cause.jobs,
        new=cause.new,
        first_parked_at=cause.first_parked_at,
        last_parked_at=cause.last_parked_at,
        job_id=example.job_id,
        pipeline=example.pipeline,
        batch=example.batch,
        erased=cause.erased,
        message=message,
    )


def _oldest(reader: Reader) -> Oldest | None:
    oldest = [Oldest(pipeline, name, at) for (pipeline, name), at in reader.oldest(State.PARKED).items()]
    return min(oldest, key=lambda one: one.parked_at, default=None)


def _waiting(reader: Reader, *, pauses: Sequence[Paused], gates: Sequence[Closed]) -> tuple[Waiting, ...]:
    counts = reader.states()
    since: dict[tuple[str, State], float] = {}
    for state in (State.PENDING, State.RUNNING):
        for (pipeline, _), at in reader.oldest(state).items():
            since[pipeline, state] = min(at, since.get((pipeline, state), at))
    owners = reader.owners_alive()
    dead = gone_here(owners)
    roles = {owner.facts.role for owner in owners if owner.id not in dead}
    gone = Counter(
        (row.pipeline, row.state)
        for row in (reader.jobs(Filters(), states=(State.RUNNING, State.REPLAYING)) if dead else ())
        if row.owner_id in dead
    )
    waits_for = {
        pipeline: _waits_for(reader, pipeline, pauses=pauses, gates=gates, roles=roles)
        for (pipeline, state), jobs in counts.items()
        if state is State.PENDING and jobs
    }
    return tuple(
        Waiting(
            pipeline,
            state,
            jobs,
            since.get((pipeline, state)),
            waits_for[pipeline] if state is State.PENDING else None,
            gone[pipeline, state],
            pending_by_way_on(reader, pipeline=pipeline).retired if waits_for.get(pipeline) is WaitsFor.PAUSE else (),
        )
        for state in _WAITING
        for (pipeline, counted), jobs in sorted(counts.items())
        if counted is state and jobs
    )


def _waits_for(
    reader: Reader, pipeline: str, *, pauses: Sequence[Paused], gates: Sequence[Closed], roles: Set[str]
) -> WaitsFor:
    """`roles` are those of owners that live."""
    if any(pause.pipeline == pipeline for pause in pauses):
        return WaitsFor.PAUSE
    called = reader.labels().models_of(pipeline)
    if any(not gate.model or gate.model in called for gate in gates):
        return WaitsFor.GATE
    return WaitsFor.TURN if _RUNS_JOBS & roles else WaitsFor.RUNNER


def _closed(reader: Reader, *, now: float) -> tuple[Closed, ...]:
    """In an outage `until` is when the next probe is due; one that nobody probes any more is over."""
    return tuple(
        Closed(model, why, until)
        for model, why, until in reader.gates()
        if why is not None and until is not None and until + (STALE_S if why == GateWhy.OUTAGE else 0.0) > now
    )


def _lately(counts: Counts, *, since: float | None, mark: Mapping[str, Any] | None) -> Counts | None:
    if since is None:
        return counts
    if mark is None or mark["at"] != since:  # an older version made that summary
        return None
    return counts.since(Counts(mark["recovered"], mark["discarded"], mark["failed_tokens"]))


def _lately_lines(summary: Summary) -> list[str]:
    if summary.lately is None:
        return []
    counted = {
        "recovered": summary.lately.recovered,
        "discards" if summary.lately.discarded > 1 else "discard": summary.lately.discarded,  # of one job perhaps
        "tokens spent on attempts that failed": summary.lately.failed_tokens,
    }
    parts = [f"{number} {what}" for what, number in counted.items() if number]
    since = "so far" if summary.since is None else f"since {minute_text(summary.since)}"
    return [f"{since}: {', '.join(parts)}"] if parts else []
