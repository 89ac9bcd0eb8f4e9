"""`parked run --schema` and `--allow-truncated`, and the replays that judge by them again."""

from __future__ import annotations

import json

import pytest

from parked.simulator import replies as reply

SCHEMA = {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


@pytest.fixture
def run(parked, tmp_path, monkeypatch):
    """Returns a function that runs three jobs with these flags; every run and replay makes one attempt each."""
    monkeypatch.setenv("PARKED_MAX_ATTEMPTS", "1")
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "out.jsonl"
    lines = [{"job_id": name, "model": "m", "payload": {"contents": name}} for name in ("one", "two", "three")]
    jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(*flags: str):
        return parked("run", str(jobs), "--out", str(out), *flags)

    return run


def answering(**texts: str):
    return lambda request: reply.text(texts.get(request.text, '{"sku": "A-1"}'))


def test_answers_that_break_the_schema_are_parked_with_what_was_wrong(parked, api, run, schema):
    api.answers(answering(one="no JSON", two='{"sku": 7}'))

    said = run("--schema", str(schema))

    assert said.status == 1
    assert said.err.splitlines()[-1] == "3 lines: 1 answered, 2 parked"
    two = json.loads(parked("show", "two", "--json").out)
    assert two["attempts"][0]["message"] == 'the answer breaks the schema at $.sku by the rule type: "string"'
    assert two["job"]["checker"].startswith("schema:")


def test_a_replay_judges_by_the_schema_although_its_file_is_gone(parked, api, run, schema):
    api.answers(answering(one="no JSON", two="no JSON", three="no JSON"))
    run("--schema", str(schema))
    schema.unlink()
    api.answers(answering(two='{"sku": 7}'))

    said = parked("replay", "--all", "--apply")

    assert said.status == 1
    assert "2 recovered, 1 parked again" in said.err
    assert "by the rule type" in parked("show", "two").out


def test_a_bad_schema_is_one_sentence_before_anything_is_called(parked, api, run, schema, no_ledger):
    schema.write_text('{"type": "OBJECT"}')

    said = run("--schema", str(schema))

    assert said.status == 2
    assert said.err.count("\n") == 1
    assert str(schema) in said.err
    assert api.requests == []
    assert no_ledger()


def test_truncated_answers_are_counted_where_they_are_allowed(parked, api, run):
    api.answers(lambda request: reply.stopped("MAX_TOKENS", text="cut o") if request.text == "two" else None)

    said = run("--allow-truncated", "--json")

    assert said.status == 0
    assert said.err.splitlines()[-1] == "3 lines: 3 answered (1 truncated)"
    assert (json.loads(said.out)["answered"], json.loads(said.out)["truncated"]) == (3, 1)
    shown = json.loads(parked("show", "two", "--json").out)
    assert shown["attempts"][0]["truncated"] is True
    assert shown["job"]["checker"] == "allow_truncated"
    assert "cut off at the token limit" in parked("show", "two").out
    assert "cut off" not in parked("show", "one").out


def test_a_replay_allows_what_the_run_allowed(parked, api, run):
    api.answers(lambda request: reply.overloaded())
    run("--allow-truncated")
    api.answers(lambda request: reply.stopped("MAX_TOKENS", text="cut o"))

    said = parked("replay", "--all", "--apply")

    assert said.status == 0
    assert "3 recovered" in said.err


def test_without_leave_a_truncated_answer_is_parked(parked, api, run):
    api.answers(lambda request: reply.stopped("MAX_TOKENS", text="cut o"))

    assert run().err.splitlines()[-1] == "3 lines: 3 parked"
