"""What the labelled cases don't show: raw answers, chains of exceptions, users' words, hostile objects."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parked import failures_page, rules
from parked.judge import (
    HttpAnswer,
    Usage,
    classify,
    classify_batch_row,
    classify_http_error,
    judge_answer,
    judge_exception,
    request_facts,
    text_of,
)
from parked.verdict import MEANINGS, Disposition, Kind, Reason, Scope, Verdict

PARIS: dict[str, Any] = {
    "candidates": [{"content": {"parts": [{"text": "Paris."}], "role": "model"}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2, "thoughtsTokenCount": 40},
    "responseId": "resp-1",
    "fieldNewerThanThisCode": {"kept": True},
}
MARKERS = (
    "API key not valid; Your API key was reported as leaked; billing is disabled; has been suspended; quota exceeded "
    "per day limit: 0; User location is not supported; the model is overloaded; models/x is not found; File x does not "
    "exist; not in an ACTIVE state; token count exceeds the maximum; prompt was blocked; RESOURCE_EXHAUSTED UNAVAILABLE"
)


def raw(value: Any, *, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {}, json.dumps(value).encode())


def candidate(text: str, finish: str = "STOP") -> dict[str, Any]:
    return {"content": {"parts": [{"text": text}]}, "finishReason": finish}


def test_a_raw_answer_is_kept_whole_with_its_text_and_what_was_billed():
    judged = judge_answer(raw(PARIS))

    assert judged.verdict == Verdict(ok=True, rule="answer.whole")
    assert judged.answer == PARIS
    assert judged.text == "Paris."
    assert judged.usage == Usage(tokens_in=7, tokens_out=42)
    assert judged.response_id == "resp-1"
    assert judged.finish_reasons == ("STOP",)


@pytest.mark.parametrize(
    ("body", "reason", "rule"),
    [
        (b"", Reason.EMPTY_ANSWER, "answer.no_body"),
        (b" \r\n", Reason.EMPTY_ANSWER, "answer.no_body"),
        (b"null", Reason.EMPTY_ANSWER, "answer.no_body"),
        (b"[]", Reason.EMPTY_ANSWER, "answer.no_body"),
        (b"{}", Reason.EMPTY_ANSWER, "answer.no_body"),
        (b'{"message": "Forbidden"}', Reason.EMPTY_ANSWER, "answer.no_candidates"),
        (b"<html><title>Log in</title></html>", Reason.BAD_RESPONSE_BODY, "answer.not_json"),
        (b'{"candidates": [{"content"', Reason.BAD_RESPONSE_BODY, "answer.not_json"),
        (b"\xff\xfe\xfd{}", Reason.BAD_RESPONSE_BODY, "answer.not_json"),
        (b"[" * 100_000, Reason.BAD_RESPONSE_BODY, "answer.not_json"),
        (b"true", Reason.BAD_RESPONSE_BODY, "answer.not_json"),
        ("<html>", Reason.BAD_RESPONSE_BODY, "answer.not_json"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_200_without_an_answer_is_a_failure(body, reason, rule):
    verdict = judge_answer(HttpAnswer(200, {}, body)).verdict

    assert (verdict.reason, verdict.rule, verdict.status) == (reason, rule, None)


def test_an_error_object_under_a_200_is_that_error_and_its_code_is_the_status():
    verdict = judge_answer(raw({"error": {"code": 503, "status": "UNAVAILABLE", "message": "busy"}})).verdict

    assert (verdict.reason, verdict.status) == (Reason.OVERLOADED, 503)
    assert verdict.error_class(Disposition.EXHAUSTED) == "exhausted:503"


def test_the_code_of_a_batch_row_is_a_grpc_number_and_no_status():
    verdict = classify_batch_row({"key": "a", "error": {"code": 13, "message": "Internal"}})

    assert verdict.status is None
    assert verdict.error_class(Disposition.EXHAUSTED) == "exhausted:server_error"


def test_a_failed_answer_is_not_kept_but_its_tokens_count():
    judged = judge_answer(raw({**PARIS, "candidates": [candidate("Par", "MAX_TOKENS")]}))

    assert judged.answer is None
    assert judged.text is None
    assert judged.usage.tokens_out == 42
    assert judged.finish_reasons == ("MAX_TOKENS",)


def test_a_candidate_that_did_not_come_is_an_error_among_the_finish_reasons():
    judged = judge_answer(PARIS, request={"candidateCount": 3})

    assert judged.verdict.reason is Reason.EMPTY_ANSWER
    assert judged.finish_reasons == ("STOP", "error", "error")


def test_an_object_of_the_sdk_is_kept_as_the_rest_api_spells_it():
    response = types.GenerateContentResponse._from_response(response=json.loads(json.dumps(PARIS)), kwargs={})

    judged = judge_answer(response)

    assert judged.answer["candidates"][0]["finishReason"] == "STOP"
    assert judged.answer["usageMetadata"]["promptTokenCount"] == 7
    assert judged.text == "Paris."


def test_a_raw_body_inside_an_object_of_the_sdk_is_judged():
    sent = types.HttpResponse(headers={}, body=json.dumps({"error": {"code": 429, "message": "slow down"}}))

    assert classify(types.GenerateContentResponse(sdk_http_response=sent)).reason is Reason.RATE_LIMITED


def test_both_spellings_of_a_response_mean_the_same():
    snake = {"candidates": [{"content": {"parts": [{"text": "Par"}]}, "finish_reason": "MAX_TOKENS"}]}

    assert classify(snake).reason is Reason.ANSWER_TRUNCATED
    assert classify({"prompt_feedback": {"block_reason": "SAFETY"}}).reason is Reason.PROMPT_BLOCKED


@pytest.mark.parametrize("value", [None, "", " \n", "\u200b", b"", [], {}, ()], ids=repr)
def test_nothing_is_no_answer(value):
    assert classify(value).reason is Reason.EMPTY_ANSWER


@pytest.mark.parametrize(
    "value",
    [0, False, "no", [None], {"error": None, "label": "ok"}, 4.5, object()],
    ids=lambda value: type(value).__name__,
)
def test_any_other_value_of_a_caller_of_ones_own_is_its_answer(value):
    judged = judge_answer(value)

    assert judged.verdict.ok
    assert judged.answer is value


async def answering():
    return "42"


async def streaming():
    yield "4"


@pytest.mark.parametrize(
    "value",
    [
        (part for part in "42"), iter(["4", "2"]), map(str, [42]), streaming(), Future(), lambda: "42", "a".upper,
        partial(str, 42), {"text": (part for part in "42")}, [Future()],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_still_has_to_be_run_or_read_is_no_answer(value):
    verdict = classify(value)

    assert (verdict.rule, verdict.reason) == ("value.not_run", Reason.CLIENT_FAULT)


def test_a_coroutine_is_no_answer():
    coroutine = answering()

    assert classify(coroutine).reason is Reason.CLIENT_FAULT
    assert classify([coroutine]).message.startswith("the caller returned a coroutine")
    coroutine.close()


def test_the_request_is_read_in_all_spellings():
    wanted = {"responseMimeType": "application/json", "candidateCount": 2}

    assert (
        request_facts({"contents": "…", "config": {"response_mime_type": "application/json", "candidate_count": 2}})
        == wanted
    )
    assert request_facts({"contents": [], "generationConfig": wanted}) == wanted
    assert request_facts({"contents": [], "generation_config": wanted}) == wanted
    assert request_facts(wanted) == wanted
    assert request_facts("a prompt") == {}


def test_the_text_of_an_answer_is_that_of_the_first_candidate_without_thoughts():
    parts = [{"text": "Hm.", "thought": True}, {"text": "4"}, {"text": "2"}]

    assert text_of({"candidates": [{"content": {"parts": parts}}, candidate("other")]}) == "42"
    assert text_of("42") == "42"
    assert text_of({"candidates": [{"content": {"parts": [{"functionCall": {"name": "f"}}]}}]}) is None
    assert text_of(42) is None


def test_a_value_that_this_version_does_not_know_is_named_in_the_message():
    finish = classify({"candidates": [candidate("text", "BRAND_NEW")]})
    block = classify({"promptFeedback": {"blockReason": "BRAND_NEW", "blockReasonMessage": "why"}})
    status = classify_http_error(418, {"error": {"code": 418, "message": "teapot"}})

    assert (finish.reason, block.reason, status.reason) == (
        Reason.STOPPED_OTHER,
        Reason.PROMPT_BLOCKED,
        Reason.UNCLASSIFIED,
    )
    assert "BRAND_NEW" in finish.message
    assert "BRAND_NEW" in block.message
    assert "418" in status.message


@pytest.mark.parametrize(
    "message",
    [
        f"Invalid value at 'contents[0].parts[0].text' (TYPE_STRING), \"{MARKERS}\"",
        f'Unknown name "{MARKERS}": Cannot find field.',
        f'Invalid JSON payload received. Unknown name "he said "{MARKERS}" twice": Cannot find field.',
        f"Tool name `{MARKERS}` is not allowed",
        f"Function '{MARKERS}' isn't allowed",
        f'The string was never closed: "{MARKERS}',
        f"Request contains an invalid argument: {MARKERS}",
        f"GenerateContentRequest.contents[0].parts[0].text: {MARKERS}",
        "x" * 250 + MARKERS,
    ],
    ids=lambda message: message[:30],
)
def test_words_of_a_user_in_a_message_decide_nothing(message):
    verdict = classify_http_error(400, {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": message}})

    assert verdict.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "auth_invalid"), (429, "rate_limited"), (500, "server_error"), (503, "overloaded")]
)
def test_a_status_that_needs_no_words_is_not_changed_by_any(status, reason):
    body = {"error": {"code": status, "message": f'While reading "{MARKERS}" something happened'}}

    assert classify_http_error(status, body).reason == reason


def test_an_answer_may_contain_every_marker():
    assert judge_answer(raw({"candidates": [candidate(MARKERS)]})).verdict.ok


def test_a_429_names_its_quota():
    violation = {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel", "quotaMetric": "g/requests"}
    body = {"error": {"code": 429, "details": [{"@type": "x/google.rpc.QuotaFailure", "violations": [violation]}]}}

    verdict = classify_http_error(429, body)

    assert (verdict.rule, verdict.quota_id) == ("http.429.quota", "GenerateRequestsPerMinutePerProjectPerModel")


def test_structured_limits_go_before_those_in_the_message():
    violation = {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel", "quotaValue": "60"}
    message = "* Quota exceeded for metric: g/requests, limit: 0, model: gemini-x"
    body = {"error": {"code": 429, "message": message, "details": [{"violations": [violation]}]}}

    assert classify_http_error(429, body).reason is Reason.RATE_LIMITED


def test_the_cause_of_an_exception_decides_where_it_says_nothing_itself():
    wrapped = RuntimeError("the pipeline's own words")
    wrapped.__cause__ = ConnectionResetError("reset")
    in_context = KeyError("parts")
    in_context.__context__ = TimeoutError()
    hidden = KeyError("parts")
    hidden.__context__ = TimeoutError()
    hidden.__suppress_context__ = True

    assert classify(wrapped).reason is Reason.NETWORK
    assert classify(in_context).reason is Reason.TIMEOUT
    assert classify(hidden).reason is Reason.UNCLASSIFIED
    assert classify(ExceptionGroup("several", [ConnectionResetError()])).reason is Reason.NETWORK


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert classify(first).reason is Reason.UNCLASSIFIED


def test_a_subclass_is_known_by_its_base():
    class MyTimeout(TimeoutError):
        pass

    assert classify(MyTimeout()).reason is Reason.TIMEOUT
    assert classify(MyTimeout).reason is Reason.TIMEOUT


def test_an_error_with_a_status_is_judged_like_the_api_s():
    error = type("ApiError", (Exception,), {"__module__": "parked.deadletter"})("slow down")
    error.status_code, error.message = 429, "slow down"

    verdict = judge_exception(error).verdict

    assert (verdict.reason, verdict.status) == (Reason.RATE_LIMITED, 429)


def test_a_message_holds_no_key_and_has_an_end():
    key = "AIza" + "x" * 35
    verdict = classify_http_error(403, {"error": {"message": f"Consumer 'api_key:{key}' " + "word " * 5_000}})

    assert key not in verdict.message
    assert len(verdict.message) <= 2_000


def test_a_reason_fixes_the_kind_and_permanent_failures_ask_for_no_delay():
    header = {"retry-after": "30"}
    for status in range(400, 600):
        verdict = classify_http_error(status, "", header)
        assert verdict.reason is not None
        assert verdict.kind is MEANINGS[verdict.reason].kind
        assert verdict.retry_after_s == (None if verdict.kind is Kind.PERMANENT else 30)


def test_every_reason_but_those_without_a_rule_here_is_named_by_one():
    tables = (
        rules.HTTP_RULES,
        rules.EXCEPTION_RULES,
        rules.BLOCK_RULES,
        rules.FINISH_RULES,
        rules.BATCH_STATE_RULES,
        rules.SHAPE_RULES.values(),
    )

    assert {rule.reason for table in tables for rule in table} == set(Reason)


def test_the_page_of_failures_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "failures.md"

    assert page.read_text(encoding="utf-8") == failures_page.page(), (
        "run: python -m parked.failures_page > docs/failures.md"
    )


def test_judging_imports_nothing_heavy():
    # The package's own __init__ imports more; only what judging needs is looked at.
    folder = str(Path(failures_page.__file__).parent)
    code = f"""
import sys, types
package = types.ModuleType("parked")
package.__path__ = [{folder!r}]
sys.modules["parked"] = package
import parked.judge
print([name for name in ("google", "httpx2", "asyncio", "aiohttp", "email", "http") if name in sys.modules])
"""

    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


WORDS = st.sampled_from(
    [
        "STOP",
        "MAX_TOKENS",
        "",
        " ",
        "NaN",
        MARKERS,
        "\ud800",
        "\x00",
        "AIza" + "k" * 35,
        "9" * 400,
        "<html>",
        '{"error":{}}',
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | WORDS | st.binary(max_size=20)
KEYS = st.sampled_from(
    ["candidates", "content", "parts", "text", "finishReason", "finish_reason", "promptFeedback", "blockReason",
     "error", "code", "status", "message", "details", "violations", "quotaId", "quotaValue", "retryDelay",
     "metadata", "reason", "usageMetadata", "promptTokenCount", "response", "request", "inlineData", "errors",
     "config", "candidateCount"]
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)
FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def sound(verdict: Verdict) -> None:
    assert isinstance(verdict, Verdict)
    verdict.message.encode("utf-8")
    assert len(verdict.message) <= 2_000
    if not verdict.ok:
        assert verdict.reason is not None
        assert verdict.kind is MEANINGS[verdict.reason].kind
        assert verdict.scope in set(Scope)
        assert len(verdict.fingerprint or "") == 12


@FEW
@given(VALUES, VALUES)
@example({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]}, {"candidateCount": 10**9})
@example({"error": {"details": [{"retryDelay": {"seconds": "x"}}, {"violations": {"a": 1}}]}}, None)
def test_classify_never_raises(value, request):
    sound(classify(value, request=request))
    sound(classify_http_error(request if isinstance(request, int) else None, value, None))
    sound(classify_batch_row(value, job_state=request, request=None))


@FEW
@given(LEAVES, VALUES, st.dictionaries(st.sampled_from(["Retry-After", "retry-after"]) | st.text(max_size=5), LEAVES))
def test_an_http_error_with_any_status_and_headers_never_raises(status, body, headers):
    sound(classify_http_error(status, body, headers))


@FEW
@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value, default=str).encode()))
def test_a_raw_body_never_raises(body):
    sound(judge_answer(HttpAnswer(200, {}, body)).verdict)
    sound(judge_answer(HttpAnswer(500, {}, body)).verdict)


@FEW
@given(
    st.sampled_from([ValueError, OSError, KeyError, TimeoutError, RuntimeError]),
    st.text(max_size=300) | WORDS | st.binary(max_size=5),
)
def test_an_exception_never_raises(cls, message):
    sound(classify(cls(message)))


def test_a_hostile_object_is_a_failure_and_raises_nothing():
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    class GenerateContentResponse:
        __module__ = "google.genai.types"

    GenerateContentResponse.__module__ = "google.genai.types"
    cycle: dict[str, Any] = {"candidates": []}
    cycle["candidates"].append(cycle)
    deep: Any = "x"
    for _ in range(5_000):
        deep = {"error": deep, "candidates": [deep]}

    for outcome in (Hostile(), GenerateContentResponse(), cycle, deep):
        verdict = classify(outcome)
        assert not verdict.ok
        sound(verdict)


@pytest.mark.parametrize(
    "body",
    [
        b"a" * 10_000_000,
        b"<p>" * 3_000_000,
        b"' " * 5_000_000,
        b"eyJ-" * 2_500_000,
        b"key= " * 2_000_000,
        b"\xff" * 10_000_000,
        b"[" + b"1," * 5_000_000 + b"1]",
        b'{"error": {"code": 400, "details": [' + b'{"a": 1}, ' * 1_000_000 + b"1]}}",
    ],
    ids=lambda body: repr(body[:5]),
)
def test_a_body_of_ten_megabytes_is_judged_at_once(body):
    classify_http_error(400, b"warm")
    started = time.perf_counter()

    verdict = classify_http_error(400, body)

    assert verdict.reason is Reason.INVALID_REQUEST
    assert time.perf_counter() - started < 0.5  # about 10 ms; the bound leaves room for a busy machine


def test_a_days_quota_keeps_the_delay_that_speaks_for_a_shorter_window_apart():
    details = [
        {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
        },
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"},
    ]
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded.", "details": details}}

    verdict = classify_http_error(429, json.dumps(body))

    assert verdict.reason is Reason.DAILY_QUOTA_EXHAUSTED
    assert (verdict.retry_after_s, verdict.shorter_delay_s) == (None, 36.0)
