"""What people paste about a failure, read as what it is: for `parked classify`.

A body, an answer, a row of a batch, a raw HTTP response, a status, or what Python says of an exception. All of it is
material to be judged: no class that a text names is imported, and no text makes anything here raise.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from textwrap import dedent
from typing import Any, Final, NamedTuple

from parked.answers import is_response
from parked.evidence import CANONICAL_STATUSES, embedded_error
from parked.judge import HttpAnswer, classify_batch_row, classify_http_error, judge_answer, judge_exception
from parked.request import request_facts
from parked.standins import exception_lines, stand_in
from parked.verdict import Reason, Verdict

_WINDOW_CHARS: Final = 20_000  # where a text says what it is
_LITERAL_CHARS: Final = 200_000  # what Python's parser is asked to read
_HEADER_LINES: Final = 200

_STATUS_LINE: Final = r"(?m)^(?:< )?HTTP/[\d.]{1,3} (\d{3})\b[^\n]*$"
_HEADER_NAME: Final = r"[A-Za-z0-9][\w-]{0,60}"
_CURL_NOISE: Final = r"(?m)^(?:\* |[{}] \[)[^\n]*\n?"
_BARE_STATUS: Final = r"(?i)(?:http(?:/[\d.]+)?|status(?:[ _]?code)?|code)?[\s:=]*([1-5]\d\d)[\s:,-]*([a-z_ '.-]{0,60})"
_SDK_MESSAGE: Final = r"\b([45]\d\d) (?:None|[A-Z][A-Za-z_ ]{1,40})\. (?=[\[{<])"
_NAMED_STATUS: Final = r"\b([45]\d\d)\b[\s:,'\"\])>-]{1,3}([A-Za-z][\w -]{2,40})"
_CODE_FIELD: Final = r"[\"']code[\"']\s*:\s*([45]\d\d)\b"
_ROW_KEYS: Final = frozenset({"key", "metadata", "custom_id", "request"})
_ERROR_KEYS: Final = frozenset({"error", "code", "message", "status", "details", "detail"})
_NOTHING: Final = object()  # what a text that holds no value gives; None is a value


class Pasted(NamedTuple):
    """What a text was taken for, and what it means."""

    read_as: str
    verdict: Verdict


def read(text: str, *, status: int | None = None, request: Any = None) -> Pasted | None:
    """Return what a text means, None if it reads as nothing that can be judged.

    `status` is the HTTP status of a body that came with one. `request` is the payload that was sent, where the
    judgement needs it.
    """
    text = text.removeprefix("\ufeff")
    if len(text) <= _LITERAL_CHARS:
        text = dedent(text)  # in a traceback the indentation counts, but not that of the whole
    text = text.strip()
    facts = request_facts(request)
    raw = _raw_response(text)
    if status is not None:
        _, headers, body = raw or (status, {}, text)
        return _response(status, headers, body, facts, read_as="a body")
    if raw is not None:
        return _response(*raw, facts, read_as="an HTTP response")
    if (events := _events(text)) is not None:
        return _stream(events, facts)
    if (value := _value_of(text)) is not _NOTHING and (judged := _judged(value, facts, request)) is not None:
        return judged
    return _bare_status(text) or _exception(text) or _prose(text, facts)


def read_name(text: str) -> Pasted | None:
    """Return what the name of an exception or a status means; None if the text is neither."""
    return _bare_status(text) or _exception(text)


# --- values ----------------------------------------------------------------------------------------------------


def _value_of(text: str) -> Any:
    """Return the JSON value that a text begins with, or the one that Python prints; `_NOTHING` if there is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text[:1] not in ("{", "["):
        return _NOTHING
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return _literal(text)


def _literal(text: str) -> Any:
    if len(text) > _LITERAL_CHARS:
        return _NOTHING
    # What follows the value (the rest of a log line) is no part of it.
    for candidate in (text, text.partition("\n")[0], text[: max(text.rfind("}"), text.rfind("]")) + 1]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes that Python wouldn't write
                return ast.literal_eval(candidate)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return _NOTHING


def _judged(value: Any, facts: Mapping[str, Any], request: Any) -> Pasted | None:
    if isinstance(value, (list, tuple)):
        objects = [item for item in value if isinstance(item, Mapping)]
        if len(objects) > 1 and not any(_is_row(item) for item in objects):
            return _stream(objects, facts)
        value = objects[0] if objects else {} if not value else _NOTHING
    if value is None or value == {}:
        return Pasted("an empty body", judge_answer(HttpAnswer(200, {}, "")).verdict)
    if isinstance(value, str):  # a body that was quoted once more
        inner = _value_of(value.strip())
        return _judged(inner, facts, request) if isinstance(inner, (Mapping, list)) else None
    if not isinstance(value, Mapping):
        return None
    if _is_row(value):
        return Pasted("a row of a batch", classify_batch_row(value, request=request))
    if is_response(value) and not value.get("error"):
        return Pasted("an answer", judge_answer(value, request=facts).verdict)
    if not _ERROR_KEYS.isdisjoint(value):
        return Pasted("an error body", classify_http_error(None, value))
    return None


def _is_row(value: Mapping[str, Any]) -> bool:
    return "response" in value or ("error" in value and not _ROW_KEYS.isdisjoint(value))


def _events(text: str) -> list[Mapping[str, Any]] | None:
    """Return the events of a stream of server-sent ones; None if the text is none."""
    if not text.startswith(("data:", "event:")):
        return None
    values = []
    for line in text.splitlines():
        if line.startswith("data:"):
            with suppress(ValueError, RecursionError):
                values.append(json.loads(line[5:]))
    return [value for value in values if isinstance(value, Mapping)] or None


def _stream(chunks: list[Mapping[str, Any]], facts: Mapping[str, Any]) -> Pasted:
    """Judge the chunks of a stream: by the error among them, else joined."""
    failed = next((chunk for chunk in chunks if chunk.get("error")), None)
    if failed is not None:
        return Pasted("an error in a stream", judge_answer(failed).verdict)
    joined: dict[str, Any] = {}
    candidates: dict[Any, dict[str, Any]] = {}
    for chunk in chunks:
        joined |= chunk
        listed = chunk.get("candidates")
        for candidate in listed if isinstance(listed, list) else ():
            if isinstance(candidate, Mapping):
                whole = candidates.setdefault(str(candidate.get("index")), {"content": {"parts": []}})
                content = candidate.get("content")
                parts = content.get("parts") if isinstance(content, Mapping) else None
                whole["content"]["parts"] += parts if isinstance(parts, list) else ()
                whole |= {name: told for name, told in candidate.items() if name != "content"}
    joined["candidates"] = list(candidates.values())
    return Pasted("a streamed answer", judge_answer(joined, request={**facts, "stream": True}).verdict)


# --- HTTP ------------------------------------------------------------------------------------------------------


def _response(status: int, headers: Mapping[str, str], body: str, facts: Mapping[str, Any], *, read_as: str) -> Pasted:
    read_as = f"{read_as} with the status {status}"
    if status >= 400:
        value = _value_of(body) if body[:1] in ("{", "[") else _NOTHING
        return Pasted(read_as, classify_http_error(status, body if value is _NOTHING else value, headers))
    chunks = _events(body)
    if chunks is None and isinstance(value := _value_of(body), list) and len(value) > 1:
        chunks = [item for item in value if isinstance(item, Mapping)] or None
    if chunks is not None:
        return Pasted(read_as, _stream(chunks, facts).verdict)
    return Pasted(read_as, judge_answer(HttpAnswer(status, headers, body), request=facts).verdict)


def _raw_response(text: str) -> tuple[int, dict[str, str], str] | None:
    """Return status, headers and body of a response as `curl -i` or `curl -v` shows it; the last of several."""
    line = re.search(_STATUS_LINE, text[:_WINDOW_CHARS])
    if line is None:
        return None
    while True:
        headers, body = _headers_and_body(text[line.end() :].lstrip("\r").removeprefix("\n"))
        # A proxy's answer to CONNECT, and 100 Continue, stand before the response that counts.
        following = re.match(_STATUS_LINE, body[:_WINDOW_CHARS])
        if following is None:
            return int(line[1]), headers, body
        text, line = body, following


def _headers_and_body(rest: str) -> tuple[dict[str, str], str]:
    headers: dict[str, str] = {}
    shown_by_curl_v = False
    at = 0
    for _ in range(_HEADER_LINES):
        end = rest.find("\n", at)
        line = rest[at:] if end < 0 else rest[at:end]
        if line.startswith("< ") or line.rstrip() == "<":
            shown_by_curl_v, line = True, line[1:]
        name, colon, value = line.strip().partition(":")
        is_header = bool(colon) and re.fullmatch(_HEADER_NAME, name) is not None
        if line.strip() and not is_header:  # no empty line stands before the body
            break
        at = len(rest) if end < 0 else end + 1
        if not is_header:
            break
        headers[name] = value.strip()
    body = rest[at:]
    return headers, (re.sub(_CURL_NOISE, "", body) if shown_by_curl_v else body).strip()


def _bare_status(text: str) -> Pasted | None:
    if text in CANONICAL_STATUSES:
        return Pasted("the name of a status", classify_http_error(None, {"status": text}))
    said = re.fullmatch(_BARE_STATUS, text[:120]) if len(text) <= 120 else None
    if said is None or int(said[1]) < 400:
        return None
    return Pasted("an HTTP status", classify_http_error(int(said[1]), {"status": said[2].strip(), "message": ""}))


# --- exceptions ------------------------------------------------------------------------------------------------


def _exception(text: str) -> Pasted | None:
    """Judge what Python prints of an exception: a traceback with its causes, a last line, or the name alone."""
    lines = exception_lines(text)
    outer: BaseException | None = None
    for line in lines:  # the innermost first
        inner, outer = outer, stand_in(line.name, line.message, carried=_carried(line.message))
        outer.__cause__ = inner
    if outer is None:
        return None
    verdict = judge_exception(outer).verdict
    if lines[0].of_traceback:
        return Pasted("a traceback", verdict)
    if verdict.reason is Reason.UNCLASSIFIED and "." not in lines[0].name:  # maybe of another language's SDK
        return _told_error(text) or Pasted("an exception", verdict)
    return Pasted("an exception", verdict)


def _carried(message: str) -> Any:
    """Return the body that the message of an SDK error repeats; None if it has none."""
    said = re.match(_SDK_MESSAGE, message)
    if said is None:
        return None
    value = _value_of(message[said.end() :])
    return message[said.end() :] if value is _NOTHING else value


# --- prose -----------------------------------------------------------------------------------------------------


def _prose(text: str, facts: Mapping[str, Any]) -> Pasted | None:
    """Judge what is neither JSON nor Python's: a page, a log line, a body that was cut."""
    if (told := _told_error(text)) is not None:
        return told
    if text[:1] in ("{", "[") and '"candidates"' in text[:_WINDOW_CHARS]:
        return Pasted("an answer that was cut", judge_answer(HttpAnswer(200, {}, text), request=facts).verdict)
    verdict = classify_http_error(None, text)
    if re.match(r"(?i)<(!doctype|html|head|body|\?xml)\b", text):
        return Pasted("a page", verdict)
    return Pasted("plain text", verdict) if verdict.reason is not Reason.UNCLASSIFIED else None


def _told_error(text: str) -> Pasted | None:
    """Judge the error of the API that a text repeats: as the SDK prints it, as JSON in the middle, by its status."""
    said = re.search(_SDK_MESSAGE, text[:_WINDOW_CHARS])
    if said is not None:
        body = _carried(text[said.start() :])
        return Pasted("the message of an SDK error", classify_http_error(int(said[1]), body))
    if embedded_error(text) is not None:
        return Pasted("an error body in a text", classify_http_error(None, text))
    status = next(_statuses(text[:_WINDOW_CHARS]), None)
    return None if status is None else Pasted(f"a text with the status {status}", classify_http_error(status, text))


def _statuses(text: str) -> Iterator[int]:
    """Yield the statuses that a text names: with the phrase that belongs to one, or in a field `code`."""
    for said in re.finditer(_NAMED_STATUS, text):
        status, phrase = int(said[1]), said[2].lower()
        known = HTTPStatus(status).phrase.lower() if status in HTTPStatus._value2member_map_ else ""
        names = [name.lower() for name, code in CANONICAL_STATUSES.items() if code == status]
        if (known and phrase.startswith(known)) or phrase.startswith(tuple(names) or "\0"):
            yield status
    for said in re.finditer(_CODE_FIELD, text):
        yield int(said[1])
