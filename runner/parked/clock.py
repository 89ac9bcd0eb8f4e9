"""Times as people write and read them. Inside, a time is UTC epoch seconds; outside, it always says that it is UTC."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

from parked.errors import SettingsError
from parked.values import parse_duration_s


def moment(text: str, *, now: float) -> float:
    """Return the epoch seconds of a text: `2h` or `3d` before `now`, or ISO 8601 (UTC where it names no zone).

    What lies before 1970 is 0.

    Raises:
        SettingsError: it is neither.
    """
    text = text.strip()
    with suppress(ValueError):
        return max(0.0, now - parse_duration_s(text))
    try:
        at = datetime.fromisoformat(text)
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        rule = "must be longer than 0, like" if re.fullmatch(r"[0.]+[smhd]", text) else "must be like"
        raise SettingsError(f"{rule} 2h, 3d or 2026-03-02T02:00Z, got {text!r}") from None


def from_now_s(text: str, *, now: float, what: str) -> float:
    """Return how many seconds lie before a text: `6h` or `30m`, or a time in ISO 8601 (UTC where it names no zone).

    Raises:
        SettingsError: it is neither, or has passed; `what` is named.
    """
    text = text.strip()
    with suppress(ValueError):
        return parse_duration_s(text)
    try:
        at = datetime.fromisoformat(text)
        left_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        raise SettingsError(f"{what} must be like 6h or 2026-03-02T12:00Z, got {text!r}") from None
    if left_s <= 0:
        raise SettingsError(f"{what} must lie ahead, got {text!r}")
    return left_s


def day_text(at: float) -> str:
    """The UTC day: `2026-03-02`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def minute_text(at: float) -> str:
    """For tables: `2026-03-02 02:07Z`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%MZ}"


def second_text(at: float) -> str:
    """Where the order within a minute matters: `2026-03-02 02:07:31Z`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"


def iso_text(at: float | None) -> str | None:
    """For JSON: `2026-03-02T02:07:31.250Z`; None if it never happened."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span_text(length_s: float) -> str:
    """A length in its largest whole unit: `40 s`, `12 min`, `5 h`, `3 days`."""
    if length_s < 100:
        return f"{max(0, int(length_s))} s"
    if length_s < 100 * 60:
        return f"{int(length_s // 60)} min"
    if length_s < 48 * 3600:
        return f"{int(length_s // 3600)} h"
    return f"{int(length_s // 86400)} days"
