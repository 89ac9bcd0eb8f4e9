"""Commands as the roles of docs/postgres.md: what one may not do is said first, or with what it leaves undone."""

from __future__ import annotations

import json
import logging

import pytest

from parked.job import State
from parked.ledger import codec, open_ledger
from parked.ledger import operations as op
from parked.verdict import Kind, Reason, Scope
from servers import wait_until


@pytest.fixture
def url_on_each_database(postgres_url):
    return postgres_url


@pytest.fixture
def as_role(postgres, roles):
    """Returns a function that names the ledger for one of the roles. It is made."""

    def named(name):
        return postgres.url("ledger", user=f"parked_{name}")

    open_ledger(named("migrate")).close()
    return named


@pytest.fixture
def running(as_role):
    """A ledger of the role that runs jobs, and a job of its own in the middle of its call."""
    with open_ledger(as_role("run")) as ledger:
        accept = op.Accept("p", "", "a", "m", codec.encode("secret"), codec.identity("secret"))
        yield ledger, ledger.record(accept._replace(start_for=ledger.owner_id)).row


def answer(ledger, row):
    return op.Answer(row.id, ledger.owner_id, row.calls, codec.encode("42"), op.Closing())


def test_an_erasure_without_the_right_to_rewrite_says_so_and_the_owner_finishes_it(parked, as_role, running, postgres):
    ledger, row = running
    ledger.record(answer(ledger, row))
    words = ("erase", "--job", "a", "--reason", "asked for", "--apply")

    said = parked(*words, "--ledger", as_role("run"))
    again = parked(*words, "--ledger", as_role("migrate"))

    assert said.status == 3
    assert said.err.splitlines()[0] == "1 job erased"
    assert "copies are left in the ledger's files: the ledger" in said.err
    assert "refuses this role a right (must be owner of" in said.err
    assert "Once that is mended, give the command again: it goes on there" in said.err
    assert again.status == 0
    assert again.err.splitlines() == [
        "left 1 job: erased before",
        "0 jobs erased",
        "of those that were erased before, no copies are left in the ledger's files",
    ]
    assert json.loads(parked(*words, "--ledger", as_role("migrate"), "--json").out)["scrubbed"] is True


def test_a_rekeying_without_the_right_to_rewrite_says_so_and_the_owner_finishes_it(
    parked, as_role, running, monkeypatch
):
    monkeypatch.setenv("PARKED_STORE", "encrypted")
    monkeypatch.setenv("PARKED_STORE_KEYS", "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE=")

    said = parked("rekey", "--apply", "--ledger", as_role("run"))
    again = parked("rekey", "--apply", "--ledger", as_role("migrate"))

    assert (said.status, again.status) == (3, 0)
    assert "1 text rekeyed\ncopies are left in the ledger's files: the ledger" in said.err
    assert again.err == "0 texts rekeyed\n"


def test_whoever_may_not_mark_answers_is_refused_new_ones_before_any_is_printed(parked, as_role, running):
    ledger, row = running
    ledger.record(answer(ledger, row))

    said = parked("answers", "--new", "--ledger", as_role("look"))

    assert (said.status, said.out) == (3, "")
    assert "refuses this role a right (permission denied for table" in said.err
    assert parked("answers", "--ledger", as_role("look")).out.count("\n") == 1
    assert parked("answers", "--new", "--ledger", as_role("run")).out.count("\n") == 1


def test_a_right_that_is_taken_away_is_named_as_such_and_outcomes_wait_for_it(postgres, running, caplog):
    caplog.set_level(logging.INFO, logger="parked")
    ledger, row = running
    postgres.run("REVOKE INSERT ON parked.answers FROM parked_run", database="ledger")

    waiting = ledger.submit(answer(ledger, row))
    wait_until(lambda: ledger.stalled and len(caplog.records) == 1)
    postgres.run("GRANT INSERT ON parked.answers TO parked_run", database="ledger")

    assert waiting.wait(30.0).state is State.SUCCEEDED
    wait_until(lambda: len(caplog.records) == 2)
    denied, back = [record.getMessage() for record in caplog.records]
    assert denied.startswith("ledger_denied why=")
    assert "(permission denied for table answers)" in denied
    assert back == "ledger_back"


@pytest.mark.parametrize("role", ["run", "look"])
def test_a_copy_by_a_role_that_may_not_fill_a_ledger_says_which_role_may(parked, postgres, roles, tmp_path, role):
    as_owner, as_other = (postgres.url("ledger", user=f"parked_{name}") for name in ("migrate", role))
    parked("migrate", "--ledger", as_owner)
    source = f"sqlite:///{tmp_path}/source.db"
    open_ledger(source).close()

    refused = parked("copy", source, as_other)
    copied = parked("copy", source, as_owner)

    assert (refused.status, refused.out) == (3, "")
    assert "this role may not fill the ledger" in refused.err
    assert "parked copy takes the role that owns its schema" in refused.err
    assert copied.status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("discard", "--all", "--reason", "r", "--apply"),
        ("erase", "--all", "--reason", "r", "--apply"),
        ("answers", "--new"),
        ("submit", "jobs.jsonl"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_is_refused_a_right_says_so_once(parked, as_role, running, jobs, words):
    ledger, row = running
    jobs("one")
    closing = op.Closing(Kind.PERMANENT, Reason.INVALID_REQUEST, Scope.JOB, 400)
    ledger.record(op.Park(row.id, ledger.owner_id, row.calls, closing, error_class="permanent:400"))

    said = parked(*words, "--ledger", as_role("look"))

    assert said.status == 3
    assert said.err.count("refuses this role a right") == 1
    assert said.err.startswith("parked: ")
