"""`parked classify`: what is pasted, explained."""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KEY = "AIza" + "Sy" * 17
BUSY = json.dumps({"error": {"code": 503, "message": f"busy, key={KEY}", "status": "UNAVAILABLE"}})


@pytest.fixture
def url_on_each_database(tmp_path):
    """On one is enough: what is tested here stands above the ledger's reader, whose own suite runs on both."""
    return f"sqlite:///{tmp_path}/parked.db"


@pytest.fixture
def paste(parked, monkeypatch):
    """Returns a function that pastes bytes into `parked classify`."""

    def paste(data: bytes, *words: str):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return parked("classify", *words)

    return paste


def test_a_verdict_is_explained_with_its_rule_and_what_to_do(paste):
    said = paste(BUSY.encode())

    assert said.status == 0
    assert said.out.splitlines()[:9] == [
        "read as    an error body",
        "kind       retryable",
        "reason     overloaded",
        "scope      model",
        "delay      none asked for",
        "class      exhausted:503, once it is parked",
        "means      503, the model is overloaded",
        "parked     retries up to max_attempts, then parks;"
        " waits with all jobs where several meet it, and counts it for none",
        "what to do replay once it has passed; switch model if it lasts",
    ]
    assert "rule       http.503\nlooks at   status 503, 529\nsource     https://" in said.out


def test_json_says_the_same(paste):
    told = json.loads(paste(BUSY.encode(), "--json").out)

    assert (told["ok"], told["kind"], told["reason"], told["scope"]) == (False, "retryable", "overloaded", "model")
    assert (told["error_class"], told["rule"], told["evidence"]) == ("exhausted:503", "http.503", "status 503, 529")
    assert told["source"].startswith("https://")


def test_a_success_is_one(paste):
    answer = {"candidates": [{"content": {"parts": [{"text": "42"}]}, "finishReason": "STOP"}]}

    told = json.loads(paste(json.dumps(answer).encode(), "--json").out)

    assert (told["ok"], told["reason"], told["rule"]) == (True, None, "answer.whole")
    assert "verdict    a success" in paste(json.dumps(answer).encode()).out


def test_a_file_a_name_and_a_status_are_read_too(parked, tmp_path):
    file = tmp_path / "error.json"
    file.write_text(BUSY)

    assert "overloaded" in parked("classify", str(file)).out
    assert "reason     timeout" in parked("classify", "httpx.ReadTimeout").out
    assert "reason     rate_limited" in parked("classify", "429").out


def test_the_status_and_the_request_of_a_body_can_be_told(paste, tmp_path):
    answer = {"candidates": [{"content": {"parts": [{"text": "no JSON"}]}, "finishReason": "STOP"}]}
    request = tmp_path / "request.json"
    line = {"job_id": "a", "payload": {"contents": "…", "config": {"response_mime_type": "application/json"}}}
    request.write_text(json.dumps(line))

    assert "overloaded" in paste(b"upstream went away", "--status", "503").out
    assert "malformed_answer" in paste(json.dumps(answer).encode(), "--request", str(request)).out


@pytest.mark.parametrize(
    ("data", "words", "what"),
    [
        (b"", [], "reads as no error"),
        (b"hello world", [], "say --status N"),
        (b"\x00\xff\xfe", [], "reads as no error"),
        (b"", ["nothing.json"], "nothing.json can't be read: No such file"),
        (b"", ["nothing"], "nothing can't be read: No such file"),
        (b"", ["."], "can't be read"),
        (BUSY.encode(), ["--status", "teapot"], "--status must be an HTTP status from 100 to 599, got 'teapot'"),
        (BUSY.encode(), ["--request", "gone.json"], "the request gone.json can't be read"),
    ],
    ids=str,
)
def test_what_can_not_be_read_is_one_sentence(paste, data, words, what):
    said = paste(data, *words)

    assert said.status == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert what in said.err


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    "text",
    [
        BUSY,
        f"requests.exceptions.HTTPError: 403 Client Error for url: https://x/?key={KEY}",
        f"HTTP/1.1 401 Unauthorized\r\nAuthorization: Bearer {KEY}\r\n\r\nAuthorization: Bearer {KEY}",
        f'<html><title>502 Bad Gateway</title>x-goog-api-key: {KEY}</html>',
    ],
)  # fmt: skip
def test_no_secret_is_printed(paste, text, flags):
    said = paste(text.encode(), *flags)

    assert said.status == 0
    assert KEY not in said.out + said.err


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.binary(max_size=80) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_whatever_is_pasted_ends_in_a_verdict_or_a_sentence(paste, data):
    assert paste(data).status in (0, 2)
    assert paste(data, "--status", "500", "--json").status == 0


def test_ten_megabytes_are_read(paste):
    assert paste(b'{"error": {"code": 503, "message": "' + b"z" * 10_000_000 + b'"}}').status == 0
