"""Bodies: payloads and answers as bytes. JSON in ASCII: NUL, lone surrogates and big integers come back whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container
from enum import StrEnum
from typing import Any, Final, NamedTuple

from parked.errors import InvalidJob, LedgerUnavailable, TextDamaged, TextMissing

PLAIN = "json"  # JSON in ASCII, as it is
TEXT = "text"  # an answer that JSON can't hold: its text, JSON-encoded
MESSAGE = "message"  # the message of an attempt where it goes as a body: in UTF-8
SEALED = "fernet:"  # begins the codec of a body that is encrypted; the codec of what is in it follows
OMITTED = "omitted"  # never stored: whoever handed it in has it
ERASED = "erased"  # removed for good by a person; nothing is left to decode

# Half of what Python's own limit lets `json` do: who reads a body back may stand deeper in the stack than who wrote it.
MAX_DEPTH: Final = 500

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
# How surrogates stand in JSON, and whatever is written with two of them: a pair may come back as one character.
_ESCAPED_SURROGATE: Final = b"\\ud"
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels"
_AS_IT_IS: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_SORTED: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), sort_keys=True)


class TextKind(StrEnum):
    """What a text of a ledger is."""

    PAYLOADS = "payloads"
    ANSWERS = "answers"
    MESSAGES = "messages"  # of attempts


class Body(NamedTuple):
    codec: str
    key_id: str | None  # which key it was encrypted with; None if it is not
    data: bytes


class Kept(NamedTuple):
    """An answer as it is kept."""

    body: Body
    value: Any  # what `decode` makes of the body


NOTHING: Final = Body(ERASED, None, b"")
NOT_KEPT: Final = Body(OMITTED, None, b"")
NOT_STORED: Final = "not stored, since PARKED_STORE=none"  # is said of such a text


def encode(value: Any) -> Body:
    """Return a JSON value as bytes.

    Raises:
        InvalidJob: NaN, infinity, a key that isn't text, a cycle, a type that JSON doesn't have, or what wouldn't come
            back as it is: nested deeper than 500 levels, an integer beyond Python's limit of 4,300 digits, or two
            surrogates that JSON makes one character of.
    """
    data, _ = _encoded(value)
    if _ESCAPED_SURROGATE in data:
        _check_pairs(value)
    return Body(PLAIN, None, data)


def _encoded(value: Any) -> tuple[bytes, bool]:
    """Return a value as JSON, and whether it is one of nothing but JSON's own types."""
    try:
        data = _AS_IT_IS.encode(value).encode("ascii")
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidJob(f"not a JSON value: {_why(exc)}") from exc
    return data, _is_plain(value)  # afterwards: by now it is known to end


def encode_answer(value: Any) -> Body:
    """Return an answer as bytes, as `keep` does."""
    return keep(value).body


def keep(value: Any) -> Kept:
    """Return how an answer is kept, whatever it is: nothing that was paid for is dropped.

    An object that JSON can't hold is asked for `model_dump(mode="json")` or `to_dict()`; else its text is stored.
    """
    ways: tuple[Callable[[], Any], ...] = (
        lambda: value,
        lambda: value.model_dump(mode="json"),
        lambda: value.to_dict(),
    )
    for way in ways:
        try:
            found = way()
            data, is_plain = _encoded(found)
            if not is_plain or _ESCAPED_SURROGATE in data:
                found = json.loads(data)
            return Kept(Body(PLAIN, None, data), found)
        except Exception:  # noqa: BLE001 - a foreign object may raise anything here, and its answer must not be lost
            continue
    try:
        text = str(value)
    except RecursionError:
        text = _deep_text(value)
    except Exception:  # noqa: BLE001 - as above
        text = f"<{type(value).__name__}>"
    data = json.dumps(text).encode("ascii")
    return Kept(Body(TEXT, None, data), json.loads(data))


def decode(body: Body) -> Any:
    """Return the JSON value of a body (for the codec `text`: the text).

    Raises:
        TextMissing: it was never stored; or it is encrypted, and the reader that gave it out hasn't got the key.
        TextDamaged: it isn't what was stored.
        LedgerUnavailable: it was stored by a newer parked.
        ValueError: it was erased.
    """
    if body.codec == ERASED:
        raise ValueError("this body was erased for good")
    if (why := why_unreadable(body.codec, body.key_id)) is not None:
        raise TextMissing(why)
    if body.codec not in (PLAIN, TEXT):
        raise LedgerUnavailable(f"this version of parked can't read bodies stored as {body.codec!r}; upgrade it")
    try:
        return json.loads(body.data)
    except ValueError:  # its text may quote the body
        raise TextDamaged from None


def why_unreadable(codec: str, key_id: str | None, *, known_keys: Container[str] = ()) -> str | None:
    """Why a body can't be read by whoever has these keys; None if it can."""
    if codec == OMITTED:
        return NOT_STORED
    if codec.startswith(SEALED) and key_id not in known_keys:
        return f"encrypted with the key {key_id}, which is none of PARKED_STORE_KEYS; add it there, behind the first"
    return None


def identity(value: Any) -> bytes:
    """Return the hash by which two payloads are the same: SHA-256 of the JSON with sorted keys."""
    return hashlib.sha256(_SORTED.encode(value).encode()).digest()


def _is_plain(value: Any) -> bool:
    """Whether a value that JSON takes comes back of the same types: a tuple, an enum or another subclass doesn't.

    Refuses keys that aren't text (`json` would turn 1 and True into text, and they would not come back) and depth.
    """
    is_plain = True
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind in _LEAVES:
                continue
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        raise InvalidJob(f"not a JSON value: the key {key!r} is not text")
                    is_plain = is_plain and type(key) is str
                below.extend(item.values())
            elif isinstance(item, (list, tuple)):
                below.extend(item)
            is_plain = is_plain and (kind is dict or kind is list)
        level, depth = below, depth + 1
        if depth > MAX_DEPTH + 1:
            raise InvalidJob(f"not a JSON value: {_TOO_DEEP}")
    return is_plain


def _check_pairs(value: Any) -> None:
    """Refuse a high surrogate with a low one behind it: escaped side by side, JSON reads them as one character."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            pair = re.search("[\ud800-\udbff][\udc00-\udfff]", item)
            if pair is not None:
                high, low = map(ord, pair[0])
                raise InvalidJob(
                    f"the surrogates U+{high:04X} U+{low:04X} stand for one character, and would come back as one;"
                    ' decode the text with .encode("utf-16", "surrogatepass").decode("utf-16")'
                )
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)


def _deep_text(value: Any) -> str:
    """Write out what is nested too deeply for `str`, as JSON where that has the values."""
    written: list[str] = []
    waiting: list[Any] = [value]
    open_here: set[int] = set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, _Written):
            written.append(item.text)
            open_here.discard(item.closes)
        elif isinstance(item, (dict, list, tuple)) and id(item) not in open_here:
            open_here.add(id(item))
            first, last = "{}" if isinstance(item, dict) else "[]"
            parts: list[Any] = [_Written(first)]
            for number, each in enumerate(item):
                if number:
                    parts.append(_Written(", "))
                parts += [each, _Written(": "), item[each]] if isinstance(item, dict) else [each]
            waiting.extend(reversed([*parts, _Written(last, id(item))]))
        else:
            written.append(_leaf_text(item))
    return "".join(written)


class _Written(NamedTuple):
    text: str
    closes: int = 0  # the id of the value that ends here


def _leaf_text(item: Any) -> str:
    if item is None or isinstance(item, (str, int, float)):
        return json.dumps(item)
    return f"<{type(item).__name__}>"


def _why(exc: BaseException) -> str:
    if isinstance(exc, RecursionError):
        return _TOO_DEEP
    return str(exc)
