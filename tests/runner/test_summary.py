"""The summary as a value and as text, read from a real ledger."""

import pytest

from parked import owners
from parked.job import State
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.moves import MAYBE_SENT
from parked.ledger.store import Filters
from parked.summary import (
    LAST_COUNTS,
    LAST_SUMMARY,
    MAX_CAUSES,
    SHOWN_CAUSES,
    as_json,
    next_commands,
    render,
    summarise,
    title,
)
from parked.verdict import Kind, Reason, Scope

WHERE = "sqlite:////srv/night/parked.db"


@pytest.fixture
def ledger_url(url_on_each_database):
    return url_on_each_database


def start(ledger, job_id: str, *, pipeline: str = "p", batch: str = ""):
    accept = op.Accept(pipeline, batch, job_id, "m", encode(1), identity(1), start_for=ledger.owner_id)
    return ledger.record(accept).row


def park(ledger, job_id: str, *, status: int = 503, fingerprint: str = "f", **where: str) -> None:
    row = start(ledger, job_id, **where)
    closing = op.Closing(Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, status, fingerprint=fingerprint)
    ledger.record(op.Park(row.id, ledger.owner_id, 1, closing, f"exhausted:{status}"))


def row_of(ledger, job_id: str):
    with ledger.ask() as reader:
        (row,) = reader.jobs_by_key(job_id, pipeline="p", batch=None)
    return row


def recover(ledger, job_id: str, *, failed_tokens: int) -> None:
    """Park a job whose attempt cost that many tokens, and have a replay answer it."""
    row = start(ledger, job_id)
    closing = op.Closing(Kind.RETRYABLE, Reason.EMPTY_ANSWER, Scope.JOB, tokens_in=failed_tokens)
    ledger.record(op.Park(row.id, ledger.owner_id, 1, closing, "exhausted:empty_answer"))
    replay = ledger.record(op.OpenReplay("mend", "me", "{}"))
    ledger.record(op.Start(row.id, ledger.owner_id, replay))
    ledger.record(op.Answer(row.id, ledger.owner_id, 2, encode("42"), op.Closing(tokens_in=5)))


def discard(ledger, job_id: str) -> None:
    ledger.record(op.Discard(row_of(ledger, job_id).id, "not worth it"))


def read(ledger, **how):
    with ledger.ask() as reader:
        return summarise(reader, where=WHERE, **how)


def submit(ledger, job_id: str, *, pipeline: str) -> None:
    ledger.record(op.Accept(pipeline, "", job_id, "m", encode(1), identity(1)))


def pause(ledger, *, pipeline: str, reason: str) -> None:
    ledger.record(op.SetPause(pipeline, "", reason, 0.0, None, ledger.owner_id))


def test_a_title_says_clean_where_nothing_is_parked_or_waits_and_the_same_everywhere(ledger):
    start(ledger, "runs")

    assert title(read(ledger), host="night-1") == "dead-letter: clean (0 parked)"


def test_a_title_says_what_waits_what_is_paused_and_where(ledger):
    for number in range(30):
        submit(ledger, f"n-{number}", pipeline="nightly")
    assert title(read(ledger), host="night-1") == "dead-letter: 0 parked, 30 pending (on night-1)"

    pause(ledger, pipeline="nightly", reason="auth_invalid")
    park(ledger, "a-1")
    replay = ledger.record(op.OpenReplay("mend", "me", "{}"))
    park(ledger, "a-2")
    ledger.record(op.Start(row_of(ledger, "a-1").id, ledger.owner_id, replay))

    assert title(read(ledger), host="night-1") == (
        "dead-letter: 1 parked, 30 pending, 1 replaying, nightly paused by auth_invalid (on night-1)"
    )


def test_a_title_names_two_pauses_and_counts_the_others(ledger):
    for pipeline in "abcd":
        submit(ledger, "1", pipeline=pipeline)
        pause(ledger, pipeline=pipeline, reason="billing_required")

    assert title(read(ledger), host="h").endswith(
        " 4 pending, a paused by billing_required, b paused by billing_required, 2 more paused (on h)"
    )


def test_an_empty_ledger_is_clean(ledger):
    summary = read(ledger)

    assert (summary.parked, summary.new, summary.oldest, summary.waiting) == (0, 0, None, ())
    assert render(summary) == f"ledger {WHERE}\ndead-letter: clean (0 parked)"
    assert next_commands(summary) == []


def test_it_asks_for_no_owner_that_is_gone(ledger, monkeypatch):
    """One that cron starts each minute leaves half a million of them in a year."""
    submit(ledger, "a", pipeline="p")
    asked: list[str] = []
    with ledger.ask() as reader:
        ask = type(reader).ask

        def listen(self, sql, values):
            asked.append(sql)
            return ask(self, sql, values)

        monkeypatch.setattr(type(reader), "ask", listen)
        summarise(reader, where=WHERE)

    of_owners = [sql for sql in asked if "owners" in sql and "jobs" not in sql]
    assert of_owners
    assert all("WHERE ended_at IS NULL AND lost_at IS NULL" in sql for sql in of_owners)


def test_classes_and_causes_come_largest_first(ledger):
    park(ledger, "a", status=500, fingerprint="x")
    park(ledger, "b", status=503, fingerprint="y")
    park(ledger, "c", status=503, fingerprint="z")
    park(ledger, "d", status=503, fingerprint="z")

    summary = read(ledger)

    assert [(group.error_class, group.jobs) for group in summary.classes] == [
        ("exhausted:503", 3),
        ("exhausted:500", 1),
    ]
    assert (summary.causes[0].fingerprint, summary.causes[0].jobs) == ("z", 2)
    assert next_commands(summary)[:2] == [["list", "--fingerprint", "z"], ["replay", "--fingerprint", "z"]]


def test_what_was_erased_is_told_apart_and_is_not_to_be_replayed(ledger):
    for job_id in "abc":
        park(ledger, job_id, fingerprint="x")
    park(ledger, "d", fingerprint="y")
    with ledger.ask() as reader:
        ids = [row.id for row in reader.jobs(Filters(fingerprint="x"), states=(State.PARKED,))]
    for id in ids:
        ledger.record(op.Erase(id, "asked for"))

    summary = read(ledger, since=0.0)

    assert [(cause.fingerprint, cause.erased, cause.jobs, cause.new) for cause in summary.causes] == [
        ("x", True, 3, 3),
        ("y", False, 1, 1),
    ]
    assert "[x], 3 new, erased, since" in render(summary)
    assert next_commands(summary)[1] == ["replay", "--fingerprint", "y"]

    with ledger.ask() as reader:
        (last,) = reader.jobs(Filters(fingerprint="y"), states=(State.PARKED,))
    ledger.record(op.Erase(last.id, "asked for"))
    assert next_commands(read(ledger))[1] == ["discard", "--fingerprint", "x", "--reason", "erased"]


def test_the_oldest_is_named_with_its_age(ledger):
    park(ledger, "a", pipeline="captions")
    at = read(ledger).oldest.parked_at

    text = render(read(ledger, now=at + 3 * 86400))

    assert "(3 days ago), exhausted:503 of captions" in text


def test_new_is_what_was_parked_since_then(ledger):
    park(ledger, "a")
    at = read(ledger).oldest.parked_at

    assert read(ledger).since is None
    assert (read(ledger, since=at).new, read(ledger, since=at + 1).new) == (1, 0)


def test_a_scheduled_summary_sets_what_new_counts_from(ledger):
    park(ledger, "a")
    ledger.record(op.SetMark(LAST_SUMMARY, 4e9))

    assert (read(ledger).since, read(ledger).new) == (4e9, 0)


def test_what_has_no_end_yet_is_told_by_pipeline_and_state(ledger):
    start(ledger, "a", pipeline="q")
    ledger.record(op.Accept("p", "", "b", "m", encode(1), identity(1)))

    summary = read(ledger)

    assert [(group.pipeline, group.state, group.jobs) for group in summary.waiting] == [
        ("p", "pending", 1),
        ("q", "running", 1),
    ]
    assert all(group.since is not None for group in summary.waiting)
    assert next_commands(summary) == [["work", "--pipeline", "p", "--until-empty"]]


def test_it_is_told_what_was_recovered_and_discarded_and_what_failing_cost_since_the_last_one(ledger):
    def lately():
        summary = read(ledger, now=1e9)
        told = as_json(summary, ())
        return render(summary).splitlines()[-1], [told[name] for name in ("recovered", "discarded", "failed_tokens")]

    def scheduled(at):
        summary = read(ledger, now=at)
        ledger.record(op.SetMark(LAST_SUMMARY, at))
        ledger.record(op.SetMark(LAST_COUNTS, summary.counts.as_mark(at)))

    recover(ledger, "a", failed_tokens=30)
    first = lately()
    scheduled(1e9)
    nothing = lately()
    recover(ledger, "b", failed_tokens=70)
    park(ledger, "c")
    discard(ledger, "c")

    assert first == ("so far: 1 recovered, 30 tokens spent on attempts that failed", [1, 0, 30])
    assert nothing == ("dead-letter: clean (0 parked)", [0, 0, 0])
    assert lately() == (
        "since 2001-09-09 01:46Z: 1 recovered, 1 discard, 70 tokens spent on attempts that failed", [1, 1, 70]
    )  # fmt: skip
    asked = as_json(read(ledger, since=5.0), ())
    assert (asked["recovered"], asked["discarded"], asked["failed_tokens"]) == (None, None, None)


def test_discarding_twice_what_was_restored_in_between_is_told_as_that(ledger):
    ledger.record(op.Accept("p", "", "a", "m", encode(1), identity(1)))
    discard(ledger, "a")
    ledger.record(op.Restore(row_of(ledger, "a").id))
    discard(ledger, "a")

    assert render(read(ledger)).splitlines()[-1] == "so far: 2 discards"


def test_what_fails_again_as_it_is_is_to_be_replayed_with_something_else(ledger):
    row = start(ledger, "a")
    closing = op.Closing(Kind.PERMANENT, Reason.PROMPT_BLOCKED, Scope.JOB, fingerprint="f")
    ledger.record(op.Park(row.id, ledger.owner_id, 1, closing, "permanent:prompt_blocked"))

    assert next_commands(read(ledger))[1] == ["replay", "--fingerprint", "f", "--payload", "FILE"]


def test_it_is_told_why_jobs_are_pending(ledger):
    ledger.record(op.Accept("p", "", "b", "m", encode(1), identity(1)))

    def waits_for(**how):
        summary = read(ledger, **how)
        return summary.waiting[0].waits_for, render(summary).splitlines()

    without_a_runner = waits_for()
    assert ledger.owner_id
    in_line = waits_for()
    ledger.record(op.Consult((op.GateState("m", "rate", closed_for_s=60.0), op.GateState("x", "outage"))))
    at_a_gate = waits_for()
    ledger.record(op.SetPause("p", "m", "auth_invalid", 1.0, None, ledger.owner_id))
    paused = waits_for()

    assert without_a_runner[0] == "runner"
    assert without_a_runner[1][-1].endswith(
        "Z: no run or worker is there for them; the next of the pipeline takes them up"
    )
    assert in_line[0] == "turn"
    assert at_a_gate[0] == "gate"
    assert [line for line in at_a_gate[1] if line.startswith("closed for a rate limit: m, next try 2")]
    assert paused[0] == "pause"
    assert [line for line in paused[1] if line.startswith("paused: p, m, since 2")]


def test_what_a_process_has_in_hand_that_is_gone_is_told_before_anybody_parks_it(ledger):
    gone = ledger.record(op.Register(owners.facts("worker")._replace(process_start="1")))
    accept = op.Accept("p", "", "b", "m", encode(1), identity(1))
    ledger.record(accept._replace(start_for=gone))

    summary = read(ledger)

    (running,) = summary.waiting
    assert (running.jobs, running.gone) == (1, 1)
    (line,) = [line for line in render(summary).splitlines() if line.startswith("running: ")]
    assert line.endswith(
        "; 1 of a process that is gone: the next run, worker, replay or sidecar parks what it had in hand"
    )


def test_a_process_that_is_gone_is_no_worker_that_is_there(ledger):
    ledger.record(op.Register(owners.facts("worker")._replace(process_start="1")))
    ledger.record(op.Accept("p", "", "b", "m", encode(1), identity(1)))

    assert read(ledger).waiting[0].waits_for == "runner"


def test_a_gate_that_was_to_open_by_now_is_not_told_of(ledger):
    ledger.record(op.Consult((op.GateState("m", "rate", closed_for_s=60.0), op.GateState("", "outage"))))

    gates = read(ledger).gates
    assert [(gate.model, gate.why) for gate in gates] == [("", "outage"), ("m", "rate")]
    assert read(ledger, now=gates[1].until + 1).gates == ()


def test_commands_to_type_stand_in_the_json(ledger):
    park(ledger, "a", pipeline="-p")
    ledger.record(op.Accept("-p", "", "b", "m", encode(1), identity(1)))

    summary = read(ledger)

    assert next_commands(summary)[-1] == ["work", "--pipeline=-p", "--until-empty"]
    assert as_json(summary, ["parked list"])["next"] == ["parked list"]


def test_the_pace_at_which_the_next_run_begins_is_told_while_it_is_gone_by(ledger):
    ledger.record(
        op.Consult(
            (
                op.GateState("new", None, pace_per_s=0.55, pace_learnt_s=3600.0),
                op.GateState("fast", None, pace_per_s=320.5, pace_learnt_s=3600.0),
                op.GateState("old", None, pace_per_s=9.0, pace_learnt_s=8 * 86_400.0),
                op.GateState("free", None),
            )
        )
    )

    summary = read(ledger)

    assert [(pace.model, round(pace.per_minute, 6), pace.until - pace.learnt_at) for pace in summary.paces] == [
        ("fast", 19_230.0, 7 * 86_400.0),
        ("new", 33.0, 7 * 86_400.0),
    ]
    assert summary.made_at - summary.paces[0].learnt_at == pytest.approx(3600.0, abs=60)
    assert "\npace: new begins at 33 calls a minute, learnt 20" in render(summary)
    assert "\npace: fast begins at 19230 calls a minute, learnt 20" in render(summary)
    assert as_json(summary, ())["paces"][0].keys() == {"model", "calls_per_minute", "learnt_at", "until"}


def test_a_lost_owner_s_jobs_are_explained_too(ledger):
    start(ledger, "a")
    ledger.record(op.Leave(ledger.owner_id))

    (cause,) = read(ledger).causes

    assert (cause.error_class, cause.reason) == ("orphaned:maybe_sent", MAYBE_SENT)
    assert "replay" in cause.remedy


def test_many_causes_are_cut_and_the_rest_is_counted(ledger):
    for number in range(SHOWN_CAUSES + 2):
        park(ledger, f"j{number}", fingerprint=f"f{number:02}")

    assert render(read(ledger)).endswith("\n  and 2 more")


def test_causes_without_number_cost_no_look_at_each_of_them(ledger):
    for number in range(MAX_CAUSES + 1):
        park(ledger, f"j{number}", fingerprint=f"f{number:03}")

    told = as_json(read(ledger), ())

    assert (told["parked"], told["causes_in_all"], len(told["causes"])) == (MAX_CAUSES + 1, MAX_CAUSES + 1, MAX_CAUSES)


def test_names_cannot_turn_the_text_around(ledger):
    park(ledger, "evil\u202eid", pipeline="p\u202e", batch="b")

    assert render(read(ledger)).replace("\n", "").isprintable()
