"""Exceptions that only a text tells of: found in what Python prints, and made anew so that they can be judged.

A stand-in has the module and the name of the class that the text names, and its message. No such class is imported:
whoever pastes a text must not decide what this process runs.
"""

from __future__ import annotations

import ast
import builtins
import re
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from parked.carried import RETELLERS
from parked.evidence import CANONICAL_STATUSES
from parked.rules import CLIENT_RULES, EXCEPTION_RULES
from parked.stopped import NAMES as STOPPED

_TEXT_CHARS: Final = 200_000  # of a traceback the end counts
_MESSAGE_CHARS: Final = 50_000
_MOST_LINES: Final = 40

_NAME: Final = r"[A-Za-z_]\w{0,100}(?:\.[A-Za-z_<][\w<>]{0,100}){0,20}"
_HEADER: Final = r"(?m)^([ \t]{0,200})[^\n]{0,200}?Traceback \(most recent call last\):"
_BETWEEN: Final = (
    r"\n[ \t]{0,200}\n[ \t]{0,200}(?:The above exception was the direct cause|During handling of the above exception)"
)
_GROUP_MARGIN: Final = r"(?m)^ *(?:\+-[^\n]*\n|[|+] ?)"
_LOOKS_RAISED: Final = r"(?:Error|Exception|Timeout|Interrupt|Warning)$|\b(?:exceptions?|errors?)\.\w+$"
_API_CORE: Final = "google.api_core.exceptions"
_STATUS: Final = r"\W{0,3}(?:HTTP Error |HttpError |Error code: |status_code: |(?:Client|Server) error ')?([45]\d\d)\b"

# Classes that carry a status, so that no rule lists them. A bare name is taken for the first that is listed.
_CARRIERS: Final = (
    "google.genai.APIError",
    "google.genai.ClientError",
    "google.genai.ServerError",
    "httpx.HTTPStatusError",
    "aiohttp.ClientResponseError",
    "urllib.HTTPError",
    "requests.HTTPError",
    "parked.ApiError",
    "grpc._InactiveRpcError",
    "grpc.AioRpcError",
    *RETELLERS,
    *STOPPED,
)


class ExceptionLine(NamedTuple):
    """One exception as a text tells of it."""

    name: str  # `httpx.ReadTimeout`, or `ReadTimeout`
    message: str
    of_traceback: bool


def exception_lines(text: str) -> list[ExceptionLine]:
    """Return the exceptions that a text tells of, the innermost first as Python prints them; none if it is no such."""
    text = text[-_TEXT_CHARS:]
    if re.search(_HEADER, text) is not None:
        return _of_tracebacks(text)[-_MOST_LINES:]
    return _of_lines(text)


def stand_in(name: str, message: str, *, carried: Any = None) -> BaseException:
    """Return an exception of that name with that message; `carried` is the body that it carries, if any.

    The HTTP status with which the message begins stands where an SDK or an HTTP client would have it.
    """
    module, _, leaf = name.rpartition(".")
    module = module or _home_of(leaf)
    base: type[BaseException] = Exception
    if module == "builtins" and _builtin(leaf) is not None:
        base = _builtin(leaf) or base
    elif module.startswith("google.api_core"):
        base = type("GoogleAPICallError", (Exception,), {"__module__": _API_CORE})
    own = {"__module__": module, "__init__": lambda self: None, "__str__": lambda self: message}
    exc: BaseException = type(leaf, (base,), own)()
    told = re.match(_STATUS, message)
    status = int(told[1]) if told is not None else _named_status(leaf)
    if status is not None:
        said = message[told.end() if told is not None else 0 :].strip(" :.,")
        response = SimpleNamespace(status_code=status, text=said, headers={})
        vars(exc).update(
            code=status, status=status, status_code=status, message=said, details=carried, response=response
        )
    return exc


def _of_tracebacks(text: str) -> list[ExceptionLine]:
    if "Exception Group Traceback" in text:
        return _of_group(re.sub(_GROUP_MARGIN, "", text))
    headers = list(re.finditer(_HEADER, text))
    found = []
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        block = text[header.end() : following.start() if following else len(text)]
        if "\n" not in block:  # as a line of a JSON log holds it
            block = block.replace("\\n", "\n")
        last = re.search(rf"(?m)^{header[1]}({_NAME})(?:$|: ?)", block)
        if last is not None:
            message = re.split(_BETWEEN, block[last.end() : last.end() + _MESSAGE_CHARS], maxsplit=1)[0]
            found.append(ExceptionLine(last[1], message.strip(), of_traceback=True))
    return found


def _of_group(text: str) -> list[ExceptionLine]:
    """Return a group behind its members: it is judged first, and they in their order."""
    lines = (re.match(rf"({_NAME})(?:$|: ?)", line) for line in text.splitlines())
    found = [
        ExceptionLine(said[1], said.string[said.end() :], of_traceback=True)
        for said in lines
        if said is not None and _names_an_exception(said[1])
    ]
    return found[::-1]


def _of_lines(text: str) -> list[ExceptionLine]:
    """Return the last line that names an exception: `name`, `name: message`, `name('message')` or `<class …>`."""
    lines = text.strip().splitlines()[-_MOST_LINES:]
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number].strip()[:_MESSAGE_CHARS]
        said = re.match(rf"(?:<class ')?({_NAME})(?:$|'>$|: ?|(?=\())", line)
        if said is None or not _names_an_exception(said[1]):
            continue
        rest = line[said.end() :]
        message = _argument(rest) if rest.startswith("(") else "\n".join([rest, *lines[number + 1 :]])
        if message is not None:
            return [ExceptionLine(said[1], message.strip(), of_traceback=False)]
    return []


def _argument(text: str) -> str | None:
    """Return the message in `('message')`, as an exception's repr has it; None if the text is no such."""
    if not text.endswith(")"):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text[1:-1]
    parts = value if isinstance(value, tuple) else (value,)
    return ", ".join(map(str, parts))


def _names_an_exception(name: str) -> bool:
    leaf = name.rpartition(".")[2]
    if name == "Error":  # how other languages and log lines begin
        return False
    return (
        re.search(_LOOKS_RAISED, name) is not None
        or leaf in _homes()
        or _builtin(leaf) is not None
        or (leaf[:1].isupper() and not leaf.isupper() and _named_status(leaf) is not None)
    )


def _home_of(leaf: str) -> str:
    """Return the module of a class that was named without one."""
    if _builtin(leaf) is not None:
        return "builtins"
    return _homes().get(leaf) or (_API_CORE if _named_status(leaf) is not None else "__main__")


def _homes() -> dict[str, str]:
    listed = [name for rule in (*EXCEPTION_RULES, *CLIENT_RULES) for name in rule.names]
    return {leaf: module for module, _, leaf in (name.rpartition(".") for name in reversed([*_CARRIERS, *listed]))}


def _named_status(leaf: str) -> int | None:
    """Return the HTTP status after which google.api_core calls a class: `ResourceExhausted`, `ServiceUnavailable`."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", leaf).upper()
    phrase = HTTPStatus.__members__.get(name)
    return CANONICAL_STATUSES.get(name) or (int(phrase) if phrase is not None and phrase >= 400 else None)


def _builtin(leaf: str) -> type[BaseException] | None:
    found = getattr(builtins, leaf, None)
    if isinstance(found, type) and issubclass(found, BaseException) and not issubclass(found, BaseExceptionGroup):
        return found
    return None
