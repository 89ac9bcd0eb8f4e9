"""`parked submit`: jobs are accepted as pending, or none is; nothing is called."""

from __future__ import annotations

import json

import pytest

from parked.job import State
from parked.ledger import full_name, open_ledger
from parked.ledger.store import Filters


def stored(url: str) -> dict[str, State]:
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return {row.job_id: row.state for row in reader.jobs(Filters(), states=list(State))}


def test_jobs_are_pending_afterwards_and_nothing_was_called_or_needed_a_key(parked, jobs, url):
    said = parked("submit", jobs("one", "two", "three"))

    assert said.status == 0
    assert said.err.splitlines() == [
        f"made the ledger {full_name(url)}",
        "to run them: parked work --pipeline default",
        "3 lines: 3 new",
    ]
    assert stored(url) == {"job-0": State.PENDING, "job-1": State.PENDING, "job-2": State.PENDING}


def test_what_is_known_is_counted_by_its_state(parked, api, jobs):
    parked("run", jobs("one", "two"))

    said = parked("submit", jobs("one", "two", "three"))
    again = parked("submit", jobs("one", "two", "three"))

    assert said.err.splitlines()[-1] == "3 lines: 1 new, 2 known (2 succeeded)"
    assert again.err.splitlines()[-1] == "3 lines: 3 known (1 pending, 2 succeeded)"
    assert (said.status, again.status) == (0, 0)
    assert len(api.requests) == 2


def test_a_file_of_more_than_one_chunk_is_accepted_in_its_order(parked, jobs, url):
    parked("submit", jobs(*[f"prompt {n}" for n in range(600)]))

    assert list(stored(url)) == [f"job-{n}" for n in range(600)]


def test_the_count_can_be_had_as_json(parked, jobs, url):
    parked("submit", jobs("one"))

    said = parked("submit", jobs("one", "two"), "--json")

    assert json.loads(said.out) == {
        "ledger": full_name(url), "lines": 2, "new": 1, "known": {"pending": 1}, "not_taken_on": 0, "repeated": 0,
        "rejected": 0, "moved": 0, "other_model": 0,
    }  # fmt: skip


def test_a_job_remembers_who_calls_and_who_checks(parked, jobs, url, tmp_path):
    (tmp_path / "remembered.py").write_text("def call(payload, model):\n    return 1\n")
    (tmp_path / "schema.json").write_text('{"type": "object"}')

    parked("submit", jobs("one"), "--call", "remembered:call", "--schema", "schema.json", "--allow-truncated")

    with open_ledger(url) as ledger, ledger.ask() as reader:
        (row,) = reader.jobs(Filters(), states=[State.PENDING])
        name, _, rest = row.checker.partition(",")
        assert (row.caller, rest) == ("remembered:call", "allow_truncated")
        assert reader.mark(name) == {"type": "object"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["missing.jsonl"], "missing.jsonl"),
        (["{jobs}", "--call", "nowhere:call"], "nowhere"),
        (["{jobs}", "--call", "heapq:merge"], "the caller heapq:merge yields"),
        (["{jobs}", "--schema", "missing.json"], "missing.json"),
        (["{jobs}", "--pipeline", ""], "--pipeline"),
        (["{jobs}", "--out", "x"], "--out"),
        (["{jobs}", "--skip-bad-lines", "--ledger", "sqlite:///{jobs}.rejected.jsonl"], "is the ledger"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_sentence_and_nothing_is_accepted(parked, jobs, no_ledger, words, says):
    file = jobs("one")

    said = parked("submit", *[word.replace("{jobs}", file) for word in words])

    assert said.status == 2
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert no_ledger()


def test_a_bad_line_is_named_and_nothing_of_the_file_is_accepted(parked, tmp_path, no_ledger):
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"job_id": "a", "model": "m", "payload": {"contents": "x"}}\n{"job_id": "b", "model": "m"}\n')

    said = parked("submit", str(file))

    assert said.status == 2
    assert "line 2" in said.err
    assert no_ledger()

    assert parked("submit", str(file), "--skip-bad-lines").err.splitlines()[-1] == "2 lines: 1 new, 1 rejected"


def test_a_known_id_with_another_payload_is_refused_before_anything_is_accepted(parked, jobs, url):
    parked("submit", jobs("one"))

    said = parked("submit", jobs("new", "another"))

    assert said.status == 2
    assert "job-0" in said.err
    assert list(stored(url)) == ["job-0"]


def test_a_payload_that_could_send_the_key_elsewhere_is_refused(parked, tmp_path, url):
    file = tmp_path / "jobs.jsonl"
    config = {"http_options": {"base_url": "http://127.0.0.1:9"}}
    file.write_text(json.dumps({"job_id": "a", "model": "m", "payload": {"contents": "x", "config": config}}) + "\n")

    said = parked("submit", str(file))

    assert (said.status, "http_options" in said.err) == (2, True)
