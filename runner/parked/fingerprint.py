"""A short hash of what two failures have in common, so that 4,812 parked jobs read as three causes.

Stable across processes and releases: a plain SHA-256 of words, and no word is taken from this code but the rule's name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from parked.scrub import unquoted

FINGERPRINT_CHARS: Final = 12
_MESSAGE_CHARS: Final = 500

# What differs from job to job within one cause, in the order in which it is taken out.
_VARYING: Final = (
    r"\S*\[removed\]\S*",
    r"\b[a-z][a-z0-9+.-]{1,20}://\S+",
    r"\b(?:projects?|models|files|locations|consumer|project_number|cachedcontents|batches)[/:]\S+",
    r"\b(?:mon|tue|wed|thu|fri|sat|sun), \d\d \w{3} \d{4} [\d:]{8} gmt\b",
)
_WORD: Final = r"[\w./:+-]+"


def fingerprint(
    *, rule: str, reason: str, status: int | None, quota_id: str | None, finish_reason: str | None, message: str
) -> str:
    """Return 12 hex digits. `message` counts without numbers, ids, hashes, durations, URLs, quotes and timestamps."""
    facts = (rule, reason, str(status or ""), quota_id or "", finish_reason or "", _essence(message))
    return hashlib.sha256("\x1f".join(facts).encode("utf-8", "replace")).hexdigest()[:FINGERPRINT_CHARS]


def _essence(message: str) -> str:
    text = unquoted(message.lower())
    for pattern in _VARYING:
        text = re.sub(pattern, " ", text)
    # A word with a digit is a number, a duration, a timestamp, a hash or an id; so is a UUID, as it always holds one.
    words = (word.strip("./:+-_") for word in re.findall(_WORD, text) if not any(c.isdigit() for c in word))
    return " ".join(word for word in words if word)[:_MESSAGE_CHARS]
