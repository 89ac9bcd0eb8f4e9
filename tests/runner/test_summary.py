"""The summary as a value and as text, read from a real ledger."""

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.moves import MAYBE_SENT
from parked.ledger.store import Filters
from parked.summary import LAST_SUMMARY, SHOWN_CAUSES, next_commands, render, summarise
from parked.verdict import Kind, Reason, Scope

WHERE = "sqlite:////srv/night/parked.db"


@pytest.fixture
def ledger(tmp_path):
    ledger = open_ledger(f"sqlite:///{tmp_path}/parked.db")
    yield ledger
    ledger.close()


def start(ledger, job_id: str, *, pipeline: str = "p", batch: str = ""):
    accept = op.Accept(pipeline, batch, job_id, "m", encode(1), identity(1), start_for=ledger.owner_id)
    return ledger.record(accept).row


def park(ledger, job_id: str, *, status: int = 503, fingerprint: str = "f", **where: str) -> None:
    row = start(ledger, job_id, **where)
    closing = op.Closing(Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, status, fingerprint=fingerprint)
    ledger.record(op.Park(row.id, ledger.owner_id, 1, closing, f"exhausted:{status}"))


def read(ledger, **how):
    with ledger.ask() as reader:
        return summarise(reader, where=WHERE, **how)


def test_an_empty_ledger_is_clean(ledger):
    summary = read(ledger)

    assert (summary.parked, summary.new, summary.oldest, summary.waiting) == (0, 0, None, ())
    assert render(summary) == f"ledger {WHERE}\ndead-letter: clean (0 parked)"
    assert next_commands(summary) == []


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


def test_names_cannot_turn_the_text_around(ledger):
    park(ledger, "evil\u202eid", pipeline="p\u202e", batch="b")

    assert render(read(ledger)).replace("\n", "").isprintable()
