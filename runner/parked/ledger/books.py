"""What every store does the same way: read the rows, let `moves` decide, write what changed, gather the counters.

A database brings the primitives, all of them set-valued, at the end of `Books`. In one call no two operations are
about the same job; the writer sees to that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from parked.errors import JobConflict, OwnerLost, TextMissing, TransitionError
from parked.job import FINISHED, HELD, State
from parked.ledger import moves
from parked.ledger import operations as op
from parked.ledger.codec import Body
from parked.ledger.counters import Metric, Move
from parked.ledger.labels import Labels
from parked.ledger.moves import AttemptState, Change
from parked.ledger.operations import JobRow, Lane
from parked.ledger.turns import next_shares, next_turns
from parked.ledger.vault import is_same

SET_BY_THE_LATEST: Final = frozenset({Metric.LAST_ACCEPTED, Metric.LAST_SUCCESS, Metric.LAST_PARKED})
# How long a store goes by the lanes that it saw. A job in a new one has to start within a second.
LANES_SEEN_S: Final = 0.25


_ID_OF_CHANGE: Final = attrgetter("row.id")

COUNTED: Final = (
    "metric", "pipeline", "model", "a", "b", "value", "now", "trace_id", "span_id", "example_value", "example_at",
)  # fmt: skip

LabelSet = tuple[Metric, str, str, str, str]  # the first five fields of a Move: the key of a counter


class Tally:
    """The counters that a transaction moves, gathered; the next one begins with none, whether this commits or not.

    Jobs go by their own pipeline and model here; `under` says what they count under.
    """

    def __init__(self) -> None:
        self.values: dict[LabelSet, float] = {}
        self.examples: dict[LabelSet, Move] = {}

    def add(self, gathered: Iterable[Move]) -> None:
        for move in gathered:
            key = move[:5]
            if move.metric in SET_BY_THE_LATEST:
                self.values[key] = move.value
                continue
            self.values[key] = self.values.get(key, 0) + move.value
            if move.trace_id is not None:
                self.examples[key] = move

    def under(self, labels: Labels) -> Tally:
        """The same counters by the names that the ledger counts under."""
        result = Tally()
        for key, value in self.values.items():
            metric, pipeline, model, a, b = key
            pipeline, model = labels.pair(pipeline, model) if model else (labels.pipeline(pipeline), "")
            named = (metric, pipeline, model, a, b)
            if metric in SET_BY_THE_LATEST:
                result.values[named] = value
            else:
                result.values[named] = result.values.get(named, 0) + value
            if key in self.examples:
                result.examples[named] = self.examples[key]
        return result

    def clear(self) -> None:
        self.values.clear()
        self.examples.clear()


class Books(ABC):
    """The operations on jobs, for all databases. See `Store` for what a store is to its writer."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.labels = Labels()  # as far as they are known; a store forgets them when it rolls back
        self._gathered: list[Change] = []  # decided, and not written yet
        self._unsettled: set[int] = set()  # the ids of their jobs
        # The jobs that this process runs, as the last commit left them, each with its open attempt. Whoever else moves
        # one of them takes it from its owner, and the write finds that out: so nothing needs to be read for its end.
        self._held: dict[int, tuple[JobRow, AttemptState]] = {}
        self._goes_by_memory = False  # this transaction
        self._triggers: dict[int, str] = {}
        self._lanes: list[Lane] = []
        self._lanes_seen_at = -math.inf  # by `moment`

    @property
    @abstractmethod
    def now(self) -> float:
        """The time of this transaction, UTC epoch seconds."""

    # --- the transaction, as far as it is the same everywhere ---

    def _begin_anew(self) -> None:
        self.tally.clear()
        self._gathered.clear()
        self._unsettled.clear()
        self._goes_by_memory = False

    def _unlearn(self) -> None:
        """After a transaction that failed: what this one left behind, or went by, is read again."""
        self.labels = Labels()
        self._held.clear()

    def _settle(self) -> None:
        """Write what was decided: before anything is read that depends on it, and before the commit."""
        if not self._gathered:
            return
        changes = sorted(self._gathered, key=_ID_OF_CHANGE)
        self._gathered.clear()
        self._unsettled.clear()
        self.write_changes(changes)
        recovered = [change.row.id for change in changes if _recovers(change)]
        if recovered:
            self.make_deliverable(recovered)

    def _settle_jobs(self, ids: Iterable[int]) -> None:
        """The same where it is about one of these jobs."""
        if not self._unsettled.isdisjoint(ids):
            self._settle()

    # --- taking on ---

    def accept(self, rows: Sequence[op.Accept]) -> list[op.Accepted | Exception]:
        place = self._last_place()
        drafts = [moves.accepted(row, place=(place := place + 1), now=self.now) for row in rows]
        # A new job that starts at once is inserted as running: its indexes are written once instead of twice.
        starts = [self._first_start(draft, row) for draft, row in zip(drafts, rows, strict=True)]
        stored = [draft if start is None else start.row for draft, start in zip(drafts, starts, strict=True)]
        new = self._take_on(stored, rows)
        again = [row for row, job in zip(rows, new, strict=True) if job is None]
        known = self._known_jobs(again)
        was = self._give_models(again, known)

        results: list[op.Accepted | Exception] = []
        changes: list[Change] = []
        for row, start, job in zip(rows, starts, new, strict=True):
            accepted = self._accepted(row, job, known, was)
            if isinstance(accepted, op.Accepted):
                there = accepted.row
                if job is None:
                    start = self._first_start(there, row)
                elif start is not None:
                    start = start._replace(was=there, row=there)
                if start is not None:
                    changes.append(start)
                    accepted = op.Accepted(start.row, accepted.created, start.opened, accepted.was_model)
                elif row.start_for is not None and there.state is State.PENDING:
                    accepted = OwnerLost(row.start_for)
            results.append(accepted)
        self._write(changes)
        return results

    def take_over(self, rows: Sequence[op.TakeOver]) -> list[op.Accepted | Exception]:
        place = self._last_place()
        new = self._take_on([moves.accepted(row, place=(place := place + 1), now=self.now) for row in rows], rows)
        known = self._known_jobs([row for row, job in zip(rows, new, strict=True) if job is None])
        results: list[op.Accepted | Exception] = []
        changes: list[Change] = []
        for row, job in zip(rows, new, strict=True):
            accepted = self._accepted(row, job, known, {})
            results.append(accepted)
            if not isinstance(accepted, op.Accepted) or not (accepted.created or row.anew):
                continue
            if accepted.row.state in (State.PENDING, State.PARKED):
                changes.append(moves.taken_over(row, accepted.row, known=job is None, now=self.now))
        parked = {row.id: row for row in self._write(changes)}
        self.add_calls_elsewhere({change.was.id: change.row.calls - change.was.calls - 1 for change in changes})
        return [
            result._replace(row=parked.get(result.row.id, result.row)) if isinstance(result, op.Accepted) else result
            for result in results
        ]

    def _last_place(self) -> int:
        if any(change.to_the_back for change in self._gathered):
            self._settle()
        return self.last_place()

    def _known_jobs(self, rows: Sequence[op.Accept | op.TakeOver]) -> dict[tuple[str, str, str], JobRow]:
        if not rows:
            return {}
        self._settle()
        return self.known_jobs(rows)

    def _first_start(self, job: JobRow, row: op.Accept) -> Change | None:
        """How a job that is accepted starts at once; None if it doesn't."""
        if row.start_for is None or not self.owner_alive(row.start_for):
            return None
        return moves.started(job, owner_id=row.start_for, span=row.span, last_is_open=False, now=self.now)

    def _take_on(self, jobs: Sequence[JobRow], rows: Sequence[op.Accept | op.TakeOver]) -> list[JobRow | None]:
        """Store new jobs and count them; return them with their ids, None where one was known before."""
        ids = self.insert_jobs(jobs, [row.payload for row in rows])
        new = [None if id is None else JobRow(id, *job[1:]) for id, job in zip(ids, jobs, strict=True)]
        for (pipeline, model), count in Counter((job.pipeline, job.model) for job in new if job is not None).items():
            self.tally.add(moves.count_accepted(pipeline, model, jobs=count, now=self.now))
        return new

    def _accepted(
        self,
        row: op.Accept | op.TakeOver,
        new: JobRow | None,
        known: Mapping[tuple[str, str, str], JobRow],
        was: Mapping[int, str],
    ) -> op.Accepted | Exception:
        if new is not None:
            return op.Accepted(new, created=True)
        there = known[row.pipeline, row.batch, row.job_id]
        try:
            if not _is_same(there, row):
                return JobConflict(row.pipeline, row.batch, row.job_id)
        except TextMissing as exc:
            return exc
        return op.Accepted(there, created=False, was_model=was.get(there.id))

    def _give_models(self, rows: Sequence[op.Accept], known: dict[tuple[str, str, str], JobRow]) -> dict[int, str]:
        """Give known jobs that are pending the models for which they are accepted now; `known` is brought up to date.

        Returns the models that they had, by the ids of these jobs.
        """
        given: list[tuple[JobRow, JobRow]] = []
        for row in rows:
            key = (row.pipeline, row.batch, row.job_id)
            job = known[key]
            if job.state is State.PENDING and job.model != row.model and _is_known_so(job, row):
                known[key] = moves.for_model(job, row.model)
                given.append((job, known[key]))
                # Nothing new was accepted; but what is counted of this pair begins now, before its first failure.
                self.tally.add([Move(Metric.JOBS_ACCEPTED, job.pipeline, row.model, "", "", 0)])
        if given:
            self.give_models(given)
        return {job.id: job.model for job, _ in given}

    # --- a job's course ---

    def start(self, rows: Sequence[op.Start]) -> list[op.Started | op.Held | Exception]:
        # Owners before jobs, as whoever declares one lost: else the two might wait for each other.
        for owner_id in sorted({row.owner_id for row in rows}):
            self.ask_for_owner(owner_id)
        triggers = {row.replay_id: self._trigger_of(row.replay_id) for row in rows}
        self._settle_jobs(row.id for row in rows)
        jobs: Mapping[int, tuple[JobRow, AttemptState | None]]
        if any(row.previous is not None for row in rows):
            jobs = self.jobs_with_attempts([(row.id, None) for row in rows])
        else:  # the first of a course follows no attempt
            jobs = {id: (job, None) for id, job in self.jobs_by_id([row.id for row in rows]).items()}
        results: list[op.Started | op.Held | Exception] = []
        changes: list[Change] = []
        for row in rows:
            if row.id not in jobs:
                results.append(op.Held(None))
                continue
            job, last = jobs[row.id]
            change = moves.started(
                job,
                owner_id=row.owner_id,
                replay_id=row.replay_id,
                trigger=triggers[row.replay_id],
                previous=row.previous,
                span=row.span,
                revision=row.revision,
                last_is_open=last is not None and last.ended_at is None,
                now=self.now,
            )
            if change is None:
                results.append(op.Held(job))
            elif not self.owner_alive(row.owner_id):
                results.append(OwnerLost(row.owner_id))
            else:
                changes.append(change)
                results.append(op.Started(change.row, change.row.calls))
        self._write(changes)
        return results

    def claim(self, rows: Sequence[op.Claim]) -> list[op.Claimed | Exception]:
        return [self._claim(row) for row in rows]

    def _claim(self, row: op.Claim) -> op.Claimed | Exception:
        if any(State.PENDING in (change.was.state, change.row.state) for change in self._gathered):
            self._settle()
        self.ask_for_owner(row.owner_id)
        heads, left, waiting = self._heads_for(row)
        if not self.owner_alive(row.owner_id):
            return OwnerLost(row.owner_id)
        changes = [
            change
            for job in next_turns(heads, limit=row.limit, in_hand=dict(row.in_hand), after=row.after)
            if (change := moves.started(job, owner_id=row.owner_id, last_is_open=False, now=self.now)) is not None
        ]
        started = [op.Started(job, job.calls) for job in self._write(changes)]
        self.add_payloads(started)
        return op.Claimed(started, tuple(left), taken_by_others=waiting and not started)

    def _heads_for(self, row: op.Claim) -> tuple[list[JobRow], list[Lane], bool]:
        """The jobs to choose from, the lanes that the claim isn't for, and whether some wait that it is for.

        The lanes that were seen a moment ago do, as long as they give enough.
        """
        if self._lanes_are_fresh():
            found = self._heads_of(self._lanes, row)
            if len(found[0]) >= row.limit:  # of each lane
                return found
        self._lanes, self._lanes_seen_at = self.lanes(), self.moment()
        return self._heads_of(self._lanes, row)

    def _lanes_are_fresh(self) -> bool:
        return 0 <= self.moment() - self._lanes_seen_at < LANES_SEEN_S

    def _heads_of(self, lanes: Sequence[Lane], row: op.Claim) -> tuple[list[JobRow], list[Lane], bool]:
        waiting = [lane for lane in lanes if row.pipeline in (None, lane.pipeline)]
        meant = [lane for lane in waiting if is_meant(lane, row)]
        return self._first_of(meant, row), [lane for lane in waiting if not is_meant(lane, row)], bool(meant)

    def _first_of(self, lanes: Sequence[Lane], row: op.Claim) -> list[JobRow]:
        """Of each pipeline as many as may have their turn: all that is looked at is locked, so that others pass it by.

        Where some had fewer than their share, because others are just taking them or it is known from a moment ago that
        they wait, twice as many are looked at, and so on.
        """
        found: dict[str, list[JobRow]] = {}
        there: dict[str, int] = {}  # of pipelines that have no more
        looked_at = Counter[str]()
        most = row.limit
        while True:
            shares = _shares(lanes, row, most=most, there=there)
            wanted = [
                (lane, shares[lane.pipeline]) for lane in lanes if shares[lane.pipeline] > looked_at[lane.pipeline]
            ]
            if not wanted:
                break
            found |= {lane.pipeline: [] for lane, _ in wanted}
            for job in self.heads(wanted, far_end=row.far_end):
                found[job.pipeline].append(job)
            for lane, share in wanted:
                if len(found[lane.pipeline]) < share:
                    there[lane.pipeline] = len(found[lane.pipeline])
            looked_at |= shares
            if sum(min(len(found[pipeline]), share) for pipeline, share in shares.items()) >= row.limit:
                break
            most *= 2
        return [job for jobs in found.values() for job in jobs]

    def finish(self, rows: Sequence[op.Answer | op.Park]) -> list[JobRow | Exception]:
        def decide(row: op.Answer | op.Park, job: JobRow, attempt: AttemptState | None) -> Change:
            trigger = self._trigger(job)
            if isinstance(row, op.Answer):
                return moves.answered(job, row, attempt, trigger=trigger, now=self.now)
            return moves.parked(job, row, attempt, trigger=trigger, now=self.now)

        jobs = self._attempted(rows)
        return list(self._write([decide(row, *jobs[row.id]) for row in rows]))

    def retried(self, rows: Sequence[op.Retried]) -> list[JobRow | Exception]:
        jobs = self._attempted(rows)
        changes = [moves.retried(job, row, attempt, now=self.now) for row in rows for job, attempt in [jobs[row.id]]]
        return list(self._write(changes))

    def release(self, rows: Sequence[op.Release]) -> list[JobRow | Exception | None]:
        self._settle_jobs(row.id for row in rows)
        found = self.jobs_with_attempts([(row.id, row.attempt) for row in rows])
        meant = [row for row in rows if not row.unsure or moves.is_held_so(found.get(row.id, (None, None))[0], row)]
        if any(row.id not in found for row in meant):
            raise TransitionError(State.FORGOTTEN, "any")
        changes = [
            moves.released(job, row, attempt, trigger=self._trigger(job))
            for row in meant
            for job, attempt in [found[row.id]]
        ]
        released = {row.id: row for row in self._write(changes)}
        return [released.get(row.id) for row in rows]

    def orphan(self, rows: Sequence[op.Orphan]) -> list[JobRow | Exception]:
        jobs = self._attempted(rows)
        changes = [
            moves.given_up_on(job, row, attempt, trigger=self._trigger(job), now=self.now)
            for row in rows
            for job, attempt in [jobs[row.id]]
        ]
        return list(self._write(changes))

    def forgive(self, rows: Sequence[op.Forgive]) -> list[JobRow | Exception]:
        jobs = self._existing([row.id for row in rows])
        forgiven = [(jobs[row.id], moves.forgiven(jobs[row.id], row)) for row in rows]
        self.forgive_attempts([row for row, (was, new) in zip(rows, forgiven, strict=True) if new is not was])
        return list(self._write([Change(was, new) for was, new in forgiven]))

    # --- people ---

    def discard(self, rows: Sequence[op.Discard]) -> list[JobRow | Exception]:
        jobs = self._existing([row.id for row in rows])
        return list(self._write([moves.discarded(jobs[row.id], why=row.why, now=self.now) for row in rows]))

    def restore(self, rows: Sequence[op.Restore]) -> list[JobRow | Exception]:
        jobs = self._existing([row.id for row in rows])
        changes = [moves.restored(jobs[row.id], has_answer=self.has_answer(row.id), now=self.now) for row in rows]
        return list(self._write(changes))

    def mend(self, rows: Sequence[op.Mend]) -> list[JobRow | Exception]:
        jobs = self._existing([row.id for row in rows])
        mendable = {job.id for job in jobs.values() if job.state is State.PARKED and job.erased_at is None}
        self.mend_payloads([(jobs[row.id], row) for row in rows if row.id in mendable])
        mended = self.jobs_by_id([row.id for row in rows])
        return [mended[row.id] for row in rows]

    def erase(self, rows: Sequence[op.Erase]) -> list[JobRow | Exception]:
        jobs = self._existing([row.id for row in rows])
        results: list[JobRow | Exception] = []
        for row in rows:
            job = jobs[row.id]
            has_texts = job.erased_at is None or self.has_texts(row.id)
            try:
                results.append(moves.erased(job, has_texts=has_texts, now=self.now))
            except TransitionError as exc:  # as a result: the others of this commit are erased all the same
                results.append(exc)
        self.erase_texts(
            {row.id: row.why for row, result in zip(rows, results, strict=True) if not isinstance(result, Exception)}
        )
        return results

    def rekey(self, rows: Sequence[op.Rekey]) -> list[None]:
        self._settle()
        self.jobs_by_id(list({row.job for row in rows}))  # locked before their texts, as by all that write those
        self.rekey_texts(rows)
        return [None] * len(rows)

    def note_delivery(self, rows: Sequence[op.NoteDelivery]) -> list[None]:
        self._settle()
        jobs = self.jobs_by_id([row.id for row in rows])
        there = [row for row in rows if row.id in jobs]
        self.note_deliveries(there)
        self.tally.add(moves.delivered(jobs[row.id], row) for row in there)
        return [None] * len(rows)

    def forget(self, rows: Sequence[op.Forget]) -> list[int]:
        return [self._forget(row) for row in rows]

    def _forget(self, row: op.Forget) -> int:
        self._settle()
        jobs = self.jobs_by_id(row.ids)
        gone = self.forget_jobs([job.id for job in jobs.values() if job.state in FINISHED])
        for id in gone:
            self.tally.add(moves.forgotten(jobs[id]).moves)
        return len(gone)

    # --- counting ---

    def counted(self) -> Tally:
        """What this transaction counts, by the names that the ledger counts under. To be asked before the commit.

        A pair of pipeline and model that counts for the first time begins its `jobs_accepted`, if only with 0: that
        is where its name is known from.
        """
        pairs = dict.fromkeys((pipeline, model) for _, pipeline, model, _, _ in self.tally.values)
        new: list[tuple[str, str]] = []
        if not all(self.labels.is_settled(*pair) for pair in pairs):
            self.labels = Labels(self.counted_pairs())
            new = [self.labels.let_in(pipeline, model) for pipeline, model in pairs if model]
        tally = self.tally.under(self.labels)
        for pair in new:
            tally.values.setdefault((Metric.JOBS_ACCEPTED, *pair, "", ""), 0)
        return tally

    def counter_rows(self) -> list[tuple[Any, ...]]:
        """The rows for `count`, in the order of the key: so that no two writers wait for each other in a circle.

        Their columns are those of `COUNTED`.
        """
        tally, now = self.counted(), self.now
        rows: list[tuple[Any, ...]] = []
        for key, value in sorted(tally.values.items()):
            names = tuple(map(str, key))  # plain texts, as in `rows.py`
            move = tally.examples.get(key)
            if move is None:
                rows.append((*names, value, now, None, None, None, None))
                continue
            example = move.value if move.example is None else move.example
            rows.append((*names, value, now, move.trace_id, move.span_id, example, now))
        return rows

    # --- what processes tell each other ---

    def consult(self, rows: Sequence[op.Consult]) -> list[op.Consulted]:
        self._settle()  # what leaves nothing pending is no pause
        for gate in sorted({gate.model: gate for row in rows for gate in row.gates}.values(), key=attrgetter("model")):
            self.set_gate(
                {
                    "model": gate.model, "reason": gate.why, "probe_interval_s": gate.probe_interval_s,
                    "closed_until": None if gate.why is None else self.now + gate.closed_for_s,
                    "pace_per_s": gate.pace_per_s, "pace_learnt_at": self._ago(gate.pace_learnt_s),
                    "outage_since": self._ago(gate.outage_for_s),
                    "last_success_began_at": self._ago(gate.success_began_s), "now": self.now,
                }
            )  # fmt: skip
        gates = [
            op.GateRow(
                model,
                why,
                None if closed_until is None else closed_until - self.now,
                pace_per_s,
                None if outage_since is None else self.now - outage_since,
                self.now - changed_at,
                self.now - (changed_at if learnt_at is None else learnt_at),
            )
            for model, why, closed_until, pace_per_s, outage_since, changed_at, learnt_at in self.gates()
        ]
        return [op.Consulted(gates, self.pauses(), self.now)] * len(rows)

    def claim_probe(self, rows: Sequence[op.ClaimProbe]) -> list[float]:
        return [self._probe(row) for row in rows]

    def _probe(self, row: op.ClaimProbe) -> float:
        if self.take_probe(row):
            return 0.0
        last = self.last_probe(row.model)  # of nobody: the outage is this process's own, or over
        return 0.0 if last is None else max(0.1, last + row.interval_s - self.now)

    def set_pause(self, rows: Sequence[op.SetPause]) -> list[None]:
        for row in rows:
            until = None if row.for_s is None else self.now + row.for_s
            self.note_pause(row, fault_began_at=self.now - row.began_s, until=until)
            self.tally.add([Move(Metric.PAUSES, row.pipeline, row.model, row.reason, "", 1)])
        return [None] * len(rows)

    def clear_pause(self, rows: Sequence[op.ClearPause]) -> list[bool]:
        return [self.end_pause(row, began_at=self.now - row.began_s) for row in rows]

    def _ago(self, length_s: float | None) -> float | None:
        return None if length_s is None else self.now - length_s

    # --- runs of a pipeline ---

    def enter_run(self, rows: Sequence[op.EnterRun]) -> list[op.OwnerRow | Exception | None]:
        self.alone_with_runs()
        return [self._enter_run(row) for row in rows]

    def _enter_run(self, row: op.EnterRun) -> op.OwnerRow | Exception | None:
        if row.alone and (other := self.other_run(row.run.pipeline, row.owner_id)) is not None:
            return other
        return None if self.note_run(row.owner_id, row.run) else OwnerLost(row.owner_id)

    def leave_run(self, rows: Sequence[op.LeaveRun]) -> list[bool]:
        self.alone_with_runs()
        return [self._leave_run(row) for row in rows]

    def _leave_run(self, row: op.LeaveRun) -> bool:
        if row.unless is not None and any(
            (lane.pipeline, lane.called) == row.unless and lane.model not in row.closed for lane in self.lanes()
        ):
            return False
        self.end_run(row.owner_id)
        return True

    # --- lost owners ---

    def orphan_jobs_of(self, owner_id: int) -> list[JobRow]:
        """Park what an owner holds, and close what else it left open. Return the jobs that were parked."""
        self._settle()
        held = self.jobs_with_attempts([(id, None) for id in self.held_by(owner_id)])
        changes = [
            moves.orphaned(job, attempt, trigger=self._trigger(job), now=self.now) for job, attempt in held.values()
        ]
        parked = self._write(changes)
        self._settle()
        left = self.open_attempts_of(owner_id)
        jobs = self.jobs_by_id([job for job, _ in left])
        self._write([moves.abandoned(jobs[job], attempt) for job, attempt in left])
        return parked

    # --- parts ---

    def _attempted(
        self, rows: Sequence[op.Answer | op.Park | op.Retried | op.Release | op.Orphan]
    ) -> dict[int, tuple[JobRow, AttemptState | None]]:
        """The jobs that these are about, each with the attempt that is meant."""
        self._settle_jobs(row.id for row in rows)
        jobs: dict[int, tuple[JobRow, AttemptState | None]] = {}
        jobs |= {row.id: held for row in rows if (held := self._remembered(row)) is not None}
        unknown = [(row.id, row.attempt) for row in rows if row.id not in jobs]
        self._goes_by_memory |= bool(jobs)
        if unknown:
            jobs |= self.jobs_with_attempts(unknown)
        if len(jobs) < len(rows):
            raise TransitionError(State.FORGOTTEN, "any")
        return jobs

    def _remembered(
        self, row: op.Answer | op.Park | op.Retried | op.Release | op.Orphan
    ) -> tuple[JobRow, AttemptState] | None:
        """The job that its owner brings something of, if it holds it in that very attempt as far as is known here."""
        held = self._held.get(row.id)
        return held if held is not None and (held[0].owner_id, held[0].calls) == (row.owner_id, row.attempt) else None

    def _existing(self, ids: Sequence[int]) -> dict[int, JobRow]:
        self._settle()
        jobs = self.jobs_by_id(ids)
        if len(jobs) < len(ids):
            raise TransitionError(State.FORGOTTEN, "any")
        return jobs

    def _trigger(self, job: JobRow) -> str:
        """What set off the replay that holds this job; empty if none does."""
        return self._trigger_of(job.replay_id)

    def _trigger_of(self, replay_id: int | None) -> str:
        if replay_id is None:
            return ""
        if replay_id not in self._triggers:
            self._triggers[replay_id] = self.trigger(replay_id)
        return self._triggers[replay_id]

    def _write(self, changes: Sequence[Change]) -> list[JobRow]:
        """Have written what was decided, by the commit at the latest; return the rows as they are then, in order."""
        self._settle_jobs(change.row.id for change in changes)
        if any(change.to_the_back for change in changes):
            place = self._last_place()
            changes = [
                change._replace(row=change.row._replace(place=(place := place + 1))) if change.to_the_back else change
                for change in changes
            ]
        for change in changes:
            self._remember(change)
            self._unsettled.add(change.row.id)
            self.tally.add(change.moves)
        self._gathered += changes
        return [change.row for change in changes]

    def _remember(self, change: Change) -> None:
        """Note a job that this process runs from now on, or no longer."""
        row = change.row
        if change.opened is not None and change.closed is None and row.state in HELD:
            self._held[row.id] = (row, AttemptState(change.opened, self.now, None, False, False))
        elif (held := self._held.pop(row.id, None)) is not None and change.closed is None:
            was, attempt = held
            if row.state in HELD and (row.owner_id, row.calls) == (was.owner_id, was.calls):
                self._held[row.id] = (row, attempt)

    # --- what a database brings ---

    @abstractmethod
    def last_place(self) -> int:
        """The highest place in line; 0 if nobody stands in it."""

    @abstractmethod
    def insert_jobs(self, jobs: Sequence[JobRow], payloads: Sequence[Body]) -> list[int | None]:
        """Insert jobs that are pending or started, with their payloads; return their ids. None: it is known already."""

    @abstractmethod
    def known_jobs(self, rows: Sequence[op.Accept | op.TakeOver]) -> dict[tuple[str, str, str], JobRow]:
        """By (pipeline, batch, job id)."""

    @abstractmethod
    def add_calls_elsewhere(self, calls: Mapping[int, int]) -> None: ...

    @abstractmethod
    def jobs_by_id(self, ids: Sequence[int]) -> dict[int, JobRow]:
        """The rows, locked for this transaction."""

    @abstractmethod
    def jobs_with_attempts(
        self, attempts: Sequence[tuple[int, int | None]]
    ) -> dict[int, tuple[JobRow, AttemptState | None]]:
        """The same, each with one of its attempts, if it has that: (job's id, number; None: the last)."""

    @abstractmethod
    def moment(self) -> float:
        """In seconds, to tell how long ago something was; nobody is asked for it."""

    @abstractmethod
    def lanes(self) -> list[Lane]:
        """Those with a job whose time has come. A look-up each, however many jobs wait there."""

    @abstractmethod
    def heads(self, wanted: Sequence[tuple[Lane, int]], *, far_end: bool) -> list[JobRow]:
        """The first jobs of each lane whose time has come, at most so many, locked for this transaction.

        With `far_end` the last ones instead.
        """

    @abstractmethod
    def add_payloads(self, started: list[op.Started]) -> None:
        """Put what each job sends into these, in place, by the time of the commit."""

    @abstractmethod
    def mend_payloads(self, mends: Sequence[tuple[JobRow, op.Mend]]) -> None:
        """Store the next revision of each, and let the job send it."""

    @abstractmethod
    def give_models(self, given: Sequence[tuple[JobRow, JobRow]]) -> None:
        """Write pending jobs as they are with another model (was, is), and a revision of what they send that names it.

        Earlier revisions keep the name of the model that the job had then.
        """

    @abstractmethod
    def has_answer(self, id: int) -> bool: ...

    @abstractmethod
    def has_texts(self, id: int) -> bool:
        """Whether anything that erasing removes can still be read of a job."""

    @abstractmethod
    def erase_texts(self, why: Mapping[int, str]) -> None:
        """Of these jobs, by id: empty payloads, answer and messages, and note when and why if that isn't noted yet."""

    @abstractmethod
    def rekey_texts(self, rows: Sequence[op.Rekey]) -> None:
        """Write each text and, with the first payload, the identity of its job, where they still are as they were."""

    @abstractmethod
    def forget_jobs(self, ids: Sequence[int]) -> list[int]:
        """Remove those of these jobs that have no answer to be handed out, with all that belongs to them."""

    @abstractmethod
    def counted_pairs(self) -> list[tuple[str, str]]:
        """The names of `jobs_accepted`, pipeline and model; until the commit no other transaction adds to them."""

    @abstractmethod
    def held_by(self, owner_id: int) -> list[int]:
        """The ids of the jobs that it holds."""

    @abstractmethod
    def open_attempts_of(self, owner_id: int) -> list[tuple[int, AttemptState]]:
        """Each with its job's id."""

    @abstractmethod
    def ask_for_owner(self, owner_id: int) -> None:
        """Lock an owner, who will be asked about; its answer needn't be waited for here."""

    @abstractmethod
    def owner_alive(self, owner_id: int) -> bool: ...

    @abstractmethod
    def alone_with_runs(self) -> None:
        """Until the commit no other transaction enters a run or leaves one, and what those before did is seen."""

    @abstractmethod
    def other_run(self, pipeline: str, owner_id: int) -> op.OwnerRow | None:
        """The living owner that began first to run this pipeline, but for this one."""

    @abstractmethod
    def note_run(self, owner_id: int, run: op.Run) -> bool:
        """Whether that owner lives, so that it was noted."""

    @abstractmethod
    def end_run(self, owner_id: int) -> None: ...

    @abstractmethod
    def trigger(self, replay_id: int) -> str: ...

    @abstractmethod
    def write_changes(self, changes: Sequence[Change]) -> None:
        """Write the rows that changed, open and close attempts, and keep answers where there are none yet.

        They are in the order of the jobs' ids. The transaction must fail if a job that is to be moved is not as `was`
        says in its state, its owner and its calls.
        """

    @abstractmethod
    def forgive_attempts(self, rows: Sequence[op.Forgive]) -> None:
        """Note of each attempt that it is no strike."""

    @abstractmethod
    def set_gate(self, values: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def gates(self) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def pauses(self) -> list[op.PauseRow]: ...

    @abstractmethod
    def take_probe(self, row: op.ClaimProbe) -> bool: ...

    @abstractmethod
    def last_probe(self, model: str) -> float | None: ...

    @abstractmethod
    def note_pause(self, row: op.SetPause, *, fault_began_at: float, until: float | None) -> None: ...

    @abstractmethod
    def end_pause(self, row: op.ClearPause, *, began_at: float) -> bool: ...

    @abstractmethod
    def make_deliverable(self, ids: Sequence[int]) -> None:
        """Let the answers of these jobs be delivered from now on."""

    @abstractmethod
    def note_deliveries(self, rows: Sequence[op.NoteDelivery]) -> None:
        """Note in the answers what came of each."""


def _is_same(job: JobRow, row: op.Accept | op.TakeOver) -> bool:
    return job.payload_hash == row.payload_hash or is_same(job.payload_hash, (row.payload_hash, *row.other_hashes))


def _is_known_so(job: JobRow, row: op.Accept) -> bool:
    return job.payload_hash == row.payload_hash or job.payload_hash in row.other_hashes


def first_wanted(lanes: Sequence[Lane], row: op.Claim) -> list[tuple[Lane, int]]:
    """Which jobs a claim looks at first, of the lanes that it is for."""
    shares = _shares(lanes, row, most=row.limit, there={})
    return [(lane, shares[lane.pipeline]) for lane in lanes if shares[lane.pipeline]]


def _shares(lanes: Sequence[Lane], row: op.Claim, *, most: int, there: Mapping[str, int]) -> Counter[str]:
    pipelines = (lane.pipeline for lane in lanes)
    return next_shares(pipelines, limit=most, in_hand=dict(row.in_hand), after=row.after, there=there)


def is_meant(lane: Lane, row: op.Claim) -> bool:
    """Whether a claim is for the jobs of a lane."""
    return (
        row.pipeline in (None, lane.pipeline)
        and lane.model not in row.closed
        and (row.served is None or lane.called in row.served)
    )


def _recovers(change: Change) -> bool:
    return change.row.state is State.RECOVERED and change.was.state is not State.RECOVERED
