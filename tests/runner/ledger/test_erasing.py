"""What is erased is gone: from the rows, from the file, from what lies beside it. The job stays known and counted."""

from __future__ import annotations

import random
import re

import pytest

from parked.errors import TransitionError
from parked.job import State
from parked.ledger import codec
from parked.ledger import operations as op
from parked.ledger.operations import Closing, Held
from parked.ledger.store import Filters
from parked.verdict import Kind, Reason, Scope

SECRET = "the patient's name is Kowalski"
AT_REST = (State.PARKED, State.SUCCEEDED, State.RECOVERED, State.DISCARDED)


def erase(ledger, row):
    erased: op.JobRow = ledger.record(op.Erase(row.id, "the customer asked for it"))
    return erased


def texts(ledger, row):
    """What can still be read of a job: its payload, its answer and the messages of its attempts."""
    with ledger.ask() as reader:
        return reader.payload(row.id).data, reader.answer(row.id), {a.message for a in reader.attempts(row.id)}


@pytest.mark.parametrize("state", AT_REST)
def test_a_job_at_rest_loses_its_texts_and_stays_in_its_state(desk, ledger, state):
    row = desk.in_state(state, desk.owner())

    erased = erase(ledger, row)

    assert (erased.state, erased.calls, erased.error_class) == (row.state, row.calls, row.error_class)
    assert erased.erased_at is not None
    assert texts(ledger, row) in ((b"", None, {""}), (b"", None, set()))


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.REPLAYING])
def test_a_job_that_is_still_to_be_run_keeps_its_texts(desk, ledger, state):
    row = desk.in_state(state, desk.owner())

    with pytest.raises(TransitionError):
        erase(ledger, row)

    assert texts(ledger, row)[0] != b""


def test_when_and_why_are_noted_and_the_first_time_stands(desk, ledger, wall):
    row = desk.parked()
    erased = erase(ledger, row)
    wall.now += 60

    with pytest.raises(TransitionError):
        ledger.record(op.Erase(row.id, "once more"))

    with ledger.ask() as reader:
        assert reader.erasure(row.id) == (erased.erased_at, "the customer asked for it")
        assert reader.erasure(desk.parked().id) is None


def test_counters_do_not_move(desk, ledger):
    row = desk.parked()
    before = {name: desk.counted(name) for name in ("parked_now", "jobs_parked", "ledger_jobs", "attempts")}

    erase(ledger, row)

    assert {name: desk.counted(name) for name in before} == before


def test_an_erased_job_can_not_be_claimed_by_a_replay(desk, ledger):
    row = erase(ledger, desk.parked())
    owner = desk.owner()

    assert desk.start(row, owner, desk.replay()) == Held(row)


def test_an_erased_job_can_not_be_restored(desk, ledger):
    row = erase(ledger, desk.discard(desk.pending()))

    with pytest.raises(TransitionError):
        desk.restore(row)

    assert desk.now(row).state is State.DISCARDED


def test_accepting_it_again_finds_it_known_by_its_payload(desk, ledger):
    row = desk.parked()
    erase(ledger, row)

    assert not desk.accept(row.job_id).created


def test_an_answer_that_comes_after_it_ends_the_job_and_leaves_no_text(desk, ledger):
    owner = desk.owner()
    row = desk.running(owner)
    desk.lose(owner)
    erase(ledger, row)

    late = desk.answer(row, owner, value=SECRET)

    assert late.state is State.RECOVERED
    assert texts(ledger, row) == (b"", None, {""})


def test_a_failure_that_comes_after_it_leaves_no_message(desk, ledger):
    owner = desk.owner()
    row = desk.running(owner)
    desk.lose(owner)
    erase(ledger, row)

    desk.retried(row, owner)

    assert texts(ledger, row)[2] == {""}


def test_answers_are_not_given_out_any_more(desk, ledger):
    row = desk.in_state(State.SUCCEEDED, desk.owner())
    erase(ledger, row)

    with ledger.ask() as reader:
        assert list(reader.answers(Filters())) == []
        assert reader.answer_bodies([row.id]) == {}


def test_mended_payloads_go_too(desk, ledger, files):
    row = desk.parked()
    ledger.record(op.Mend(row.id, codec.encode(SECRET), note="reworded"))
    assert b"Kowalski" in files()

    erase(ledger, row)
    ledger.scrub()

    assert b"Kowalski" not in files()


@pytest.mark.slow
def test_nothing_of_the_texts_is_left_in_the_files(desk, ledger, files, uncompressed):
    """In an order that makes SQLite move rows between pages, and among others that stay."""
    chance = random.Random(7)
    rows = park_many(desk, ledger, chance, jobs=900)
    kept, gone = rows[::3], [row for index, row in enumerate(rows) if index % 3]
    before = marks_in(files())
    chance.shuffle(gone)

    for ticket in ledger.submit_many(op.Erase(row.id, "asked for") for row in gone):
        ticket.wait()
    is_clean = ledger.scrub()

    assert is_clean
    assert before == marks_of(rows)
    assert marks_in(files()) == marks_of(kept)


@pytest.fixture
def uncompressed(request, database, ledger):
    """PostgreSQL would compress the long ones, and a mark could not be found in them."""
    if database == "postgres":
        server = request.getfixturevalue("postgres")
        for table in ("payloads", "answers"):
            server.run(f"ALTER TABLE parked.{table} ALTER body SET STORAGE EXTERNAL", database="ledger")


def park_many(desk, ledger, chance, *, jobs):
    """Jobs that have a payload and a message, each of its own length; every other one has an answer, too."""
    owner = desk.owner()
    rows = []
    for number in range(jobs):
        payload = f"payload-j{number:06}-" + "x" * chance.choice((0, 40, 700, 5_000, 20_000))
        rows.append(desk.accept(f"j{number:06}", payload, start_for=owner).row)
    order = list(rows)
    chance.shuffle(order)
    tickets = []
    for row in order:
        closing = Closing(
            Kind.UNKNOWN, Reason.UNCLASSIFIED, Scope.JOB, message=f"message-{row.job_id}-" + "y" * chance.randrange(400)
        )
        tickets.append(ledger.submit(op.Retried(row.id, owner, 1, closing, strike=True)))
        tickets.append(ledger.submit(op.Start(row.id, owner, previous=1)))
        text = codec.encode(f"answer-{row.job_id}-" + "z" * chance.choice((0, 300, 3_000)))
        tickets.append(ledger.submit(op.Answer(row.id, owner, 2, text, Closing())))
    for ticket in tickets:
        ticket.wait()
    return rows


def marks_of(rows):
    return {f"{what}-{row.job_id}-".encode() for row in rows for what in ("payload", "message", "answer")}


def marks_in(content):
    return set(re.findall(rb"(?:payload|message|answer)-j\d{6}-", content))


def test_a_reader_of_old_pages_keeps_them_and_scrubbing_says_so(desk, ledger, monkeypatch):
    monkeypatch.setattr("parked.ledger.scrubbing.WAL_PATIENCE_MS", 1)
    for module in ("scrubbing", "postgres_scrubbing"):
        monkeypatch.setattr(f"parked.ledger.{module}.PATIENCE_S", 0.0)
    row = desk.parked()

    with ledger.ask() as reader:
        reader.states()
        erase(ledger, row)
        while_read = ledger.scrub()
    monkeypatch.undo()  # the server may need a moment to notice that the reader has gone

    assert not while_read
    assert ledger.scrub()
