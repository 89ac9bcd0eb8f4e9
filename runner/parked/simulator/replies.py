"""What the simulator can be told to answer: whole answers, answers that are none, errors, and broken connections.

The bodies have the shapes that the Gemini API is reported to send; texts and numbers are invented. Each function
makes one small value; a script file (`script.py`) calls them by these names.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from parked.simulator.quotas import Counted, Period, Quota, Refusal, Said
from parked.simulator.request import LIST, Request, tokens_of

JSON_TYPE: Final = "application/json; charset=UTF-8"
HTML_TYPE: Final = "text/html; charset=UTF-8"
_PNG: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
# What the API calls a quota: its id and its metric, by what it counts, for how long, and whether for each model.
_NAMES: Final[Mapping[tuple[Counted, Period, bool], tuple[str, str]]] = {
    (Counted.REQUESTS, Period.MINUTE, True): (
        "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
        "generate_content_free_tier_requests",
    ),
    (Counted.REQUESTS, Period.DAY, True): (
        "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
        "generate_content_free_tier_requests",
    ),
    (Counted.TOKENS, Period.MINUTE, True): (
        "GenerateContentInputTokensPerModelPerMinute-FreeTier",
        "generate_content_free_tier_input_token_count",
    ),
    (Counted.TOKENS, Period.DAY, True): (
        "GenerateContentInputTokensPerModelPerDay-FreeTier",
        "generate_content_free_tier_input_token_count",
    ),
    (Counted.REQUESTS, Period.MINUTE, False): (
        "GenerateContentRequestsPerMinutePerProjectPerRegion",
        "generate_content_requests",
    ),
    (Counted.REQUESTS, Period.DAY, False): (
        "GenerateContentRequestsPerDayPerProjectPerRegion",
        "generate_content_requests",
    ),
    (Counted.TOKENS, Period.MINUTE, False): (
        "GenerateContentInputTokensPerMinutePerProjectPerRegion",
        "generate_content_input_token_count",
    ),
    (Counted.TOKENS, Period.DAY, False): (
        "GenerateContentInputTokensPerDayPerProjectPerRegion",
        "generate_content_input_token_count",
    ),
}
_QUOTA_MESSAGE: Final = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this error,"
    " head to: https://ai.google.dev/gemini-api/docs/rate-limits. "
)
_HELP: Final = {
    "@type": "type.googleapis.com/google.rpc.Help",
    "links": [
        {
            "description": "Learn more about Gemini API quotas",
            "url": "https://ai.google.dev/gemini-api/docs/rate-limits",
        }
    ],
}


class Delivery(StrEnum):
    WHOLE = "whole"
    CUT = "cut"  # the connection is closed in the middle of the body
    NONE = "none"  # the connection is closed without an answer


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer to one request. A function as `body` makes the JSON value for the request that is answered."""

    body: bytes | Callable[[Request], Any] = b""
    status: int = 200
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    held: bool = False  # not before the simulator is told to release
    delivery: Delivery = Delivery.WHOLE

    def rendered(self, request: Request) -> Any:
        """Return the JSON value for this request, or the bytes of a body that is no JSON."""
        return self.body if isinstance(self.body, bytes) else self.body(request)


# --- whole answers ---------------------------------------------------------------------------------------------


def text(text: str = "42") -> Reply:
    return _answer([{"text": text}], tokens_out=tokens_of(text))


def usual(request: Request) -> Reply:
    """What is answered unless told otherwise: the models, or an answer of the kind asked for, about the prompt."""
    if request.method == LIST:
        return models()
    about = f"Simulated answer to: {request.text[:200]}"
    if request.config.get("responseModalities", request.config.get("response_modalities")) == ["IMAGE"]:
        return image()
    if request.config.get("responseMimeType", request.config.get("response_mime_type")) == "application/json":
        return json_answer({"answer": about})
    return text(about)


def models() -> Reply:
    """What there is to be asked, as a list of one."""
    listed = {"models": [{"name": "models/gemini-3.5-flash", "displayName": "Simulated"}]}
    return Reply(lambda _: listed)


def json_answer(value: Any = None) -> Reply:
    """JSON as a model writes it: in the answer's text. Without a value, an empty object."""
    return text(json.dumps({} if value is None else value))


def image() -> Reply:
    return _answer([{"inlineData": {"mimeType": "image/png", "data": _PNG}}], tokens_out=1290)


def function_call(name: str = "get_weather", args: dict[str, Any] | None = None) -> Reply:
    return _answer([{"functionCall": {"name": name, "args": args or {}}}], tokens_out=12)


def thoughts_and(text: str = "42") -> Reply:
    """A thought, then the answer."""
    parts: list[dict[str, Any]] = [
        {"text": "Working it out.", "thought": True},
        {"text": text, "thoughtSignature": "QUJDREVGRw=="},
    ]
    return _answer(parts, tokens_out=tokens_of(text), thoughts=64)


# --- HTTP 200 without a whole answer ---------------------------------------------------------------------------


def thoughts_only() -> Reply:
    return _answer([{"text": "Working it out.", "thought": True}], thoughts=64)


def no_candidates() -> Reply:
    return Reply(lambda request: _envelope(request))


def no_parts() -> Reply:
    """Finished with STOP, and nothing in it."""
    return _answer(None)


def blank(text: str = " \n") -> Reply:
    """Finished with STOP, and only white space in it."""
    return _answer([{"text": text}], tokens_out=1)


def blocked_prompt(reason: str = "SAFETY") -> Reply:
    return Reply(lambda request: {"promptFeedback": {"blockReason": reason}, **_envelope(request)})


def stopped(finish_reason: str = "MAX_TOKENS", text: str | None = None) -> Reply:
    """Any finish reason, with or without text; without text, MAX_TOKENS means that thinking ate the budget."""
    parts = None if text is None else [{"text": text}]
    thoughts = 1999 if finish_reason == "MAX_TOKENS" and text is None else 0
    return _answer(parts, finish_reason=finish_reason, tokens_out=tokens_of(text or ""), thoughts=thoughts)


def repetition_loop() -> Reply:
    return stopped("MAX_TOKENS", text='{"width": 0.' + "0" * 6000)


def broken_json() -> Reply:
    """Finished with STOP in the middle of JSON: a failure where JSON was asked for."""
    return text('{"grade": "A", "findings": [{"file": "cli.rs", "note": "typed value')


def unfinished(text: str = "The three main causes are, first,") -> Reply:
    """Text without a finish reason, as of a stream that ended early."""
    return _answer([{"text": text}], finish_reason=None, tokens_out=tokens_of(text))


def error_under_200(code: int = 503, status: str = "UNAVAILABLE", message: str = "The model is overloaded.") -> Reply:
    return replace(error(code, status, message), status=200)


def empty_body() -> Reply:
    return Reply(b"")


def null_body() -> Reply:
    return Reply(b"null")


def html(status: int = 502) -> Reply:
    """A page of some proxy in between."""
    page = f"<html><head><title>Error {status}</title></head><body><h1>The server met an error.</h1></body></html>"
    return Reply(page.encode(), status=status, content_type=HTML_TYPE)


def broken_error_body(status: int = 503) -> Reply:
    """An error that is labelled JSON and isn't."""
    return Reply(b'{"error": {"code": ', status=status)


# --- errors ----------------------------------------------------------------------------------------------------


def error(code: int, status: str, message: str, details: list[Any] | None = None) -> Reply:
    """Any error in the API's shape. `{model}` in the message stands for the model that was asked."""

    def body(request: Request) -> Any:
        named: dict[str, Any] = {
            "code": code,
            "message": message.replace("{model}", request.model),
            "status": status,
        }
        return {"error": {**named, "details": details} if details else named}

    return Reply(body, status=code)


def rate_limited(retry_delay_s: float = 34.0, quota_id: str | None = None, limit: int = 15) -> Reply:
    """The minute's quota is used up; the body names the quota and the delay."""
    return quota_exceeded(Refusal((Quota(limit, id=quota_id),), retry_delay_s))


def rate_limited_without_details(retry_after_s: int | None = None) -> Reply:
    """A 429 that names neither quota nor delay in its body; the delay, if any, stands in the Retry-After header."""
    reply = error(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).")
    return reply if retry_after_s is None else replace(reply, headers={"Retry-After": str(retry_after_s)})


def daily_quota(retry_delay_s: float = 51.0, limit: int = 20) -> Reply:
    """The day's quota is used up. The delay in the body speaks for a shorter window, as the real one does."""
    return quota_exceeded(Refusal((Quota(limit, per=Period.DAY),), retry_delay_s))


def no_quota() -> Reply:
    """The limit is 0: this tier has no access to the model."""
    return daily_quota(45.0, limit=0)


def quota_exceeded(refusal: Refusal) -> Reply:
    """What quotas refuse, in the words that each of them says."""
    named = [quota for quota in refusal.violated if Said.QUOTA in quota.says]
    tells_delay = any(Said.DELAY in quota.says for quota in refusal.violated)
    if not named and not tells_delay:
        return rate_limited_without_details()
    delay = f"{refusal.delay_s:.3f}".rstrip("0").rstrip(".") + "s"

    def body(request: Request) -> Any:
        violations = [_violation(quota, request.model) for quota in named]
        lines = [_QUOTA_MESSAGE]
        for quota, violation in zip(named, violations, strict=True):
            where = f"model: {request.model}" if quota.per_model else "region: global"
            lines.append(f"* Quota exceeded for metric: {violation['quotaMetric']}, limit: {quota.limit}, {where}")
        details: list[dict[str, Any]] = [_HELP]
        if named:
            details.append({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations})
        if tells_delay:
            lines.append(f"Please retry in {delay}.")
            details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
        message = "\n".join(lines)
        return {"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details}}

    return Reply(body, status=429)


def billing_required() -> Reply:
    return error(
        429,
        "RESOURCE_EXHAUSTED",
        "Your prepayment credits are depleted. Please go to AI Studio at https://ai.studio/projects to manage your"
        " project and billing.",
    )


def overloaded() -> Reply:
    return error(503, "UNAVAILABLE", "The model is overloaded. Please try again later.")


def server_error() -> Reply:
    return error(
        500,
        "INTERNAL",
        "An internal error has occurred. Please retry or report in"
        " https://developers.generativeai.google/guide/troubleshooting",
    )


def deadline_exceeded() -> Reply:
    return error(504, "DEADLINE_EXCEEDED", "Deadline Exceeded")


def cancelled() -> Reply:
    return error(499, "CANCELLED", "The operation was cancelled.")


def bad_key() -> Reply:
    message = "API key not valid. Please pass a valid API key."
    details = [
        _error_info("API_KEY_INVALID", service="generativelanguage.googleapis.com"),
        {"@type": "type.googleapis.com/google.rpc.LocalizedMessage", "locale": "en-US", "message": message},
    ]
    return error(400, "INVALID_ARGUMENT", message, details)


def unauthenticated() -> Reply:
    return error(
        401,
        "UNAUTHENTICATED",
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid"
        " authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.",
    )


def permission_denied() -> Reply:
    return error(
        403,
        "PERMISSION_DENIED",
        "Permission 'aiplatform.endpoints.predict' denied on resource '//aiplatform.googleapis.com/projects/example"
        "/locations/global/publishers/google/models/{model}' (or it may not exist).",
    )


def api_disabled() -> Reply:
    details = [
        _error_info("SERVICE_DISABLED", service="generativelanguage.googleapis.com", consumer="projects/000000000000")
    ]
    return error(
        403,
        "PERMISSION_DENIED",
        "Generative Language API has not been used in project 000000000000 before or it is disabled.",
        details,
    )


def account_suspended() -> Reply:
    details = [
        _error_info("CONSUMER_SUSPENDED", service="generativelanguage.googleapis.com", consumer="projects/000000000000")
    ]
    message = "Permission denied: Consumer 'projects/000000000000' has been suspended."
    return error(403, "PERMISSION_DENIED", message, details)


def location_unsupported() -> Reply:
    return error(400, "FAILED_PRECONDITION", "User location is not supported for the API use.")


def model_not_found() -> Reply:
    return error(
        404,
        "NOT_FOUND",
        "models/{model} is not found for API version v1beta, or is not supported for generateContent. Call ListModels"
        " to see the list of available models and their supported methods.",
    )


def file_missing(file: str = "abc123def456") -> Reply:
    return error(403, "PERMISSION_DENIED", f"You do not have permission to access the File {file} or it may not exist.")


def file_processing(file: str = "abc123def456") -> Reply:
    return error(400, "FAILED_PRECONDITION", f"The File {file} is not in an ACTIVE state and usage is not allowed.")


def invalid_request(message: str = "Request contains an invalid argument.") -> Reply:
    return error(400, "INVALID_ARGUMENT", message)


def too_large(tokens: int = 3_475_108) -> Reply:
    return error(
        400,
        "INVALID_ARGUMENT",
        f"The input token count ({tokens}) exceeds the maximum number of tokens allowed (1048576).",
    )


# --- connections -----------------------------------------------------------------------------------------------


def drop_connection() -> Reply:
    return Reply(delivery=Delivery.NONE)


def cut_body() -> Reply:
    """Close the connection in the middle of an answer; a stream ends after its first event."""
    return replace(text("The three main causes are, first, the rising price of"), delivery=Delivery.CUT)


def hang(then: Reply | None = None) -> Reply:
    """Answer nothing until `Simulator.release()`, then `then` (a text, unless given)."""
    return replace(then or text(), held=True)


def slow(reply: Reply, seconds: float) -> Reply:
    return replace(reply, delay_s=seconds)


# --- shapes ----------------------------------------------------------------------------------------------------


def _answer(
    parts: list[dict[str, Any]] | None,
    *,
    finish_reason: str | None = "STOP",
    tokens_out: int = 0,
    thoughts: int = 0,
) -> Reply:
    content = {"role": "model"} if parts is None else {"parts": parts, "role": "model"}
    finish = {} if finish_reason is None else {"finishReason": finish_reason}
    candidate = {"content": content, **finish, "index": 0}

    def body(request: Request) -> Any:
        return {"candidates": [candidate], **_envelope(request, tokens_out=tokens_out, thoughts=thoughts)}

    return Reply(body)


def _envelope(request: Request, *, tokens_out: int = 0, thoughts: int = 0) -> dict[str, Any]:
    """What stands beside the candidates. The API leaves counts of 0 out."""
    tokens_in = tokens_of(request.text)
    counts = {"promptTokenCount": tokens_in, "candidatesTokenCount": tokens_out, "thoughtsTokenCount": thoughts}
    usage: dict[str, Any] = {name: count for name, count in counts.items() if count}
    usage["totalTokenCount"] = tokens_in + tokens_out + thoughts
    usage["promptTokensDetails"] = [{"modality": "TEXT", "tokenCount": tokens_in}]
    return {
        "usageMetadata": usage,
        "modelVersion": request.model,
        "responseId": f"simulated-{request.number}",
    }


def _violation(quota: Quota, model: str) -> dict[str, Any]:
    id_, metric = _NAMES[quota.counted, quota.per, quota.per_model]
    violation: dict[str, Any] = {
        "quotaMetric": f"generativelanguage.googleapis.com/{metric}",
        "quotaId": quota.id or id_,
        "quotaDimensions": {"location": "global", **({"model": model} if quota.per_model else {})},
    }
    if quota.limit:  # the API leaves a limit of 0 out here; the message still says it
        violation["quotaValue"] = str(quota.limit)
    return violation


def _error_info(reason: str, **metadata: str) -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": metadata,
    }
