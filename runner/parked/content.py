"""What was asked and answered, as the GenAI semantic conventions have it on spans: for those who ask for it.

Imported where that is the case (`telemetry.content_wanted`). The conventions have a JSON text for each of the messages
asked, the messages answered and the system's instructions; made here so that any of their versions since 1.37 takes
them: a message answered has its `finish_reason`, which newer ones don't need, and a blob its `content`, left empty.

Source: https://github.com/open-telemetry/semantic-conventions-genai, model/gen-ai/gen-ai-input-messages.json,
gen-ai-output-messages.json, gen-ai-system-instructions.json.
"""

from __future__ import annotations

import json
import string
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from parked.answers import is_blank, name_of, not_run
from parked.judge import response_in
from parked.ledger.codec import keep
from parked.request import either
from parked.rules import FINISH_RULES
from parked.scrub import scrubbed, without_keys
from parked.telemetry import (
    CONTENT_TRUNCATED,
    GEN_AI_INPUT_MESSAGES,
    GEN_AI_OUTPUT_MESSAGES,
    GEN_AI_SYSTEM_INSTRUCTIONS,
)
from parked.verdict import Reason

# Of one attribute. With three such on each of the 64 attempts of a request (`span_batches.CONTENT_BATCH_SPANS`), that
# stays under the 4 MiB which OpenTelemetry's collector takes by gRPC.
MOST_BYTES: Final = 16_000
MOST_URI_CHARS: Final = 2_000
# What a message or a part needs for its fixed words, so as to be begun; and what stays free for the end of the last.
_ROOM_BYTES: Final = 200
_ELLIPSIS: Final = "…"
_OF_KEYS: Final = string.ascii_letters + string.digits + "_.~+/=-"

_ROLES: Final = {"model": "assistant", "function": "tool"}  # the others go by the conventions' names
_MODALITIES: Final = frozenset({"image", "video", "audio"})  # first words of MIME types; the rest is `document`
_FINISHES: Final = {
    Reason.ANSWER_TRUNCATED: "length",
    Reason.ANSWER_BLOCKED: "content_filter",
    Reason.PROMPT_BLOCKED: "content_filter",
    Reason.RECITATION: "content_filter",
}

Part = dict[str, Any]


def content_of(payload: Any, answer: Any) -> dict[str, str | tuple[str, ...]]:
    """Return the attributes that tell what was asked and answered, for as much as is there and can be told.

    `payload` is a Gemini request in any of its spellings; of others nothing is told. `answer` is what a call returned,
    None if it returned nothing. Each text is cut, its end left off, so that an attribute has at most `MOST_BYTES`.
    """
    told: dict[str, str | tuple[str, ...]] = {}
    cut = []
    for key, find, source in (
        (GEN_AI_SYSTEM_INSTRUCTIONS, _instructions, payload),
        (GEN_AI_INPUT_MESSAGES, _asked, payload),
        (GEN_AI_OUTPUT_MESSAGES, _answered, answer),
    ):
        room = _Room()
        try:
            found = room.fitted(find(source))
            if found:
                told[key] = _json(found)
        except Exception:  # noqa: BLE001 - foreign values may raise anything, and the others are told still
            continue
        if room.was_short:
            cut.append(key)
    if cut:
        told[CONTENT_TRUNCATED] = tuple(cut)
    return told


class _Room:
    """What is left of an attribute; takes values into it as long as they fit."""

    def __init__(self) -> None:
        self.was_short = False
        self._left_bytes = MOST_BYTES - _ROOM_BYTES

    def fitted(self, value: Any) -> Any:
        """Return a JSON value without keys, and without what doesn't fit.

        Raises:
            ValueError, TypeError: it is no JSON value.
        """
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            self._left_bytes -= 2
            return {name: self.fitted(each) for name, each in self._while_any(value.items())}
        if isinstance(value, (list, tuple, Iterator)):
            self._left_bytes -= 2
            return [self.fitted(each) for each in self._while_roomy(value)]
        if (size := len(_json(value))) > self._left_bytes:  # an integer may have thousands of digits
            value, size, self.was_short = _ELLIPSIS, _ROOM_BYTES, True
        self._left_bytes -= size
        return value

    def _while_any(self, items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, value in items:
            name = without_keys(_writable(name))
            self._left_bytes -= _size(name) + 4  # quotes, colon, comma
            if self._left_bytes < 0:
                self.was_short = True
                return
            yield name, value

    def _while_roomy(self, items: Iterable[Any]) -> Iterator[Any]:
        for each in items:
            self._left_bytes -= 1
            if self._left_bytes < _ROOM_BYTES:
                self.was_short = True
                return
            yield each

    def _text(self, text: str) -> str:
        most = max(self._left_bytes - 2, 0)  # the quotes
        head = text[:most]
        if is_cut := len(head) < len(text):
            head = head.rstrip(_OF_KEYS)  # half a key doesn't look like one any more
        head = without_keys(_writable(head))
        if is_cut or _size(head) > most:
            self.was_short = True
            room = most - len(_ELLIPSIS.encode())
            fits = bisect_right(range(len(head) + 1), room, key=lambda chars: _size(head[:chars]))
            head = head[: max(fits - 1, 0)] + _ELLIPSIS
        self._left_bytes -= _size(head) + 2
        return head


def _instructions(payload: Any) -> Iterator[Part]:
    for source in (payload, payload.get("config")) if isinstance(payload, Mapping) else ():
        if isinstance(source, Mapping):
            yield from _parts(either(source, "systemInstruction", "system_instruction"))


def _asked(payload: Any) -> Iterator[Part]:
    contents = payload.get("contents") if isinstance(payload, Mapping) else None
    if not isinstance(contents, (str, list, tuple, Mapping)):
        return
    for author, group in groupby(_listed(contents), _author):
        if author is not None:  # as the SDK does: parts that stand side by side are one message
            yield _message(author, list(group))
            continue
        for content in group:
            yield _message(content.get("role"), content.get("parts"))


def _author(content: Any) -> str | None:
    """Who says what stands among contents without being one; None for a content."""
    if not isinstance(content, Mapping):
        return "user"
    if "parts" in content or "role" in content:
        return None
    return "user" if either(content, "functionCall", "function_call") is None else "model"


def _answered(answer: Any) -> Iterator[Part]:
    if is_blank(answer) or not_run(answer) is not None:
        return
    if isinstance(answer, (bytes, bytearray)):
        blob = {"type": "blob", **_kind(None), "content": "", "size_bytes": len(answer)}
        yield {"finish_reason": "stop", "role": "assistant", "parts": [blob]}
        return
    response = response_in(answer)
    if response is None:  # a value of the caller's own, as the ledger keeps it
        kept = keep(answer).value
        yield {"finish_reason": "stop", **_message("model", kept if isinstance(kept, str) else _json(kept))}
        return
    for candidate in _listed(response.get("candidates")):
        content = candidate.get("content") or {}  # one that was blocked has none
        finish = _finish(name_of(either(candidate, "finishReason", "finish_reason")))
        yield {"finish_reason": finish, **_message(content.get("role") or "model", content.get("parts"))}


def _finish(name: str) -> str:
    """Return the conventions' word for a finish reason of the API; its own is in `gen_ai.response.finish_reasons`."""
    if name == "STOP":
        return "stop"
    rule = next(rule for rule in FINISH_RULES if name in rule.values or not rule.values)
    return _FINISHES.get(rule.reason, "error")


def _message(role: Any, parts: Any) -> Part:
    name = role if isinstance(role, str) and role else "user"
    parts = _listed(parts)
    if parts and all(_is_response(part) for part in parts):  # which the API takes from the user, too
        name = "tool"
    return {"role": _ROLES.get(name, name), "parts": _parts(parts)}


def _is_response(part: Any) -> bool:
    return isinstance(part, Mapping) and either(part, "functionResponse", "function_response") is not None


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _parts(value: Any) -> Iterator[Part]:
    """Yield what the SDK takes for parts: a text, a part, a content, or a list of such."""
    for part in _listed(value):
        if isinstance(part, (list, tuple)):
            yield from _parts(part)
        elif isinstance(part, str):
            yield {"type": "text", "content": part}
        elif isinstance(part, Mapping) and "parts" in part:
            yield from _parts(part["parts"])
        elif isinstance(part, Mapping):
            yield from _told(part)


def _told(part: Mapping[str, Any]) -> Iterator[Part]:
    text = part.get("text")
    if isinstance(text, str):
        yield {"type": "reasoning" if part.get("thought") else "text", "content": text}
    if either(part, "fileUri", "file_uri") is not None:  # the SDK takes it for a part
        yield _uri(part)
    for rest_name, sdk_name, tell in _TOLD:
        for each in _listed(either(part, rest_name, sdk_name)):
            if isinstance(each, Mapping):
                yield tell(each)


def _blob(blob: Mapping[str, Any]) -> Part:
    """Never the bytes: only of what kind, and how many."""
    mime_type, data = either(blob, "mimeType", "mime_type"), blob.get("data")
    part = {"type": "blob", **_kind(mime_type), "content": ""}
    if isinstance(data, str) and isinstance(mime_type, str):
        part["size_bytes"] = len(data.rstrip("=")) * 3 // 4
    return part


def _uri(file: Mapping[str, Any]) -> Part:
    mime_type, uri = either(file, "mimeType", "mime_type"), either(file, "fileUri", "file_uri")
    uri = uri if isinstance(uri, str) else ""
    head, _, data = uri.partition(",")
    if head[:5].lower() == "data:":
        return _blob({"mimeType": mime_type or head[5:].partition(";")[0], "data": data})
    return {"type": "uri", **_kind(mime_type), "uri": scrubbed(uri, limit=MOST_URI_CHARS)}


def _kind(mime_type: Any) -> Part:
    if not isinstance(mime_type, str):
        return {"modality": "document"}
    first = mime_type.partition("/")[0].strip().lower()
    return {"modality": first if first in _MODALITIES else "document", "mime_type": mime_type}


def _call(call: Mapping[str, Any]) -> Part:
    """A call of a function; or the one of a chat completion, which holds it under `function`."""
    inner = call.get("function")
    inner = inner if isinstance(inner, Mapping) else call
    return _named("tool_call", call, name=_text(inner.get("name")), arguments=either(inner, "args", "arguments"))


def _response(response: Mapping[str, Any]) -> Part:
    named = _there({"name": response.get("name")})
    return _named("tool_call_response", response, **named, response=response.get("response"))


def _server_call(kind: str, call: Mapping[str, Any]) -> Part:
    """A call of a tool of the API's own. `kind` is its name, where the call doesn't say."""
    kind = name_of(either(call, "toolType", "tool_type")).lower() or kind
    asked = {"code": call.get("code"), "language": call.get("language"), "arguments": call.get("args")}
    return _named("server_tool_call", call, name=kind, server_tool_call=_there({"type": kind, **asked}))


def _server_response(kind: str, response: Mapping[str, Any]) -> Part:
    kind = name_of(either(response, "toolType", "tool_type")).lower() or kind
    came = {name: response.get(name) for name in ("outcome", "output", "response")}
    return _named("server_tool_call_response", response, server_tool_call_response=_there({"type": kind, **came}))


def _named(kind: str, call: Mapping[str, Any], **told: Any) -> Part:
    return {"type": kind, **_there({"id": call.get("id")}), **told}


def _there(part: Part) -> Part:
    return {name: value for name, value in part.items() if value is not None}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


_TOLD: Final[tuple[tuple[str, str, Callable[[Mapping[str, Any]], Part]], ...]] = (
    ("inlineData", "inline_data", _blob),
    ("fileData", "file_data", _uri),
    ("functionCall", "function_call", _call),
    ("functionResponse", "function_response", _response),
    ("executableCode", "executable_code", lambda part: _server_call("code_execution", part)),
    ("codeExecutionResult", "code_execution_result", lambda part: _server_response("code_execution", part)),
    ("toolCall", "tool_call", lambda part: _server_call("tool", part)),
    ("toolResponse", "tool_response", lambda part: _server_response("tool", part)),
)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _size(text: str) -> int:
    """How many bytes a text is in JSON, without its quotes."""
    return len(_json(text).encode()) - 2


def _writable(text: str) -> str:
    """Return a text that UTF-8 can hold: lone surrogates as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
