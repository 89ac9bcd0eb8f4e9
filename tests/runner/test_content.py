"""What was asked and answered on spans, for those who ask for it: the real SDK's exporter over the real runner."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

import parked
from parked import telemetry
from parked.content import MOST_BYTES, content_of
from parked.job import State
from parked.running import Running
from parked.simulator import replies as reply
from parked.telemetry import CAPTURE, Spans

MODEL = "gemini-3.5-flash"
KEY = "AIza" + "Sy0f8Jq3mXw7Lk2Vt9Rn4Bp6Dc1Hg5Zs8Eu"
ASKED, ANSWERED, INSTRUCTIONS = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
TRUNCATED = "parked.content.truncated"
NONE_OF_THEM = {ASKED, ANSWERED, INSTRUCTIONS, TRUNCATED}


@pytest.fixture
def told(ledger, provider, exported, clock, monkeypatch):
    """Returns a function that runs one job where content is asked for, and returns what its attempts' spans tell."""
    monkeypatch.setenv(CAPTURE, "span_only")

    def run(call_model: Any, payload: Any, *, job_id: str = "a-1", **more: Any) -> Any:
        exported.clear()
        runner = parked.Runner(ledger, call_model, clock=clock, spans=Spans(provider=provider), **more)
        runner.run(parked.Job(job_id, model=MODEL, payload=payload))
        return contents(exported)

    return run


def contents(exported):
    """What the spans of attempts tell, their JSON read; no other span tells anything."""
    found = []
    for span in exported.get_finished_spans():
        told = {key: value for key, value in span.attributes.items() if key in NONE_OF_THEM}
        if span.name.startswith("generate_content"):
            found.append({key: json.loads(value) if isinstance(value, str) else value for key, value in told.items()})
        else:
            assert not told
    return found


def user(*parts):
    return {"role": "user", "parts": list(parts)}


def assistant(*parts, finish="stop"):
    return {"finish_reason": finish, "role": "assistant", "parts": list(parts)}


def text(content):
    return {"type": "text", "content": content}


def test_a_span_has_what_was_asked_and_what_was_answered(told, gemini, simulator):
    simulator.will_answer(reply.text("42"))

    (span,) = told(gemini, {"contents": "Six times seven?", "config": {"system_instruction": "Be brief."}})

    assert span == {
        INSTRUCTIONS: [text("Be brief.")],
        ASKED: [user(text("Six times seven?"))],
        ANSWERED: [assistant(text("42"))],
    }


def test_a_rest_body_is_told_like_the_same_request_in_the_sdks_spelling(told, gemini, simulator):
    simulator.answers(lambda _: reply.text("42"))
    in_rest = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {
                "role": "user",
                "parts": [{"text": "Look:"}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}],
            },
            {"role": "model", "parts": [{"text": "A cat."}]},
            {"role": "user", "parts": [{"text": "Its colour?"}]},
        ],
    }
    in_the_sdks = {
        "config": {"system_instruction": {"parts": [{"text": "Be brief."}]}},
        "contents": [
            "Look:",
            {"inline_data": {"mime_type": "image/png", "data": "iVBORw=="}},
            {"role": "model", "parts": [{"text": "A cat."}]},
            {"role": "user", "parts": [{"text": "Its colour?"}]},
        ],
    }

    rest, sdks = told(gemini, in_rest, job_id="rest"), told(gemini, in_the_sdks, job_id="sdk")

    assert rest == sdks
    blob = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "", "size_bytes": 4}
    assert rest[0][ASKED] == [
        user(text("Look:"), blob),
        {"role": "assistant", "parts": [text("A cat.")]},
        user(text("Its colour?")),
    ]


def test_each_attempt_tells_its_own_answer_and_one_that_was_refused_only_what_was_asked(told, gemini, simulator):
    simulator.will_answer(reply.overloaded(), reply.unfinished("Forty-"), reply.text("42"))

    refused, unfinished, answered = told(gemini, {"contents": "Six times seven?"})

    assert refused == {ASKED: [user(text("Six times seven?"))]}
    assert unfinished[ANSWERED] == [assistant(text("Forty-"), finish="error")]
    assert answered[ANSWERED] == [assistant(text("42"))]


@pytest.mark.parametrize(
    ("replied", "answered"),
    [
        pytest.param(reply.stopped("MAX_TOKENS", text="Er"), [assistant(text("Er"), finish="length")], id="cut off"),
        pytest.param(reply.stopped("OTHER"), [assistant(finish="error")], id="stopped"),
        pytest.param(reply.stopped("SAFETY", text="Er"), [assistant(text("Er"), finish="content_filter")], id="unsafe"),
        pytest.param(reply.unfinished("Er"), [assistant(text("Er"), finish="error")], id="unfinished"),
        pytest.param(reply.blocked_prompt(), None, id="blocked prompt"),
        pytest.param(reply.no_candidates(), None, id="no candidates"),
        pytest.param(reply.empty_body(), None, id="empty body"),
        pytest.param(reply.null_body(), None, id="null"),
        pytest.param(reply.error_under_200(), None, id="error under 200"),
        pytest.param(reply.html(), None, id="HTML"),
        pytest.param(reply.invalid_request("the patient Wolframsky"), None, id="refused"),
    ],
)
def test_what_is_no_answer_is_told_as_far_as_it_came(told, gemini, simulator, replied, answered):
    simulator.answers(lambda _: replied)

    span = told(gemini, {"contents": "Why?"}, policy=parked.Policy(max_attempts=1))[0]

    assert span[ASKED] == [user(text("Why?"))]
    assert span.get(ANSWERED) == answered


def test_calls_of_functions_and_thoughts_have_parts_of_their_own(told, gemini, simulator):
    simulator.will_answer(reply.function_call("get_weather", {"city": "Paris"}), reply.thoughts_and("42"))
    history = [
        {"role": "user", "parts": [{"text": "Weather?"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Oslo"}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"id": "c1", "name": "get_weather", "response": {"celsius": -3}}}],
        },
    ]

    (called,) = told(gemini, {"contents": history})
    (thought,) = told(gemini, {"contents": "Why?"}, job_id="a-2")

    asked = {"type": "tool_call", "id": "c1", "name": "get_weather", "arguments": {"city": "Oslo"}}
    came = {"type": "tool_call_response", "id": "c1", "name": "get_weather", "response": {"celsius": -3}}
    assert called[ASKED][1:] == [{"role": "assistant", "parts": [asked]}, {"role": "tool", "parts": [came]}]
    (answered,) = called[ANSWERED]
    (call,) = answered["parts"]
    assert (call["type"], call["name"], call["arguments"]) == ("tool_call", "get_weather", {"city": "Paris"})
    assert [part["type"] for part in thought[ANSWERED][0]["parts"]] == ["reasoning", "text"]


def test_tools_that_the_api_runs_itself_are_told_as_the_servers(told):
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "6 * 7"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42"}},
        {"toolCall": {"id": "c1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["6 * 7"]}}},
    ]
    response = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}

    (span,) = told(lambda payload, model: response, {"contents": "Six times seven?"})

    code = {"type": "code_execution", "code": "6 * 7", "language": "PYTHON"}
    ran = {"type": "code_execution", "outcome": "OUTCOME_OK", "output": "42"}
    search = {"type": "google_search_web", "arguments": {"queries": ["6 * 7"]}}
    assert span[ANSWERED][0]["parts"] == [
        {"type": "server_tool_call", "name": "code_execution", "server_tool_call": code},
        {"type": "server_tool_call_response", "server_tool_call_response": ran},
        {"type": "server_tool_call", "id": "c1", "name": "google_search_web", "server_tool_call": search},
    ]


def test_of_images_and_files_only_their_kind_and_size_are_told(told, gemini, simulator, exported):
    simulator.will_answer(reply.image())
    data = base64.b64encode(bytes(range(256)) * 40).decode()
    parts = [
        {"inlineData": {"mimeType": "image/jpeg", "data": data}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": f"data:application/pdf;base64,{data}"}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://bucket/film.mp4"}},
        {"fileData": {"mimeType": "audio/ogg", "fileUri": "https://x.example/a.ogg?X-Goog-Signature=0123456789abcdef"}},
    ]

    (span,) = told(gemini, {"contents": [{"parts": parts}]})

    image, document, video, audio = span[ASKED][0]["parts"]
    assert image == {
        "type": "blob", "modality": "image", "mime_type": "image/jpeg", "content": "", "size_bytes": 10_240
    }  # fmt: skip
    assert document == image | {"modality": "document", "mime_type": "application/pdf"}
    assert video == {"type": "uri", "modality": "video", "mime_type": "video/mp4", "uri": "gs://bucket/film.mp4"}
    assert (audio["modality"], audio["uri"]) == ("audio", "https://x.example/a.ogg?X-Goog-Signature=[removed]")
    (answered,) = span[ANSWERED][0]["parts"]
    assert (answered["type"], answered["mime_type"], answered["content"]) == ("blob", "image/png", "")
    assert answered["size_bytes"] > 0
    assert data[:40] not in "".join(each.to_json() for each in exported.get_finished_spans())


class Grade:
    """As a pydantic model: an answer of the caller's own."""

    def model_dump(self, mode):
        return {"grade": "A"}


COMPLETION = {
    "object": "chat.completion",
    "choices": [
        {
            "message": {
                "content": "42",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            "finish_reason": "tool_calls",
        }
    ],
}
LOOK = {"type": "tool_call", "id": "c1", "name": "look", "arguments": "{}"}


@pytest.mark.parametrize(
    ("returned", "parts"),
    [
        pytest.param("42", [text("42")], id="text"),
        pytest.param({"candidates": [{"content": {"parts": [{"text": "42"}]}, "finish_reason": "STOP"}]}, [text("42")],
                     id="a response as JSON"),
        pytest.param(COMPLETION, [text("42"), LOOK], id="a chat completion"),
        pytest.param(b"PNG", [{"type": "blob", "modality": "document", "content": "", "size_bytes": 3}], id="bytes"),
        pytest.param({"grade": "A"}, [text('{"grade":"A"}')], id="JSON of one's own"),
        pytest.param(Grade(), [text('{"grade":"A"}')], id="an object"),
    ],
)  # fmt: skip
def test_the_answer_of_a_caller_of_ones_own_is_told_whatever_it_returns(told, returned, parts):
    (span,) = told(lambda payload, model: returned, {"contents": "Six times seven?"})

    assert span == {ASKED: [user(text("Six times seven?"))], ANSWERED: [assistant(*parts)]}


def test_the_response_of_the_sdk_is_told_when_a_caller_returns_it(told, simulator):
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url))
    simulator.will_answer(reply.text("42"))

    (span,) = told(
        lambda payload, model: client.models.generate_content(model=model, contents=payload["contents"]),
        {"contents": "Six times seven?"},
    )
    client.close()

    assert span == {ASKED: [user(text("Six times seven?"))], ANSWERED: [assistant(text("42"))]}


@pytest.mark.parametrize("payload", [{"prompt": "x"}, "x", 1, None, {"contents": 1}, [{"contents": "x"}]], ids=repr)
def test_a_payload_that_is_no_request_of_gemini_is_not_told(told, payload):
    assert told(lambda payload, model: "42", payload) == [{ANSWERED: [assistant(text("42"))]}]


def test_a_run_of_many_tells_it_too(ledger, provider, exported, monkeypatch):
    monkeypatch.setenv(CAPTURE, "span_only")
    jobs = [parked.Job(f"a-{n}", model=MODEL, payload={"contents": f"star {n}"}) for n in range(3)]

    runner = parked.Runner(ledger, lambda payload, model: payload["contents"], spans=Spans(provider=provider))
    list(runner.run_many(jobs))

    told = sorted(contents(exported), key=str)
    assert told == [{ASKED: [user(text(f"star {n}"))], ANSWERED: [assistant(text(f"star {n}"))]} for n in range(3)]


def test_asyncio_tells_it_too(ledger, simulator, provider, exported, monkeypatch):
    for name, value in {CAPTURE: "true", "GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": simulator.url}.items():
        monkeypatch.setenv(name, value)
    simulator.answers(lambda _: reply.text("42"))

    async def run():
        gemini = parked.Gemini()
        runner = parked.AsyncRunner(ledger, gemini, spans=Spans(provider=provider))
        await runner.run(parked.Job("a-1", model=MODEL, payload={"contents": "Six times seven?"}))
        await gemini.aclose()

    asyncio.run(run())

    assert contents(exported) == [{ASKED: [user(text("Six times seven?"))], ANSWERED: [assistant(text("42"))]}]


def test_a_wrapped_client_tells_it_too(ledger, simulator, provider, exported, monkeypatch):
    from google import genai
    from google.genai import types

    monkeypatch.setenv(CAPTURE, "span_only")
    monkeypatch.setattr("parked.wrapping.Running", partial(Running, spans=Spans(provider=provider)))
    simulator.answers(lambda _: reply.text("42"))
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url))
    wrapped = parked.wrap(client, ledger=ledger)
    asked: Any = {"model": MODEL, "contents": "Six times seven?", "config": {"system_instruction": "Be brief."}}

    async def asynchronously():
        async with wrapped.aio as aio:
            await aio.models.generate_content(**asked)

    wrapped.models.generate_content(**asked)
    asyncio.run(asynchronously())
    client.close()

    whole = {
        INSTRUCTIONS: [text("Be brief.")],
        ASKED: [user(text("Six times seven?"))],
        ANSWERED: [assistant(text("42"))],
    }
    assert contents(exported) == [whole, whole]


def test_an_attempt_that_was_interrupted_tells_what_was_asked(told, scripted, exported):
    with pytest.raises(KeyboardInterrupt):
        told(scripted(KeyboardInterrupt()), {"contents": "Why?"})

    assert contents(exported) == [{ASKED: [user(text("Why?"))]}]


# --- who asks for it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "is_told"),
    [
        ("true", True), ("SPAN_ONLY", True), (" span_and_event ", True),
        (None, False), ("", False), ("false", False), ("no_content", False), ("EVENT_ONLY", False), ("1", False),
    ],
)  # fmt: skip
def test_only_what_has_content_written_to_spans_does_so(ledger, provider, exported, monkeypatch, value, is_told):
    if value is not None:
        monkeypatch.setenv(CAPTURE, value)

    runner = parked.Runner(ledger, lambda payload, model: "42", spans=Spans(provider=provider))
    runner.run(parked.Job("a-1", model=MODEL, payload={"contents": "Why?"}))

    (span,) = contents(exported)
    assert bool(span) is is_told


def test_a_value_that_is_not_known_is_logged_once_and_counts_as_no(ledger, monkeypatch, caplog):
    telemetry._is_captured.cache_clear()
    monkeypatch.setenv(CAPTURE, "spans-please")

    with caplog.at_level(logging.DEBUG, logger="parked.telemetry"):
        wants = [Spans().content for _ in range(3)]

    assert wants == [False] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f'content_not_captured why="{CAPTURE} must be one of true, span_only, span_and_event, false, no_content,'
        " event_only, got 'spans-please'\""
    ]


def test_who_does_not_ask_for_it_imports_nothing_for_it(tmp_path):
    script = (
        "import sys, parked\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from parked.telemetry import Spans\n"
        "spans = Spans(provider=TracerProvider())\n"
        "runner = parked.Runner(parked.open_ledger(), lambda payload, model: '42', spans=spans)\n"
        "print(runner.run(parked.Job('a', model='m', payload={'contents': 'x'})).text, 'parked.content' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "42 False\n"


# --- how much, and what not ---------------------------------------------------------------------------------------

MANY = 200_000


def attributes(payload: Any, answer: Any) -> dict[str, Any]:
    return content_of(payload, answer)


@pytest.mark.parametrize(
    "contents",
    [
        pytest.param("seven times six " * MANY, id="a long text"),
        pytest.param("x" * MANY, id="one word"),
        pytest.param('"\\\n\x00' * MANY, id="escapes"),
        pytest.param("海と月😀" * MANY, id="far from ASCII"),
        pytest.param("\ud800 " * MANY, id="no characters"),
        pytest.param([{"text": ""}] * MANY, id="many parts"),
        pytest.param([{"role": "user", "parts": [{"text": ""}]}] * MANY, id="many messages"),
        pytest.param([{"functionCall": {"name": "f", "args": {str(n): n for n in range(MANY)}}}], id="many arguments"),
        pytest.param([{"functionCall": {"name": "f", "args": {"x" * MANY: 1}}}], id="a long name"),
        pytest.param([{"functionCall": {"id": "x" * MANY, "name": "f" * MANY, "args": {"a": [""] * MANY}}}], id="ids"),
        pytest.param([{"inlineData": {"mimeType": "x" * MANY, "data": ""}}] * 9, id="kinds"),
        pytest.param([{"functionCall": {"name": "f", "args": {"a": [10**4000] * 9}}}], id="digits"),
        pytest.param([{"fileData": {"fileUri": "gs://" + "x" * 1500}}] * 99, id="addresses"),
    ],
)
def test_an_attribute_is_bounded_says_that_it_was_cut_and_is_json_still(contents):
    told = attributes({"contents": contents, "systemInstruction": contents}, "42")

    assert told[TRUNCATED] == (INSTRUCTIONS, ASKED)
    for key in (INSTRUCTIONS, ASKED):
        assert 0 < len(told[key].encode()) <= MOST_BYTES
        assert json.loads(told[key])
    assert json.loads(told[ANSWERED]) == [assistant(text("42"))]


def test_a_text_is_cut_at_its_end_which_a_dot_stands_for():
    told = attributes({"contents": "seven times six " * MANY}, None)

    (message,) = json.loads(told[ASKED])
    (part,) = message["parts"]
    assert part["content"].startswith("seven times six seven")
    assert part["content"].endswith("…")
    assert len(told[ASKED].encode()) > MOST_BYTES * 0.95


def test_what_fits_is_told_whole():
    whole = "seven times six " * 900

    told = attributes({"contents": whole}, None)

    assert told.keys() == {ASKED}
    assert json.loads(told[ASKED]) == [user(text(whole))]


def test_a_key_that_stands_in_a_text_is_not_told(told, exported):
    texts = [KEY, f"use {KEY}, please", f"\n{KEY}\n"]
    arguments = [{"functionCall": {"name": "f", "args": {"auth": ["of", KEY], KEY: 1}}}]

    for n, contents in enumerate([*texts, arguments]):
        told(lambda payload, model: f"{KEY} is it", {"contents": contents}, job_id=f"a-{n}")

        spans = "".join(span.to_json() for span in exported.get_finished_spans())
        assert KEY[:12] not in spans
        assert "[removed] is it" in spans


def test_nor_is_the_part_of_a_key_that_is_left_of_a_text_which_was_cut():
    for before in range(MOST_BYTES - 400, MOST_BYTES, 7):
        told = attributes({"contents": f"{'x ' * (before // 2)}{KEY} x"}, None)

        assert KEY[:4] not in told[ASKED]


def test_words_that_name_secrets_are_told_as_they_are():
    asked = "Give a basic explanation: what is a password: hunter2, a token=x?"

    told = attributes({"contents": asked}, None)

    assert json.loads(told[ASKED]) == [user(text(asked))]


class Nasty:
    """Raises whatever is done with it."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __str__(self):
        raise RuntimeError("no text")


class Unreadable(dict[str, Any]):
    """A response by its keys, and raises when one is asked for."""

    def get(self, key, default=None):
        raise RuntimeError(key)


@pytest.mark.parametrize("returned", [Nasty(), Unreadable(candidates=[]), {"candidates": ["x", None]}], ids=type)
def test_what_cannot_be_told_changes_nothing_of_the_job(ledger, clock, provider, exported, returned):
    def run(*, content):
        spans = Spans(provider=provider, content=content)
        runner = parked.Runner(ledger, lambda payload, model: returned, batch=str(content), clock=clock, spans=spans)
        outcome = runner.run(parked.Job("a-1", model=MODEL, payload={"contents": "Why?"}))
        return outcome.state, outcome.error_class, outcome.text, outcome.attempts

    without, told = run(content=False), run(content=True)

    assert told == without
    assert contents(exported)[-1][ASKED] == [user(text("Why?"))]


def test_a_payload_that_is_too_deep_to_be_told_takes_nothing_of_the_rest_with_it(told, states):
    deep: Any = "x"
    for _ in range(490):  # what a job may have
        deep = [deep]
    payload = {"contents": [{"functionCall": {"name": "f", "args": {"x": deep}}}], "systemInstruction": "Be brief."}

    (span,) = told(lambda payload, model: "42", payload)

    assert (span[INSTRUCTIONS], span[ANSWERED]) == ([text("Be brief.")], [assistant(text("42"))])
    assert states() == {State.SUCCEEDED: 1}
