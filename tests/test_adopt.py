"""The scripts of docs/adopt.md run, as they were and with parked, and print the same."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import pytest

import parked
from pages import DOCS, diffs, side
from parked.job import State
from parked.ledger import open_ledger
from parked.simulator import Simulator
from parked.simulator import replies as reply

pytestmark = pytest.mark.slow

PAGE = (DOCS / "adopt.md").read_text("utf-8")
SCRIPTS = diffs(PAGE)


@pytest.fixture
def api():
    with Simulator() as simulator:
        yield simulator


@pytest.fixture
def run(tmp_path, api):
    """Returns a function that runs a script in a folder of its own, with a key and the simulator for the API."""
    environment = {**os.environ, "GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": api.url}

    def run(script: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def states(tmp_path) -> dict[State, int]:
    with open_ledger(f"sqlite:///{tmp_path}/parked.db", create=False) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return {state: jobs for (_, state), jobs in reader.states().items() if jobs}


def test_every_script_of_the_page_is_run_by_a_test():
    in_a_worker = {"Celery"}  # tests/runner/test_celery.py

    assert {*SCRIPTS} == {*THREE_CALLS, "Loops", "The article's functions", *in_a_worker}
    assert PAGE.count("```diff") == len(SCRIPTS)
    assert re.findall(r"^```(?!diff)(\w+)", PAGE, re.MULTILINE) == ["python"]


def test_the_check_of_the_page_judges_what_parked_does_not_look_into(run, tmp_path):
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    refused = script.replace('"stop_reason": "end_turn"', '"stop_reason": "refusal"')
    only_once = "check=is_whole, policy=parked.Policy(max_attempts=1))\noutcome = runner.run"
    outcome = refused.replace("check=is_whole)\nprint(runner.run", only_once).replace('.answer["text"])', "")

    assert run(script) == ["So you asked: Describe the sea."]
    assert run(outcome.replace('"sea"', '"moon"') + "print(outcome.error_class, outcome.verdict.message)") == [
        "exhausted:malformed_answer stopped by refusal"
    ]


THREE_CALLS = ("Calls of generate_content", "Ids", "asyncio", "Other libraries")


@pytest.mark.parametrize("heading", THREE_CALLS)
def test_a_script_prints_with_parked_what_it_printed_before_and_its_calls_are_jobs(heading, run, api, tmp_path):
    diff = SCRIPTS[heading]

    before = run(side(diff, "-"))
    after = run(side(diff, "+"))

    assert after == before
    assert [line.rpartition(": ")[2] for line in after] == [f"Describe the {name}." for name in ("sea", "moon", "wind")]
    assert len(api.requests) == 6
    assert states(tmp_path) == {State.SUCCEEDED: 3}
    assert len(re.findall(r"^\+", diff, re.MULTILINE)) <= 3


def test_a_loop_that_passes_over_a_failure_asks_the_others_and_its_job_is_parked(run, api, tmp_path):
    before, after = side(SCRIPTS["Loops"], "-"), side(SCRIPTS["Loops"], "+")
    answered = run(before)

    api.will_answer(reply.text("all of it"), reply.invalid_request())
    printed = run(after)

    assert printed == ["sea all of it", answered[2]]
    assert states(tmp_path) == {State.SUCCEEDED: 2, State.PARKED: 1}
    assert side(SCRIPTS["Calls of generate_content"], "-") == before


def test_a_loop_that_passes_over_failures_ends_where_the_ledger_is_away(run, api, tmp_path):
    (tmp_path / "parked.db").write_text("no ledger")

    with pytest.raises(AssertionError, match="LedgerUnavailable"):
        run(side(SCRIPTS["Loops"], "+"))

    assert api.requests == []


def test_ids_of_one_s_own_spare_the_calls_of_a_second_run(run, api):
    script = side(SCRIPTS["Ids"], "+")

    assert run(script) == run(script)

    assert len(api.requests) == 3


def test_the_article_s_functions_are_imported_from_parked(run, tmp_path):
    printed = run(side(SCRIPTS["The article's functions"], "+"))

    assert printed[-1] == "dead-letter: clean (0 parked)"
    assert len(printed) == 4
    assert states(tmp_path) == {State.SUCCEEDED: 3}


def test_the_signature_on_the_page_is_that_of_the_function():
    (shown,) = re.findall(r"`wrap\((.*?)\)`", PAGE, re.DOTALL)
    real = [
        str(parameter.replace(annotation=inspect.Parameter.empty))
        for parameter in inspect.signature(parked.wrap).parameters.values()
    ]

    assert [word.replace('"', "'") for word in re.split(r",\s+", shown)] == [real[0], "*", *real[1:]]
