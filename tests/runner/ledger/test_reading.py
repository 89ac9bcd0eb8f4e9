"""Asking: filters, causes, answers, and an audit that finds what is wrong."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import psycopg
import pytest

from parked.errors import InvalidJob, JobConflict, LedgerMissing, LedgerTooNew
from parked.job import State
from parked.ledger import codec, look_into, open_ledger
from parked.ledger import operations as op
from parked.ledger.store import Filters
from parked.verdict import Kind, Reason


@pytest.fixture
def three(desk, ledger, wall):
    """Three parked jobs, an hour apart."""
    owner = desk.owner()
    kinds = [
        ("captions", "", "m", "exhausted:503", "f503", Reason.OVERLOADED),
        ("captions", "2026-03-02", "pro", "permanent:400", "f400", Reason.INVALID_REQUEST),
        ("titles", "", "m", "exhausted:503", "f503", Reason.OVERLOADED),
    ]
    for n, (pipeline, batch, model, error_class, fingerprint, reason) in enumerate(kinds):
        row = desk.accept(f"j{n}", pipeline=pipeline, batch=batch, model=model, start_for=owner).row
        closing = op.Closing(kind=Kind.RETRYABLE, reason=reason, fingerprint=fingerprint)
        ledger.record(op.Park(row.id, owner, 1, closing, error_class))
        wall.now += 3600.0
    return wall.now - 3 * 3600.0


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(), ["j0", "j1", "j2"]),
        (Filters(pipeline="captions"), ["j0", "j1"]),
        (Filters(batch="2026-03-02"), ["j1"]),
        (Filters(batch=""), ["j0", "j2"]),
        (Filters(model="pro"), ["j1"]),
        (Filters(error_class="exhausted:503"), ["j0", "j2"]),
        (Filters(error_class="exhausted:*"), ["j0", "j2"]),
        (Filters(error_class="*:400"), ["j1"]),
        (Filters(error_class="exhausted_503"), []),
        (Filters(error_class="exhausted%*"), []),
        (Filters(reason="overloaded"), ["j0", "j2"]),
        (Filters(fingerprint="f400"), ["j1"]),
        (Filters(job_ids=("j2", "j1")), ["j1", "j2"]),
        (Filters(pipeline="titles", reason="overloaded"), ["j2"]),
    ],
    ids=str,
)
def test_filters_find_what_matches_all_of_them(three, ledger, filters, found):
    with ledger.ask() as reader:
        assert [row.job_id for row in reader.jobs(filters, states=[State.PARKED])] == found
        assert reader.count(filters, states=[State.PARKED]) == len(found)


def test_since_and_until_mean_when_a_job_was_parked(three, ledger):
    with ledger.ask() as reader:
        rows = reader.jobs(Filters(since=three + 3600.0, until=three + 7200.0), states=[State.PARKED])
        assert [row.job_id for row in rows] == ["j1"]


def test_the_newest_come_first_where_they_are_asked_for(three, ledger):
    with ledger.ask() as reader:
        rows = reader.jobs(Filters(), states=[State.PARKED], newest_first=True, limit=2)
        assert [row.job_id for row in rows] == ["j2", "j1"]


def test_causes_group_by_fingerprint_the_largest_first(three, ledger):
    with ledger.ask() as reader:
        causes = reader.causes(Filters())

    assert [(cause.fingerprint, cause.error_class, cause.jobs) for cause in causes] == [
        ("f503", "exhausted:503", 2),
        ("f400", "permanent:400", 1),
    ]
    assert (causes[0].first_parked_at, causes[0].last_parked_at) == (three, three + 7200.0)
    assert causes[0].example.job_id == "j2"


def test_causes_are_counted_alike_with_what_is_new_and_what_was_erased_apart(three, ledger, wall):
    with ledger.ask() as reader:
        ids = [row.id for row in reader.jobs(Filters(reason="overloaded"), states=[State.PARKED])]
        whole = {count[2:] for count in reader.cause_counts(since=three + 3600.0)}
    for id in ids:
        ledger.record(op.Erase(id, "asked for"))  # at two times
        wall.now += 1.0
    with ledger.ask() as reader:
        counts = reader.cause_counts(since=None)
        causes = reader.causes(Filters())

    assert whole == {
        (Reason.OVERLOADED, False, 2, 1, three, three + 7200.0, ids[1]),
        (Reason.INVALID_REQUEST, False, 1, 1, three + 3600.0, three + 3600.0, ids[0] + 1),
    }
    assert {(count.fingerprint, count.erased, count.jobs, count.new, count.example) for count in counts} == {
        (cause.fingerprint, cause.erased, cause.jobs, 0, cause.example.id) for cause in causes
    }
    assert {count.erased for count in counts} == {True, False}


def test_the_oldest_of_each_state_is_found_per_pipeline(three, desk, ledger, wall):
    pending = desk.accept(pipeline="titles").row
    wall.now += 1.0
    desk.accept(pipeline="titles")
    running = desk.accept(start_for=desk.owner()).row

    with ledger.ask() as reader:
        assert reader.oldest(State.PARKED) == {
            ("captions", "exhausted:503"): three,
            ("captions", "permanent:400"): three + 3600.0,
            ("titles", "exhausted:503"): three + 7200.0,
        }
        assert reader.oldest(State.PENDING) == {("titles", ""): pending.accepted_at}
        assert reader.oldest(State.RUNNING) == {("captions", ""): running.started_at}


def test_a_job_is_found_by_its_id_alone_or_with_where_it_belongs(desk, ledger):
    desk.accept("same", pipeline="a")
    desk.accept("same", pipeline="b", batch="monday")

    with ledger.ask() as reader:
        assert [row.pipeline for row in reader.jobs_by_key("same", pipeline=None, batch=None)] == ["a", "b"]
        assert [row.pipeline for row in reader.jobs_by_key("same", pipeline="b", batch="monday")] == ["b"]
        assert reader.jobs_by_key("same", pipeline="b", batch="") == []


def test_answers_are_new_until_they_were_handed_out(desk, ledger, wall):
    owner = desk.owner()
    rows = [desk.answer(desk.running(owner), owner, value=n) for n in range(2)]
    wall.now += 5.0

    ledger.record(op.HandOut((rows[0].id,)))

    with ledger.ask() as reader:
        assert [codec.decode(found.body) for found in reader.answers(Filters())] in ([1, 0], [0, 1])
        assert [codec.decode(found.body) for found in reader.answers(Filters(), only_new=True)] == [1]
        handed_out = reader.answer(rows[0].id)
    assert handed_out is not None
    assert handed_out.handed_out_at == wall.now


def test_payloads_answers_and_identities_are_read_by_the_page(desk, ledger):
    owner = desk.owner()
    one, two = (desk.accept(f"j{n}", {"n": n}, start_for=owner).row for n in range(2))
    desk.answer(one, owner)

    with ledger.ask() as reader:
        pages = reader.jobs_with_payloads([two.id, one.id, 99])
        assert [(sent.row.id, sent.payload.data) for sent in pages] == [(one.id, b'{"n":0}'), (two.id, b'{"n":1}')]
        assert {id: codec.decode(body) for id, body in reader.answer_bodies([one.id, two.id]).items()} == {one.id: "42"}
        assert reader.identities("captions", "", ["j0", "j1", "j9"]) == {
            "j0": codec.identity({"n": 0}),
            "j1": codec.identity({"n": 1}),
        }


def test_who_only_looks_makes_no_ledger_and_finds_one_once_it_is_there(url, at_desk):
    for _ in range(2):  # so the first look has made none
        with pytest.raises(LedgerMissing), look_into(url, patience_s=10.0):
            pass

    with open_ledger(url) as ledger:
        at_desk(ledger).parked()
        with look_into(url, patience_s=10.0) as reader:
            assert reader.count(Filters(), states=[State.PARKED]) == 1
            assert reader.name == ledger.name


def test_who_only_looks_is_told_of_a_ledger_that_a_newer_parked_has_changed(url, database):
    open_ledger(url).close()
    newer = "INSERT INTO {s}schema_version SELECT 9999, {no}, 'later', applied_at, '9.0' FROM {s}schema_version LIMIT 1"
    if database == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.execute(newer.format(s="", no=0))
    else:
        with psycopg.connect(url) as connection:
            connection.execute(newer.format(s="parked.", no="false").encode())

    with pytest.raises(LedgerTooNew), look_into(url, patience_s=10.0):
        pass


def test_a_snapshot_does_not_see_what_is_committed_later(desk, ledger):
    desk.accept("before")
    with ledger.ask() as reader:
        assert reader.count(Filters(), states=[State.PENDING]) == 1
        desk.accept("after")
        assert reader.count(Filters(), states=[State.PENDING]) == 1


def test_a_mark_keeps_any_json_value(ledger):
    ledger.record(op.SetMark("last_summary", {"at": 1.5}))
    ledger.record(op.SetMark("last_summary", {"at": 2.5}))

    with ledger.ask() as reader:
        assert reader.mark("last_summary") == {"at": 2.5}
        assert reader.mark("never") is None


def test_marks_are_read_by_what_their_names_begin_with(ledger):
    for name, value in [("task:sweep", 1.5), ("task:audit", 2.5), ("task", 3.5), ("audit", 4.5), ("ta_k:x", 5.5)]:
        ledger.record(op.SetMark(name, value))

    with ledger.ask() as reader:
        assert reader.marks("task:") == {"task:audit": 2.5, "task:sweep": 1.5}


def test_the_size_of_a_ledger_is_what_it_takes_up_on_the_disk(desk, ledger):
    with ledger.ask() as reader:
        before = reader.size_bytes()
    desk.accept(payload=random.Random(1).randbytes(300_000).hex())
    with ledger.ask() as reader:
        after = reader.size_bytes()

    assert before > 10_000
    assert 300_000 < after - before < 2_000_000


WHOLE = [
    pytest.param({"text": "NUL \x00, lone \ud83d, duck 🦆"}, id="text"),
    pytest.param([10**400, -(2**63) - 1, 1e308, 5e-324, 0.1], id="numbers"),
    pytest.param({"deep": {"nested": [None, True, False, {}]}, "": ""}, id="shapes"),
    pytest.param("just text", id="scalar"),
]


@pytest.mark.parametrize("value", WHOLE)
def test_a_payload_comes_back_as_it_went_in(desk, ledger, value):
    row = desk.accept(payload=value).row

    with ledger.ask() as reader:
        assert codec.decode(reader.payload(row.id)) == value


@pytest.mark.parametrize(
    "value", [float("nan"), {"a": [float("inf")]}, {1: "a"}, {"a": {True: 1}}, {"a": {1, 2}}], ids=repr
)
def test_what_json_cannot_hold_is_refused_before_it_is_accepted(desk, value):
    with pytest.raises(InvalidJob, match="not a JSON value"):
        desk.accept(payload=value)


def test_the_same_payload_in_another_order_is_the_same_job(desk):
    first = desk.accept("a-1", {"a": 1, "b": 2})

    again = desk.accept("a-1", {"b": 2, "a": 1})

    assert again == op.Accepted(first.row, created=False)


def test_another_payload_under_a_known_id_is_a_conflict(desk):
    desk.accept("a-1", {"a": 1})

    with pytest.raises(JobConflict, match="'a-1' of pipeline 'captions' was accepted before with another payload"):
        desk.accept("a-1", {"a": 2})
