from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, IncompleteRead

import pytest

from parked.errors import ParkedError
from parked.simulator import Simulator
from parked.simulator.record import RecordFile
from parked.simulator.replies import (
    cut_body,
    drop_connection,
    error_under_200,
    hang,
    overloaded,
    rate_limited,
    slow,
    stopped,
    text,
)
from parked.simulator.script import parse_script

STREAM = "/v1beta/models/gemini-3.5-flash:streamGenerateContent"


def test_an_answer_has_the_shape_of_the_real_one(simulator, client):
    simulator.will_answer(text("42"))

    answer = client.ask("What is six times seven?")

    assert (answer.status, answer.headers["content-type"]) == (200, "application/json; charset=UTF-8")
    assert answer.json == {
        "candidates": [{"content": {"parts": [{"text": "42"}], "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 6,
            "candidatesTokenCount": 1,
            "totalTokenCount": 7,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 6}],
        },
        "modelVersion": "gemini-3.5-flash",
        "responseId": "simulated-1",
    }


def test_replies_are_given_in_the_order_of_the_requests_and_then_the_usual_answer(simulator, client):
    simulator.will_answer(overloaded(), text("42"))

    answers = [client.ask("hello") for _ in range(3)]

    assert [answer.status for answer in answers] == [503, 200, 200]
    assert answers[1].text == "42"
    assert answers[2].text == "Simulated answer to: hello"


def test_a_rule_sees_the_request_and_leaves_the_rest_to_the_usual_answer(simulator, client):
    simulator.answers(lambda request: rate_limited() if "harbour" in request.text and request.call == 1 else None)

    assert client.ask("a harbour").status == 429
    assert client.ask("a harbour").status == 200
    assert client.ask("a hill").status == 200


def test_what_was_asked_is_kept(simulator, client):
    client.ask("hello", generationConfig={"temperature": 0}, path="/v1beta/models/gemini%2D3:generateContent?key=k")

    [request] = simulator.requests

    assert (request.model, request.text, request.call) == ("gemini-3", "hello", 1)
    assert request.path == "/v1beta/models/gemini%2D3:generateContent?key=k"
    assert request.headers["x-goog-api-key"] == "k"
    assert simulator.bodies == [{"contents": [{"parts": [{"text": "hello"}]}], "generationConfig": {"temperature": 0}}]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/gemini-3.5-flash:generateContent",
        "/v1beta1/publishers/google/models/gemini-3.5-flash:generateContent",
        "/v1beta1/projects/p/locations/global/publishers/google/models/gemini-3.5-flash:generateContent",
    ],
)
def test_vertex_ai_and_every_version_are_spoken(simulator, client, path):
    assert client.ask(path=path).status == 200
    assert simulator.requests[0].model == "gemini-3.5-flash"


LISTED = {"models": [{"name": "models/gemini-3.5-flash", "displayName": "Simulated"}]}


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        (None, 200),
        ({"delay_s": 0.05}, 200),
        ({"when": {"every": 1}, "delay_s": 0.05}, 200),
        ({"reply": "image"}, 200),
        ({"when": {"text": "harbour"}, "reply": "overloaded"}, 200),
        ({"reply": "overloaded", "delay_s": 0.05}, 503),
        ({"quotas": [{"requests": 5, "per": "minute"}]}, 200),
    ],
    ids=str,
)
def test_whoever_asks_for_the_models_gets_one_unless_a_rule_has_an_error_for_that(simulator, client, rule, status):
    simulator.answers(None if rule is None else parse_script({"rules": [rule]}))

    answer = client.get("/v1beta/models?pageSize=1")

    assert answer.status == status
    assert answer.json == LISTED or answer.json["error"]["code"] == status
    assert simulator.calls[0].took_s >= (rule or {}).get("delay_s", 0.0)


@pytest.mark.parametrize("path", ["/", "/v1beta/models", "/v1beta/models/m:countTokens"])
def test_an_unknown_path_is_not_found_in_the_words_of_the_api(client, path):
    answer = client.ask(path=path)

    assert answer.status == 404
    assert answer.json["error"].keys() == {"code", "message", "status"}
    assert answer.json["error"]["status"] == "NOT_FOUND"


@pytest.mark.parametrize("body", ["", "{", "[]", "null"])
def test_a_body_that_is_no_json_object_is_an_invalid_argument(client, body):
    answer = client.post(body)

    assert (answer.status, answer.json["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_a_large_request_is_taken_whole(simulator, client):
    assert client.ask("x" * 3_000_000).status == 200
    assert len(simulator.requests[0].text) == 3_000_000


def test_the_usual_answer_is_of_the_kind_that_was_asked_for(client):
    as_json = client.ask("hello", generationConfig={"responseMimeType": "application/json"})
    as_image = client.ask("hello", generationConfig={"responseModalities": ["IMAGE"]})

    assert json.loads(as_json.text) == {"answer": "Simulated answer to: hello"}
    assert as_image.json["candidates"][0]["content"]["parts"][0]["inlineData"]["mimeType"] == "image/png"


def test_a_stream_comes_as_events_of_which_the_last_has_the_finish_reason(simulator, client):
    simulator.will_answer(text("forty-two"))

    answer = client.ask(path=f"{STREAM}?alt=sse")

    events = [json.loads(line.removeprefix(b"data: ")) for line in answer.body.split(b"\r\n\r\n") if line]
    assert answer.headers["content-type"] == "text/event-stream"
    assert ["".join(part["text"] for part in e["candidates"][0]["content"]["parts"]) for e in events] == [
        "fort",
        "y-two",
    ]
    assert [e["candidates"][0].get("finishReason") for e in events] == [None, "STOP"]


def test_a_stream_without_sse_is_one_json_array(simulator, client):
    simulator.will_answer(text("forty-two"), error_under_200(503))

    assert len(client.ask(path=STREAM).json) == 2
    assert client.ask(path=STREAM).json[0]["error"]["code"] == 503


def test_a_dropped_connection_gives_no_answer(simulator, client):
    simulator.will_answer(drop_connection())

    with pytest.raises(HTTPException):
        client.ask()


@pytest.mark.parametrize("path", ["/v1beta/models/m:generateContent", f"{STREAM}?alt=sse"])
def test_a_cut_body_is_shorter_than_it_was_to_be(simulator, client, path):
    simulator.will_answer(cut_body())

    with pytest.raises(IncompleteRead) as caught:
        client.ask(path=path)

    assert caught.value.partial


def test_requests_are_held_back_until_they_are_released(simulator, client):
    simulator.hold()
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(client.ask, "hello") for _ in range(3)]
        simulator.wait_for_requests(3)
        assert not any(answer.done() for answer in asked)

        simulator.release()

        assert [answer.result(10).status for answer in asked] == [200, 200, 200]
    assert client.ask().status == 200


def test_a_call_that_hangs_is_answered_late(simulator, client):
    simulator.will_answer(hang(text("late")))
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(client.ask)
        simulator.wait_for_requests(1)
        assert client.ask().status == 200

        simulator.release()

        assert asked.result(10).text == "late"


def test_a_slow_reply_is_the_same_one_later(simulator, client):
    simulator.will_answer(slow(stopped("SAFETY"), 0.01))

    assert client.ask().json["candidates"][0]["finishReason"] == "SAFETY"


def test_waiting_for_requests_that_do_not_come_says_how_many_came(simulator, client):
    client.ask()

    with pytest.raises(TimeoutError, match="1 of 2 requests arrived"):
        simulator.wait_for_requests(2, timeout_s=0.01)


def test_stopping_ends_calls_under_way_and_can_be_done_twice(client, simulator):
    simulator.will_answer(hang())
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            client.ask()
        except HTTPException as exc:
            failures.append(exc)

    caller = threading.Thread(target=ask)
    caller.start()
    simulator.wait_for_requests(1)

    simulator.stop()
    simulator.stop()

    caller.join(10)
    assert len(failures) == 1


def test_a_port_in_use_is_refused_in_a_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ParkedError, match=f"can't listen on 127.0.0.1:{port} .*take another port"):
            Simulator(port=port).start()


def test_a_long_run_need_not_be_kept(connect):
    with Simulator(records=False) as simulator:
        connect(simulator).ask()

        simulator.wait_for_requests(1)
        assert simulator.requests == []


# --- the record ---------------------------------------------------------------------------------------------------


def test_every_call_is_recorded_with_its_time_its_prompt_and_what_it_got(simulator, client):
    simulator.will_answer(rate_limited(), slow(text("42"), 0.02))
    for prompt in ("img-1", "img-1", "x" * 300):
        client.ask(prompt)

    calls = [(call.number, call.call, call.text, call.status, call.delivery) for call in simulator.calls]

    assert calls == [
        (1, 1, "img-1", 429, "whole"),
        (2, 2, "img-1", 200, "whole"),
        (3, 1, "x" * 200, 200, "whole"),
    ]
    assert [call.model for call in simulator.calls] == ["gemini-3.5-flash"] * 3
    assert simulator.calls[0].at_s == 0
    assert 0 < simulator.calls[1].at_s < simulator.calls[2].at_s < 60
    assert 0.02 <= simulator.calls[1].took_s < 60


def test_a_call_that_got_nothing_or_half_an_answer_says_so_in_the_record(simulator, client):
    simulator.will_answer(drop_connection(), cut_body())
    for _ in range(2):
        with pytest.raises(HTTPException):
            client.ask()

    assert [(call.status, call.delivery) for call in simulator.calls] == [(None, "none"), (200, "cut")]


def test_calls_that_hang_when_it_is_stopped_are_recorded_as_given_nothing(simulator, client):
    simulator.will_answer(hang())
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(client.ask)
        simulator.wait_for_requests(1)
        simulator.stop()
        assert isinstance(asked.exception(10), HTTPException)

    assert [(call.status, call.delivery) for call in simulator.calls] == [(None, "none")]


def test_a_call_whose_caller_has_gone_is_recorded_as_given_nothing(simulator, client):
    simulator.will_answer(hang())
    with socket.create_connection(("127.0.0.1", int(simulator.url.rpartition(":")[2])), timeout=10) as caller:
        caller.sendall(b"POST /v1beta/models/m:generateContent HTTP/1.1\r\nHost: s\r\nContent-Length: 2\r\n\r\n{}")
        simulator.wait_for_requests(1)
    client.ask()  # by then the server knows that the caller has hung up

    simulator.release()
    simulator.stop()

    assert sorted((call.number, call.status) for call in simulator.calls) == [(1, None), (2, 200)]


def test_requests_that_are_no_calls_are_recorded_too(simulator, client):
    client.ask(path="/v1beta/models")
    client.post("[]")

    assert [(call.model, call.text, call.status) for call in simulator.calls] == [
        ("", "What is six times seven?", 404),
        ("gemini-3.5-flash", "", 400),
    ]


def test_a_record_holds_no_key(tmp_path, connect):
    file = tmp_path / "record.jsonl"
    with RecordFile(file) as record, Simulator(record=record.add, records=False) as simulator:
        connect(simulator).ask("hello", path="/v1beta/models/m:generateContent?key=SECRET")

        assert simulator.calls == []

    [line] = file.read_text().splitlines()
    assert json.loads(line).keys() == {
        "number", "at_s", "took_s", "model", "text", "call", "status", "delivery",
    }  # fmt: skip
    assert "SECRET" not in line
    assert file.stat().st_mode & 0o777 == 0o600


def test_quotas_and_times_go_by_the_clock_that_a_test_brings(connect, clock):
    script = {
        "rules": [{"when": {"from_s": 120}, "reply": "overloaded"}, {"quotas": [{"requests": 1, "per": "minute"}]}]
    }
    with Simulator(monotonic=clock.monotonic) as simulator:
        simulator.answers(parse_script(script))
        statuses = []
        for wait_s in (0, 30, 30, 60):
            clock.now += wait_s
            statuses.append(connect(simulator).ask().status)

    assert statuses == [200, 429, 200, 503]
    assert [call.at_s for call in simulator.calls] == [0, 30, 60, 120]
