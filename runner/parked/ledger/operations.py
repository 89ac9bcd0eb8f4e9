"""Everything that can be asked of a ledger's writer, as values.

An operation is built anywhere, handed to the writer, applied with many others in one transaction, and answered.
It names what happened, not what to store: `moves.py` decides that from the job's row, and the store writes it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parked.job import State
from parked.ledger.codec import Body, TextKind
from parked.verdict import Kind, Reason, Scope, Verdict


class JobRow(NamedTuple):
    """One row of `jobs`; a tuple, since a run makes several per job. Times: UTC epoch seconds, None if it never was."""

    id: int
    pipeline: str
    batch: str
    job_id: str
    model: str
    state: State
    came_from: State | None  # of a discarded job: what it was before
    error_class: str | None  # of the last time it was parked; a recovered job keeps it, with what follows
    reason: Reason | str | None  # an orphan's is its code: `maybe_sent` or `not_sent`
    kind: Kind | None
    scope: Scope | None
    fingerprint: str | None
    calls: int  # attempts made so far, replays included; also the number of the last attempt (1-based)
    strikes: int  # attempts held against the job in this run or replay
    replays: int  # how often a replay has claimed it
    not_before: float | None  # a replay honours it
    place: int  # place in line: pending and parked jobs go in this order
    caller: str  # who calls, by name (`module:function`); a replay needs it
    checker: str  # who checks the answer, by name; empty if nobody does
    accepted_at: float
    started_at: float | None  # when its last run or replay began
    parked_at: float | None
    finished_at: float | None
    owner_id: int | None  # who holds it, while running or replaying
    replay_id: int | None  # the replay that holds it, while replaying
    trace_id: str | None  # the sampled trace that last moved it (32 hex digits)
    span_id: str | None
    note: str | None  # why it was discarded
    payload_hash: bytes  # its identity
    revision: int  # 0: payload and model as first accepted; else a mended one stored beside it
    erased_at: float | None = None  # when its bodies and messages were removed for good; it can't run any more
    auto_replays: int = 0  # of its replays, those that a sidecar began by itself and that weren't handed back

    def is_due(self, now: float) -> bool:
        """Whether its time has come, `not_before` having passed. Keep in step with `due` in the SQL."""
        # A clock that was set back behind the job's start can't tell how long it has waited; it would hold it for days.
        return self.not_before is None or self.not_before <= now or (self.started_at or 0.0) > now


class SpanIds(NamedTuple):
    """Where a sampled span is to be found, as hex; both None if it wasn't sampled."""

    trace_id: str | None = None
    span_id: str | None = None


NO_SPAN = SpanIds()


class Closing(NamedTuple):
    """How an attempt ended. `kind` is None for an answer; an interrupted attempt is `retryable`, `cancelled`."""

    kind: Kind | None = None
    reason: Reason | None = None
    scope: Scope | None = None
    status: int | None = None
    rule: str = ""
    fingerprint: str | None = None
    quota_id: str | None = None
    message: str = ""  # scrubbed and cut; user text
    retry_after_s: float | None = None  # what the server asked for
    duration_s: float | None = None  # of the call, on the monotonic clock; None if unknown
    tokens_in: int | None = None
    tokens_out: int | None = None  # answer and thoughts
    response_id: str | None = None
    span: SpanIds = NO_SPAN
    message_key_id: str | None = None  # which key the message is encrypted with, if it is

    @classmethod
    def of(cls, verdict: Verdict) -> Closing:
        """How an attempt with this verdict ended, as far as the verdict tells."""
        return cls(
            verdict.kind,
            verdict.reason,
            verdict.scope,
            verdict.status,
            verdict.rule,
            verdict.fingerprint,
            verdict.quota_id,
            verdict.message,
            verdict.retry_after_s,
        )


# --- taking on -------------------------------------------------------------------------------------------------


class Accept(NamedTuple):
    """Take a job on. With `start_for`, a job that is new or pending is started for that owner in the same operation.

    A known job that is pending goes to the model that is named here, with no strikes; with which model it was accepted
    and called before stays noted. One that is in any other state keeps its model.

    Answered with `Accepted`; raised as `JobConflict` if the id is known with another payload.
    """

    pipeline: str
    batch: str
    job_id: str
    model: str
    payload: Body
    payload_hash: bytes
    caller: str = ""
    checker: str = ""
    start_for: int | None = None  # an owner's id
    span: SpanIds = NO_SPAN  # of the job's span, where it starts at once
    other_hashes: tuple[bytes, ...] = ()  # by which the same payload may be known, too


class Accepted(NamedTuple):
    row: JobRow
    created: bool  # False: it was known before
    attempt: int | None = None  # the number of the attempt that was opened, if one was
    was_model: str | None = None  # for which the job was pending until now; None: it goes on with its own


class TakeOver(NamedTuple):
    """Take on a job that has already failed elsewhere: it is parked at once. Answered with `Accepted`.

    A known job that is pending or parked is parked anew with this class; one that is answered, held or discarded keeps
    its state (`created` is False, and the row says which). Without `anew` every known job stays as it is.
    """

    pipeline: str
    batch: str
    job_id: str
    model: str
    payload: Body
    payload_hash: bytes
    error_class: str
    closing: Closing
    calls: int  # made elsewhere
    caller: str = ""
    checker: str = ""
    parked_at: float | None = None  # when it was put away elsewhere; None: now
    anew: bool = True
    other_hashes: tuple[bytes, ...] = ()  # as of `Accept`


# --- a job's course --------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Open an attempt: claims a pending job, or (with `replay_id`) a parked one, or continues one that the owner holds.

    Answered with `Started`, or with `Held` if the job is someone else's, in a state that starts nothing, or was given
    another payload or model since its `revision` was read.
    """

    id: int
    owner_id: int
    replay_id: int | None = None
    previous: int | None = None  # the attempt of this course before; None: this is its first
    span: SpanIds = NO_SPAN  # of the job's span
    revision: int | None = None  # what is going to be sent, to the model named there; None: whatever the job has now


class Started(NamedTuple):
    row: JobRow
    attempt: int  # 1-based
    payload: Body | None = None  # only from `Claim`


class Held(NamedTuple):
    row: JobRow | None  # as it is now; None: no such job any more


class Called(NamedTuple):
    """Who calls a job and who checks its answer, by name."""

    caller: str
    checker: str


FILE_ALONE = Called("", "")  # entered by a run that takes up nothing but what its file holds


class Lane(NamedTuple):
    """Pending jobs that can be run alike: of one pipeline and one model, with the same caller and check."""

    pipeline: str
    caller: str
    checker: str
    model: str

    @property
    def called(self) -> Called:
        return Called(self.caller, self.checker)


class Claim(NamedTuple):
    """Claim what is next in line: at most `limit` pending jobs whose `not_before` has passed. Answered with `Claimed`.

    Each is started as by `Start`. Those of one pipeline go in order of place; of several pipelines goes whichever has
    least in hand (`turns.py`).
    """

    pipeline: str | None  # None: of any
    owner_id: int
    limit: int
    served: tuple[Called, ...] | None = None  # only jobs of these callers and checks; None: of any
    closed: tuple[str, ...] = ()  # models that are not to be called now
    in_hand: tuple[tuple[str, int], ...] = ()  # how many jobs of a pipeline the claimer has; 0 where it isn't named
    far_end: bool = False  # the last in line instead: who probes, or is tried, hasn't just failed with its neighbours
    after: str = ""  # the pipeline that went last: among equals its successor goes first


class Claimed(NamedTuple):
    started: list[Started]  # payloads included, in the order in which they are to go
    left: tuple[Lane, ...]  # jobs wait there whose time has come, but the claim was not for them
    taken_by_others: bool = False  # none was started, though some wait: others were just about to


class Answer(NamedTuple):
    """Close the attempt with an answer. Answered with the `JobRow`; the first answer wins, whoever brings it."""

    id: int
    owner_id: int
    attempt: int
    answer: Body
    closing: Closing


class Retried(NamedTuple):
    """Close a failed attempt whose owner makes another. Answered with the `JobRow`.

    An owner that no longer holds the job only closes its attempt; the row says who has it.
    """

    id: int
    owner_id: int
    attempt: int
    closing: Closing
    strike: bool
    wait_s: float = 0.0  # until the next attempt


class Park(NamedTuple):
    """Close a failed attempt and park its job. Answered with the `JobRow`, as `Retried`."""

    id: int
    owner_id: int
    attempt: int
    closing: Closing
    error_class: str
    strike: bool = True
    wait_s: float | None = None  # a replay before this has passed would be in vain
    called: bool = True  # whether the attempt came to be a call; else it only tells why, and counts as none


class Release(NamedTuple):
    """Hand a job back unfinished: a run's becomes pending, a replay's parked. An open attempt is closed as interrupted.

    Answered with the `JobRow`. With `to_the_back` it goes behind all others of its state. `strikes` is how many are
    held against it then; None: as many as now.
    """

    id: int
    owner_id: int
    attempt: int | None = None
    closing: Closing | None = None  # of the attempt; None: interrupted
    to_the_back: bool = False
    unsure: bool = False  # whether it was started: if the owner doesn't hold it in this attempt, nothing is done
    strikes: int | None = None
    called: bool = True  # whether the attempt came to be a call; else it counts as none


class Orphan(NamedTuple):
    """Park a job of which nothing can be recorded that came of its attempt, as if its owner were lost.

    Answered with the `JobRow`. An owner that no longer holds the job changes nothing.
    """

    id: int
    owner_id: int
    attempt: int | None  # None: the last


class Forgive(NamedTuple):
    """Take back the strike of a closed attempt: an outage explains it. Answered with the `JobRow`.

    An owner that no longer holds the job changes nothing.
    """

    id: int
    owner_id: int
    attempt: int


# --- people ----------------------------------------------------------------------------------------------------


class Discard(NamedTuple):
    """Put a pending or parked job away for good. Answered with the `JobRow`; else raised as `TransitionError`."""

    id: int
    why: str


class Restore(NamedTuple):
    """Bring a discarded job back to the state it came from. Answered with the `JobRow`."""

    id: int


class Mend(NamedTuple):
    """Give a parked job another payload, or another model, for its next replays. What it was accepted with stays.

    Answered with the `JobRow`, whose `revision` is the new one; a job that isn't parked (any more) is left as it is.
    """

    id: int
    payload: Body | None = None  # None: as it is
    model: str | None = None  # None: the job's own
    note: str = ""  # why, or by which replay


class Erase(NamedTuple):
    """Remove a job's payloads, answer and messages for good; it stays in its state, known and counted.

    Answered with the `JobRow`; raised as `TransitionError` if the job is pending or held. Copies of the texts stay in
    the database's files until `Ledger.scrub`.
    """

    id: int
    why: str


class Rekey(NamedTuple):
    """Keep a text in another way, if it still is kept as it was read. Answered with None.

    `was_hash` and `hash` are the identity of its job, which goes with the first payload; else None.
    """

    kind: TextKind
    job: int
    number: int  # of the payload's revision, or of the message's attempt
    was: Body
    body: Body
    was_hash: bytes | None
    hash: bytes | None


class Forget(NamedTuple):
    """Remove finished jobs for good, with all that belongs to them; they stay counted. Answered with how many went.

    A job that isn't finished, or whose answer nobody was handed yet, stays.
    """

    ids: tuple[int, ...]


class HandOut(NamedTuple):
    """Note that answers were handed out (written to a file or printed). Answered with None."""

    ids: tuple[int, ...]


class NoteDelivery(NamedTuple):
    """Note what came of handing the answer of a recovered job to a function of the user's. Answered with None.

    With no `fault` it took the answer, which is handed out thereby. A job that was forgotten meanwhile is left alone.
    """

    id: int
    fault: str | None = None  # the name of what it raised; never its text, which may quote the answer
    wait_s: float | None = None  # until it is tried again; None: it isn't


# --- owners, replays, marks ------------------------------------------------------------------------------------


class OwnerFacts(NamedTuple):
    """What is known of a process that owns jobs; enough to see on the same machine whether it still lives."""

    token: str  # random
    role: str  # `runner`, `replay`, `sidecar`, …
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    process_start: str  # the kernel's start time of that pid, in ticks since boot
    version: str


class Run(NamedTuple):
    """Which pending jobs an owner takes up until none is left: of a pipeline, with this caller and check."""

    pipeline: str
    called: Called


class OwnerRow(NamedTuple):
    id: int
    facts: OwnerFacts
    beat: int  # only its owner raises it
    started_at: float
    beat_at: float
    ended_at: float | None
    lost_at: float | None
    run: Run | None = None  # while it has entered one
    run_began_at: float | None = None


class Register(NamedTuple):
    """Enter this process as an owner. Answered with its id."""

    facts: OwnerFacts


class Beat(NamedTuple):
    """Raise this owner's beat. Answered with `Beats`."""

    owner_id: int


class Beats(NamedTuple):
    mine: bool  # False: this owner was declared lost, or its row is gone; it has to register anew
    owners: dict[int, OwnerRow]  # the others that are neither ended nor lost


class Lose(NamedTuple):
    """Declare owners lost and park their jobs as orphaned. Answered with the list of `JobRow`s that were parked.

    `orphaned:maybe_sent` if an attempt was open (closed as interrupted), else `orphaned:not_sent`. An owner that has
    ended or is lost already is left alone; so is one whose beat differs from the one that was seen.
    """

    beats: dict[int, int]  # owner id -> the beat that stood still


class Leave(NamedTuple):
    """The owner ends in order. Jobs that it still holds are treated as those of a lost owner. Answered as `Lose`."""

    owner_id: int


class EnterRun(NamedTuple):
    """Note what an owner runs, until `LeaveRun`. Answered with None; raised as `OwnerLost` if it lives no more.

    With `alone` only if no other living owner runs that pipeline: else answered with the `OwnerRow` of the one that
    began first, and nothing is noted.
    """

    owner_id: int
    run: Run
    alone: bool = False


class LeaveRun(NamedTuple):
    """The owner runs nothing any more, unless jobs wait for its run and for a model that isn't `closed`, and are due.

    Answered with whether it has left. What was accepted before another was answered with this owner by `EnterRun` is
    seen: so either the owner goes on with it, or the other is told that nobody runs the pipeline.
    """

    owner_id: int
    unless: Run | None = None  # None: it leaves anyway
    closed: tuple[str, ...] = ()


class OpenReplay(NamedTuple):
    """Enter a replay. Answered with its id."""

    name: str
    who: str
    filters: str  # as JSON
    trigger: str = "manual"  # or `auto`


class CloseReplay(NamedTuple):
    id: int
    recovered: int
    parked_again: int
    released: int


class SetMark(NamedTuple):
    """Keep a small fact by name, e.g. when the last summary ran. `value` is any JSON value."""

    name: str
    value: Any


class TakeLease(NamedTuple):
    """Take or renew the lease of a scheduled task. Answered with True if this owner holds it now.

    A lease of an owner that has ended or is lost is free; so is one older than `ttl_s` on the ledger's clock, or that
    far in its future, since then the clock was set back.
    """

    task: str
    owner_id: int
    ttl_s: float


# --- what processes tell each other ------------------------------------------------------------------------------


class GateState(NamedTuple):
    """How a process sees the gate of a model. In lengths: no two clocks are compared, and the ledger's makes times."""

    model: str  # empty: in front of every model
    why: str | None  # None: open
    closed_for_s: float = 0.0  # in an outage: until the next probe
    probe_interval_s: float = 0.0
    pace_per_s: float | None = None  # None: not known, and what the row has is kept; 0: none is needed
    pace_learnt_s: float | None = None  # how long ago a refusal last set it; None: nobody knows
    outage_for_s: float | None = None  # since its first closing
    success_began_s: float | None = None  # how long ago the last successful call began


class SetPause(NamedTuple):
    """Note that nothing of a pipeline's model is started any more. Answered with None."""

    pipeline: str
    model: str  # empty: of any
    reason: str
    began_s: float  # how long ago the first call began that met the fault
    for_s: float | None  # until its cause ends by itself; None: nobody knows
    owner_id: int


class ClearPause(NamedTuple):
    """A call that began so long ago has succeeded: pauses for faults that were met before it are over.

    Answered with True if there was one.
    """

    pipeline: str
    model: str
    began_s: float


class GateRow(NamedTuple):
    """A row of `gates`, as lengths at the time of reading: negative where that time has passed."""

    model: str
    why: str | None
    closed_for_s: float | None
    pace_per_s: float | None
    outage_for_s: float | None
    changed_s: float  # how long ago it was written
    pace_learnt_s: float = 0.0  # how long ago a refusal last set the pace, where there is one


class PauseRow(NamedTuple):
    pipeline: str
    model: str  # empty: all models
    reason: str
    fault_began_at: float
    since: float
    until: float | None
    owner_id: int | None


class Consult(NamedTuple):
    """Tell how the gates stand here, and ask how they stand elsewhere. Answered with `Consulted`."""

    gates: tuple[GateState, ...] = ()


class Consulted(NamedTuple):
    gates: list[GateRow]
    pauses: list[PauseRow]
    now: float  # the ledger's time


class ClaimProbe(NamedTuple):
    """Ask to be the one who probes a closed gate. Answered with how long to wait; 0: go."""

    model: str
    owner_id: int
    interval_s: float  # at least so long after the last probe of anybody


Operation = (
    Accept
    | TakeOver
    | Start
    | Claim
    | Answer
    | Retried
    | Park
    | Release
    | Orphan
    | Forgive
    | Discard
    | Restore
    | Mend
    | Erase
    | Rekey
    | Forget
    | HandOut
    | NoteDelivery
    | Register
    | Beat
    | Lose
    | Leave
    | EnterRun
    | LeaveRun
    | OpenReplay
    | CloseReplay
    | SetMark
    | TakeLease
    | Consult
    | ClaimProbe
    | SetPause
    | ClearPause
)

# What a course has to get rid of: kept and tried again while the ledger is away. All else fails at once.
OUTCOMES = (Answer, Retried, Park, Release, Orphan)
Outcome = Answer | Retried | Park | Release | Orphan


def without_texts(operation: Outcome) -> Outcome:
    """The same outcome for a database that refuses its content: what decides is kept, what was said is dropped."""
    if isinstance(operation, Orphan) or operation.closing is None:
        return operation
    closing = operation.closing._replace(
        message="",
        message_key_id=None,
        quota_id=None,
        response_id=None,
        fingerprint=None,
        tokens_in=None,
        tokens_out=None,
    )
    return operation._replace(closing=closing)
