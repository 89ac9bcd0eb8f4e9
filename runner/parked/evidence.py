"""What an error says: a body as it came over the wire, turned into the facts that the rules look at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from parked.scrub import unquoted

# In the order of the gRPC numbers 1 to 16. Source: google/rpc/code.proto, which also gives the HTTP mapping.
CANONICAL_STATUSES: Final = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
_GRPC_NAMES: Final = tuple(CANONICAL_STATUSES)  # in the order of their numbers, from 1
_MESSAGE_CHARS: Final = 8_000
_EMBEDDED_WITHIN_CHARS: Final = 20_000
# Long text decodes in no time; a million small values take 0.3 s, and no error of the API has them.
_MANY_VALUES: Final = 200_000
_LONG_CHARS: Final = 1_000_000
_EMBEDDED: Final = r"\{\s*\"error\"\s*:"
_CANONICAL_WORD: Final = r"\b(" + "|".join(CANONICAL_STATUSES) + r")\b"
_MARKUP: Final = r"(?is)<(script|style)\b.*?</\1>|<!--.*?-->|<[^<>]{0,500}>"
_NO_NAME: Final = r"[^A-Za-z]+"
_PER_DAY: Final = r"(?i)per[ _-]?day|/d(?:ay)?\b|daily"
_PER_MODEL: Final = r"(?i)per[ _-]?(?:base[ _-]?)?model|base[ _-]model|gemini|gemma|imagen|veo"
# The two sentences in which a server words a violated quota. In them, quotes hold names of quotas, not of a user.
_QUOTA_SENTENCE: Final = (
    r"(?:^|[\n*.])\s*Quota exceeded for (?:quota )?(?:metric:? )?(?P<metric>'[^']*'|[\w./-]+)"
    r"(?P<rest>[^\n]*)"
)
_LIMIT: Final = r"\blimit:? (?:(?P<number>\d+)|'(?P<name>[^']*)')"


class Quota(NamedTuple):
    """One violated limit. `limit` is None where its size isn't said."""

    id: str
    metric: str
    limit: int | None
    per_day: bool
    per_model: bool


class ErrorEvidence(NamedTuple):
    """What is known of one error, before any rule."""

    status: int | None  # what the rules look at: HTTP, else what the gRPC code or name amounts to
    http_status: int | None  # only what came as an HTTP status; it names the error class
    canonical: str  # `error.status` where it is a canonical code, else empty
    infos: tuple[str, ...]  # `ErrorInfo.reason` of all details, and `errors[].reason`
    quotas: tuple[Quota, ...]
    message: str  # as it came, at most 8,000 characters; HTML without its tags
    wording: str  # the same without what it quotes
    retry_delay: Any  # the value in RetryInfo; None if there is none


def evidence_of(body: Any, *, status: int | None = None) -> ErrorEvidence:
    """Read an error body: an object, an array of one, JSON as text, HTML, plain text, or the body's `error` alone.

    `status` is the HTTP status it came with; None where it came without (a row of a batch, an event in a stream).
    """
    error = _error_object(body)
    message = _message(error)
    if (inner := _wrapped(message)) is not None:
        error = {**error, **inner}
        message = _message(error)
    code = error.get("code")
    canonical = _canonical(error.get("status")) or _canonical(code)
    details = tuple(_details(error))
    wording = unquoted(message)
    http_status = _http_status(status) or _http_status(code)
    return ErrorEvidence(
        status=_http_status(code)
        or http_status
        or CANONICAL_STATUSES.get(canonical)
        or _named_status(error.get("status"))
        or _named_status(code)
        or _worded_status(wording),
        http_status=http_status,
        canonical=canonical,
        infos=tuple(_infos(error, details)),
        quotas=_all_quotas(details, message),
        message=message,
        wording=wording,
        retry_delay=next((d["retryDelay"] for d in details if d.get("retryDelay") is not None), None)
        or next((d["retry_delay"] for d in details if d.get("retry_delay") is not None), None),
    )


def embedded_error(text: str) -> Mapping[str, Any] | None:
    """Return the object with an `error` that begins in the first 20,000 characters of `text`; None if none does."""
    match = re.search(_EMBEDDED, text[:_EMBEDDED_WITHIN_CHARS])
    if match is None:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, match.start())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error_object(body: Any) -> Mapping[str, Any]:
    """Return the object with code, status, message and details; plain text becomes its message."""
    if isinstance(body, (bytes, bytearray)):
        body = _decoded(bytes(body))
    if isinstance(body, str):
        text = body.strip()
        parsed = _json_or_none(text) if text[:1] in ("{", "[") else embedded_error(text)
        if parsed is None:
            return {"message": body}
        body = parsed
    if isinstance(body, Sequence) and not isinstance(body, (str, bytes)):
        body = next((item for item in body[:100] if isinstance(item, Mapping)), {"message": json_like(body)})
    if not isinstance(body, Mapping):
        return {} if body is None else {"message": json_like(body)}
    error = body.get("error")
    if isinstance(error, Mapping):
        return error
    if isinstance(error, str) and error:
        # As the token endpoint and some proxies word it: a name, and a description beside it.
        described = body.get("error_description") or body.get("message")
        return {**body, "message": f"{error}: {described}" if described else error}
    return body


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body[: 4 * _MESSAGE_CHARS].decode("utf-8", "replace")


def json_like(value: Any) -> str:
    """Return a short text of a value that is no message, to be shown to people."""
    return repr(value) if isinstance(value, (int, float, bool)) else f"a {type(value).__name__} and no error object"


def _wrapped(message: str) -> Mapping[str, Any] | None:
    """Return the error that a proxy passed on as JSON text in its own message."""
    text = message.lstrip()
    if text[:1] not in ("{", "["):
        return None
    value = _json_or_none(text)
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else None


def _json_or_none(text: str) -> Any:
    if len(text) > _LONG_CHARS and text.count(",") > _MANY_VALUES:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _message(error: Mapping[str, Any]) -> str:
    message = error.get("message")
    if not isinstance(message, str):
        message = error.get("detail") if isinstance(error.get("detail"), str) else ""
    assert isinstance(message, str)
    message = message[: 4 * _MESSAGE_CHARS]
    if message.lstrip()[:1] == "<":
        message = " ".join(re.sub(_MARKUP, " ", message).split())
    return message[:_MESSAGE_CHARS]


def _http_status(code: Any) -> int | None:
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599:
        return int(code)
    return None


def _canonical(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= len(_GRPC_NAMES):
        return _GRPC_NAMES[value - 1]
    if isinstance(value, str):
        name = value.strip().upper()
        return name if name in CANONICAL_STATUSES else ""
    return ""


def _named_status(name: Any) -> int | None:
    """Return the HTTP status of a reason phrase, in any spelling: `Too Many Requests`, `too_many_requests`."""
    if not isinstance(name, str) or not name:
        return None
    from http import HTTPStatus

    phrase = HTTPStatus.__members__.get(re.sub(_NO_NAME, "_", name[:60].strip()).upper())
    return _http_status(phrase)


def _worded_status(wording: str) -> int | None:
    word = re.search(_CANONICAL_WORD, wording[:240])
    return CANONICAL_STATUSES[word[1]] if word else None


def _details(error: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    details = error.get("details")
    if isinstance(details, Sequence) and not isinstance(details, (str, bytes)):
        yield from (detail for detail in details[:100] if isinstance(detail, Mapping))


def _infos(error: Mapping[str, Any], details: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    yield from (d["reason"] for d in details if isinstance(d.get("reason"), str))
    errors = error.get("errors")
    if isinstance(errors, Sequence) and not isinstance(errors, (str, bytes)):
        yield from (e["reason"] for e in errors[:100] if isinstance(e, Mapping) and isinstance(e.get("reason"), str))


def _all_quotas(details: tuple[Mapping[str, Any], ...], message: str) -> tuple[Quota, ...]:
    """Return what the details name; the message only adds what they leave open: the quotas, or that a limit is 0."""
    quotas = tuple(_quotas(details))
    if any(quota.limit is not None for quota in quotas):
        return quotas
    worded = tuple(_worded_quotas(message))
    return quotas + tuple(quota for quota in worded if quota.limit == 0) if quotas else worded


def _quotas(details: tuple[Mapping[str, Any], ...]) -> Iterator[Quota]:
    """Read QuotaFailure violations, and the quota that ErrorInfo names in its metadata."""
    for detail in details:
        violations = detail.get("violations")
        if isinstance(violations, Sequence) and not isinstance(violations, (str, bytes)):
            for violation in violations[:100]:
                if isinstance(violation, Mapping):
                    dimensions = violation.get("quotaDimensions") or violation.get("quota_dimensions")
                    quota = _quota(
                        violation.get("quotaId") or violation.get("quota_id"),
                        violation.get("quotaMetric") or violation.get("quota_metric"),
                        violation.get("quotaValue") or violation.get("quota_value"),
                        names_model=isinstance(dimensions, Mapping) and any("model" in str(key) for key in dimensions),
                    )
                    if quota is not None:
                        yield quota
        metadata = detail.get("metadata")
        if isinstance(metadata, Mapping):
            quota = _quota(
                metadata.get("quota_limit"),
                metadata.get("quota_metric"),
                metadata.get("quota_limit_value"),
                unit=str(metadata.get("quota_unit") or ""),
                names_model=any("model" in str(key) for key in metadata),
            )
            if quota is not None:
                yield quota


def _worded_quotas(message: str) -> Iterator[Quota]:
    """Read the quotas that only the message names, in the API's own two sentences."""
    for sentence in re.finditer(_QUOTA_SENTENCE, message):
        rest = sentence["rest"]
        limit = re.search(_LIMIT, rest)
        quota = _quota(
            limit["name"] if limit else "",
            sentence["metric"].strip("'."),
            limit["number"] if limit else None,
            names_model="model:" in rest or "base model" in rest,
        )
        if quota is not None:
            yield quota


def _quota(id_: Any, metric: Any, limit: Any, *, unit: str = "", names_model: bool = False) -> Quota | None:
    id_ = id_ if isinstance(id_, str) else ""
    metric = metric if isinstance(metric, str) else ""
    if not id_ and not metric:
        return None
    name = id_ or metric
    size = str(limit).strip() if isinstance(limit, (str, int)) and not isinstance(limit, bool) else ""
    return Quota(
        id=id_,
        metric=metric,
        limit=int(size) if size.isdecimal() and len(size) <= 18 else None,
        per_day=re.search(_PER_DAY, f"{name} {unit}") is not None,
        per_model=names_model or re.search(_PER_MODEL, f"{id_} {metric}") is not None,
    )
