"""Labelled outcomes of the real API, in the four shapes in which an outcome comes."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.genai import errors, types

from parked.judge import classify, classify_batch_row, classify_http_error
from parked.verdict import Verdict

FOLDER = Path(__file__).parents[1] / "cases"
CASES = [
    json.loads(line)
    for name in ("gemini_failures.jsonl", "more_failures.jsonl", "blind_cases.jsonl")
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()
]


def exception_of(given: dict[str, Any]) -> BaseException:
    """The real class where its package is installed, else a stand-in with the same module and name.

    `attrs` is what it carries: attributes, or the status and the message of google.api_core or gRPC. `cause` is what it
    was raised from, `genai` the status and body of an error of the SDK, `group` the members of a group.
    """
    if "genai" in given:
        status, body = given["genai"]
        with pytest.raises(errors.APIError) as raised:
            errors.APIError.raise_error(status, body, None)
        return raised.value
    exc = exception_alone(given)
    if "cause" in given:
        exc.__cause__ = exception_of(given["cause"])
    return exc


def exception_alone(given: dict[str, Any]) -> BaseException:
    message = given["message"]
    attrs = given.get("attrs", {})
    module, _, name = given["type"].rpartition(".")
    if "group" in given:
        return BaseExceptionGroup(message, [exception_of(member) for member in given["group"]])
    if "http_code" in attrs:
        base: type[Exception] = type("GoogleAPICallError", (Exception,), {"__module__": module})
        carried = {"code": attrs["http_code"], "message": attrs["message"], "details": [], "errors": []}
    elif "rpc_code" in attrs:
        base = type("RpcError", (Exception,), {"__module__": "grpc"})
        code = SimpleNamespace(name=attrs["rpc_code"])
        carried = {"code": lambda: code, "details": lambda: attrs["rpc_details"]}
    else:
        base, carried = Exception, attrs
        try:
            exc: BaseException | None = getattr(importlib.import_module(module), name)(message)
        except (ImportError, AttributeError, TypeError):  # some classes take more than a message
            exc = None
        if exc is not None and str(exc) == message:
            vars(exc).update(attrs)
            return exc
    stand_in: BaseException = type(name, (base,), {"__module__": module})(*([message] if message else []))
    vars(stand_in).update(carried)
    return stand_in


def verdict_of(given: dict[str, Any]) -> Verdict:
    request = given.get("request")
    match given["kind"]:
        case "http_error":
            body = given["body"]
            if isinstance(body, str):
                body = {"message": body, "status": "reason phrase"}
            with pytest.raises(errors.APIError) as raised:
                errors.APIError.raise_error(given["status"], body, None)
            raised.value.response = type("Response", (), {"headers": given.get("headers", {})})()
            return classify(raised.value, request=request)
        case "http_response":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the SDK warns of a value newer than itself
                response = types.GenerateContentResponse._from_response(
                    response=json.loads(json.dumps(given["body"])), kwargs={}
                )
            return classify(response, request=request)
        case "exception":
            return classify(exception_of(given), request=request)
        case "batch_row":
            return classify_batch_row(given["row"], job_state=given["job_state"], request=request)
    raise AssertionError(given["kind"])


def check(got: Verdict, want: dict[str, Any]) -> None:
    if want["outcome"] == "success":
        assert got.ok, got
        return
    assert (got.ok, got.kind, got.reason, got.scope) == (False, want["kind"], want["reason"], want["scope"]), got
    assert got.retry_after_s == pytest.approx(want["retry_after_s"], abs=1), got
    assert got.fingerprint
    assert got.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_an_outcome_is_judged_as_it_is_labelled(case):
    check(verdict_of(case["given"]), case["expect"])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["given"]["kind"] == "http_error"], ids=lambda case: case["id"]
)
def test_an_error_is_judged_alike_as_it_came_over_the_wire(case):
    given = case["given"]
    body = given["body"] if isinstance(given["body"], str) else json.dumps(given["body"])

    for sent in (given["body"], body, body.encode()):
        check(classify_http_error(given["status"], sent, given.get("headers")), case["expect"])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["given"]["kind"] == "http_response"], ids=lambda case: case["id"]
)
def test_a_response_is_judged_alike_as_json(case):
    if case["given"]["body"]:
        check(classify(case["given"]["body"], request=case["given"].get("request")), case["expect"])
