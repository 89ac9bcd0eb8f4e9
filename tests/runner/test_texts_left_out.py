"""The library on a ledger that stores no texts: an outcome brings what its own call brought."""

from __future__ import annotations

import pytest

import parked
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger.vault import Vault

JOB = parked.Job("a", model="m", payload={"contents": "p"})


@pytest.fixture
def ledger(ledger_url):
    with open_ledger(ledger_url, vault=Vault(omits=True)) as ledger:
        yield ledger


def test_an_answer_is_in_the_outcome_of_its_call_and_nowhere_afterwards(ledger, scripted):
    runner = parked.Runner(ledger, scripted("42"))

    first, again = runner.run(JOB), runner.run(JOB)

    assert (first.state, first.answer, first.text) == (State.SUCCEEDED, "42", "42")
    assert (again.state, again.answer, again.text) == (State.SUCCEEDED, None, None)


def test_many_jobs_go_on_past_one_that_was_answered_before(ledger, scripted):
    runner = parked.Runner(ledger, scripted("42", "43"))
    runner.run(JOB)

    outcomes = runner.run_many([JOB, parked.Job("b", model="m", payload={"contents": "q"})], concurrency=1)

    assert {outcome.job_id: outcome.answer for outcome in outcomes} == {"a": None, "b": "43"}


def test_a_pending_job_is_run_with_the_payload_that_is_handed_in_again(ledger, scripted):
    runner = parked.Runner(ledger, scripted("42"))
    ledger.record(runner._on.accept(JOB))

    assert runner.run(JOB).answer == "42"
