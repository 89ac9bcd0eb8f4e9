"""Exceptions with which older SDKs of Google answer for a prompt that was blocked, or an answer that was stopped.

What they name is looked up in the tables for block reasons and finish reasons, like in a response.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from parked.answers import Flaw, listed_flaw, name_of
from parked.rules import BLOCK_RULES, FINISH_RULES, ValueRule


class _Told(NamedTuple):
    """Where the exceptions name a reason."""

    what: str
    table: tuple[ValueRule, ...]
    field: str  # of the message with which the old SDK raises, and of its text
    sentence: str  # the beginning of a line of vertexai
    numbers: tuple[str, ...]  # the names of the numbers that vertexai prints


# The numbers are those of google/cloud/aiplatform/v1/content.proto and prediction_service.proto.
_TOLD: Final = (
    _Told(
        "finish reason",
        FINISH_RULES,
        "finish_reason",
        "Finish reason: ",
        ("FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER", "BLOCKLIST",
         "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL"),
    ),
    _Told(
        "block reason",
        BLOCK_RULES,
        "block_reason",
        "The model response was blocked due to ",
        ("BLOCKED_REASON_UNSPECIFIED", "SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT"),
    ),
)  # fmt: skip
NAMES: Final = (
    "google.generativeai.BlockedPromptException",
    "google.generativeai.StopCandidateException",
    "vertexai.ResponseValidationError",
    "vertexai.ResponseBlockedError",
)


def flaw_of_exception(exc: Any, names: tuple[str, ...], text: str) -> Flaw | None:
    """Return what such an exception says of the answer; None if it is another, or names no reason."""
    if set(NAMES).isdisjoint(names):
        return None
    argument = next(iter(getattr(exc, "args", ())), None)
    for told in _TOLD:
        value = getattr(argument, told.field, None)
        reason = name_of(getattr(value, "name", value)) or _worded(told, text)
        if reason:
            return listed_flaw(told.table, told.what, reason)
    return None


def _worded(told: _Told, text: str) -> str:
    """Return the reason that a line names. Words of an answer stand in the middle of a line, or behind it."""
    said = re.search(rf"(?m)^(?:{told.field}: |{told.sentence})(?:\w+\.)?(\w+)", text)
    if said is None:
        return ""
    number = int(said[1]) if said[1].isdecimal() and len(said[1]) < 3 else len(told.numbers)
    return told.numbers[number] if number < len(told.numbers) else said[1].upper()[:80]
