"""`parked replay`: a dry run first, then what the filters match, over the real SDK against the simulator."""

from __future__ import annotations

import json

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.store import Filters
from parked.simulator import Simulator
from parked.simulator import replies as reply
from parked.verdict import Reason


@pytest.fixture
def api(monkeypatch):
    with Simulator() as simulator:
        monkeypatch.setenv("GEMINI_API_KEY", "k")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", simulator.url)
        yield simulator


@pytest.fixture
def night(parked, api, tmp_path):
    """A night after which `bad-0` to `bad-2` are parked as overloaded, and `refused` for its content."""
    file = tmp_path / "jobs.jsonl"
    prompts = {"good": "good", "bad-0": "bad 0", "bad-1": "bad 1", "bad-2": "bad 2", "refused": "refused"}
    lines = [{"job_id": id, "model": "m", "payload": {"contents": prompt}} for id, prompt in prompts.items()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def rule(request):
        if "bad" in request.text:
            return reply.overloaded()
        return reply.blocked_prompt("SAFETY") if request.text == "refused" else None

    api.answers(rule)
    assert parked("run", str(file), "--out", str(tmp_path / "out"), "--max-attempts", "1").status == 1
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "refused" else None)
    return api


def in_state(url, state):
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return [row.job_id for row in reader.jobs(Filters(), states=(state,))]


def test_without_apply_it_only_says_what_would_run(parked, night, url):
    calls = len(night.requests)

    said = parked("replay")

    assert said.status == 0
    assert len(night.requests) == calls
    assert said.out.splitlines()[:3] == [
        "JOBS  CLASS                     REASON",
        "3     exhausted:503             overloaded",
        "1     permanent:prompt_blocked  prompt_blocked",
    ]
    assert said.err.splitlines()[-1] == (
        "would replay 4 jobs; nothing was called. To do it: parked replay --all --apply"
    )


def test_with_apply_what_the_filters_match_is_run_and_recovers(parked, night, url):
    said = parked("replay", "--class", "exhausted:503", "--apply")

    assert said.status == 0
    assert "3 jobs replayed: 3 recovered, 0 parked again" in said.err
    assert sorted(in_state(url, State.RECOVERED)) == ["bad-0", "bad-1", "bad-2"]
    assert in_state(url, State.PARKED) == ["refused"]


def test_recovered_answers_reach_the_file_with_the_next_run(parked, night, tmp_path):
    parked("replay", "--all", "--apply")

    said = parked("run", str(tmp_path / "jobs.jsonl"), "--out", str(tmp_path / "out"))

    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted((line["job_id"], line["state"]) for line in lines) == [
        ("bad-0", "recovered"),
        ("bad-1", "recovered"),
        ("bad-2", "recovered"),
        ("good", "succeeded"),
    ]
    assert said.status == 1


def test_recovered_answers_can_be_had_at_once(parked, night):
    parked("replay", "--job", "bad-1", "--apply")

    said = parked("answers", "--new")

    assert [json.loads(line)["job_id"] for line in said.out.splitlines()] == ["bad-1"]


def test_what_fails_again_stays_parked_and_goes_behind_the_others(parked, night, url):
    said = parked("replay", "--reason", "prompt_blocked", "--apply")

    assert said.status == 1
    assert "1 job replayed: 0 recovered, 1 parked again" in said.err
    with open_ledger(url) as ledger, ledger.ask() as reader:
        rows = list(reader.jobs(Filters(), states=(State.PARKED,)))
    assert rows[-1].job_id == "refused"
    assert (rows[-1].calls, rows[-1].replays) == (2, 1)


def test_a_limit_takes_the_oldest_and_says_what_it_left(parked, night, url):
    said = parked("replay", "--class", "exhausted:*", "--limit", "2", "--apply")

    assert sorted(in_state(url, State.RECOVERED)) == ["bad-0", "bad-1"]
    assert "left 1 job: over the limit" in said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--apply"], "--all"),
        (["--limit", "0"], "--limit"),
        (["--concurrency", "0"], "--concurrency"),
        (["--reason", "rate_limit"], "rate_limited"),
        (["--since", "yesterday"], "--since"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_sentence_and_calls_nothing(parked, night, words, says):
    calls = len(night.requests)

    said = parked("replay", *words)

    assert said.status == 2
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert len(night.requests) == calls


def test_a_job_that_is_not_due_is_left_and_said(parked, night, url, story):
    row = story.running("later")
    closing = op.Closing(reason=Reason.DAILY_QUOTA_EXHAUSTED, status=429)
    story.ledger.record(op.Park(row.id, story.ledger.owner_id, 1, closing, "exhausted:429", wait_s=7200))

    said = parked("replay", "--class", "exhausted:429", "--apply")

    assert "left 1 job: not due until " in said.err
    assert in_state(url, State.PARKED).count("later") == 1


def test_a_job_whose_caller_is_not_here_is_left_and_said(parked, night, url, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "elsewhere.py").write_text("def call(payload, model):\n    raise ValueError\n")
    (tmp_path / "more.jsonl").write_text('{"job_id": "mine", "model": "m", "payload": 1}\n')
    parked("run", str(tmp_path / "more.jsonl"), "--call", "elsewhere:call", "--max-attempts", "1")
    (tmp_path / "elsewhere.py").unlink()
    monkeypatch.delitem(__import__("sys").modules, "elsewhere")

    said = parked("replay", "--job", "mine", "--apply")

    assert "left 1 job: can't import elsewhere:call" in said.err
    assert in_state(url, State.PARKED).count("mine") == 1


def test_a_replay_is_kept_with_its_name_and_what_came_of_it(parked, night, url):
    parked("replay", "--all", "--apply", "--name", "after the outage", "--json")

    with open_ledger(url) as ledger, ledger.ask() as reader:
        counters = {(row.a, row.b): row.value for row in reader.counters("jobs_replayed")}
    assert counters == {
        ("exhausted:503", "manual/recovered"): 3,
        ("permanent:prompt_blocked", "manual/parked_again"): 1,
    }


def test_the_result_can_be_had_as_json(parked, night):
    dry = json.loads(parked("replay", "--json").out)
    done = json.loads(parked("replay", "--all", "--apply", "--json").out)

    assert dry["would_replay"] == 4
    assert [cause["jobs"] for cause in dry["causes"]] == [3, 1]
    assert (done["replayed"], done["recovered"], done["parked_again"], done["not_run"]) == (4, 3, 1, 0)


def test_a_replay_where_there_is_no_ledger_names_the_path(parked, api, tmp_path):
    said = parked("replay", "--all", "--apply", "--ledger", f"sqlite:///{tmp_path}/none.db")

    assert said.status == 3
    assert f"{tmp_path}/none.db" in said.err
    assert not (tmp_path / "none.db").exists()
