"""Bodies: payloads and answers as bytes. JSON in ASCII: NUL, lone surrogates and big integers come back whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from parked.errors import InvalidJob

PLAIN = "json"  # JSON in ASCII, as it is
TEXT = "text"  # an answer that JSON can't hold: its text, JSON-encoded
ERASED = "erased"  # removed for good by a person; nothing is left to decode

_AS_IT_IS: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_SORTED: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), sort_keys=True)


class Body(NamedTuple):
    codec: str
    key_id: str | None  # which key it was encrypted with; None if it is not
    data: bytes


NOTHING: Final = Body(ERASED, None, b"")


def encode(value: Any) -> Body:
    """Return a JSON value as bytes.

    Raises:
        InvalidJob: NaN, infinity, a key that isn't text, a cycle, or a type that JSON doesn't have.
    """
    try:
        data = _AS_IT_IS.encode(value).encode("ascii")
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidJob(f"not a JSON value: {_why(exc)}") from exc
    _check_keys(value)  # afterwards: by now it is known to end
    return Body(PLAIN, None, data)


def encode_answer(value: Any) -> Body:
    """Return an answer as bytes, whatever it is: nothing that was paid for is dropped.

    An object that JSON can't hold is asked for `model_dump(mode="json")` or `to_dict()`; else its text is stored.
    """
    ways: tuple[Callable[[], Any], ...] = (
        lambda: value,
        lambda: value.model_dump(mode="json"),
        lambda: value.to_dict(),
    )
    for way in ways:
        try:
            return encode(way())
        except Exception:  # noqa: BLE001 - a foreign object may raise anything here, and its answer must not be lost
            continue
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - as above
        text = f"<{type(value).__name__}>"
    return Body(TEXT, None, json.dumps(text).encode("ascii"))


def decode(body: Body) -> Any:
    """Return the JSON value of a body (for the codec `text`: the text).

    Raises:
        ValueError: it was erased, or stored by a newer parked.
    """
    if body.codec == ERASED:
        raise ValueError("this body was erased for good")
    if body.codec not in (PLAIN, TEXT):
        raise ValueError(f"this version of parked can't read bodies stored as {body.codec!r}")
    return json.loads(body.data)


def identity(value: Any) -> bytes:
    """Return the hash by which two payloads are the same: SHA-256 of the JSON with sorted keys."""
    return hashlib.sha256(_SORTED.encode(value).encode()).digest()


def _check_keys(value: Any) -> None:
    """Refuse keys that aren't text: `json` would turn 1 and True into text, and they would not come back."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise InvalidJob(f"not a JSON value: the key {key!r} is not text")
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)


def _why(exc: BaseException) -> str:
    if isinstance(exc, RecursionError):
        return "nested too deeply"
    return str(exc)
