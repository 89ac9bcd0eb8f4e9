"""Commands on a ledger that encrypts texts, or keeps none."""

from __future__ import annotations

import json

import pytest

from parked.gemini import CALLER as GEMINI
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.counters import Metric
from parked.ledger.vault import Vault, key_id
from parked.simulator import replies as reply

KEY = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE="
NEW_KEY = "bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcgbmV3IG5ldyE="
MISSING = f"encrypted with the key {key_id(KEY)}, which is none of PARKED_STORE_KEYS; add it there, behind the first"


class Night:
    """A file of two jobs of which the first is parked as long as the API refuses it."""

    def __init__(self, parked, api, file):
        self._parked, self._api, self._file = parked, api, file

    def refuse(self, refuses):
        self._api.answers(lambda asked: reply.invalid_request("no") if refuses and asked.text == "refused" else None)

    def __call__(self, *more):
        return self._parked("run", self._file, "--max-attempts", "1", *more)


@pytest.fixture
def night(parked, api, jobs):
    night = Night(parked, api, jobs("refused", "fine"))
    night.refuse(True)
    return night


def test_everything_goes_on_with_a_rotated_key(night, parked, keep):
    keep("encrypted", KEY)
    assert night().status == 1
    keep("encrypted", NEW_KEY, KEY)
    night.refuse(False)

    replayed = parked("replay", "--all", "--apply")
    again = night()

    assert replayed.status == 0, replayed.err
    assert again.status == 0, again.err
    assert len(again.out.splitlines()) == 2
    assert parked("audit", "--bodies").status == 0
    assert json.loads(parked("show", "job-0", "--payload", "--json").out)["payload"] == {"contents": "refused"}


def test_without_the_key_jobs_are_left_and_named_and_nothing_is_lost(night, parked, keep):
    keep("encrypted", KEY)
    night()
    keep("encrypted", NEW_KEY)
    night.refuse(False)

    replayed = parked("replay", "--all", "--apply")
    answers = parked("answers")
    audit = parked("audit", "--bodies")
    shown = parked("show", "job-0", "--payload")

    assert f"left 1 job: payload {MISSING}" in replayed.err
    assert (answers.status, answers.out) == (3, "")
    assert f"left 1 answer: {MISSING}" in answers.err
    assert audit.status == 3
    assert f"default: payloads {MISSING}: 2\n" in audit.out
    assert {"  job-0", "  job-1"} <= set(audit.out.splitlines())
    assert shown.status == 3
    assert MISSING in shown.err
    assert parked("summary").status == parked("list").status == parked("audit").status == 0

    keep("encrypted", NEW_KEY, KEY)
    assert len(parked("answers").out.splitlines()) == 1
    assert parked("replay", "--all", "--apply").status == 0


def test_a_worker_without_the_key_starts_nothing(parked, keep, jobs, api):
    keep("encrypted", KEY)
    parked("submit", jobs("a", "b"))
    keep("encrypted", NEW_KEY)

    worked = parked("work", "--until-empty")

    assert worked.status == 3
    assert f"2 pending jobs in {json.loads(parked('summary', '--json').out)['ledger']}: payload {MISSING}" in worked.err
    assert api.requests == []


def test_a_worker_ends_as_it_would_not_have_begun_once_such_a_job_comes_and_lets_its_calls_end(
    parked, keep, jobs, api, hand_over, url
):
    keep("encrypted", KEY)
    parked("submit", jobs("first"))
    api.answers(lambda asked: hand_over(NEW_KEY))

    worked = parked("work", "--until-empty")

    assert worked.status == 3
    ledger = json.loads(parked("summary", "--json").out)["ledger"]
    missing = MISSING.replace(key_id(KEY), key_id(NEW_KEY))
    assert worked.err.endswith(f"parked: a pending job in {ledger}: payload {missing}\n")
    assert json.loads(parked("show", "job-0", "--json").out)["job"]["state"] == "succeeded"
    assert json.loads(parked("show", "other", "--json").out)["job"]["state"] == "pending"
    with open_ledger(url) as opened, opened.ask() as reader:  # it was claimed and handed back, which is no call
        assert {counter.b: counter.value for counter in reader.counters(Metric.ATTEMPTS)} == {"ok": 1}


def test_a_run_without_the_key_runs_its_file_and_leaves_what_it_can_not_read(parked, keep, jobs, api):
    keep("encrypted", KEY)
    parked("submit", jobs("a", name="others.jsonl", prefix="other"))
    keep("encrypted", NEW_KEY)

    ran = parked("run", jobs("b"))

    assert len(ran.out.splitlines()) == 1
    assert "1 job of the pipeline 'default' pending since" in ran.err
    assert "with the file that they came from" in ran.err


@pytest.fixture
def hand_over(url, tmp_path, jobs):
    """Returns a function that does what `run --exclusive` in another process does with its file while a run is alive:
    accept its job, with another key.
    """

    def accept(key):
        with open_ledger(url, vault=Vault([key], seals=True)) as ledger:
            payload = {"contents": "of the other"}
            ledger.record(
                op.Accept("default", "", "other", "gemini-3.5-flash", encode(payload), identity(payload), GEMINI, "")
            )

    return accept


def test_a_run_that_is_handed_a_job_which_it_can_not_read_ends_its_own_and_leaves_that_one(
    parked, keep, jobs, api, hand_over, tmp_path
):
    keep("encrypted", KEY)
    api.answers(lambda asked: hand_over(NEW_KEY) if asked.text == "first" else None)

    ran = parked("run", jobs("first", "second", "third"), "--concurrency", "1", "--out", str(tmp_path / "out.jsonl"))

    assert ran.status == 0, ran.err  # its own are answered
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    assert "1 job of the pipeline 'default' pending since" in ran.err
    assert "with the file that they came from, since not all their payloads can be read here" in ran.err
    assert json.loads(parked("show", "other", "--json").out)["job"]["state"] == "pending"


def test_a_known_job_under_a_key_that_is_gone_is_no_conflict(night, keep):
    keep("encrypted", KEY)
    night()
    keep("encrypted", NEW_KEY)

    again = night()

    assert again.status == 3
    assert again.err.endswith(f"parked: a text of the ledger was {MISSING}\n")


def test_with_nothing_stored_answers_go_to_the_output_alone(night, parked, keep, tmp_path):
    keep("none")

    first = night("--out", str(tmp_path / "out.jsonl"))
    again = night("--out", str(tmp_path / "out.jsonl"))
    elsewhere = night("--out", str(tmp_path / "other.jsonl"))

    assert first.status == 1
    assert json.loads((tmp_path / "out.jsonl").read_text())["job_id"] == "job-1"
    assert again.status == 1, again.err
    assert elsewhere.status == 3
    assert elsewhere.err.splitlines()[-1] == "1 answer of earlier runs not written: not stored, since PARKED_STORE=none"
    assert parked("audit", "--bodies").status == 0
    assert parked("answers").err == "left 1 answer: not stored, since PARKED_STORE=none\n"  # in no file it came from


def test_with_nothing_stored_a_replay_takes_payloads_and_prints_the_answers(night, parked, keep, jobs):
    keep("none")
    night()
    night.refuse(False)

    without = parked("replay", "--all", "--apply")
    replayed = parked("replay", "--all", "--apply", "--payload", jobs("mended", name="mended.jsonl"))

    assert "left 1 job: payload not stored, since PARKED_STORE=none; it is in the file that it came from" in without.err
    assert "or send another by --payload FILE" in without.err
    assert replayed.status == 0, replayed.err
    assert json.loads(replayed.out)["job_id"] == "job-0"


def test_with_nothing_stored_pending_jobs_that_are_not_in_the_file_stay(parked, keep, jobs, api):
    parked("submit", jobs("a", name="others.jsonl", prefix="other"))
    keep("none")

    ran = parked("run", jobs("b"))

    assert len(api.requests) == 1
    assert "1 job of the pipeline 'default' pending since" in ran.err


@pytest.mark.parametrize("words", [("submit", "jobs.jsonl"), ("work",), ("run", "jobs.jsonl", "--exclusive")])
def test_what_needs_the_ledger_to_hold_payloads_refuses_to_work_without(parked, keep, no_ledger, jobs, words):
    jobs("a")
    keep("none")

    said = parked(*words)

    assert said.status == 2
    assert "PARKED_STORE=none keeps them out of it; use parked run with the file of the jobs" in said.err
    assert no_ledger()


def test_encrypting_without_a_key_is_refused_before_anything_is_made(parked, keep, no_ledger, jobs):
    keep("encrypted")

    said = parked("submit", jobs("a"))

    assert said.status == 2
    assert "PARKED_STORE=encrypted needs a key" in said.err
    keep("plain")
    assert no_ledger()
