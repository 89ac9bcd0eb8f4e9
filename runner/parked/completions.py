"""A chat completion, the shape in which OpenAI's API, LiteLLM and many servers answer, spelled as a Gemini response.

So one judgement decides on both. A choice becomes a candidate. Gemini's endpoint for OpenAI's clients says
`content_filter: RECITATION`; there Gemini's own name counts.

Source: platform.openai.com/docs/api-reference/chat/object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_OBJECTS: Final = frozenset({"chat.completion", "text_completion"})
_CHOICE_KEYS: Final = frozenset({"message", "finish_reason"})
# What else stands in one that has no choices: `{"question": "…", "choices": []}` is a value of the caller's own.
_BESIDE_CHOICES: Final = frozenset({
    "choices", "created", "id", "model", "object", "prompt_filter_results", "provider", "service_tier",
    "system_fingerprint", "usage",
})  # fmt: skip
# Some servers say by their own words that the model had ended: litellm/litellm_core_utils/core_helpers.py has them.
_STOPS: Final = ("TOOL_CALLS", "FUNCTION_CALL", "EOS", "EOS_TOKEN", "END_TURN", "STOP_SEQUENCE")
_FINISH_NAMES: Final = {**dict.fromkeys(_STOPS, "STOP"), "LENGTH": "MAX_TOKENS"}
_CALLS: Final = ("tool_calls", "function_call")
_MEDIA: Final = ("audio", "images")


def response_of(value: Any) -> Mapping[str, Any] | None:
    """Return a chat completion as the Gemini API would spell it; None if `value` is none."""
    if not _is_completion(value):
        return None
    choices = [choice for choice in value.get("choices") or () if isinstance(choice, Mapping)]
    failed = next((choice for choice in choices if choice.get("error")), {})
    usage = value.get("usage")
    return {
        "error": value.get("error") or failed.get("error"),
        "candidates": [_candidate(choice) for choice in choices],
        "usageMetadata": {
            "promptTokenCount": usage.get("prompt_tokens"),
            "candidatesTokenCount": usage.get("completion_tokens"),
        }
        if isinstance(usage, Mapping)
        else None,
        "responseId": value.get("id"),
    }


def dumped(value: Any) -> Mapping[str, Any] | None:
    """Return the JSON of an object of a client library that is a chat completion; None if `value` is none."""
    if not hasattr(type(value), "model_dump") or "choices" not in getattr(value, "__dict__", {}):
        return None
    dump = value.model_dump(mode="json", warnings=False)  # a finish reason that it doesn't know is ours to name
    return dump if isinstance(dump, Mapping) and (dump.get("error") or _is_completion(dump)) else None


def _is_completion(value: Any) -> bool:
    if not isinstance(value, Mapping) or "choices" not in value:
        return False
    if value.get("object") in _OBJECTS:
        return True
    choices = value["choices"]
    if not choices:
        return value.keys() <= _BESIDE_CHOICES
    return isinstance(choices, (list, tuple)) and all(
        isinstance(choice, Mapping)
        and not _CHOICE_KEYS.isdisjoint(choice)
        and isinstance(choice.get("message"), (Mapping, type(None)))
        for choice in choices
    )


def _candidate(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    message = choice.get("message")
    if not isinstance(message, Mapping):
        message = {"content": choice.get("text")}  # before there were chats
    finish = str(choice.get("finish_reason") or "").rpartition(":")[2].strip().upper()
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        return {"finishReason": "REFUSAL", "finishMessage": refusal}
    return {"content": {"parts": _parts(message)}, "finishReason": _FINISH_NAMES.get(finish, finish)}


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    parts: list[Mapping[str, Any]] = []
    if isinstance(content, str):
        parts.append({"text": content})
    elif isinstance(content, (list, tuple)):
        parts += [_part(part) for part in content if isinstance(part, Mapping)]
    parts += [{"functionCall": message[name]} for name in _CALLS if message.get(name)]
    parts += [{"inlineData": {"data": message[name]}} for name in _MEDIA if message.get(name)]
    return parts


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part.get("type") in ("thinking", "reasoning"):
        return {"thought": True}
    if isinstance(part.get("text"), str):
        return {"text": part["text"]}
    return {"inlineData": {"data": part.get("type")}}
