"""Exceptions that carry or tell of an error: of Google's libraries, gRPC, HTTP clients and what builds on them."""

from __future__ import annotations

import json
from http import HTTPStatus
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import requests
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from parked import pasted, rules
from parked.judge import classify
from parked.protobuf import details_in_text
from parked.verdict import Reason, Scope, Verdict

# Their types aren't known to mypy.
rpc = import_module("google.rpc.error_details_pb2")
Duration = import_module("google.protobuf.duration_pb2").Duration

PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
BLOCK = '[reason: "API_KEY_INVALID"\ndomain: "googleapis.com"\nmetadata {\n  key: "service"\n  value: "x"\n}\n]'
BUSY = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}


def raised(name: str, message: str = "", base: str = "", /, **attrs: Any) -> Exception:
    """A stand-in for a class whose package isn't installed; `base` is what it is derived from."""

    def made(full: str, *bases: type) -> type:
        module, _, leaf = full.rpartition(".")
        return type(leaf, bases or (Exception,), {"__module__": module})

    exc: Exception = made(name, *([made(base)] if base else []))(message)
    vars(exc).update(attrs)
    return exc


def api_core(name: str, status: HTTPStatus, message: str, **attrs: Any) -> Exception:
    base = "google.api_core.exceptions.GoogleAPICallError"
    attrs = {"code": status, "message": message, "details": [], "errors": [], "reason": None, **attrs}
    return raised(f"google.api_core.exceptions.{name}", f"{int(status)} {message}", base, **attrs)


def grpc(code: str, details: str) -> Exception:
    return raised(
        "grpc._channel._InactiveRpcError",
        f'<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.{code}\n\tdetails = "{details}"\n>',
        "grpc.RpcError",
        code=lambda: SimpleNamespace(name=code),
        details=lambda: details,
    )


def exhausted(*details: Any, **attrs: Any) -> Verdict:
    status = HTTPStatus.TOO_MANY_REQUESTS
    return classify(api_core("ResourceExhausted", status, "Quota exceeded.", details=list(details), **attrs))


def test_details_that_are_messages_of_protobuf_are_read():
    violation = {"quota_metric": "g/requests", "quota_id": PER_DAY, "quota_dimensions": {"model": "gemini-x"}}

    day = exhausted(rpc.QuotaFailure(violations=[violation]), rpc.RetryInfo(retry_delay=Duration(seconds=17)))

    assert (day.reason, day.quota_id, day.retry_after_s) == (Reason.DAILY_QUOTA_EXHAUSTED, PER_DAY, None)
    assert exhausted(rpc.RetryInfo(retry_delay=Duration(seconds=17, nanos=500_000_000))).retry_after_s == 17.5
    assert exhausted(rpc.RetryInfo(retry_delay=Duration())).retry_after_s == 0


def test_the_error_info_of_an_exception_is_read_also_from_its_attributes():
    limit = {"quota_limit": "RequestsPerMinutePerProjectPerRegion", "quota_limit_value": "0"}
    info = rpc.ErrorInfo(reason="RATE_LIMIT_EXCEEDED", domain="googleapis.com", metadata=limit)

    for verdict in (exhausted(info), exhausted(reason=info.reason, metadata=info.metadata)):
        assert (verdict.reason, verdict.scope) == (Reason.NO_QUOTA, Scope.PROJECT)


def test_details_that_stand_only_in_the_text_are_read_and_are_no_part_of_the_message():
    key = classify(api_core("InvalidArgument", HTTPStatus.BAD_REQUEST, f"Bad request. {BLOCK}"))
    delayed = 'Slow down. [violations {\n}\n, links {\n  url: "https://x"\n}\n, retry_delay {\n  seconds: 33\n}\n]'

    assert (key.reason, key.message) == (Reason.AUTH_INVALID, "Bad request.")
    assert classify(api_core("ResourceExhausted", HTTPStatus.TOO_MANY_REQUESTS, delayed)).retry_after_s == 33


@pytest.mark.parametrize(
    "message",
    [
        f"Unknown value: \"he wrote {BLOCK}\"",
        f"Unknown value: 'he wrote {BLOCK}",
        f"Unknown value: {BLOCK} is none",
        f"Unknown value: {BLOCK[:-1]}}}]",
        f"Unknown value: {BLOCK[:-1]}anything else]",
        f"Unknown value: {BLOCK[:-1]}unheard_of: 1\n]",
        "Unknown value: [the API key is not valid]",
    ],
)  # fmt: skip
def test_what_only_looks_like_details_decides_nothing(message):
    assert details_in_text(message) == (message, [])
    assert classify(api_core("Unknown", HTTPStatus.INTERNAL_SERVER_ERROR, message)).reason is Reason.SERVER_ERROR


@settings(max_examples=150, deadline=None)
@given(st.text('[]{}:,"\\ \nreason violations 0', max_size=80))
def test_no_text_makes_the_reading_of_details_raise(text):
    message, details = details_in_text(f"A [reason: {text}]")

    assert message
    assert all(isinstance(fields, dict) for fields in details)


@pytest.mark.parametrize(
    ("code", "details", "reason"),
    [
        ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", Reason.RATE_LIMITED),
        ("UNAVAILABLE", "The model is overloaded.", Reason.OVERLOADED),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Reason.TIMEOUT),
        ("INTERNAL", "429 RESOURCE_EXHAUSTED", Reason.SERVER_ERROR),
        ("UNAVAILABLE", "failed to connect to all addresses; last error: UNKNOWN: handshake", Reason.NETWORK),
        ("UNAVAILABLE", "DNS resolution failed for x", Reason.NETWORK),
        ("UNAVAILABLE", "Getting metadata from plugin failed with error: ('invalid_grant: no', {})", "auth_invalid"),
        ("UNAVAILABLE", "Getting metadata from plugin failed with error: Max retries exceeded", Reason.NETWORK),
        ("NEW_STATUS", "?", Reason.UNCLASSIFIED),
    ],
)
def test_an_error_of_grpc_is_judged_by_its_code_and_details(code, details, reason):
    exc = grpc(code, details)
    printed = pasted.read(f"grpc._channel._InactiveRpcError: {exc}")

    assert classify(exc).reason == reason
    assert printed is not None
    assert printed.verdict.reason == reason


def test_what_the_channel_says_of_itself_comes_from_no_server():
    lost = "failed to connect to all addresses; last error: UNKNOWN: ipv4:192.0.2.1:443: tcp handshaker shutdown"

    assert classify(api_core("ServiceUnavailable", HTTPStatus.SERVICE_UNAVAILABLE, lost)).reason is Reason.NETWORK
    quoting = f'While reading "{lost}" the model failed'
    assert classify(api_core("ServiceUnavailable", HTTPStatus.SERVICE_UNAVAILABLE, quoting)).reason is Reason.OVERLOADED


def test_a_status_that_another_client_carries_is_judged_with_its_body():
    day = {"code": 429, "message": "…", "details": [{"violations": [{"quotaId": PER_DAY}]}]}
    asked = SimpleNamespace(status_code=429, text="", headers={"retry-after": "7"})

    assert classify(raised("openai.RateLimitError", status_code=429, body=[day])).reason == "daily_quota_exhausted"
    assert classify(raised("openai.RateLimitError", status_code=429, body=None, response=asked)).retry_after_s == 7
    assert classify(raised("pydantic_ai.exceptions.ModelHTTPError", status_code=503, body=BUSY)).reason == "overloaded"
    sent = SimpleNamespace(status=403)
    assert classify(raised("googleapiclient.errors.HttpError", resp=sent, content=b"{}")).reason == "permission_denied"
    assert classify(raised("shop.HttpError", status_code=503, body=BUSY)).reason is Reason.UNCLASSIFIED
    assert classify(raised("pydantic_ai.exceptions.UnexpectedModelBehavior", json.dumps(BUSY))).reason == "unclassified"


def test_an_error_that_a_client_puts_into_its_text_is_read_only_if_it_is_the_same_one():
    same = raised("litellm.exceptions.ServiceUnavailableError", f"litellm.x: G - {json.dumps(BUSY)}", status_code=503)
    quoted = raised(
        "litellm.exceptions.BadRequestError", f"litellm.x: no such tool {json.dumps(BUSY)}", status_code=400
    )

    assert classify(same).message == "The model is overloaded."
    assert classify(quoted).reason is Reason.INVALID_REQUEST


def test_a_real_response_of_requests_or_httpx_is_looked_at():
    refused = requests.Response()  # it is false, as every one with an error is
    refused.status_code, refused._content = 429, b"slow down"
    unread = httpx2.Response(429, stream=httpx2.ByteStream(b"x"), request=httpx2.Request("GET", "https://example.org"))

    assert classify(requests.HTTPError("429", response=refused)).reason is Reason.RATE_LIMITED
    assert classify(httpx2.HTTPStatusError("429", request=unread.request, response=unread)).reason == "rate_limited"


def test_a_connection_error_of_openai_is_judged_by_its_cause_where_that_says_more():
    alone, caused = raised("openai.APIConnectionError"), raised("openai.APIConnectionError")
    caused.__cause__ = httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    assert classify(alone).reason is Reason.NETWORK
    assert classify(raised("litellm.exceptions.APIConnectionError", status_code=500)).reason is Reason.NETWORK
    assert classify(raised("litellm.exceptions.Timeout", status_code=408)).rule == "client.timeout"
    assert classify(caused).reason is Reason.CLIENT_FAULT


def test_an_exception_that_retells_an_error_is_judged_by_it_unless_its_cause_says_more():
    name = "langchain_google_genai.chat_models.ChatGoogleGenerativeAIError"
    told = f"Error calling model 'gemini-x' (UNAVAILABLE): 503 UNAVAILABLE. {BUSY}"
    caused = raised(name, told)
    caused.__cause__ = ConnectionResetError()
    retried = "<failed_attempts>\n<exception>\n    429 RESOURCE_EXHAUSTED. {'error': {'code': 429}}\n</exception>"

    assert classify(raised(name, told)).message == "The model is overloaded."
    assert classify(raised("instructor.core.exceptions.InstructorRetryException", retried)).reason == "rate_limited"
    assert classify(caused).reason is Reason.NETWORK
    assert classify(raised(name, "no parser for '>: 429 RESOURCE_EXHAUSTED. {}'")).reason is Reason.UNCLASSIFIED
    assert classify(ValueError(told)).reason is Reason.UNCLASSIFIED


@pytest.mark.parametrize(
    ("name", "message", "reason"),
    [
        ("StopCandidateException", "index: 0\nfinish_reason: SAFETY\n", Reason.ANSWER_BLOCKED),
        ("StopCandidateException", 'content {\n  text: "finish_reason: 5"\n}\nfinish_reason: 8\n', "answer_blocked"),
        ("StopCandidateException", "finish_reason: STOP\n", Reason.STOPPED_OTHER),
        ("StopCandidateException", "finish_reason: 99\n", Reason.STOPPED_OTHER),
        ("StopCandidateException", "", Reason.UNCLASSIFIED),
        ("BlockedPromptException", "block_reason: OTHER\n", Reason.STOPPED_OTHER),
        ("BlockedPromptException", "block_reason: BRAND_NEW\n", Reason.PROMPT_BLOCKED),
        ("BlockedPromptException", "", Reason.PROMPT_BLOCKED),
        ("ResponseValidationError", "\nFinish reason: 9.\nFinish message: \nFinish reason: 3.", "malformed_answer"),
        ("ResponseValidationError", "The model response was blocked due to 1.\n", Reason.PROMPT_BLOCKED),
        ("ResponseBlockedError", "The response was blocked.", Reason.ANSWER_BLOCKED),
    ],
)  # fmt: skip
def test_an_exception_that_stands_for_an_answer_is_judged_like_that_answer(name, message, reason):
    package = "vertexai.generative_models._generative_models"
    if not name.startswith("Response"):
        package = "google.generativeai.types.generation_types"

    verdict = classify(raised(f"{package}.{name}", message))

    assert not verdict.ok
    assert verdict.reason == reason


def test_the_message_that_an_old_exception_was_raised_with_goes_before_its_text():
    exc = raised("google.generativeai.types.StopCandidateException")
    exc.args = (SimpleNamespace(finish_reason=SimpleNamespace(name="RECITATION", value=4)),)

    assert classify(exc).reason is Reason.RECITATION


class InvoiceResponse(BaseModel):
    total: float


@pytest.mark.parametrize(
    ("model", "value", "rule"),
    [
        (InvoiceResponse, {"sum": 3}, "exception.answer_model"),
        (types.GenerateContentConfig, {"no_such_field": 1}, "exception.request_model"),
        (types._GenerateContentParameters, {"no_such_field": 1}, "exception.request_model"),
        (types.GenerateContentResponse, {"candidates": "x"}, "exception.response_model"),
    ],
)
def test_a_model_of_pydantic_is_told_apart_by_whose_it_is(model, value, rule):
    with pytest.raises(ValidationError) as refused:
        model.model_validate(value)

    assert classify(refused.value).rule == rule


def test_the_models_that_the_rules_name_are_of_the_sdk():
    for name in (*rules.REQUEST_CLASSES, *rules.RESPONSE_CLASSES):
        assert issubclass(getattr(types, name), BaseModel)
    assert set(rules.REQUEST_CLASSES).isdisjoint(rules.RESPONSE_CLASSES)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Gemini 2.5 Pro Preview doesn't have a free quota tier.", Reason.NO_QUOTA),
        ("There is no free tier for this model.", Reason.NO_QUOTA),
        ("This model is not available in the free tier.", Reason.NO_QUOTA),
        ("You are on the free tier. Slow down.", Reason.RATE_LIMITED),
        ('While reading "no free tier" something happened', Reason.RATE_LIMITED),
    ],
)
def test_a_429_that_says_in_words_that_this_tier_has_no_quota(message, reason):
    assert classify({"error": {"code": 429, "message": message}}).reason is reason


def test_a_count_of_tokens_that_is_too_high_is_a_large_input_only_if_it_speaks_of_input():
    def reason_of(message: str) -> Reason | None:
        return classify({"error": {"code": 400, "message": message}}).reason

    assert reason_of("The input or output token count is more than 1048576") is Reason.INPUT_TOO_LARGE
    assert reason_of("The output token count is more than 65536") is Reason.INVALID_REQUEST
