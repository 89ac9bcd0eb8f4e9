"""`parked replay`: a dry run first, then what the filters match, over the real SDK against the simulator."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from parked import replays
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.store import Filters
from parked.simulator import replies as reply
from parked.verdict import Reason


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
    head, overloaded, refused = said.out.splitlines()[:3]
    assert head.split() == ["JOBS", "CLASS", "REASON", "CAUSE"]
    assert overloaded.split()[:3] == ["3", "exhausted:503", "overloaded"]
    assert refused.split()[:3] == ["1", "permanent:prompt_blocked", "prompt_blocked"]
    assert said.err.splitlines()[-1] == (
        "would replay 4 jobs; nothing was called. To do it: parked replay --all --apply"
    )


def test_with_apply_what_the_filters_match_is_run_and_recovers(parked, night, url):
    said = parked("replay", "--class", "exhausted:503", "--apply")

    assert said.status == 0
    assert "3 jobs replayed: 3 recovered, 0 parked again" in said.err
    assert sorted(in_state(url, State.RECOVERED)) == ["bad-0", "bad-1", "bad-2"]
    assert in_state(url, State.PARKED) == ["refused"]


def test_what_a_pause_hands_back_was_not_run_and_is_what_it_was(parked, night, url):
    night.answers(lambda request: reply.bad_key())

    said = parked("replay", "--class", "exhausted:503", "--apply")

    assert "0 jobs replayed: 0 recovered, 0 parked again, 3 not run" in said.err
    assert "paused, all models: " in said.err
    assert said.status == 4
    with open_ledger(url) as ledger, ledger.ask() as reader:
        rows = list(reader.jobs(Filters(error_class="exhausted:503"), states=(State.PARKED,)))
        counted = {(row.a, row.b): row.value for row in reader.counters("jobs_replayed")}
    assert len(rows) == 3
    assert counted == {("exhausted:503", "manual/released"): 3}


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

    said = parked("replay", "--job", "mine", "--job", "bad-0", "--apply")

    assert said.status == 1
    assert "left 1 job: can't import elsewhere:call" in said.err
    assert in_state(url, State.PARKED).count("mine") == 1


def test_where_no_job_of_a_replay_can_be_called_it_is_refused_like_a_run(parked, night, url, monkeypatch, tmp_path):
    monkeypatch.delenv("GEMINI_API_KEY")
    (tmp_path / "one.jsonl").write_text('{"job_id": "a", "model": "m", "payload": {"contents": "x"}}\n')
    run = parked("run", str(tmp_path / "one.jsonl"))

    said = parked("replay", "--all", "--apply")

    assert (said.status, said.out) == (run.status, "") == (2, "")
    why = run.err.removeprefix("parked: ")
    assert said.err == f"parked: none of these jobs can be replayed here: 4 jobs: {why}"
    assert parked("replay").err.startswith("left 4 jobs: ")
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert list(reader.rows("replays")) == []


@pytest.mark.slow
def test_functions_of_a_script_and_of_the_article_are_replayed_once_they_can_be_found(
    parked, url, tmp_path, monkeypatch
):
    (tmp_path / "rescued.py").write_text(
        "import parked\ndef alone(payload):\n    raise parked.ApiError(400, 'INVALID_ARGUMENT')\n"
    )
    script = """
import parked, rescued
def call(payload, model):
    raise parked.ApiError(400, "INVALID_ARGUMENT")
with parked.open_ledger() as ledger:
    parked.Runner(ledger, call).run(parked.Job("of-a-script", model="m", payload=1))
parked.run_with_dead_letter("of-the-article", 2, "m", rescued.alone)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    (tmp_path / "rescued.py").write_text(
        "def alone(payload):\n    return f'got {payload}'\n"
        "def call(payload, model):\n    return f'{model} got {payload}'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rescued", raising=False)

    instead = parked("replay", "--all", "--call", "rescued:call")
    left = parked("replay", "--all", "--apply")
    found = parked("replay", "--all", "--call", "rescued:call", "--apply")

    assert "1 job called by rescued:alone as before: --call stands in for no other function" in instead.err
    assert "__main__" not in instead.err
    assert "1 job replayed: 1 recovered" in left.err
    assert "left 1 job: can't import __main__:call, which is part of a script; move it into a module" in left.err
    assert (left.status, found.status) == (1, 0)
    answers = [json.loads(line) for line in parked("answers").out.splitlines()]
    assert {answer["job_id"]: answer["answer"] for answer in answers} == {
        "of-a-script": "m got 1",
        "of-the-article": "got 2",
    }


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


# --- canaries, rate, mended payloads, another model --------------------------------------------------------------


@pytest.fixture
def outage(parked, api, tmp_path):
    """A night in which ten jobs are parked as overloaded, and ten for a field that the API doesn't know."""
    file = tmp_path / "many.jsonl"
    prompts = [f"busy {n}" for n in range(10)] + [f"field {n}" for n in range(10)]
    lines = [{"job_id": text.replace(" ", "-"), "model": "m", "payload": {"contents": text}} for text in prompts]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def rule(request):
        return reply.overloaded() if request.text.startswith("busy") else reply.invalid_request()

    api.answers(rule)
    assert parked("run", str(file), "--out", str(tmp_path / "o"), "--max-attempts", "1").status == 1
    return api


def test_a_cause_whose_canaries_fail_costs_three_calls_and_the_others_go_on(parked, outage, url):
    outage.answers(lambda request: reply.invalid_request() if request.text.startswith("field") else None)
    calls = len(outage.requests)

    said = parked("replay", "--all", "--apply")

    assert len(outage.requests) - calls == 10 + 3
    assert len(in_state(url, State.RECOVERED)) == 10
    assert "left 7 jobs: no canary of their cause recovered (--canary 0 tries them all)" in said.err
    assert said.err.splitlines()[-2] == "13 jobs replayed: 10 recovered, 3 parked again"
    assert said.status == 1


def test_without_canaries_all_are_tried(parked, outage):
    calls = len(outage.requests)

    parked("replay", "--class", "permanent:400", "--canary", "0", "--apply")

    assert len(outage.requests) - calls == 10


def test_mended_payloads_are_sent_and_what_was_accepted_stays(parked, outage, url, tmp_path):
    outage.answers(None)
    mended = tmp_path / "mended.jsonl"
    lines = [{"job_id": f"field-{n}", "payload": {"contents": f"mended {n}"}} for n in range(9)]
    mended.write_text("".join(json.dumps(line) + "\n" for line in lines))

    said = parked("replay", "--class", "permanent:400", "--payload", str(mended), "--apply")
    shown = json.loads(parked("show", "field-0", "--payload", "--json").out)
    again = parked("run", str(tmp_path / "many.jsonl"), "--out", str(tmp_path / "o"))

    assert "left 1 job: the file of --payload has none for it" in said.err
    assert sum(request.text.startswith("mended") for request in outage.requests) == 9
    assert shown["payload"] == {"contents": "mended 0"}
    assert [attempt["revision"] for attempt in shown["attempts"]] == [0, 1]
    assert "conflict" not in again.err
    assert again.err.splitlines()[-1].endswith("11 parked before")


def test_the_payload_of_a_single_job_can_be_given_by_itself(parked, outage, url, tmp_path):
    outage.answers(None)
    (tmp_path / "one.json").write_text(json.dumps({"contents": "mended"}, indent=2))

    said = parked("replay", "--job", "field-3", "--payload", str(tmp_path / "one.json"), "--apply")
    for_many = parked("replay", "--all", "--payload", str(tmp_path / "one.json"), "--apply")

    assert "1 job replayed: 1 recovered" in said.err
    assert outage.requests[-1].text == "mended"
    assert (for_many.status, "--job" in for_many.err) == (2, True)


def test_a_mended_payload_that_cannot_be_sent_leaves_its_job_as_it_is(parked, outage, url, tmp_path):
    (tmp_path / "one.json").write_text(json.dumps({"contents": "x", "config": {"http_options": {}}}))
    calls = len(outage.requests)

    said = parked("replay", "--job", "field-3", "--payload", str(tmp_path / "one.json"), "--apply")

    assert "http_options" in said.err
    assert len(outage.requests) == calls
    assert "field-3" in in_state(url, State.PARKED)


def test_another_model_is_called_and_the_history_says_so(parked, outage, url):
    outage.answers(lambda request: None if request.model == "m-2" else reply.overloaded())

    parked("replay", "--class", "exhausted:503", "--to-model", "m-2", "--apply")
    shown = json.loads(parked("show", "busy-0", "--json").out)

    assert len(in_state(url, State.RECOVERED)) == 10
    assert shown["job"]["model"] == "m"
    assert [attempt["model"] for attempt in shown["attempts"]] == [None, "m-2"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "fast"], "--rate"),
        (["--rate", "0/s"], "--rate"),
        (["--canary", "-1"], "--canary"),
        (["--payload", "missing.jsonl"], "missing.jsonl"),
        (["--to-model", ""], "--to-model"),
        (["--call", "json:nothing"], "json:nothing"),
        (["--call", "os:getcwd"], "getcwd(payload, model)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_of_a_replay_that_make_no_sense_are_one_sentence(parked, night, words, says):
    said = parked("replay", *words)

    assert said.status == 2
    assert says in said.err
    assert len(said.err.splitlines()) == 1


def test_a_payload_for_several_jobs_or_for_none_is_said(parked, outage, tmp_path):
    lines = [
        {"job_id": "field-0", "payload": {"contents": "mended"}},
        {"job_id": "nobody", "payload": {"contents": "x"}},
    ]
    mended = tmp_path / "mended.jsonl"
    mended.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = tmp_path / "again.jsonl"
    again.write_text(json.dumps({"job_id": "field-0", "model": "m", "payload": {"contents": "field 0"}}) + "\n")
    outage.answers(lambda request: reply.invalid_request())

    unused = parked("replay", "--all", "--payload", str(mended))
    parked("run", str(again), "--batch", "two", "--out", str(tmp_path / "o2"))
    ambiguous = parked("replay", "--all", "--payload", str(mended), "--apply")

    assert "1 payload of" in unused.err
    assert "nobody" in unused.err
    assert (ambiguous.status, "--batch" in ambiguous.err) == (2, True)


def test_two_payloads_for_one_id_are_refused(parked, outage, tmp_path):
    mended = tmp_path / "mended.jsonl"
    mended.write_text('{"job_id": "a", "payload": {"contents": "1"}}\n{"job_id": "a", "payload": {"contents": "2"}}\n')

    said = parked("replay", "--all", "--payload", str(mended))

    assert (said.status, "line 2" in said.err) == (2, True)


def test_the_command_that_does_it_keeps_every_flag(parked, outage):
    words = ["--limit", "3", "--canary", "0", "--rate", "1/m", "--name", "x", "--concurrency", "1", "--to-model", "m2"]
    words += ["--call", "json:dumps"]

    said = parked("replay", *words)

    proposed = said.err.splitlines()[-1].partition("To do it: parked replay ")[2].split()
    assert proposed[-1] == "--apply"
    for flag, value in zip(words[::2], words[1::2], strict=True):
        assert proposed[proposed.index(flag) + 1] == value


def test_a_job_that_is_erased_while_the_replay_runs_is_left_and_nothing_is_written_into_it(
    parked, outage, url, tmp_path
):
    file = tmp_path / "mended.jsonl"
    lines = [{"job_id": f"busy-{n}", "payload": {"contents": f"mended {n}"}} for n in range(10)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open_ledger(url) as ledger:
        with ledger.ask() as reader:
            rows = list(reader.jobs(Filters(reason="overloaded"), states=(State.PARKED,)))
        ledger.record(op.Erase(rows[0].id, "asked for"))
        after = ledger.record(op.Mend(rows[0].id, None, "m2"))
    outage.answers(None)

    said = parked("replay", "--class", "exhausted:503", "--payload", str(file), "--apply")

    assert after.revision == rows[0].revision
    assert "9 jobs replayed: 9 recovered" in said.err
    assert "left 1 job: erased" in said.err


def test_canaries_that_another_replay_has_taken_prove_nothing(parked, outage, url, monkeypatch):
    outage.answers(None)
    with open_ledger(url) as ledger:
        replay_id = ledger.record(op.OpenReplay("other", "me", "{}"))
        with ledger.ask() as reader:
            rows = list(reader.jobs(Filters(reason="overloaded"), states=(State.PARKED,)))
        real = replays.choose

        def choose_then_lose(*args, **kwargs):
            choice = real(*args, **kwargs)
            for row in rows[:3]:
                ledger.record(op.Start(row.id, ledger.owner_id, replay_id=replay_id))
            return choice

        monkeypatch.setattr(replays, "choose", choose_then_lose)
        said = parked("replay", "--class", "exhausted:503", "--apply")

    assert "7 jobs replayed: 7 recovered, 0 parked again, 3 not run" in said.err
    assert said.status == 4
