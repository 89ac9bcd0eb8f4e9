"""`parked.wrap`: a client that behaves as it did, and whose every request for an answer is a job."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pydantic
import pytest
from google import genai
from google.genai import errors, types
from google.genai.models import Models
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import parked
from parked.errors import InvalidJob, LedgerUnavailable, NotAnswered, SettingsError
from parked.gemini import CALLER, is_rest_body
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger.codec import decode
from parked.ledger.operations import SetMark
from parked.ledger.store import Filters
from parked.ledger.vault import Vault
from parked.logs import split_message
from parked.policy import Policy
from parked.running import Running
from parked.simulator import replies as reply
from parked.telemetry import Spans

MODEL = "gemini-3.5-flash"
AT_ONCE = Policy(max_attempts=1)
LONG = "paid for " * 50_000  # more than a small disk holds

Ask = Callable[..., types.GenerateContentResponse]


@pytest.fixture
def client(simulator) -> Iterator[genai.Client]:
    with genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url)) as client:
        yield client


@pytest.fixture(params=["sync", "asyncio"])
def ask(request) -> Ask:
    """Returns a function that calls `generate_content` of a client, on either side."""
    if request.param == "sync":
        return lambda client, **arguments: client.models.generate_content(**arguments)

    def ask(client, **arguments):
        async def call():
            async with client.aio as aio:
                return await aio.models.generate_content(**arguments)

        return asyncio.run(call())

    return ask


@pytest.fixture
def jobs(ledger):
    """Returns a function that reads all jobs: id, state, class, calls and payload, in order of acceptance."""

    def read():
        ledger.record(SetMark("settled", True))  # what was handed in without waiting is committed by now
        with ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            rows = sorted(reader.jobs(Filters(), states=tuple(State)), key=lambda row: row.id)
            return [(row, decode(reader.payload(row.id))) for row in rows]

    return read


# --- as before ---------------------------------------------------------------------------------------------------


def test_a_call_gives_the_sdk_s_response_and_is_a_job_that_succeeded(ask, client, ledger, jobs, simulator):
    wrapped = parked.wrap(client, ledger=ledger, pipeline="captions")

    response = ask(wrapped, model=MODEL, contents="What is six times seven?", config={"temperature": 0})

    plain = ask(client, model=MODEL, contents="What is six times seven?", config={"temperature": 0})
    assert type(response) is types.GenerateContentResponse
    assert response.text == plain.text == "Simulated answer to: What is six times seven?"
    assert response.model_dump().keys() == plain.model_dump().keys()
    recorded, unrecorded = simulator.bodies
    assert recorded == unrecorded
    ((row, payload),) = jobs()
    assert (row.state, row.pipeline, row.model, row.calls, row.caller) == ("succeeded", "captions", MODEL, 1, CALLER)
    assert payload == recorded
    assert is_rest_body(payload)


def test_equal_prompts_are_jobs_of_their_own(ask, client, ledger, jobs, simulator):
    wrapped = parked.wrap(client, ledger=ledger)

    for _ in range(2):
        ask(wrapped, model=MODEL, contents="Describe the sea.")

    (first, _), (second, _) = jobs()
    assert first.job_id != second.job_id
    assert len(simulator.requests) == 2


def test_it_is_a_client_with_the_signatures_that_it_had(client, ledger):
    wrapped = parked.wrap(client, ledger=ledger)

    assert isinstance(wrapped, genai.Client)
    assert isinstance(wrapped.models, Models)
    for was, now in ((client.models, wrapped.models), (client.aio.models, wrapped.aio.models)):
        assert inspect.signature(now.generate_content) == inspect.signature(was.generate_content)
        assert inspect.iscoroutinefunction(now.generate_content) == inspect.iscoroutinefunction(was.generate_content)
        assert now.generate_content.__doc__ == was.generate_content.__doc__


def test_after_the_attempts_are_used_up_the_last_one_s_exception_is_raised_and_the_job_is_parked(
    ask, client, ledger, jobs, simulator
):
    simulator.will_answer(reply.rate_limited(0), reply.overloaded())
    wrapped = parked.wrap(client, ledger=ledger, policy=Policy(max_attempts=2, max_wait_s=5))

    with pytest.raises(errors.ServerError) as raised:
        ask(wrapped, model=MODEL, contents="Describe the sea.")

    assert (raised.value.code, raised.value.status) == (503, "UNAVAILABLE")
    ((row, _),) = jobs()
    assert (row.state, row.error_class, row.calls) == ("parked", "exhausted:503", 2)


def test_a_permanent_fault_is_raised_at_once(ask, client, ledger, jobs, simulator):
    simulator.will_answer(reply.invalid_request())

    with pytest.raises(errors.ClientError) as raised:
        ask(parked.wrap(client, ledger=ledger), model=MODEL, contents="Describe the sea.")

    assert raised.value.code == 400
    ((row, _),) = jobs()
    assert (row.state, row.error_class, row.calls) == ("parked", "permanent:400", 1)


def test_a_failure_that_passes_is_retried_and_nobody_notices(ask, client, ledger, jobs, simulator):
    simulator.will_answer(reply.rate_limited(0), reply.text("42"))

    response = ask(parked.wrap(client, ledger=ledger), model=MODEL, contents="What is six times seven?")

    assert response.text == "42"
    ((row, _),) = jobs()
    assert (row.state, row.calls) == ("succeeded", 2)


@pytest.mark.parametrize(
    ("failure", "error_class"),
    [(reply.drop_connection(), "exhausted:network"), (reply.overloaded(), "exhausted:503")],
    ids=["no response", "503"],
)
def test_each_attempt_is_one_request_whatever_the_client_would_repeat(
    ask, ledger, jobs, simulator, failure, error_class
):
    repeats = types.HttpRetryOptions(attempts=5, initial_delay=0.0, max_delay=0.0)
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url, retry_options=repeats))
    simulator.will_answer(failure)

    with pytest.raises(Exception, match=r"(?i)disconnected|overloaded"):
        ask(parked.wrap(client, ledger=ledger, policy=AT_ONCE), model=MODEL, contents="Describe the sea.")

    assert len(simulator.requests) == 1
    ((row, _),) = jobs()
    assert (row.state, row.error_class) == ("parked", error_class)


@pytest.mark.parametrize(
    ("empty", "reason"),
    [
        (reply.no_candidates(), "empty_answer"),
        (reply.blocked_prompt(), "prompt_blocked"),
        (reply.error_under_200(503, "UNAVAILABLE", "later"), "overloaded"),
        (reply.stopped("MAX_TOKENS", "The three"), "answer_truncated"),
    ],
    ids=["empty", "blocked", "error under 200", "truncated"],
)
def test_a_response_that_is_no_answer_comes_back_as_it_did_and_its_job_is_parked(
    ask, client, ledger, jobs, simulator, empty, reason
):
    simulator.will_answer(empty, empty)

    response = ask(parked.wrap(client, ledger=ledger, policy=AT_ONCE), model=MODEL, contents="Describe the sea.")

    plain = ask(client, model=MODEL, contents="Describe the sea.")
    without = {"sdk_http_response", "response_id"}
    assert response.model_dump(exclude=without) == plain.model_dump(exclude=without)
    ((row, _),) = jobs()
    assert (row.state, row.reason) == ("parked", reason)


def test_what_the_sdk_itself_refuses_is_no_job(ask, client, ledger, jobs, simulator):
    wrapped = parked.wrap(client, ledger=ledger)

    with pytest.raises(ValueError, match="model is required"):
        ask(wrapped, model="", contents="a")

    assert (jobs(), simulator.requests) == ([], [])


def test_a_call_without_an_answer_ends_at_the_deadline(client, ledger, jobs, simulator):
    simulator.will_answer(reply.hang())

    with pytest.raises(Exception, match=r"(?i)timed? ?out|no answer within 0.05 s") as raised:
        parked.wrap(
            client, ledger=ledger, policy=Policy(max_attempts=1, attempt_timeout_s=0.05)
        ).models.generate_content(model=MODEL, contents="Describe the sea.")

    assert "Timeout" in type(raised.value).__name__
    ((row, _),) = jobs()
    assert (row.state, row.reason) == ("parked", "timeout")


def test_a_last_attempt_that_came_to_nothing_is_a_timeout_whatever_came_of_those_before(ask, ledger, jobs, simulator):
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url, timeout=90_000))
    simulator.will_answer(reply.rate_limited(0), reply.hang())

    with pytest.raises(TimeoutError, match=r"no answer within 1 s"):
        ask(
            parked.wrap(client, ledger=ledger, policy=Policy(max_attempts=2, attempt_timeout_s=1.0)),
            model=MODEL,
            contents="Describe the sea.",
        )

    ((row, _),) = jobs()
    assert (row.state, row.error_class, row.calls) == ("parked", "exhausted:timeout", 2)


def test_a_truncated_answer_counts_if_that_is_said(ask, client, ledger, jobs, simulator):
    simulator.will_answer(reply.stopped("MAX_TOKENS", "The three"))

    response = ask(parked.wrap(client, ledger=ledger, allow_truncated=True), model=MODEL, contents="Describe the sea.")

    assert response.text == "The three"
    ((row, _),) = jobs()
    assert row.state == "succeeded"


def test_a_time_of_the_client_s_own_stands(ask, client, ledger, simulator):
    own = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url, timeout=90_000))

    ask(parked.wrap(own, ledger=ledger), model=MODEL, contents="a")
    ask(parked.wrap(client, ledger=ledger), model=MODEL, contents="b")
    config = types.GenerateContentConfig(http_options=types.HttpOptions(timeout=30_000, headers={"X-Team": "captions"}))
    ask(parked.wrap(own, ledger=ledger), model=MODEL, contents="c", config=config)

    assert [request.headers["X-Server-Timeout"] for request in simulator.requests] == ["90", "600", "30"]
    assert simulator.requests[2].headers["X-Team"] == "captions"


# --- what is asked with -------------------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


class Label(pydantic.BaseModel):
    name: str


def test_images_files_and_schemas_are_kept_as_they_are_sent(ask, client, ledger, jobs, simulator):
    simulator.will_answer(reply.text('{"name": "cat"}'))
    contents = [
        types.Part.from_bytes(data=b"\x89PNG\xff", mime_type="image/png"),
        types.File(uri="https://files.example/abc", mime_type="video/mp4"),
        "What is this?",
    ]

    response = ask(
        parked.wrap(client, ledger=ledger),
        model=MODEL,
        contents=contents,
        config=types.GenerateContentConfig(
            response_mime_type="application/json",
            response_schema=Label,
            http_options=types.HttpOptions(extra_body={"generation_config": {"seed": 7}}),
        ),
    )

    assert response.parsed == Label(name="cat")
    ((_, payload),) = jobs()
    assert [payload] == simulator.bodies
    parts = payload["contents"][0]["parts"]
    assert [list(part) for part in parts] == [["inlineData"], ["fileData"], ["text"]]
    assert payload["generationConfig"]["seed"] == 7
    assert payload["generationConfig"]["responseSchema"]["required"] == ["name"]


def test_what_a_client_adds_to_every_body_is_kept_too(ask, ledger, jobs, simulator):
    options = types.HttpOptions(base_url=simulator.url, extra_body={"labels": {"team": "captions"}})

    ask(parked.wrap(genai.Client(api_key="k", http_options=options), ledger=ledger), model=MODEL, contents="a")

    ((_, payload),) = jobs()
    assert payload["labels"] == {"team": "captions"}
    assert simulator.bodies == [payload]


def test_functions_that_the_sdk_calls_by_itself_make_a_job_of_each_request(ask, client, ledger, jobs, simulator):
    simulator.will_answer(reply.function_call("add", {"a": 20, "b": 22}), reply.text("42"))
    wrapped = parked.wrap(client, ledger=ledger, job_id=lambda **_: "sum")

    response = ask(wrapped, model=MODEL, contents="20 + 22?", config={"tools": [add]})

    assert response.text == "42"
    assert len(response.automatic_function_calling_history) == 3
    (first, asked), (second, told) = jobs()
    assert [first.job_id, second.job_id] == ["sum", "sum/2"]
    assert [first.state, second.state] == ["succeeded", "succeeded"]
    assert asked["tools"][0]["functionDeclarations"][0]["name"] == "add"
    assert told["contents"][2]["parts"][0]["functionResponse"]["response"] == {"result": 42}


def test_a_content_without_parts_is_still_a_rest_body(client, ledger, jobs, simulator):
    wrapped = parked.wrap(client, ledger=ledger)

    wrapped.models.generate_content(
        model=MODEL, contents=[types.UserContent("a"), types.Content(role="model"), types.UserContent("b")]
    )

    ((_, payload),) = jobs()
    assert is_rest_body(payload)
    assert simulator.bodies == [payload]


def test_one_model_has_one_name(client, ledger, jobs):
    parked.wrap(client, ledger=ledger).models.generate_content(model=f"models/{MODEL}", contents="a")

    ((row, _),) = jobs()
    assert row.model == MODEL


def test_what_json_cannot_hold_is_refused_before_it_is_sent(ask, client, ledger, jobs, simulator):
    wrapped = parked.wrap(client, ledger=ledger)

    with pytest.raises(InvalidJob, match="not a JSON value"):
        ask(wrapped, model=MODEL, contents="a", config={"temperature": float("nan")})

    assert (jobs(), simulator.requests) == ([], [])


# --- everything else ----------------------------------------------------------------------------------------------


def test_messages_of_a_chat_are_jobs(client, ledger, jobs):
    chat = parked.wrap(client, ledger=ledger).chats.create(model=MODEL)

    chat.send_message("Describe the sea.")
    answer = chat.send_message("And the moon?")

    assert answer.text.endswith("And the moon?")
    assert [len(payload["contents"]) for _, payload in jobs()] == [1, 3]


def test_messages_of_a_chat_on_asyncio_are_jobs(client, ledger, jobs):
    async def main():
        async with parked.wrap(client, ledger=ledger).aio as aio:
            return await aio.chats.create(model=MODEL).send_message("Describe the sea.")

    assert asyncio.run(main()).text == "Simulated answer to: Describe the sea."
    assert len(jobs()) == 1


def test_streams_and_all_else_go_past_parked(client, ledger, jobs):
    wrapped = parked.wrap(client, ledger=ledger)

    assert "".join(chunk.text for chunk in wrapped.models.generate_content_stream(model=MODEL, contents="a"))
    assert wrapped.files is client.files
    assert wrapped.vertexai is client.vertexai
    assert jobs() == []


def test_the_given_client_goes_on_when_the_wrapped_one_is_gone(client, ledger, jobs):
    wrapped = parked.wrap(client, ledger=ledger)
    wrapped.models.generate_content(model=MODEL, contents="a")

    del wrapped

    assert client.models.generate_content(model=MODEL, contents="b").text
    assert len(jobs()) == 1


def test_a_client_that_only_the_wrapped_one_knows_stays_open(simulator, ledger):
    options = types.HttpOptions(base_url=simulator.url)

    wrapped = parked.wrap(genai.Client(api_key="k", http_options=options), ledger=ledger)

    assert wrapped.models.generate_content(model=MODEL, contents="a").text


def test_closing_it_closes_the_client_and_leaves_the_ledger_open(client, ledger, jobs):
    with parked.wrap(client, ledger=ledger) as wrapped:
        wrapped.models.generate_content(model=MODEL, contents="a")

    with pytest.raises(RuntimeError, match="closed"):
        client.models.generate_content(model=MODEL, contents="b")
    assert len(jobs()) == 1


def test_threads_share_a_wrapped_client(client, ledger, jobs):
    wrapped = parked.wrap(client, ledger=ledger)
    texts: list[str] = []

    def call(n):
        texts.append(wrapped.models.generate_content(model=MODEL, contents=f"{n}").text)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(texts) == [f"Simulated answer to: {n}" for n in range(8)]
    assert {row.state for row, _ in jobs()} == {"succeeded"}


def test_a_call_that_is_cancelled_leaves_its_job_pending(client, ledger, jobs, simulator):
    simulator.will_answer(reply.hang())
    wrapped = parked.wrap(client, ledger=ledger)

    async def main():
        async with wrapped.aio as aio:
            call = asyncio.create_task(aio.models.generate_content(model=MODEL, contents="a"))
            while not simulator.requests:
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(main())

    ((row, _),) = jobs()
    assert row.state == "pending"


# --- ids of one's own ---------------------------------------------------------------------------------------------


def test_an_id_is_made_from_what_is_asked(ask, client, ledger, jobs):
    def job_id(model, contents, config):
        return f"{model}:{contents}:{config['temperature']}"

    ask(parked.wrap(client, ledger=ledger, job_id=job_id), model="m", contents="a", config={"temperature": 0})

    ((row, _),) = jobs()
    assert row.job_id == "m:a:0"


def test_an_answered_job_is_not_called_again(ask, client, ledger, jobs, simulator):
    simulator.will_answer(reply.text("42"), reply.text("43"))
    wrapped = parked.wrap(client, ledger=ledger, job_id=lambda **_: "a-1")

    first = ask(wrapped, model=MODEL, contents="What is six times seven?")
    second = ask(wrapped, model=MODEL, contents="What is six times seven?")

    assert (first.text, second.text) == ("42", "42")
    assert second.usage_metadata == first.usage_metadata
    assert len(simulator.requests) == 1


def test_a_parked_job_is_not_called_again_and_the_exception_says_how_to(ask, client, ledger, jobs, simulator):
    simulator.will_answer(reply.invalid_request())
    wrapped = parked.wrap(client, ledger=ledger, pipeline="captions", batch="b", job_id=lambda **_: "a-1")
    with pytest.raises(errors.ClientError):
        ask(wrapped, model=MODEL, contents="a")

    with pytest.raises(NotAnswered, match="parked replay --job a-1 --apply") as raised:
        ask(wrapped, model=MODEL, contents="a")

    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.pipeline, again.batch, again.job_id) == ("captions", "b", "a-1")
    assert (again.state, again.error_class, str(again)) == ("parked", "permanent:400", str(raised.value))
    assert len(simulator.requests) == 1


def test_a_job_whose_answer_is_not_stored_is_not_answered_by_an_empty_response(
    ask, client, url_on_each_database, simulator
):
    with open_ledger(url_on_each_database, vault=Vault(omits=True)) as ledger:
        wrapped = parked.wrap(client, ledger=ledger, job_id=lambda **_: "a-1")

        first = ask(wrapped, model=MODEL, contents="a")
        with pytest.raises(
            NotAnswered, match=r"was answered before, but its answer was erased, or not stored"
        ) as caught:
            ask(wrapped, model=MODEL, contents="a")

    assert first.text == "Simulated answer to: a"
    assert (caught.value.state, len(simulator.requests)) == ("succeeded", 1)


def test_one_id_for_two_prompts_is_a_conflict(client, ledger, simulator):
    wrapped = parked.wrap(client, ledger=ledger, job_id=lambda **_: "a-1")
    wrapped.models.generate_content(model=MODEL, contents="a")

    with pytest.raises(parked.JobConflict):
        wrapped.models.generate_content(model=MODEL, contents="b")

    assert len(simulator.requests) == 1


# --- replays ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger_of_the_settings(tmp_path):
    """Where a wrapped client makes its ledger if it is given none."""
    return tmp_path / "parked.db"


def test_what_was_parked_is_replayed_from_the_command_line(
    client, ledger_of_the_settings, simulator, monkeypatch, capsys
):
    from parked.cli import main

    monkeypatch.setenv("GEMINI_API_KEY", "k")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", simulator.url)
    simulator.will_answer(reply.overloaded(), reply.text("42"))
    wrapped = parked.wrap(client, policy=AT_ONCE)
    with pytest.raises(errors.ServerError):
        wrapped.models.generate_content(
            model=MODEL, contents="What is six times seven?", config={"system_instruction": "be brief"}
        )

    assert main(["replay", "--all", "--apply"]) == 0

    refused, replayed = simulator.bodies
    assert replayed == refused
    assert ledger_of_the_settings.exists()
    capsys.readouterr()
    assert main(["answers"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "42"


def test_no_prompt_or_answer_gets_into_spans_and_logs(client, ledger, simulator, monkeypatch, caplog):
    exported, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr("parked.wrapping.Running", partial(Running, spans=Spans(provider=provider)))
    simulator.will_answer(reply.text("SECRET ANSWER"), reply.invalid_request("SECRET PROMPT is no prompt"))
    wrapped = parked.wrap(client, ledger=ledger)

    with caplog.at_level(logging.DEBUG, logger="parked"):
        wrapped.models.generate_content(model=MODEL, contents="SECRET PROMPT")
        with pytest.raises(errors.ClientError):
            wrapped.models.generate_content(model=MODEL, contents="SECRET PROMPT")
    provider.shutdown()

    told = [span.to_json() for span in exported.get_finished_spans()]
    assert len(told) == 4
    assert "gcp.gemini" in "".join(told)
    assert "SECRET" not in "".join(told) + caplog.text


# --- what is said -------------------------------------------------------------------------------------------------


def parked_as_logged(caplog):
    events = (split_message(record.getMessage()) for record in caplog.records if record.levelno == logging.WARNING)
    return [told for event, told in events if event == "job_parked"]


def test_a_job_that_is_parked_is_a_line_in_the_log_once_and_an_answered_one_none(
    ask, client, ledger, simulator, caplog
):
    simulator.will_answer(reply.blocked_prompt(), reply.text("42"), reply.rate_limited(0), reply.text("42"))
    own = partial(parked.wrap, client, ledger=ledger, job_id=lambda contents, **_: contents)
    once, twice = own(pipeline="captions", policy=AT_ONCE), own(policy=Policy(max_attempts=2))

    ask(once, model=MODEL, contents="a 1")
    ask(once, model=MODEL, contents="a 2")
    ask(twice, model=MODEL, contents="a 3")
    with pytest.raises(NotAnswered):
        ask(once, model=MODEL, contents="a 1")

    expected = {"job": "a 1", "pipeline": "captions", "error_class": "permanent:prompt_blocked"}
    assert parked_as_logged(caplog) == [expected]


def test_a_job_that_is_parked_for_an_exception_is_a_line_in_the_log_too(ask, client, ledger, simulator, caplog):
    simulator.will_answer(reply.invalid_request())

    with pytest.raises(errors.ClientError):
        ask(parked.wrap(client, ledger=ledger, job_id=lambda **_: "a-1"), model=MODEL, contents="Describe the sea.")

    assert parked_as_logged(caplog) == [{"job": "a-1", "pipeline": "default", "error_class": "permanent:400"}]


# --- what is refused ----------------------------------------------------------------------------------------------


def test_what_is_no_client_is_refused(client, ledger):
    for other in (object(), client.aio):
        with pytest.raises(SettingsError, match=r"must be a google\.genai\.Client"):
            parked.wrap(other, ledger=ledger)  # type: ignore[type-var]  # that is what is tested


def test_nothing_is_recorded_twice(client, ledger):
    wrapped = parked.wrap(client, ledger=ledger)

    with pytest.raises(SettingsError, match="wrapped already"):
        parked.wrap(wrapped, ledger=ledger)
    with pytest.raises(SettingsError, match="each job would be two"):
        parked.Gemini(wrapped)


def test_arguments_are_checked_when_it_is_wrapped(client, ledger):
    with pytest.raises(SettingsError, match="job_id must be a function"):
        parked.wrap(client, ledger=ledger, job_id="a-1")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(InvalidJob, match="pipeline"):
        parked.wrap(client, ledger=ledger, pipeline="")


def test_a_call_that_can_be_no_job_is_refused_and_not_sent(ask, client, ledger, jobs, simulator):
    forgot_to_return = parked.wrap(client, ledger=ledger, job_id=lambda **_: None)  # type: ignore[arg-type]

    with pytest.raises(InvalidJob, match="job_id must be text, got NoneType"):
        ask(forgot_to_return, model=MODEL, contents="a")
    with pytest.raises(InvalidJob, match="model must be text, got NoneType"):
        ask(parked.wrap(client, ledger=ledger), model=None, contents="a")

    assert (jobs(), simulator.requests) == ([], [])


def test_nothing_is_sent_while_the_ledger_is_away(ask, client, tmp_path, simulator):
    ledger = open_ledger(f"sqlite:///{tmp_path}/other.db")
    wrapped = parked.wrap(client, ledger=ledger)
    ledger.close()

    with pytest.raises(LedgerUnavailable):
        ask(wrapped, model=MODEL, contents="a")

    assert simulator.requests == []


@pytest.mark.parametrize(
    ("came", "raised"),
    [(reply.text(LONG), None), (reply.error(400, "INVALID_ARGUMENT", LONG), errors.ClientError)],
    ids=["an answer", "a failure"],
)
def test_what_came_of_a_request_is_had_also_where_it_cannot_be_written_down(
    ask, client, small_disk, simulator, caplog, came, raised
):
    def fill_and_answer(_: object) -> object:
        small_disk.fill()
        return came

    with open_ledger(f"sqlite:///{small_disk.path}/parked.db", write_patience_s=0) as ledger:
        wrapped = parked.wrap(client, ledger=ledger, pipeline="captions", job_id=lambda **_: "a-1")
        simulator.answers(fill_and_answer)

        with caplog.at_level(logging.ERROR, logger="parked"), pytest.raises(raised) if raised else nullcontext():
            assert ask(wrapped, model=MODEL, contents="SECRET PROMPT").text == LONG
        simulator.answers(None)
        with pytest.raises(LedgerUnavailable, match="the disk is full"):
            ask(wrapped, model=MODEL, contents="b", config={"temperature": 0})
        small_disk.free()

    assert len(simulator.requests) == 1
    assert "outcome_not_recorded job=a-1 pipeline=captions" in caplog.text
    assert not any(word in caplog.text for word in ("SECRET PROMPT", "paid for"))


def test_an_answer_that_came_past_parked_is_told_of(client, ledger, caplog, monkeypatch):
    def past(self: Any, **_: Any) -> types.GenerateContentResponse:
        return types.GenerateContentResponse(sdk_http_response=types.HttpResponse(headers={}))

    monkeypatch.setattr(Models, "generate_content", past)
    wrapped = parked.wrap(client, ledger=ledger)

    with caplog.at_level(logging.ERROR, logger="parked"):
        wrapped.models.generate_content(model=MODEL, contents="SECRET PROMPT")

    assert "call_not_recorded" in caplog.text
    assert "SECRET PROMPT" not in caplog.text
