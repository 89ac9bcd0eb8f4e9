"""What people paste is taken for what it is, and judged as a runner would judge it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.genai import errors
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parked import pasted
from parked.judge import classify, classify_batch_row, classify_http_error
from parked.verdict import Reason, Verdict

BUSY: dict[str, Any] = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
QUOTA: dict[str, Any] = {
    "error": {
        "code": 429,
        "message": 'it\'s "too" much\nslow down',
        "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"}],
    }
}
PARIS: dict[str, Any] = {"candidates": [{"content": {"parts": [{"text": "Paris."}]}, "finishReason": "STOP"}]}


def verdict_of(text: str, **given: Any) -> Verdict:
    found = pasted.read(text, **given)
    assert found is not None, f"not readable: {text[:200]}"
    return found.verdict


def reason_of(text: str, **given: Any) -> Reason | None:
    return verdict_of(text, **given).reason


def printed(run: Callable[[], None]) -> str:
    """What Python prints of the exception that `run` ends with."""
    try:
        run()
    except Exception:  # noqa: BLE001 - whatever it is
        return traceback.format_exc()
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(QUOTA),
        json.dumps(QUOTA, indent=2),
        json.dumps([QUOTA]),
        json.dumps(QUOTA["error"]),
        str(QUOTA),
        json.dumps(json.dumps(QUOTA)),
        f"\ufeff\n  {json.dumps(QUOTA)}\n",
        f"2026-03-02 ERROR call failed: {json.dumps(QUOTA)} (attempt 3)",
        f"429 RESOURCE_EXHAUSTED. {QUOTA}",
        f"HTTP/2 429 \r\ncontent-type: application/json\r\n\r\n{json.dumps(QUOTA)}",
        f"data: {json.dumps(PARIS)}\r\n\r\ndata: {json.dumps(QUOTA)}\r\n\r\n",
        f"google.genai.errors.ClientError: 429 RESOURCE_EXHAUSTED. {QUOTA}\n2026-03-02 INFO the next line of the log",
        f"ClientError({f'429 RESOURCE_EXHAUSTED. {QUOTA}'!r})",
    ],
    ids=lambda text: text[:40],
)
def test_an_error_of_the_api_is_read_in_whatever_it_was_copied_from(text):
    verdict = verdict_of(text)

    assert (verdict.reason, verdict.status, verdict.retry_after_s) == (Reason.RATE_LIMITED, 429, 26.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("503", Reason.OVERLOADED),
        ("HTTP 404", Reason.MODEL_NOT_FOUND),
        ("429 Too Many Requests", Reason.RATE_LIMITED),
        ("RESOURCE_EXHAUSTED", Reason.RATE_LIMITED),
        ("HTTP/1.1 503 Service Unavailable", Reason.OVERLOADED),
        ("<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>", Reason.SERVER_ERROR),
        ("upstream request failed: 503 Service Unavailable", Reason.OVERLOADED),
        ("null", Reason.EMPTY_ANSWER),
        ("{}", Reason.EMPTY_ANSWER),
        (json.dumps(PARIS)[:-20], Reason.BAD_RESPONSE_BODY),
        ('{"candidates": [{"finishReason": "SAFETY"}]}', Reason.ANSWER_BLOCKED),
        ("{'promptFeedback': {'blockReason': 'SAFETY'}}", Reason.PROMPT_BLOCKED),
    ],
)
def test_statuses_pages_and_answers_are_read(text, reason):
    assert reason_of(text) is reason


def test_an_answer_is_a_success_and_its_request_counts():
    assert verdict_of(json.dumps(PARIS)).ok
    assert reason_of(json.dumps(PARIS), request={"responseMimeType": "application/json"}) is Reason.MALFORMED_ANSWER


def test_the_chunks_of_a_stream_are_joined():
    first = {"candidates": [{"content": {"parts": [{"text": "Pa"}]}, "index": 0}]}
    last = {"candidates": [{"content": {"parts": [{"text": "ris."}]}, "index": 0, "finishReason": "STOP"}]}

    assert verdict_of(json.dumps([first, last])).ok
    assert verdict_of(f"data: {json.dumps(first)}\n\ndata: {json.dumps(last)}\n").ok
    assert reason_of(json.dumps([first, first])) is Reason.STREAM_INTERRUPTED


@pytest.mark.parametrize(
    "row",
    [
        {"key": "a", "error": {"code": 8, "message": "m"}},
        {"key": "a", "response": PARIS},
        {"metadata": {"key": "k"}, "error": {"code": 13, "message": "Internal"}},
        {"status": "", "processed_time": "…", "request": {"contents": []}, "response": PARIS},
        {"status": f"Bad Request: {json.dumps(BUSY)}", "request": {"contents": []}, "response": {}},
    ],
    ids=str,
)
def test_a_row_of_a_batch_is_judged_as_one(row):
    assert verdict_of(json.dumps(row)) == classify_batch_row(row)


def test_headers_count_and_the_last_response_of_several_does():
    tunnel = "HTTP/1.1 200 Connection established\r\n\r\n"
    response = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\n\r\n{json.dumps(BUSY)}"

    assert verdict_of(tunnel + response) == classify_http_error(503, BUSY, {"Retry-After": "7"})


def test_what_curl_v_says_beside_the_response_is_left_out():
    text = (
        "* Connected\n> POST /v1beta/models/m:generateContent HTTP/2\n> Host: example\n>\n"
        f"< HTTP/2 503 \n< retry-after: 9\n< \n{{ [120 bytes data]\n{json.dumps(BUSY)}\n* Connection #0 left intact"
    )

    assert verdict_of(text) == classify_http_error(503, BUSY, {"retry-after": "9"})


def test_a_status_can_be_told_for_a_body_without_one():
    assert pasted.read("quota exceeded") is None
    assert verdict_of("quota exceeded", status=429).reason is Reason.RATE_LIMITED
    assert verdict_of("", status=503).reason is Reason.OVERLOADED
    assert verdict_of(json.dumps(PARIS), status=200).ok
    assert verdict_of("<html>log in</html>", status=200).reason is Reason.BAD_RESPONSE_BODY


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ReadTimeout", Reason.TIMEOUT),
        ("httpx2.ReadTimeout", Reason.TIMEOUT),
        ("httpx.ConnectTimeout: timed out", Reason.NETWORK),
        ("<class 'httpx.ReadError'>", Reason.NETWORK),
        ("ConnectionResetError(104, 'Connection reset by peer')", Reason.NETWORK),
        ("aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected", Reason.NETWORK),
        ("google.auth.exceptions.DefaultCredentialsError", Reason.CLIENT_FAULT),
        ("google.auth.exceptions.RefreshError: ('invalid_grant: Bad Request', {})", Reason.AUTH_INVALID),
        ("google.api_core.exceptions.ResourceExhausted: 429 Resource has been exhausted", Reason.RATE_LIMITED),
        ("ServiceUnavailable", Reason.OVERLOADED),
        ("asyncio.exceptions.CancelledError", Reason.CANCELLED),
        ("httpx2.HTTPStatusError: Server error '503 Service Unavailable' for url 'https://x'", Reason.OVERLOADED),
        ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://x", Reason.MODEL_NOT_FOUND),
        ("urllib.error.HTTPError: HTTP Error 502: Bad Gateway", Reason.SERVER_ERROR),
        ("UnicodeDecodeError", Reason.BAD_RESPONSE_BODY),
        ("KeyError: 'candidates'", Reason.UNCLASSIFIED),
        ("mypipeline.errors.Oops: what now", Reason.UNCLASSIFIED),
        (f"ApiError: {json.dumps(QUOTA)}", Reason.RATE_LIMITED),
        ("GoogleGenerativeAIError: [429 Too Many Requests] You exceeded your current quota", Reason.RATE_LIMITED),
    ],
)
def test_an_exception_is_known_by_what_python_prints_of_it(text, reason):
    assert reason_of(text) is reason


def test_no_module_that_a_text_names_is_imported(monkeypatch, tmp_path):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)

    assert reason_of("trap.TrapError: boom") is Reason.UNCLASSIFIED


def chained() -> None:
    try:
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except OSError as exc:
            raise ValueError("the pipeline's own\n\nwords") from exc
    except ValueError:
        raise RuntimeError("and again")  # noqa: B904 - the context is what is looked at


def grouped() -> None:
    raise ExceptionGroup("several", [KeyError("z"), ConnectionResetError("y")])


def from_the_sdk() -> None:
    try:
        raise TimeoutError
    except TimeoutError:
        errors.APIError.raise_error(429, QUOTA, None)


@pytest.mark.parametrize("raised", [chained, grouped, from_the_sdk])
@pytest.mark.parametrize(
    "copied",
    [
        lambda text: text,
        lambda text: f"2026-03-02 ERROR job failed\n{text}2026-03-02 INFO going on",
        lambda text: "\n".join(f"    {line}" for line in text.splitlines()),
    ],
    ids=["alone", "in a log", "indented"],
)
def test_a_traceback_means_what_its_exception_means(raised, copied):
    found = pasted.read(copied(printed(raised)))
    try:
        raised()
    except Exception as exc:  # noqa: BLE001 - whatever it is
        expected = classify(exc)

    assert found is not None
    assert found.read_as == "a traceback"
    assert (found.verdict.reason, found.verdict.status) == (expected.reason, expected.status)


def test_a_traceback_in_a_line_of_a_json_log_is_read():
    assert reason_of(json.dumps({"severity": "ERROR", "exc_info": printed(chained)})) is Reason.NETWORK


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "hello world", "example.com", "42", "200", "[1]", '{"foo": 1}', "\0\1\2", "{" * 100_000, "Error"],
)
def test_what_is_neither_is_nothing(text):
    assert pasted.read(text) is None


CASES = [
    json.loads(line)
    for name in ("gemini_failures", "more_failures", "blind_cases")
    for line in (Path(__file__).parents[1] / f"cases/{name}.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case["given"]["kind"] == "http_error" and isinstance(case["given"]["body"], (dict, list))
    ],
    ids=lambda case: case["id"],
)
def test_the_labelled_errors_are_read_from_what_curl_i_shows(case):
    given, expect = case["given"], case["expect"]
    headers = "".join(f"{name}: {value}\r\n" for name, value in (given.get("headers") or {}).items())

    verdict = verdict_of(f"HTTP/1.1 {given['status']} Oops\r\n{headers}\r\n{json.dumps(given['body'])}")

    assert (verdict.reason, verdict.scope) == (expect["reason"], expect["scope"])


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["given"]["kind"] == "exception" and "cause" not in case["given"]],
    ids=lambda case: case["id"],
)
def test_the_labelled_exceptions_are_read_from_their_last_line(case):
    given, expect = case["given"], case["expect"]

    verdict = verdict_of(f'Traceback (most recent call last):\n  File "x"\n{given["type"]}: {given["message"]}')

    assert verdict.reason == expect["reason"]


PIECES = st.sampled_from(
    [
        "HTTP/1.1 ", "200", "429", "503", " ", "\n", "\r\n", "\n\n", ": ", "< ", "* ", "data: ",
        "Traceback (most recent call last):", "  + Exception Group Traceback (most recent call last):", "  | ",
        "ValueError", "httpx.ReadTimeout", "builtins.", "SystemExit", "UnicodeDecodeError",
        "google.genai.errors.ClientError: 429 X. ", "{", "}", "[", "]", '"error": ', "'error': ", '"candidates"',
        "(", ")", "'", '"', "\\n", "\0", "\ud800", "<html>", "9" * 400, "NaN", ",", "\ufeff",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=60) | st.lists(PIECES | st.text(max_size=5), max_size=25).map("".join))
@example("__slots__Error")
@example("{1: {}, None: 2}")
def test_nothing_that_is_pasted_raises(text):
    pasted.read(text)
    pasted.read(text, status=500, request={"candidateCount": text})
    pasted.read(text, status=200)
    pasted.read_name(text)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 5_000_000,
        "a" * 10_000_000,
        "Traceback (most recent call last):\n" * 100_000,
        "\n" * 300_000 + "x",
        "HTTP/1.1 200 OK\n" + "a: b\n" * 1_000_000,
        '{"error": {"message": "' + "z" * 10_000_000 + '"}}',
        "\t" * 190_000 + "Traceback (most recent call last):",
        "A." * 1_000_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_megabytes_are_read_without_getting_stuck(text):
    pasted.read(text)
