"""Text that stopped at the output token limit: a failure, unless the pipeline allows it."""

from __future__ import annotations

import pytest

import parked
from parked.job import State
from parked.judge import judge_answer
from parked.simulator import replies as reply
from parked.verdict import Reason

JOB = parked.Job("a-1", model="m", payload={"contents": "Tell me all."})


def candidate(text: str, finish: str = "MAX_TOKENS") -> dict:
    return {"content": {"parts": [{"text": text}]}, "finishReason": finish}


def test_text_that_was_cut_off_is_an_answer_where_that_is_allowed():
    response = {"candidates": [candidate("This secur")], "usageMetadata": {"candidatesTokenCount": 3}}

    judged = judge_answer(response, allow_truncated=True)

    assert (judged.verdict.ok, judged.verdict.rule) == (True, "answer.truncated")
    assert (judged.text, judged.answer, judged.usage.tokens_out) == ("This secur", response, 3)
    assert judge_answer(response).verdict.reason is Reason.ANSWER_TRUNCATED


@pytest.mark.parametrize(
    ("candidates", "request_", "reason"),
    [
        ([candidate(" ")], {}, Reason.ANSWER_TRUNCATED),
        ([candidate("la " * 300)], {}, Reason.REPETITION_LOOP),
        ([candidate('{"sku": "A-')], {"responseMimeType": "application/json"}, Reason.ANSWER_TRUNCATED),
        ([candidate("some", "SAFETY")], {}, Reason.ANSWER_BLOCKED),
        ([candidate("some"), candidate("some", "SAFETY")], {"candidateCount": 2}, Reason.ANSWER_BLOCKED),
    ],
    ids=["no text", "a loop", "broken JSON", "a filter", "another candidate"],
)
def test_what_else_is_wrong_still_fails(candidates, request_, reason):
    judged = judge_answer({"candidates": candidates}, request=request_, allow_truncated=True)

    assert judged.verdict.reason is reason


def test_a_whole_answer_does_not_count_as_truncated():
    judged = judge_answer({"candidates": [candidate("42", "STOP")]}, allow_truncated=True)

    assert judged.verdict.rule == "answer.whole"


def test_a_runner_that_allows_it_takes_the_answer_and_the_job_remembers(ledger, gemini, simulator, clock):
    simulator.will_answer(reply.stopped("MAX_TOKENS", text="This secur"))

    outcome = parked.Runner(ledger, gemini, clock=clock, allow_truncated=True).run(JOB)

    assert (outcome.state, outcome.text) == (State.SUCCEEDED, "This secur")
    with ledger.ask() as reader:
        (row,) = reader.jobs_by_key("a-1", pipeline=None, batch=None)
    assert row.checker == "allow_truncated"


def test_a_check_of_the_pipelines_own_sees_a_truncated_answer_too(ledger, gemini, simulator, clock):
    simulator.answers(lambda request: reply.stopped("MAX_TOKENS", text="This secur"))

    runner = parked.Runner(ledger, gemini, clock=clock, allow_truncated=True, check=lambda answer: "too short")

    assert runner.run(JOB).error_class == "exhausted:malformed_answer"
