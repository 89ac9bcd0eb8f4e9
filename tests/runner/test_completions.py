"""A chat completion, as OpenAI's API, LiteLLM and Gemini's endpoint for OpenAI's clients answer, is judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

import parked
from parked.judge import HttpAnswer, Usage, classify, judge_answer, text_of
from parked.pasted import read
from parked.schema import SchemaCheck
from parked.verdict import Reason


class Completion(BaseModel):
    """As the client libraries have it: fields that they don't know are kept, and nothing is checked."""

    model_config = ConfigDict(extra="allow")
    id: str | None = None
    choices: Any = None
    object: Any = None


def completion(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "chat-1", "object": "chat.completion", "model": "m", "choices": list(choices), **more}


def choice(content: Any = None, finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
PARIS = completion(choice("Paris."), usage={"prompt_tokens": 7, "completion_tokens": 42, "total_tokens": 49})
WHOLE = {
    "text": choice("Paris."),
    "parts": choice([{"type": "text", "text": "Paris."}]),
    "a call": choice(None, "tool_calls", tool_calls=[CALL]),
    "a call of the old kind": choice(None, "function_call", function_call={"name": "look"}),
    "a call that stopped": choice("", "stop", tool_calls=[CALL]),
    "speech": choice(None, audio={"data": "UklGRg=="}),
    "an image": choice(None, images=[{"image_url": {"url": "data:image/png;base64,AA=="}}]),
    "its own word for stop": choice("Paris.", "eos_token"),
    "before chats": {"text": "Paris.", "index": 0, "finish_reason": "stop"},
}
FLAWED = {
    "empty": (choice(""), Reason.EMPTY_ANSWER),
    "white space": (choice(" \n"), Reason.EMPTY_ANSWER),
    "null": (choice(None), Reason.EMPTY_ANSWER),
    "thoughts only": (choice(None, reasoning_content="Hm."), Reason.EMPTY_ANSWER),
    "a thought in parts": (choice([{"type": "thinking", "thinking": "Hm."}]), Reason.EMPTY_ANSWER),
    "no part": (choice([]), Reason.EMPTY_ANSWER),
    "calls, of which there are none": (choice(None, "tool_calls", tool_calls=[]), Reason.EMPTY_ANSWER),
    "no message": ({"index": 0, "finish_reason": "stop"}, Reason.EMPTY_ANSWER),
    "text before chats": ({"text": "", "index": 0, "finish_reason": "stop"}, Reason.EMPTY_ANSWER),
    "length": (choice("Par", "length"), Reason.ANSWER_TRUNCATED),
    "length without text": (choice(None, "length"), Reason.ANSWER_TRUNCATED),
    "one word again and again": (choice("so " * 200, "length"), Reason.REPETITION_LOOP),
    "filtered": (choice(None, "content_filter"), Reason.ANSWER_BLOCKED),
    "filtered behind text": (choice("Par", "content_filter"), Reason.ANSWER_BLOCKED),
    "Gemini's word": (choice(None, "SAFETY"), Reason.ANSWER_BLOCKED),
    "filtered, and why": ({"finish_reason": "content_filter: RECITATION", "index": 0}, Reason.RECITATION),
    "a broken call": (choice(None, "function_call_filter: MALFORMED_FUNCTION_CALL"), Reason.MALFORMED_ANSWER),
    "refused": (choice(None, refusal="I can't help with that."), Reason.PROMPT_BLOCKED),
    "an error": ({"error": {"code": 503, "message": "busy"}, "finish_reason": "error"}, Reason.OVERLOADED),
    "an error without more": (choice("Par", "error"), Reason.SERVER_ERROR),
    "no finish reason": (choice("Par", None), Reason.STREAM_INTERRUPTED),
    "neither": (choice(None, None), Reason.EMPTY_ANSWER),
    "a word newer than this code": (choice("Par", "brand_new"), Reason.STOPPED_OTHER),
}


def test_a_whole_one_is_kept_as_it_came_with_its_text_and_what_was_billed():
    judged = judge_answer(PARIS)

    assert judged.verdict.ok
    assert judged.answer is PARIS
    assert (judged.text, judged.usage, judged.response_id) == ("Paris.", Usage(7, 42), "chat-1")
    assert judged.finish_reasons == ("STOP",)


@pytest.mark.parametrize("given", WHOLE.values(), ids=WHOLE)
def test_one_that_holds_what_was_asked_for_is_an_answer(given):
    assert classify(completion(given)).ok
    assert classify({"choices": [given]}).ok


@pytest.mark.parametrize(("given", "reason"), FLAWED.values(), ids=FLAWED)
def test_one_that_is_empty_blocked_or_cut_off_is_none(given, reason):
    judged = judge_answer(completion(choice("Paris."), given))

    assert (judged.verdict.reason, judged.answer, judged.text) == (reason, None, None)
    assert classify({"choices": [given]}).reason is reason


@pytest.mark.parametrize(
    "given",
    [{"choices": []}, {"choices": None}, completion(), completion(vertex_ai_safety_results=[]), completion(usage=None)],
    ids=str,
)
def test_no_choice_is_no_answer(given):
    assert classify(given).reason is Reason.EMPTY_ANSWER
    assert classify(Completion(**given)).reason is Reason.EMPTY_ANSWER


def test_an_object_of_a_client_library_is_judged_and_kept_as_its_json():
    judged = judge_answer(Completion(**PARIS))

    assert judged.answer == PARIS
    assert judged.text == "Paris."
    assert classify(Completion(**completion(choice(None, "content_filter")))).reason is Reason.ANSWER_BLOCKED
    failed: dict[str, Any] = {"error": {"code": 429, "message": "slow down"}}
    assert classify(Completion(**failed)).reason is Reason.RATE_LIMITED


@pytest.mark.parametrize(
    "value",
    [
        {"question": "Which?", "choices": ["sea", "moon"]},
        {"question": "Which?", "choices": []},
        {"choices": "all of them"},
        {"choices": [{"message": "sea", "votes": 3}]},
        {"choices": [{"label": "sea"}]},
    ],
    ids=str,
)
def test_what_only_has_a_field_of_that_name_is_a_value_of_the_caller_s_own(value):
    assert judge_answer(value).answer is value
    quiz = Completion(**value)
    assert judge_answer(quiz).answer is quiz


def test_text_that_was_cut_off_is_an_answer_where_that_is_allowed():
    assert judge_answer(completion(choice("Par", "length")), allow_truncated=True).text == "Par"
    assert not judge_answer(completion(choice(None, "length")), allow_truncated=True).verdict.ok


def test_a_stored_one_has_its_text_and_is_held_against_a_schema():
    labelled = completion(choice('{"label": "cat"}'))
    check = SchemaCheck({"type": "object", "required": ["label"]})

    assert text_of(labelled) == '{"label": "cat"}'
    assert check(labelled) is None
    assert "breaks the schema" in str(check(completion(choice("{}"))))


def test_a_pasted_one_is_read_as_an_answer():
    pasted = read(json.dumps(completion(choice(None, "content_filter"))))
    assert pasted is not None
    assert (pasted.read_as, pasted.verdict.reason) == ("an answer", Reason.ANSWER_BLOCKED)

    assert judge_answer(HttpAnswer(200, {}, json.dumps(PARIS))).text == "Paris."


def test_a_job_whose_completion_is_empty_is_tried_again_and_parked(tmp_path):
    calls = []

    def call(payload: Any, model: str) -> Any:
        calls.append(payload)
        return Completion(**completion(choice(None, "content_filter") if payload == "bad" else choice("fine")))

    with parked.open_ledger(f"sqlite:///{tmp_path}/parked.db") as ledger:
        runner = parked.Runner(ledger, call)
        good = runner.run(parked.Job("a", model="m", payload="good"))
        bad = runner.run(parked.Job("b", model="m", payload="bad"))

    assert (good.state, good.text) == ("succeeded", "fine")
    assert (bad.state, bad.error_class, bad.answer) == ("parked", "permanent:answer_blocked", None)
