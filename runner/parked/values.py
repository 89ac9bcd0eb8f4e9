"""How values are written in flags and variables: for each kind, what reads the text and the rule in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from parked.verdict import Disposition


class Form(NamedTuple):
    """How one kind of value is written."""

    read: Callable[[str], Any]  # text without surrounding space -> value; ValueError if it breaks the rule
    rule: str  # to be read after `must be`


class Broken(ValueError):
    """The text says which part of a value breaks its rule, and quotes nothing that is secret."""


class Address(NamedTuple):
    """Where a server listens. Written `host:port`, an IPv6 host in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_SECONDS_PER_UNIT: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# Patterns are kept as text: hardly any is needed in a process, and compiling one costs more than most imports here.
_DURATION: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])"
# Thirty years, to be told at once: the timers of threads and event loops overflow some way above it.
MAX_SECONDS: Final = 1_000_000_000

_FUNCTION: Final = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*"
_ERROR_CLASS: Final = rf"({'|'.join(Disposition)}):(\*|[a-z0-9_]+)"
_FERNET_KEY: Final = r"[A-Za-z0-9_-]{43}="  # 32 bytes in URL-safe base64

# A token guards job data against everybody who reaches the port: too long to be guessed over HTTP, even as plain hex.
_MIN_TOKEN_CHARS: Final = 16


def parse_duration_s(text: str) -> float:
    """Return a length of time in seconds: `45s`, `30m`, `2h`, `3d`, fractions allowed.

    Raises:
        ValueError: anything else, or no time at all.
    """
    match = re.fullmatch(_DURATION, text)
    length_s = float(match[1]) * _SECONDS_PER_UNIT[match[2]] if match else 0.0
    if not length_s:
        raise ValueError(f"{text!r} is not a length of time such as 45s, 30m, 2h or 3d")
    return length_s


def whole_number(*, at_least: int) -> Form:
    def read(text: str) -> int:
        number = int(text)
        if number < at_least:
            raise ValueError(text)
        return number

    return Form(read, f"a whole number from {at_least}")


def seconds(*, zero: bool) -> Form:
    """A plain number of seconds; `zero` says whether 0 is one."""

    def read(text: str) -> float:
        length_s = float(text)
        if not 0 <= length_s <= MAX_SECONDS or (length_s == 0 and not zero):  # also false for NaN
            raise ValueError(text)
        return length_s

    return Form(read, f"a number of seconds {'from 0' if zero else 'above 0'} to {MAX_SECONDS:,}")


def one_of(choices: type[StrEnum]) -> Form:
    return Form(lambda text: choices(text.lower()), f"one of {', '.join(choices)}")


def spelled(spellings: Mapping[str, object], rule: str) -> Form:
    """A few values, each with its spellings."""

    def read(text: str) -> object:
        if text.lower() not in spellings:
            raise ValueError(text)
        return spellings[text.lower()]

    return Form(read, rule)


def or_off(form: Form) -> Form:
    """The form, or `off`, which is read as None."""
    return Form(lambda text: None if text.lower() == "off" else form.read(text), f"{form.rule}, or off")


def _address(text: str) -> Address:
    match = re.fullmatch(r"(?:\[([^\s\[\]]*:[^\s\[\]]*)\]|([^\s\[\]:/]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(text)
    return Address(match[1] or match[2], int(match[3]))


def _web_address(text: str) -> str:
    return _matching(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", text).rstrip("/")


def _fernet_keys(text: str) -> tuple[str, ...]:
    return tuple(_matching(_FERNET_KEY, key) for key in re.split(r"\s*[,\s]\s*", text))


def _notification_urls(text: str) -> tuple[str, ...]:
    urls = tuple(text.split())
    if not urls or not all(re.match(r"[a-z][a-z0-9+.-]*://.", url, re.IGNORECASE) for url in urls):
        raise ValueError
    return urls


def _error_classes(text: str) -> tuple[str, ...]:
    return tuple(_matching(_ERROR_CLASS, part.strip()) for part in text.split(","))


def _intervals(text: str) -> Mapping[str, float]:
    intervals_s: dict[str, float] = {}
    for part in text.split(","):
        pipeline, _, interval = (piece.strip() for piece in part.rpartition("="))
        if not pipeline or pipeline in intervals_s:
            raise ValueError(text)
        intervals_s[pipeline] = parse_duration_s(interval)
    return intervals_s


def _cron(text: str) -> str:
    from parked import cron  # only the sidecar has a schedule

    try:
        cron.parse(text)
    except ValueError as exc:
        raise Broken(str(exc)) from None
    return text


def _time_zone(text: str) -> str:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # as above

    try:
        return ZoneInfo(text).key
    except (ZoneInfoNotFoundError, OSError) as exc:  # OSError: the name of a folder of zones, such as `Europe`
        raise ValueError(text) from exc


def _matching(pattern: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError
    return text


LEDGER: Final = Form(lambda text: _matching(r"[a-z][a-z0-9+]*://.+", text), "a URL such as sqlite:///parked.db")
YES_OR_NO: Final = spelled(
    {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}, "true or false"
)
FILE_MODE: Final = spelled(
    # Whoever reads a SQLite ledger has to be able to write it, and nobody else may do either: there is no third mode.
    {"0600": 0o600, "600": 0o600, "0o600": 0o600, "0660": 0o660, "660": 0o660, "0o660": 0o660},
    "0600 (one user) or 0660 (one user and one group)",
)
ADDRESS: Final = Form(_address, "host:port, such as 127.0.0.1:9465 or [::1]:9465")
WEB_ADDRESS: Final = Form(_web_address, "a web address such as https://parked.example.com")
TOKEN: Final = Form(
    lambda text: _matching(rf"[!-~]{{{_MIN_TOKEN_CHARS},}}", text),
    f"at least {_MIN_TOKEN_CHARS} visible ASCII characters without a space",
)
FERNET_KEYS: Final = Form(_fernet_keys, "Fernet keys (44 characters of URL-safe base64), separated by commas or lines")
NOTIFICATION_URLS: Final = Form(_notification_urls, "one or more notification URLs, separated by spaces")
ERROR_CLASSES: Final = Form(_error_classes, "error classes such as exhausted:* or exhausted:429, separated by commas")
INTERVALS: Final = Form(
    _intervals, "pipelines with an interval each, such as captions=30m or *=2h, separated by commas"
)
DURATION: Final = Form(parse_duration_s, "a length of time such as 45s, 30m, 2h or 3d")
CRON: Final = Form(_cron, "five cron fields (minute, hour, day of month, month, day of week) of a time that comes")
TIME_ZONE: Final = Form(_time_zone, "a time zone such as UTC or Europe/Berlin")
FUNCTION: Final = Form(lambda text: _matching(_FUNCTION, text), "module:function, such as captions.calls:ask")
