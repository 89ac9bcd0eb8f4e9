"""Whether a response of the Gemini API is an answer: the JSON of a `generateContent` response, judged.

Only a response that is whole is one: no block reason, every candidate that was asked for, each stopped by STOP with
content of the kind that was asked for, and JSON that parses where JSON was asked for.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

from parked.completions import response_of
from parked.request import either
from parked.rules import BLOCK_RULES, FINISH_RULES, SHAPE_RULES, ShapeRule, ValueRule
from parked.verdict import Reason

# Any of these makes a mapping a response of the Gemini API.
_RESPONSE_KEYS: Final = frozenset({
    "candidates", "promptFeedback", "prompt_feedback", "usageMetadata", "usage_metadata", "modelVersion",
    "model_version", "responseId", "response_id",
})  # fmt: skip
WHOLE: Final = "answer.whole"  # the rule of a success
TRUNCATED: Final = "answer.truncated"  # the rule of one that was cut off, where that is allowed

_INVISIBLE: Final = "\u200b\u200c\u200d\u2060\ufeff"  # no white space to Python, and nothing to a reader
# Parts that hold no answer of their own.
_BESIDE: Final = frozenset({
    "text", "thought", "thoughtSignature", "thought_signature", "videoMetadata", "video_metadata", "partMetadata",
    "part_metadata", "mediaResolution", "media_resolution", "functionResponse", "function_response",
})  # fmt: skip
_CALLS: Final = frozenset({"functionCall", "function_call", "toolCall", "tool_call"})
_REPEAT_TAIL_CHARS: Final = 4_000
_JSON_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_JSON_TYPES: Final = _JSON_LEAVES | {dict, list, tuple}
# An object that can be called is none of these: it may be an answer of some library's own.
_NOT_RUN: Final = (Awaitable, Iterator, AsyncIterable, FunctionType, BuiltinFunctionType, MethodType, partial)


class Usage(NamedTuple):
    """Billed tokens; None where the response doesn't say. `tokens_out` counts thoughts too."""

    tokens_in: int | None = None
    tokens_out: int | None = None


NO_USAGE: Final = Usage()
MOST_TOKENS: Final = 10**12  # a count beyond is no count, and no database would hold it


class Flaw(NamedTuple):
    """Why a response is no answer."""

    rule: ValueRule | ShapeRule
    message: str
    finish_reason: str | None = None


def is_response(value: Mapping[str, Any]) -> bool:
    """Whether a mapping has the shape of a response of the Gemini API, or of a chat completion."""
    return not _RESPONSE_KEYS.isdisjoint(value) or response_of(value) is not None


def flaw_of(response: Mapping[str, Any], facts: Mapping[str, Any], *, allow_truncated: bool = False) -> Flaw | None:
    """Return the first thing that makes `response` no answer; None if it is one. `facts` is of `request_facts`.

    With `allow_truncated`, text that stopped at the token limit is an answer; where JSON was asked for, if it parses.
    """
    feedback = either(response, "promptFeedback", "prompt_feedback")
    if isinstance(feedback, Mapping) and (block := name_of(either(feedback, "blockReason", "block_reason"))):
        told = either(feedback, "blockReasonMessage", "block_reason_message")
        return listed_flaw(BLOCK_RULES, "block reason", block, told)
    candidates = _candidates(response)
    wanted = facts.get("candidateCount")
    missing = (wanted if isinstance(wanted, int) else 1) - len(candidates)
    if not candidates and facts.get("stream"):
        return Flaw(SHAPE_RULES["answer.no_finish"], "the stream ended without a candidate")
    for candidate in candidates:
        flaw = _flaw_of_candidate(candidate, facts)
        if flaw is not None and not (allow_truncated and _is_usable(candidate, flaw, facts)):
            return flaw
    if missing > 0:
        return Flaw(SHAPE_RULES["answer.no_candidates"], f"{missing} of {missing + len(candidates)} candidates missing")
    return None


def is_truncated(response: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a response that is an answer was cut off in one of its candidates."""
    return any(_flaw_of_candidate(candidate, facts) is not None for candidate in _candidates(response))


def finish_reasons_of(response: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one a candidate, as the API spells it; `error` for one that was expected and has none."""
    reasons = [name_of(either(c, "finishReason", "finish_reason")) or "error" for c in _candidates(response)]
    wanted = facts.get("candidateCount")
    reasons += ["error"] * ((wanted if isinstance(wanted, int) and wanted <= 64 else 1) - len(reasons))
    return tuple(reasons)


def usage_of(response: Mapping[str, Any]) -> Usage:
    usage = either(response, "usageMetadata", "usage_metadata")
    if not isinstance(usage, Mapping):
        return NO_USAGE
    return Usage(
        _sum(
            either(usage, "promptTokenCount", "prompt_token_count"),
            either(usage, "toolUsePromptTokenCount", "tool_use_prompt_token_count"),
        ),
        _sum(
            either(usage, "candidatesTokenCount", "candidates_token_count"),
            either(usage, "thoughtsTokenCount", "thoughts_token_count"),
        ),
    )


def text_of(answer: Any) -> str | None:
    """Return the text of a stored answer: the parts of the first candidate that are no thoughts, joined.

    A str is its own text. None where there is no text: a call or an image alone, or a value of another shape.
    """
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, Mapping):
        return None
    texts = texts_of(answer)
    return texts[0] if texts else None


def texts_of(response: Mapping[str, Any]) -> list[str | None]:
    """Return the text of each candidate, or choice of a chat completion, as `text_of` has it."""
    return [_text(_parts(candidate)) for candidate in _candidates(response_of(response) or response)]


def name_of(value: Any) -> str:
    """Return the name of a value of a closed list, however it came: text, an enum of the SDK, a number."""
    value = getattr(value, "value", value)
    if value is None or value == "" or isinstance(value, (Mapping, list)):
        return ""
    name = str(value).strip().upper()[:80]
    return name if name.isascii() else ascii(name)[1:-1]  # the exporter of spans takes no lone surrogate


def is_blank(value: Any) -> bool:
    """Whether a value is no answer at all: None, white space, or an empty container. 0 and False are answers."""
    if isinstance(value, str):
        return _blank(value)
    if isinstance(value, (bytes, bytearray)):
        return not value.strip()
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return not value
    return value is None


def not_run(value: Any) -> Any:
    """Return what of a value would still have to be awaited, called or read: it, or what it directly holds. Else None.

    Its text could be kept, and would pass for an answer that nobody has ever asked for.
    """
    if type(value) in _JSON_LEAVES:
        return None
    held: Iterable[Any] = ()
    if isinstance(value, Mapping):
        held = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        held = value
    return next((each for each in (value, *held) if _is_not_run(each)), None)


def _is_not_run(value: Any) -> bool:
    if type(value) in _JSON_TYPES:
        return False
    return isinstance(value, _NOT_RUN) or (
        type(value).__name__ == "Future" and type(value).__module__.startswith("concurrent.futures")
    )


def listed_flaw(rules: tuple[ValueRule, ...], what: str, value: str, told: Any = None) -> Flaw:
    """Return what a value of a closed list means, by a table whose last row holds for every value."""
    rule = next(rule for rule in rules if value in rule.values or not rule.values)
    message = f"{what} {value}" if rule.values else f"{what} {value}, which this version of parked doesn't know"
    if isinstance(told, str) and told:
        message = f"{message}: {told}"
    return Flaw(rule, message, value)


def _flaw_of_candidate(candidate: Mapping[str, Any], facts: Mapping[str, Any]) -> Flaw | None:
    finish = name_of(either(candidate, "finishReason", "finish_reason"))
    parts = _parts(candidate)
    if finish == "STOP":
        return _flaw_of_content(parts, facts)
    if not finish:
        if facts.get("stream") or _has_content(parts):
            return Flaw(SHAPE_RULES["answer.no_finish"], "the answer has no finish reason")
        return Flaw(SHAPE_RULES["answer.no_content"], "neither content nor a finish reason")
    if finish == "MAX_TOKENS" and repeats(_text(parts) or ""):
        return Flaw(SHAPE_RULES["answer.repeats"], "ran to MAX_TOKENS repeating one unit", finish)
    if finish == "CONTINUATION" and facts.get("automaticContinuation"):
        return Flaw(SHAPE_RULES["answer.not_continued"], "stopped with CONTINUATION and was not continued", finish)
    return listed_flaw(FINISH_RULES, "finish reason", finish, either(candidate, "finishMessage", "finish_message"))


def _flaw_of_content(parts: list[Mapping[str, Any]], facts: Mapping[str, Any]) -> Flaw | None:
    """Judge what stopped by STOP."""
    if not _has_content(parts):
        return Flaw(SHAPE_RULES["answer.no_content"], "STOP without content", "STOP")
    modalities = facts.get("responseModalities")
    if isinstance(modalities, (list, tuple)) and modalities:
        kinds = {name_of(kind) for kind in modalities}
        if kinds <= {"IMAGE", "AUDIO", "VIDEO"} and not any(_has_media(part, kinds) for part in parts):
            return Flaw(SHAPE_RULES["answer.no_content"], f"STOP without {' or '.join(sorted(kinds)).lower()}", "STOP")
    mime_type = facts.get("responseMimeType")
    if isinstance(mime_type, str) and mime_type.split(";")[0].strip().lower() == "application/json":
        text = _text(parts)
        if text is not None and not _blank(text) and (why := _json_fault(text)) is not None:
            return Flaw(SHAPE_RULES["answer.broken_json"], f"STOP, but the text is no JSON: {why}", "STOP")
    return None


def _is_usable(candidate: Mapping[str, Any], flaw: Flaw, facts: Mapping[str, Any]) -> bool:
    """Whether a candidate with this flaw was only cut off, and holds text of the kind that was asked for."""
    parts = _parts(candidate)
    return (
        flaw.rule.reason is Reason.ANSWER_TRUNCATED
        and not _blank(_text(parts) or "")
        and _flaw_of_content(parts, facts) is None
    )


def repeats(text: str) -> bool:
    """Whether the end of a text repeats one unit: at least 4 times, and over 200 characters or 80 % of the text.

    `z[p]` of the reversed tail is how far it agrees with itself moved by p, so `p + z[p]` is how long the end of the
    text is a repetition of a unit of p characters, wherever in a unit it was cut.
    """
    tail = text[: -_REPEAT_TAIL_CHARS - 1 : -1]
    length = len(tail)
    z = [0] * length
    left = right = 0
    for p in range(1, length):
        agrees = min(right - p, z[p - left]) if p < right else 0
        while p + agrees < length and tail[agrees] == tail[p + agrees]:
            agrees += 1
        z[p] = agrees
        if p + agrees > right:
            left, right = p, p + agrees
        covered = p + agrees
        if covered >= 4 * p and (covered >= 200 or (covered >= 60 and covered >= 0.8 * len(text))):
            return True
    return False


def _candidates(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    candidates = response.get("candidates")
    return [c for c in candidates if isinstance(c, Mapping)] if isinstance(candidates, (list, tuple)) else []


def _parts(candidate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of a candidate that are no thoughts."""
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, Mapping) else None
    if not isinstance(parts, (list, tuple)):
        return []
    return [part for part in parts if isinstance(part, Mapping) and not part.get("thought")]


def _text(parts: list[Mapping[str, Any]]) -> str | None:
    texts = [text for part in parts if isinstance(text := part.get("text"), str)]
    return "".join(texts) if texts else None


def _has_content(parts: list[Mapping[str, Any]]) -> bool:
    for part in parts:
        text = part.get("text")
        if isinstance(text, str) and not _blank(text):
            return True
        if any(value and name not in _BESIDE and _holds(value) for name, value in part.items()):
            return True
    return False


def _has_media(part: Mapping[str, Any], kinds: set[str]) -> bool:
    for value in (either(part, "inlineData", "inline_data"), either(part, "fileData", "file_data")):
        if isinstance(value, Mapping) and _holds(value):
            mime_type = either(value, "mimeType", "mime_type")
            if not isinstance(mime_type, str) or mime_type.partition("/")[0].upper() in kinds:
                return True
    # A call is an answer whatever was asked for: the caller has to act on it.
    return any(part.get(name) for name in _CALLS)


def _blank(text: str) -> bool:
    return not text.strip().strip(_INVISIBLE).strip()


def _holds(value: Any) -> bool:
    """Whether a part's value is more than an empty shell, such as inline data without data."""
    if isinstance(value, Mapping) and "data" in value:
        return bool(value["data"])
    return bool(value)


def _json_fault(text: str) -> str | None:
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except ValueError as exc:
        return str(exc)
    except RecursionError:
        return "nested too deeply"
    return None


def _refuse_constant(name: str) -> Iterator[None]:
    raise ValueError(f"{name} is not in JSON")


def _sum(*counts: Any) -> int | None:
    known = [count for count in counts if isinstance(count, int) and 0 <= count <= MOST_TOKENS]
    return sum(known) if known else None
