"""How long the API asks us to wait, in seconds. Negative, absurd and unreadable values are no answer; zero is one."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

# The longest window of Gemini's quotas is a day. What is longer is a fault of the server, and no job waits for it.
MAX_DELAY_S: Final = 86_400.0

_DURATION: Final = r"\+?(\d{1,12}(?:\.\d{1,9})?)s"
_SECONDS: Final = r"\d{1,12}(?:\.\d{1,9})?"
_SENTENCE: Final = (
    r"(?i)\b(?:retry|try again|reset)\s+(?:in|after):?\s+"
    r"((?:\d{1,9}(?:\.\d{1,12})?\s?(?:h(?:ours?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?|ms)\b\s?|"
    r"\d{1,9}(?:\.\d{1,12})?(?:h|ms?|s)(?=\d))+)"
)
_PIECE: Final = r"(?i)(\d+(?:\.\d+)?)\s?(ms|h|m|s)"
_UNIT_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def asked_delay_s(
    retry_delay: Any, *, headers: Mapping[str, str] | None = None, message: str = "", now: float | None = None
) -> float | None:
    """Return the wait that the server asks for: RetryInfo, else `Retry-After`, else the sentence in the message.

    `retry_delay` is the value in `google.rpc.RetryInfo`. `message` has to come without what it quotes. `now` (epoch
    seconds, default this machine's clock) is what an HTTP date is compared with.
    """
    delay_s = duration_s(retry_delay)
    if delay_s is None:
        delay_s = retry_after_s(headers, now=now)
    if delay_s is None:
        delay_s = sentence_s(message)
    return delay_s


def duration_s(value: Any) -> float | None:
    """Read a protobuf duration: `"34.07s"`, or `{"seconds": 34, "nanos": 70000000}` as some clients decode it.

    Source: google/protobuf/duration.proto, JSON mapping.
    """
    if isinstance(value, str) and (match := re.fullmatch(_DURATION, value.strip())):
        return _sane(float(match[1]))
    if isinstance(value, Mapping) and ("seconds" in value or "nanos" in value):
        try:
            return _sane(int(value.get("seconds") or 0) + int(value.get("nanos") or 0) / 1e9)
        except (ValueError, TypeError, OverflowError):
            return None
    return None


def retry_after_s(headers: Mapping[str, str] | None, *, now: float | None = None) -> float | None:
    """Read `Retry-After`, in any letter case: seconds, or an HTTP date. Source: RFC 9110, section 10.2.3."""
    value = _header(headers, "retry-after").strip()
    if not value:
        return None
    if re.fullmatch(_SECONDS, value):
        return _sane(float(value))
    from email.utils import parsedate_to_datetime

    try:
        at = parsedate_to_datetime(value)
        return _sane(at.timestamp() - (time.time() if now is None else now)) if at.tzinfo else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def sentence_s(message: str) -> float | None:
    """Read "Please retry in 51.6s", "… in 1h2m3.5s", "… in 958.6ms", "… try again in 5 minutes"."""
    match = re.search(_SENTENCE, message)
    if match is None:
        return None
    return _sane(sum(float(number) * _UNIT_S[unit.lower()] for number, unit in re.findall(_PIECE, match[1])))


def next_pacific_midnight(now: float) -> float:
    """Return when the daily quotas start anew, as epoch seconds: the first midnight Pacific time after `now`.

    Where this machine has no time zone data, midnight of UTC-8 is taken: in summer an hour late, never early.
    Source: https://ai.google.dev/gemini-api/docs/rate-limits
    """
    from datetime import datetime, timedelta, timezone, tzinfo
    from datetime import time as time_of_day
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    pacific: tzinfo
    try:
        pacific = ZoneInfo("America/Los_Angeles")
    except ZoneInfoNotFoundError:
        pacific = timezone(timedelta(hours=-8))
    tomorrow = datetime.fromtimestamp(now, pacific).date() + timedelta(days=1)
    return datetime.combine(tomorrow, time_of_day(), pacific).timestamp()


def _sane(seconds: float) -> float | None:
    return seconds if 0 <= seconds <= MAX_DELAY_S else None


def _header(headers: Mapping[str, str] | None, name: str) -> str:
    if not headers:
        return ""
    for key, value in headers.items():
        if isinstance(key, str) and key.lower() == name:
            return str(value)
    return ""
