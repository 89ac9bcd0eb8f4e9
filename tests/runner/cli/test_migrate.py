"""`parked migrate`, and what commands say of a PostgreSQL ledger that they can't use."""

import json

import pytest


@pytest.fixture
def url(url_on_each_database, monkeypatch):
    monkeypatch.setenv("PARKED_LEDGER", url_on_each_database)
    return url_on_each_database


def test_it_makes_a_ledger_that_is_missing_and_leaves_one_that_is_up_to_date(parked, url):
    made, again = parked("migrate"), parked("migrate")

    assert (made.status, again.status) == (0, 0)
    assert made.out.splitlines()[1] == "  0001 the whole ledger"
    assert made.out.splitlines()[-1] == "created"
    assert again.out.splitlines()[1:] == ["nothing to do: it is up to date"]
    assert parked("audit").status == 0


def test_what_it_did_can_be_had_as_json(parked, url):
    said = json.loads(parked("migrate", "--json").out)

    assert (said["created"], said["steps"][0]) == (True, {"number": 1, "title": "the whole ledger", "additive": False})


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("postgresql://u:secret@127.0.0.1:1/db", 3, "nothing listens there"),
        ("postgresql://u:secret@127.0.0.1/db?sslmode=strict", 2, "sslmode"),
        ("mysql://u:secret@127.0.0.1/db", 2, "the scheme 'mysql'"),
    ],
)
@pytest.mark.parametrize("command", ["migrate", "list", "audit"])
def test_a_ledger_that_can_not_be_used_is_one_sentence_and_a_status(parked, command, url, status, said):
    answer = parked(command, "--ledger", url)

    assert answer.status == status
    assert said in answer.err
    assert "secret" not in answer.err
    assert answer.err.count("\n") == 1
