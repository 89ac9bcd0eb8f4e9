"""Messages of protobuf as plain values: as objects, and as a traceback prints them. No protobuf is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from parked.scrub import is_outside_quotes

# The fields with which a message of google/rpc/error_details.proto can begin.
_FIELDS: Final = frozenset({
    "reason", "domain", "metadata", "retry_delay", "violations", "field_violations", "links", "locale", "message",
    "request_id", "serving_data", "resource_type", "resource_name", "owner", "description", "stack_entries", "detail",
})  # fmt: skip
_MAPS: Final = frozenset({"metadata", "quota_dimensions"})
_REPEATED: Final = frozenset({"violations", "field_violations", "links", "stack_entries"})
_BLOCK: Final = rf"(?:^|\s)\[\s*(?=(?:{'|'.join(sorted(_FIELDS))})\s*[:{{])"
_WORD: Final = r"\s*([A-Za-z_]\w*|\"(?:[^\"\\]|\\.)*\"|-?\d[\d.]*|[\[\]{}:,])"
_TEXT_CHARS: Final = 20_000
_MOST_BLOCKS: Final = 5
_DEEPEST: Final = 10
_MOST_ITEMS: Final = 100


def as_mapping(message: Any) -> dict[str, Any] | None:
    """Return a message, or a mapping, as a dict by the names of its fields; None if it is neither."""
    if isinstance(message, Mapping):
        return dict(message)
    message = getattr(message, "_pb", message)  # what proto-plus wraps
    if hasattr(message, "DESCRIPTOR") and hasattr(message, "ListFields"):
        value: dict[str, Any] = _plain(message, 0)
        return value
    return None


def details_in_text(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Split `text` from the details that google.api_core prints behind a message: `[reason: "…" metadata {…}]`.

    Only a block at the end counts that can be read as a whole, doesn't stand in quotes and holds nothing but fields of
    google.rpc's details. Without one, `text` comes back as it is.
    """
    if len(text) > _TEXT_CHARS or not text.rstrip().endswith("]"):
        return text, []
    for begin in islice(re.finditer(_BLOCK, text), _MOST_BLOCKS):
        details = _messages(text[begin.end() :].rstrip()[:-1].rstrip())
        if details is not None and is_outside_quotes(text, begin.start()):
            return text[: begin.start()].rstrip(), details
    return text, []


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return None
    if hasattr(value, "ListFields"):
        if value.DESCRIPTOR.full_name == "google.protobuf.Duration":  # of one of zero no field is listed
            return {"seconds": value.seconds, "nanos": value.nanos}
        return {field.name: _plain(item, depth + 1) for field, item in value.ListFields()}
    if hasattr(value, "items"):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (str, bytes, int, float)):
        return value
    return [_plain(item, depth + 1) for item in value[:_MOST_ITEMS]]


def _messages(text: str) -> list[dict[str, Any]] | None:
    """Read messages in protobuf's text format, with commas between them; None if it is anything else."""
    found: list[dict[str, Any]] = []
    open_messages: list[dict[str, Any]] = [{}]
    name, has_colon = "", False
    at = 0
    pattern = re.compile(_WORD)
    while at < len(text):
        token = pattern.match(text, at)
        if token is None:
            return None
        at, word = token.end(), token[1]
        if word == "{" and name and len(open_messages) <= _DEEPEST:
            inner: dict[str, Any] = {}
            open_messages[-1].setdefault(name, []).append(inner)
            open_messages.append(inner)
            name, has_colon = "", False
        elif word == "}" and not name and len(open_messages) > 1:
            open_messages.pop()
        elif word == "," and not name and len(open_messages) == 1:
            found.append(open_messages[0])
            open_messages = [{}]
        elif word == ":" and name and not has_colon:
            has_colon = True
        elif has_colon and word not in "[]{}:,":
            open_messages[-1].setdefault(name, []).append(_scalar(word))
            name, has_colon = "", False
        elif not name and (word[0].isalpha() or word[0] == "_"):
            name = word
        else:
            return None
    found.append(open_messages[0])
    is_whole = not name and len(open_messages) == 1 and all(message.keys() <= _FIELDS for message in found)
    return [_settled(message) for message in found if message] if is_whole else None


def _scalar(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL) if word[0] == '"' else word


def _settled(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in which every field still holds a list with lists only where the field is repeated."""
    settled: dict[str, Any] = {}
    for name, values in message.items():
        items = [_settled(value) if isinstance(value, dict) else value for value in values]
        if name in _MAPS:
            settled[name] = {item.get("key"): item.get("value") for item in items if isinstance(item, dict)}
        else:
            settled[name] = items if name in _REPEATED else items[-1]
    return settled
