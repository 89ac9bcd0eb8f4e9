"""What can be seen of the API key without showing it or asking anybody."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from parked.errors import SettingsError
from parked.settings import secret_in_file

GEMINI: Final = "GEMINI_API_KEY"
IN_A_FILE: Final = f"{GEMINI}_FILE"
GOOGLE: Final = "GOOGLE_API_KEY"  # the SDK prefers this one
VERTEX: Final = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"

_LINE_BREAK: Final = "has a line break in it"
_STRANGE: Final = "has characters in it that no key has"
_UNSENDABLE: Final = frozenset({_LINE_BREAK, _STRANGE})  # the rest is for the API to refuse


class Seen(NamedTuple):
    variable: str | None  # that names it; None: there is none
    fault: str = ""  # what is wrong with it, of its form
    differs: bool = False  # both variables are set, and not to the same
    vertex: bool = False
    credentials_missing: str = ""  # a file that is named and isn't there
    beside_file: str = ""  # a variable that is set besides the file: then no client is made


def in_a_file(env: Mapping[str, str] | None = None) -> str | None:
    """Return the key in the file that is named; None if none is. The SDK reads none by itself.

    Raises:
        SettingsError: the file can't be read or is empty, or a key is set in a variable, too.
    """
    env = os.environ if env is None else env
    if not (path := env.get(IN_A_FILE)):  # empty: an overlay takes back what its base has set
        return None
    if name := _beside_file(env):
        raise SettingsError(f"{name} and {IN_A_FILE} are both set; keep one of them")
    return secret_in_file(GEMINI, path)


def look(env: Mapping[str, str] | None = None) -> Seen:
    env = os.environ if env is None else env
    variable = next((name for name in (GOOGLE, GEMINI, IN_A_FILE) if env.get(name)), None)
    credentials = env.get(CREDENTIALS, "")
    return Seen(
        variable,
        _fault(variable, env[variable]) if variable else "",
        differs=bool(env.get(GOOGLE) and env.get(GEMINI)) and env.get(GOOGLE) != env.get(GEMINI),
        vertex=any(env.get(name, "").lower() in ("true", "1") for name in VERTEX),
        credentials_missing=credentials if credentials and not Path(credentials).is_file() else "",
        beside_file=_beside_file(env),
    )


def _beside_file(env: Mapping[str, str]) -> str:
    return next((name for name in (GEMINI, GOOGLE) if env.get(name)), "") if env.get(IN_A_FILE) else ""


def _fault(variable: str, value: str) -> str:
    if variable != IN_A_FILE:
        return fault_of(value)
    try:
        return fault_of(secret_in_file(GEMINI, value))
    except SettingsError:
        return "names no file that holds a key and can be read"


def check() -> None:
    """For who is about to call: refuse a key that no request can carry, before a job is taken on.

    Raises:
        SettingsError: it holds a line break, or what is no text of a header.
    """
    found = look()
    if found.fault in _UNSENDABLE and not found.vertex:
        raise SettingsError(f"{found.variable} {found.fault}; {remedy(found.variable)}")


def remedy(variable: str | None) -> str:
    if variable == IN_A_FILE:
        return "write the key, and nothing else, into a file that this user may read, and name it by its whole path"
    return "set it again, with nothing but the key"


def fault_of(key: str) -> str:
    """Say what a header or the API would refuse of it; empty if nothing. The SDK takes off white space around it."""
    key = key.strip()
    if not key:
        return "holds nothing but white space"
    if "\n" in key or "\r" in key:
        return _LINE_BREAK
    if any(character.isspace() for character in key):
        return "has white space in it"
    if key[0] in "\"'" or key[-1] in "\"'":
        return "has quotation marks around it"
    if not key.isascii() or not key.isprintable():
        return _STRANGE
    return ""
