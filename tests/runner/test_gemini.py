"""The adapter over real HTTP: what reaches the wire, what comes back, and how often. Both sides, sync and asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import errors, types

from parked.errors import InvalidJob, SettingsError
from parked.gemini import CALLER, Gemini, check_payload
from parked.judge import HttpAnswer
from parked.simulator import Simulator
from parked.simulator.replies import (
    Reply,
    broken_error_body,
    drop_connection,
    empty_body,
    error_under_200,
    hang,
    html,
    null_body,
    overloaded,
    rate_limited_without_details,
    text,
)

# The SDK subclasses aiohttp's session, which aiohttp discourages; nothing that the adapter could do otherwise.
MODEL = "gemini-3.5-flash"
REST = {"contents": [{"parts": [{"text": "What is six times seven?"}]}], "generationConfig": {"temperature": 0}}
SDK = {"contents": "What is six times seven?", "config": {"temperature": 0, "max_output_tokens": 64}}

Ask = Callable[..., HttpAnswer]


@pytest.fixture(autouse=True)
def _no_credentials_around(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GEMINI_")):
            monkeypatch.delenv(name)


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator() as running:
        yield running


@pytest.fixture
def environment(simulator, monkeypatch):
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", simulator.url)
    monkeypatch.setenv("GEMINI_API_KEY", "the-key")


@pytest.fixture(params=["sync", "asyncio"])
def ask(request, environment) -> Ask:
    """Make one call, with an adapter that finds everything in the environment, or with the given client."""
    awaited = request.param == "asyncio"

    def ask(payload, *, model: str = MODEL, client: genai.Client | None = None, timeout_s: float = 600.0) -> HttpAnswer:
        gemini = Gemini(client, timeout_s=timeout_s)
        if not awaited:
            try:
                return gemini(payload, model)
            finally:
                gemini.close()
                if client:
                    client.close()

        async def call() -> HttpAnswer:
            try:
                return await gemini.acall(payload, model)
            finally:
                await gemini.aclose()
                if client:
                    await client.aio.aclose()

        return asyncio.run(call())

    return ask


def answered_text(answer: HttpAnswer) -> str:
    text: str = json.loads(answer.body)["candidates"][0]["content"]["parts"][0]["text"]
    return text


# --- what reaches the wire -------------------------------------------------------------------------------------


def test_a_rest_body_reaches_the_wire_unchanged(simulator, ask):
    body = {
        "contents": [{"role": "user", "parts": [{"text": "hello", "fieldOfTomorrow": [1, None, {"a": "ä"}]}]}],
        "generationConfig": {"responseMimeType": "application/json", "fieldOfTomorrow": {"x": 2}},
        "fieldOfTomorrow": {"_private": True},
    }

    ask(body)

    assert simulator.bodies == [body]


@pytest.mark.parametrize("config", [{}, {"generation_config": {"temperature": 0}}], ids=["none", "snake_case"])
def test_a_rest_body_always_has_a_generation_config_on_the_wire(simulator, ask, config):
    contents = [{"parts": [{"text": "hello"}]}]

    ask({"contents": contents, **config})

    assert simulator.bodies == [{"contents": contents, "generationConfig": config.get("generation_config", {})}]


def test_a_payload_in_the_sdk_s_spelling_goes_through_its_types(simulator, ask):
    answer = ask({"contents": "hello", "config": {"system_instruction": "be brief", "max_output_tokens": 64}})

    assert answered_text(answer) == "Simulated answer to: hello"
    assert simulator.bodies == [
        {
            "contents": [{"parts": [{"text": "hello"}], "role": "user"}],
            "systemInstruction": {"parts": [{"text": "be brief"}], "role": "user"},
            "generationConfig": {"maxOutputTokens": 64},
        }
    ]


def test_a_config_with_much_in_it_is_sent_as_the_sdk_by_itself_sends_it(simulator, ask):
    config: Any = {
        "system_instruction": "be brief",
        "top_k": 40,
        "stop_sequences": ["END"],
        "response_mime_type": "application/json",
        "response_schema": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
        "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "tools": [{"function_declarations": [{"name": "look_up", "description": "looks up"}]}, {"google_search": {}}],
        "tool_config": {"function_calling_config": {"mode": "AUTO"}},
        "cached_content": "cachedContents/c-1",
        "thinkingConfig": {"thinkingBudget": 100},
    }
    contents = ["hello", {"inline_data": {"mime_type": "image/png", "data": "iVBORw0KGgo="}}]
    with genai.Client() as client:
        client.models.generate_content(model=MODEL, contents=contents, config=config)

    ask({"contents": contents, "config": config})

    by_itself, through_us = simulator.bodies
    assert through_us == by_itself
    assert len(through_us) == 7  # contents, and what of the config goes beside `generationConfig`


def test_a_payload_is_left_as_it_was(ask):
    for payload in (REST, SDK):
        before = json.dumps(payload)
        ask(payload)
        assert json.dumps(payload) == before


def test_the_model_of_the_job_counts(simulator, ask):
    ask({**REST, "model": "gemini-1.0-pro"})
    ask({**SDK, "model": "gemini-1.0-pro"})

    assert [request.model for request in simulator.requests] == [MODEL, MODEL]
    assert "model" not in simulator.bodies[0]


def test_an_attempt_has_its_time_whatever_the_client_says(simulator, ask):
    client = genai.Client(http_options=types.HttpOptions(timeout=1, headers={"X-Team": "captions"}))

    ask(SDK, client=client, timeout_s=90)

    headers = simulator.requests[0].headers
    assert (headers["X-Server-Timeout"], headers["X-Team"], headers["x-goog-api-key"]) == ("90", "captions", "the-key")


def test_vertex_ai_is_called_with_the_sdk_s_own_variables(simulator, ask, monkeypatch):
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")

    answers = [ask(REST), ask(SDK)]

    assert [answered_text(answer) for answer in answers] == ["Simulated answer to: What is six times seven?"] * 2
    assert simulator.bodies[0] == REST
    assert simulator.requests[0].path == f"/v1beta1/publishers/google/models/{MODEL}:generateContent"


# --- what comes back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [REST, SDK], ids=["rest", "sdk"])
@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (text("42"), None),
        (
            error_under_200(503, "UNAVAILABLE", "later"),
            {"error": {"code": 503, "message": "later", "status": "UNAVAILABLE"}},
        ),
        (empty_body(), ""),
        (null_body(), "null"),
        (html(200), None),
        (Reply(b"[]"), "[]"),
    ],
    ids=["text", "error under 200", "empty", "null", "html", "list"],
)
def test_whatever_comes_with_a_200_is_handed_on_raw(simulator, ask, payload, reply, body):
    simulator.will_answer(reply)

    answer = ask(payload)

    assert answer.status == 200
    assert answer.headers["content-type"] == reply.content_type
    if isinstance(body, dict):
        assert json.loads(answer.body) == body
    elif body is not None:
        assert answer.body == body
    else:
        assert answer.body


@pytest.mark.parametrize("payload", [REST, SDK], ids=["rest", "sdk"])
def test_errors_are_those_of_the_sdk_with_their_details(simulator, ask, payload):
    simulator.will_answer(rate_limited_without_details(retry_after_s=7))

    with pytest.raises(errors.ClientError) as caught:
        ask(payload)

    assert (caught.value.code, caught.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert caught.value.response.headers["Retry-After"] == "7"


def test_an_answer_that_takes_too_long_is_an_error(simulator, ask):
    simulator.will_answer(hang())

    with pytest.raises((TimeoutError, httpx2.ReadTimeout)):
        ask(REST, timeout_s=0.05)


# --- how often -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [REST, SDK], ids=["rest", "sdk"])
@pytest.mark.parametrize(
    "reply", [drop_connection(), overloaded(), broken_error_body()], ids=["dropped", "503", "broken"]
)
@pytest.mark.parametrize(
    "make_client",
    [
        lambda: None,
        genai.Client,
        lambda: genai.Client(
            http_options=types.HttpOptions(retry_options=types.HttpRetryOptions(attempts=4, initial_delay=0.01))
        ),
    ],
    ids=["own client", "their client", "their client with retries"],
)
def test_an_attempt_is_exactly_one_request(simulator, ask, payload, reply, make_client):
    client = make_client()
    simulator.answers(lambda request: reply)

    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is: the count is what matters
        ask(payload, client=client)

    assert len(simulator.requests) == 1


@pytest.mark.parametrize("ours", ["automatic_function_calling", "automaticFunctionCalling"])
def test_a_function_call_in_an_answer_is_answered_by_nobody(simulator, ask, ours):
    declaration = {"name": "get_weather", "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}}
    part = {"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}}}
    called = {"candidates": [{"content": {"parts": [part], "role": "model"}, "finishReason": "STOP"}]}
    simulator.will_answer(Reply(json.dumps(called).encode()))
    config = {"tools": [{"function_declarations": [declaration]}], ours: {"maximum_remote_calls": 5}}

    answer = ask({"contents": "How is the weather in Oslo?", "config": config})

    assert json.loads(answer.body) == called
    assert len(simulator.requests) == 1


def test_an_answer_that_could_be_continued_is_not(simulator, ask):
    candidate = {"content": {"parts": [{"text": "a"}]}, "finishReason": "CONTINUATION", "continuationToken": "QQ=="}
    simulator.will_answer(Reply(json.dumps({"candidates": [candidate], "continuationToken": "QQ=="}).encode()))

    ask({"contents": "hello", "config": {"automatic_continuation": True}})

    assert len(simulator.requests) == 1


def test_a_config_cannot_ask_for_less_than_the_raw_answer(simulator, ask):
    simulator.will_answer(null_body())

    answer = ask({"contents": "hello", "config": {"shouldReturnHttpResponse": False}})

    assert answer.body == "null"


def test_one_adapter_serves_many_calls_at_once(simulator, environment):
    async def call_all() -> list[HttpAnswer]:
        gemini = Gemini()
        try:
            return await asyncio.gather(*(gemini.acall({"contents": f"p{n}"}, MODEL) for n in range(50)))
        finally:
            await gemini.aclose()

    simulator.hold()

    async def main() -> list[HttpAnswer]:
        calls = asyncio.create_task(call_all())
        await asyncio.to_thread(simulator.wait_for_requests, 50)
        simulator.release()
        return await calls

    answers = asyncio.run(main())

    assert [answered_text(answer) for answer in answers] == [f"Simulated answer to: p{n}" for n in range(50)]


# --- what is refused before anything is accepted ---------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        {**REST, "http_options": {"base_url": "http://elsewhere"}},
        {**REST, "httpOptions": {"baseUrl": "http://elsewhere"}},
        {**SDK, "http_options": {}},
        {**SDK, "httpOptions": {}},
        {"contents": "hello", "config": {"http_options": {"base_url": "http://elsewhere"}}},
        {"contents": "hello", "config": {"httpOptions": None}},
    ],
)
def test_http_options_in_a_payload_are_refused(payload):
    with pytest.raises(
        InvalidJob, match=r"`http_?[oO]ptions`, which is refused because it could send the key elsewhere"
    ):
        check_payload(payload)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ("hello", "must be an object with `contents`, got str"),
        (None, "must be an object with `contents`, got NoneType"),
        ({}, "has no `contents`"),
        ({"contents": None}, "has no `contents`"),
        ({"contents": "hello", "config": "warm"}, "`config` must be an object, got str"),
        ({"contents": "hello", "generationConfig": {"temperature": 0}}, "`generationConfig` would be lost"),
        ({**REST, "config": {}}, "`generationConfig` would be lost"),
        ({"contents": [{"text": "hello"}], "tools": []}, "`tools` would be lost"),
    ],
)
def test_a_payload_that_cannot_be_sent_whole_is_refused(payload, complaint):
    with pytest.raises(InvalidJob) as caught:
        check_payload(payload)

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "payload", [REST, SDK, {**SDK, "config": None}, {"contents": ["a", "b"]}, {**REST, "toolConfig": {}}]
)
def test_a_payload_in_either_spelling_is_fine(payload, environment):
    check_payload(payload)
    Gemini(genai.Client()).check_payload(payload)


# --- credentials and destinations ------------------------------------------------------------------------------


def test_a_missing_key_is_named_at_once():
    with pytest.raises(SettingsError, match="set GEMINI_API_KEY or GEMINI_API_KEY_FILE, or for Vertex AI"):
        Gemini()


def test_the_key_may_stand_in_a_file(simulator, environment, monkeypatch, tmp_path):
    (tmp_path / "key").write_text("key-of-a-file\n")
    monkeypatch.delenv("GEMINI_API_KEY")
    monkeypatch.setenv("GEMINI_API_KEY_FILE", str(tmp_path / "key"))
    gemini = Gemini()

    gemini({"contents": "hello"}, "gemini-3.5-flash")

    gemini.close()
    assert [request.headers["x-goog-api-key"] for request in simulator.requests] == ["key-of-a-file"]


@pytest.mark.parametrize("name", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_a_key_and_a_file_with_a_key_are_refused_without_showing_either(name, monkeypatch, tmp_path):
    (tmp_path / "key").write_text("key-of-a-file")
    monkeypatch.setenv(name, "another-key")
    monkeypatch.setenv("GEMINI_API_KEY_FILE", str(tmp_path / "key"))

    with pytest.raises(SettingsError) as caught:
        Gemini()

    assert str(caught.value) == f"{name} and GEMINI_API_KEY_FILE are both set; keep one of them"


def test_an_empty_name_of_a_file_is_none(simulator, environment, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY_FILE", "")
    gemini = Gemini()

    gemini({"contents": "hello"}, "gemini-3.5-flash")

    gemini.close()
    assert [request.headers["x-goog-api-key"] for request in simulator.requests] == ["the-key"]


def test_a_file_for_the_key_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMINI_API_KEY_FILE", str(tmp_path / "key"))

    with pytest.raises(SettingsError, match=r"^GEMINI_API_KEY_FILE \('.*/key'\) can't be read: No such file"):
        Gemini()


def test_a_key_in_place_of_a_client_is_refused_and_not_shown():
    with pytest.raises(SettingsError) as caught:
        Gemini("AIza-secret")  # type: ignore[arg-type]  # the mistake in question

    assert str(caught.value) == "client must be a google.genai.Client, got str"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_time_limit_that_is_none_is_refused(timeout_s, environment):
    with pytest.raises(SettingsError, match="timeout_s must be a number of seconds above 0"):
        Gemini(timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("options", "destination"),
    [
        ({"api_key": "k"}, ("gcp.gemini", "generativelanguage.googleapis.com", 443)),
        ({"vertexai": True, "api_key": "k"}, ("gcp.vertex_ai", "aiplatform.googleapis.com", 443)),
        ({"api_key": "k", "http_options": {"base_url": "http://[::1]:8080/x"}}, ("gcp.gemini", "::1", 8080)),
        ({"api_key": "k", "http_options": {"base_url": "http://host:no"}}, ("gcp.gemini", "host", None)),
    ],
)
def test_it_says_where_its_calls_go(options, destination):
    with genai.Client(**options) as client:
        assert Gemini(client).destination() == destination


def test_the_environment_says_where_the_calls_go(simulator, environment):
    gemini = Gemini()

    provider, address, port = gemini.destination()

    gemini.close()
    assert (provider, f"http://{address}:{port}") == ("gcp.gemini", simulator.url)


def test_jobs_remember_it_by_a_name_that_can_be_imported():
    module, _, attribute = CALLER.partition(":")

    assert getattr(sys.modules[module], attribute) is Gemini
    assert Gemini.name == CALLER


def test_a_client_of_the_user_stays_open(simulator, environment):
    client = genai.Client()

    Gemini(client).close()

    assert client.models.generate_content(model=MODEL, contents="hello").text == "Simulated answer to: hello"
    client.close()


def test_the_module_can_be_imported_without_the_sdk():
    code = "import sys, parked.gemini; sys.exit('google.genai' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
