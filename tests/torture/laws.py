"""What must hold after every kill, seen in one snapshot of the ledger and in what the simulator was asked."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from parked.ledger import Ledger, codec
from parked.ledger.codec import Body
from torture.api import Call, answer_to

HELD: Final = ("running", "replaying")
ANSWERED: Final = ("succeeded", "recovered")

# By hand, not by the ledger's own questions: what judges it must not share its mistakes.
JOBS: Final = """
    SELECT id, pipeline, batch, job_id, state, error_class, owner_id, calls, calls_elsewhere, replays, not_before
      FROM {}jobs
"""
ATTEMPTS: Final = "SELECT job, number, owner_id, ended_at, answered, interrupted FROM {}attempts ORDER BY job, number"
OWNERS: Final = "SELECT id, pid, process_start, ended_at, lost_at FROM {}owners"
ANSWERS: Final = "SELECT job, codec, key_id, body FROM {}answers"
PAYLOADS: Final = "SELECT job, codec, key_id, body FROM {}payloads"


class Job(NamedTuple):
    id: int
    pipeline: str
    batch: str
    job_id: str
    state: str
    error_class: str | None
    owner_id: int | None
    calls: int
    calls_elsewhere: int
    replays: int
    not_before: float | None


class Attempt(NamedTuple):
    job: int
    number: int
    owner_id: int | None
    ended_at: float | None
    answered: bool
    interrupted: bool


class Owner(NamedTuple):
    id: int
    pid: int
    process_start: str
    ended_at: float | None
    lost_at: float | None

    @property
    def gone(self) -> bool:
        return self.ended_at is not None or self.lost_at is not None


class Snapshot(NamedTuple):
    jobs: dict[int, Job]
    attempts: dict[int, list[Attempt]]  # by job
    owners: dict[int, Owner]
    answers: dict[int, str]  # the text, by job
    prompts: dict[int, str]  # by job

    def of_process(self, pid: int, process_start: str) -> set[int]:
        """The owners that a process was."""
        return {o.id for o in self.owners.values() if (o.pid, o.process_start) == (pid, process_start)}

    def held_by(self, owners: Iterable[int]) -> list[Job]:
        return [job for job in self.jobs.values() if job.owner_id in set(owners)]


def look(ledger: Ledger) -> Snapshot:
    """Read all of a ledger, and hold it against the law of conservation, row by row, bodies included."""
    schema = "parked." if ledger.url.startswith("postgres") else ""
    with ledger.ask() as reader:
        imbalances = reader.imbalances(thorough=True)
        ask: Any = reader  # both databases' readers have it, for questions of their own

        def rows(sql: str) -> list[tuple[Any, ...]]:
            return list(ask.ask(sql.format(schema), {}).fetchall())

        jobs = {row[0]: Job(*row) for row in rows(JOBS)}
        attempts = defaultdict(list)
        for job, number, owner, ended_at, answered, interrupted in rows(ATTEMPTS):
            attempts[job].append(Attempt(job, number, owner, ended_at, bool(answered), bool(interrupted)))
        owners = {row[0]: Owner(*row) for row in rows(OWNERS)}
        answers = {job: _text(codec.decode(Body(*body))) for job, *body in rows(ANSWERS)}
        prompts = {job: codec.decode(Body(*body))["contents"] for job, *body in rows(PAYLOADS)}
    assert imbalances == [], f"the law does not hold: {imbalances}"
    return Snapshot(jobs, dict(attempts), owners, answers, prompts)


def _text(answer: Any) -> str:
    text: str = answer["candidates"][0]["content"]["parts"][0]["text"]
    return text


class Calls:
    """What the simulator was asked: how often each prompt, and which calls it answered."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answered: dict[str, set[str]] = defaultdict(set)
        self.by: Counter[str] = Counter()  # the process

    def add(self, call: Call) -> None:
        self.asked[call.prompt] += 1
        self.by[call.who] += 1
        if call.answered:
            self.answered[call.prompt].add(answer_to(call.prompt, call.number))


def check_calls_before(asked: Mapping[str, int], after: Snapshot) -> None:
    """Durable before the call: each call that was seen before the snapshot has its attempt in it."""
    attempts = {after.prompts[job]: len(found) for job, found in after.attempts.items()}
    unknown = {prompt: calls for prompt, calls in asked.items() if attempts.get(prompt, 0) < calls}
    assert not unknown, f"calls that the ledger doesn't know of: {unknown}"


def check_calls_after(now: Snapshot, calls: Calls) -> None:
    """Nothing empty is success: each outcome and each answer is that of a call that the simulator has seen."""
    for job in now.jobs.values():
        prompt = now.prompts[job.id]
        elsewhere = bool(job.calls_elsewhere or job.pipeline == "imported")
        outcomes = sum(a.ended_at is not None and not a.interrupted for a in now.attempts.get(job.id, [])) - elsewhere
        assert outcomes <= calls.asked[prompt], f"{job} has {outcomes} outcomes of {calls.asked[prompt]} calls"
        if job.state in ANSWERED:
            assert now.answers[job.id] in calls.answered[prompt], f"{job} has an answer that nobody gave"


def check_nothing_vanished(before: Snapshot, after: Snapshot) -> None:
    """What was accepted stays, and the first answer stands."""
    assert before.jobs.keys() <= after.jobs.keys(), f"jobs vanished: {before.jobs.keys() - after.jobs.keys()}"
    for id, text in before.answers.items():
        assert after.answers.get(id) == text, f"the answer of {after.jobs[id]} was changed"
        assert after.jobs[id].state in ANSWERED, f"{after.jobs[id]} was answered before"


def check_orphans(pid: int, process_start: str, before: Snapshot, after: Snapshot) -> int:
    """A process was killed, `before` seen, and another one has swept: its jobs are parked, with what was seen of it.

    Returns how many it had in its hands.
    """
    dead = after.of_process(pid, process_start)
    held = before.held_by(dead)
    for owner in dead:
        assert after.owners[owner].gone, f"owner {owner} is dead, and counts as alive"
    assert not after.held_by(dead), f"the dead still hold {after.held_by(dead)}"
    for attempts in after.attempts.values():
        for attempt in attempts:
            assert attempt.owner_id not in dead or attempt.ended_at is not None, f"the dead left {attempt} open"
    for job in held:
        was_open = before.attempts[job.id][-1].ended_at is None
        same = after.attempts[job.id][job.calls - before.jobs[job.id].calls - 1 + len(before.attempts[job.id])]
        assert same.interrupted is was_open, f"{same} of {job} after its owner was killed"
        now = after.jobs[job.id]
        if (now.calls, now.state) == (job.calls, "parked"):
            code = "maybe_sent" if was_open else "not_sent"
            assert now.error_class == f"orphaned:{code}", f"{job} became {now}"
        else:  # a replay was there already
            assert now.replays > job.replays, f"{job} became {now}"
    return len(held)


def check_nobody_living_is_lost(after: Snapshot, living: Iterable[tuple[int, str]]) -> None:
    for pid, start in living:
        lost = [owner for owner in after.of_process(pid, start) if after.owners[owner].lost_at is not None]
        assert not lost, f"pid {pid} lives, and was declared lost: {lost}"


def check_output(file: Path, *, whole: bool) -> dict[str, str]:
    """Each answer is in the file once; only the last line may be torn, and after a run to its end (`whole`) none is.

    Returns the texts by job id.
    """
    texts: dict[str, str] = {}
    *lines, rest = file.read_bytes().split(b"\n") if file.exists() else [b""]
    assert not (whole and rest), f"the last line of {file} is torn: {rest!r}"
    for raw in lines:
        line = json.loads(raw)
        assert line["job_id"] not in texts, f"{line['job_id']} is twice in {file}"
        texts[line["job_id"]] = _text(line["answer"])
    return texts
