"""What programs hand to the library, seen at its doors: what is of the wrong kind is named with its rule."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Final

from parked.errors import SettingsError
from parked.values import MAX_SECONDS

_MAX_SHOWN_CHARS: Final = 40


def check_kind(name: str, value: object, kind: type, *, rule: str) -> None:
    """Refuse what is of another type; `rule` is to be read after `must be`.

    Raises:
        SettingsError: as all here, it names the argument, the rule and what came. An object is shown by its type alone.
    """
    if not isinstance(value, kind):
        raise SettingsError(f"{name} must be {rule}, got {_shown(value)}")


def check_function(name: str, value: object, *, rule: str) -> None:
    if not callable(value):
        raise SettingsError(f"{name} must be a function {rule}, got {_shown(value)}")


def check_flag(name: str, value: object) -> None:
    check_kind(name, value, bool, rule="True or False")


def check_whole_number(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < at_least:
        raise SettingsError(f"{name} must be a whole number from {at_least}, got {_shown(value)}")


def check_seconds(name: str, value: object, *, zero: bool) -> None:
    """`zero` says whether 0 is one of the lengths."""
    length_s = float(value) if isinstance(value, Real) and not isinstance(value, bool) else -1.0
    if not 0 <= length_s <= MAX_SECONDS or (length_s == 0 and not zero):  # also false for NaN
        least = "from 0" if zero else "above 0"
        raise SettingsError(f"{name} must be a number of seconds {least} to {MAX_SECONDS:,}, got {_shown(value)}")


def _shown(value: object) -> str:
    if value is None or isinstance(value, (bool, Real)):
        return repr(value)
    if isinstance(value, str) and len(value) <= _MAX_SHOWN_CHARS:
        return repr(value)
    return type(value).__name__
