"""The error of a server that an exception carries: of Google's SDKs, of gRPC, of HTTP clients and what builds on them.

Their classes are known by package and name; nothing of theirs is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from parked.evidence import CANONICAL_STATUSES, embedded_error
from parked.protobuf import as_mapping, details_in_text
from parked.scrub import is_outside_quotes

# Every exception of these packages that has an HTTP status stands for an answer with it.
#   https://github.com/openai/openai-python#handling-errors
#   https://docs.litellm.ai/docs/exception_mapping
#   https://ai.pydantic.dev/api/exceptions/
#   https://googleapis.github.io/google-api-python-client/docs/epy/googleapiclient.errors-module.html
#   https://googleapis.dev/python/google-resumable-media/latest/resumable_media/common.html
CLIENT_PACKAGES: Final = ("openai", "litellm", "pydantic_ai", "googleapiclient", "google.resumable_media")
# These tell in their own text of the error that they were raised for.
#   https://github.com/langchain-ai/langchain-google/issues/1351
#   https://github.com/567-labs/instructor/issues/2232
RETELLERS: Final = (
    "langchain_google_genai.ChatGoogleGenerativeAIError",
    "langchain_google_genai.GoogleGenerativeAIError",
    "instructor.InstructorRetryException",
)

_MESSAGE_CHARS: Final = 8_000
_TOLD_WITHIN_CHARS: Final = 240
_SDK: Final = frozenset({"google.genai.APIError", "google.genai.ClientError", "google.genai.ServerError"})
_GRPC: Final = frozenset({
    "grpc.RpcError", "grpc.AioRpcError", "grpc._InactiveRpcError", "grpc._MultiThreadedRendezvous",
})  # fmt: skip
_HTTP_CLIENTS: Final = frozenset({"httpx.HTTPStatusError", "requests.HTTPError"})
_STATUS_IN_ITSELF: Final = frozenset({"aiohttp.ClientResponseError", "urllib.HTTPError"})
_RPC_TEXT: Final = r"(?s)\bstatus = StatusCode\.([A-Z_]+)\s+details = \"(.*?)\"\s*(?:debug_error_string|>|$)"
_PLUGIN: Final = r"(?i)(?:503 )?getting metadata from plugin failed with error: "
_TOLD: Final = r"(?:^|[:(]\s{0,20}|>\n\s{0,20})([45]\d\d) (?=[A-Z*\[{])"
_STATUS_NAME: Final = r"[A-Z][A-Za-z_ ]{1,40}\. (?=[\[{])"


class Carried(NamedTuple):
    """An error as an exception carries it."""

    status: int | None  # HTTP; None where only the body says
    body: Any  # as `evidence_of` takes it
    message: str
    headers: Mapping[str, str] | None = None

    @property
    def token_fault(self) -> str:
        """What google.auth said where gRPC failed for want of a token; else empty.

        Source: https://github.com/googleapis/google-cloud-python/issues/10424
        """
        said = re.match(_PLUGIN, self.message)
        return self.message[said.end() :] if said is not None else ""


def class_names(cls: type) -> tuple[str, ...]:
    """Return `package.Class` along the hierarchy, the class itself first; of `google` two parts, httpx2 as httpx."""
    names = []
    for base in cls.__mro__:
        module = str(base.__module__).split(".")
        package = module[0].rstrip("2") if module[0] in ("httpx2", "httpcore2") else module[0]
        if package == "google" and len(module) > 1:
            package = f"google.{module[1]}"
        names.append(f"{package.lstrip('_')}.{base.__name__}")
    return tuple(names)


def exception_text(exc: Any) -> str:
    """Return what an exception says of itself, at most 8,000 characters; nothing of a class."""
    return "" if isinstance(exc, type) else str(exc)[:_MESSAGE_CHARS]


def carried_error(exc: Any, names: tuple[str, ...]) -> Carried | None:
    """Return the error that an exception carries; None if it carries none. `names` is of `class_names`."""
    if isinstance(exc, type):
        return None
    known = set(names)
    if known & _SDK:
        return _of_sdk(exc)
    if "google.api_core.GoogleAPICallError" in known:
        return _of_api_core(exc)
    if known & _GRPC:
        return _of_grpc(exc)
    if "parked.ApiError" in known:
        return Carried(getattr(exc, "status_code", None), _message(exc), "")
    if known & _STATUS_IN_ITSELF and "aiohttp.ClientHttpProxyError" not in known:
        return _of_itself(exc)
    packages = {name.rpartition(".")[0] for name in names}
    return _of_client(exc) if known & _HTTP_CLIENTS or not packages.isdisjoint(CLIENT_PACKAGES) else None


def retold_error(exc: Any, names: tuple[str, ...]) -> Carried | None:
    """Return the error of which one of `RETELLERS` tells at the beginning of its text; None if it doesn't."""
    if set(RETELLERS).isdisjoint(names):
        return None
    text = exception_text(exc)
    said = re.search(_TOLD, text[:_TOLD_WITHIN_CHARS])
    if said is None or not is_outside_quotes(text, said.start(1)):
        return None
    rest = text[said.end() :]
    named = re.match(_STATUS_NAME, rest)
    body = _literal(rest[named.end() :]) if named is not None else None
    if body is None:
        message, details = details_in_text(rest)
        body = {"message": message, "details": details}
    return Carried(int(said[1]), body, rest)


def _of_sdk(exc: Any) -> Carried:
    message = _message(exc)
    headers = _headers(getattr(exc, "response", None))
    return Carried(getattr(exc, "code", None), getattr(exc, "details", None) or {"message": message}, message, headers)


def _of_api_core(exc: Any) -> Carried | None:
    if not getattr(exc, "code", None):
        return None
    message = str(getattr(exc, "message", ""))
    details = [fields for item in getattr(exc, "details", None) or () if (fields := as_mapping(item)) is not None]
    reason, metadata = getattr(exc, "reason", None), getattr(exc, "metadata", None)
    if isinstance(reason, str) and not any("reason" in fields for fields in details):
        details.append({"reason": reason, "metadata": as_mapping(metadata) or {}})
    if not details:
        message, details = details_in_text(message)
    body = {"message": message, "details": details, "errors": getattr(exc, "errors", None)}
    return Carried(int(exc.code), body, message, _headers(getattr(exc, "response", None)))


def _of_grpc(exc: Any) -> Carried | None:
    printed = re.search(_RPC_TEXT, exception_text(exc))
    name = getattr(_called(exc, "code"), "name", None) or (printed[1] if printed is not None else None)
    message = _called(exc, "details")
    if not isinstance(message, str):
        message = printed[2] if printed is not None else ""
    if name not in CANONICAL_STATUSES:
        return None
    message, details = details_in_text(message[:_MESSAGE_CHARS])
    return Carried(None, {"status": name, "message": message, "details": details}, message)


def _of_itself(exc: Any) -> Carried | None:
    status = _status(getattr(exc, "status", None))
    message = _message(exc)
    return Carried(status, message, message, _headers(exc)) if status is not None else None


def _of_client(exc: Any) -> Carried | None:
    response = getattr(exc, "response", None)
    if response is None:
        response = getattr(exc, "resp", None)
    text = exception_text(exc)
    sources = ((exc, "status_code"), (response, "status_code"), (response, "status"))
    status = next((code for source, name in sources if (code := _status(getattr(source, name, None)))), None)
    told = embedded_error(text)
    if status is None:  # known from a text alone
        return Carried(None, told, text) if told is not None and text.startswith("litellm.") else None
    body = getattr(exc, "body", None) or getattr(exc, "content", None) or _body_text(response)
    if not body:
        # An error object of another status is one that the text quotes.
        inner = told["error"] if told is not None else None
        is_same = isinstance(inner, Mapping) and _status(inner.get("code")) in (None, status)
        body = told if is_same else {"message": text}
    return Carried(status, body, text, _headers(response))


def _message(exc: Any) -> str:
    return str(getattr(exc, "message", None) or exception_text(exc))


def _body_text(response: Any) -> str:
    try:
        text = getattr(response, "text", None)
    except (RuntimeError, TypeError):  # a stream of httpx or requests that was not read, or was read before
        return ""
    return text.strip() if isinstance(text, str) else ""


def _status(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599 else None


def _called(exc: Any, name: str) -> Any:
    method = getattr(exc, name, None)
    return method() if callable(method) else None


def _headers(response: Any) -> Mapping[str, str] | None:
    headers = getattr(response, "headers", None)
    if headers is None and isinstance(response, Mapping):  # httplib2's response is the mapping of its headers
        return response
    return headers if hasattr(headers, "items") else None


def _literal(text: str) -> Any:
    """Return the mapping that Python printed at the beginning of a text; None if there is none."""
    import ast

    for candidate in (text, text.partition("\n")[0]):
        try:
            value = ast.literal_eval(candidate.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return value if isinstance(value, (Mapping, list)) else None
    return None
