"""The sidecar beside a ledger that encrypts texts, or keeps none."""

from __future__ import annotations

import time

import pytest

from parked.errors import TextMissing
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, encode_answer, identity
from parked.ledger.store import Filters
from parked.ledger.vault import Vault, key_id
from parked.policy import Policy
from parked.verdict import Kind, Reason, Scope
from parked_exporter import api, cli
from parked_exporter.auto_replay import AutoReplay, replay_parked_jobs
from parked_exporter.deliveries import deliver_answers
from parked_exporter.schedule import Context

KEY = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE="
SAID = op.Closing(
    Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, 503, fingerprint="f503", message="the patient Brzechwa is too much"
)
MISSING = f"encrypted with the key {key_id(KEY)}, which is none of PARKED_STORE_KEYS"


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


@pytest.fixture
def night(url):
    """An encrypted ledger with one job that is parked and one that has recovered."""
    with open_ledger(url, vault=Vault([KEY], seals=True)) as ledger:
        owner, replay_id = ledger.owner_id, ledger.record(op.OpenReplay("r", "me", "{}"))
        payload = {"contents": "p"}
        for job_id in ("parked", "recovered"):
            accept = op.Accept("captions", "", job_id, "m", encode(payload), identity(payload), "parked.gemini:Gemini")
            row = ledger.record(accept._replace(start_for=owner)).row
            ledger.record(op.Park(row.id, owner, 1, SAID, "exhausted:503"))
        ledger.record(op.Start(row.id, owner, replay_id))
        ledger.record(op.Answer(row.id, owner, 2, encode_answer({"text": "42"}), op.Closing(rule="ok")))


def test_an_automatic_replay_without_the_key_leaves_the_jobs_and_says_so(night, url, events):
    settings = AutoReplay({"*": 1.0}, classes=("exhausted:*",), limit=100, most=3, policy=Policy())

    with open_ledger(url) as ledger:
        replay_parked_jobs(ledger, Context(auto_replay=settings, now=time.time))
        with ledger.ask() as reader:
            (job,) = reader.jobs(Filters(), states=(State.PARKED,))

    assert job.auto_replays == 0
    (left,) = events("jobs_left")
    assert left["why"].startswith(f"payload {MISSING}")


def test_a_delivery_without_the_key_uses_up_no_try(night, url, tmp_path, monkeypatch):
    code = "import pathlib\ndef take(answer):\n    pathlib.Path('taken').write_text(answer['job_id'])\n"
    (tmp_path / "takers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    context = Context(on_answer="takers:take", now=time.time)

    with open_ledger(url) as ledger, pytest.raises(TextMissing, match=MISSING):
        deliver_answers(ledger, context)
    with open_ledger(url, vault=Vault([KEY])) as ledger:
        with ledger.ask() as reader:
            (due,) = reader.undelivered(since=0.0, now=time.time() + 1, limit=10)
        deliver_answers(ledger, context)

    assert due.tries == 0
    assert (tmp_path / "taken").read_text() == "recovered"


def test_causes_show_the_message_to_who_has_the_key(night, url):
    def message(vault):
        return api.answer(api.PAGES["/api/causes"], "", ledger_url=url, vault=vault)["causes"][0]["message"]

    assert message(Vault([KEY])) == SAID.message
    assert message(Vault()).startswith(f"({MISSING}")


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PARKED_STORE": "encrypted"}, "PARKED_STORE=encrypted needs a key"),
        ({"PARKED_STORE": "none", "PARKED_AUTO_REPLAY": "*=30m"}, "PARKED_AUTO_REPLAY needs payloads and answers"),
        ({"PARKED_STORE": "none", "PARKED_ON_ANSWER": "builtins:print"}, "PARKED_ON_ANSWER needs payloads and answers"),
    ],
)
def test_settings_that_can_not_go_together_are_refused_at_the_start(env, said, monkeypatch, capsys):
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    status = cli.main(["--check"])

    assert status == 2
    assert said in capsys.readouterr().err
