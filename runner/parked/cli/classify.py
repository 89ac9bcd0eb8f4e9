"""`parked classify`: what a failure means, which rule says so and why, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.output import hint, put, put_json
from parked.errors import SettingsError
from parked.plain import number_text, printable
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.pasted import Pasted
    from parked.verdict import Verdict

STDIN: Final = "-"
_MAX_STATUS: Final = 599
_EVIDENCE_CHARS: Final = 240  # of a rule that lists dozens of names; --json and docs/failures.md have them all

EPILOG: Final = """\
It reads the body of an error or of an answer, a row of a batch, what curl -i shows, a Python traceback, the last line
of one, the name of an exception, or an HTTP status. Secrets are taken out of what it prints; nothing is called.

example:
  parked classify error.json
  parked classify httpx.ReadTimeout
  curl -i "$URL" | parked classify --json | jq -r .reason
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "classify",
        help="explain an error, an answer or a traceback",
        description="Say what an error, an answer or a traceback means, which rule decided, and what to do.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=STDIN,
        help="what to read; default standard input; or the name of an exception, or a status, itself",
    )
    parser.add_argument("--status", metavar="N", help="the HTTP status that the body came with")
    parser.add_argument(
        "--request", metavar="FILE", help="the payload as JSON, or its job line: some answers can't be judged without"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked import pasted

    status = _status(args.status)
    request = None if args.request is None else _request(args.request)
    found = None if Path(args.file).exists() else pasted.read_name(args.file)
    if found is None:
        found = pasted.read(_text(args.file, status=status), status=status, request=request)
    if found is None:
        raise SettingsError(
            "it reads as no error, answer, traceback or status; if it is the body of an HTTP response,"
            " say --status N, with the status that it came with"
        )
    if args.json:
        put_json(_as_json(found))
    else:
        for line in _told(found):
            put(line)
    return Exit.OK


def _status(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) == 3 and 100 <= int(text) <= _MAX_STATUS):
        raise SettingsError(f"--status must be an HTTP status from 100 to {_MAX_STATUS}, got {text!r}")
    return int(text)


def _text(file: str, *, status: int | None) -> str:
    if file != STDIN:
        try:
            return Path(file).read_bytes().decode("utf-8", "replace")
        except OSError as exc:
            raise SettingsError(f"{file} can't be read: {exc.strerror}") from None
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        if status is not None:  # a status alone is enough
            return ""
        hint("reading standard input; end it with Ctrl-D")
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _request(file: str) -> Any:
    """Return the payload in a file: alone, or in a job line of either form."""
    try:
        value = json.loads(Path(file).read_bytes())
    except OSError as exc:
        raise SettingsError(f"the request {file} can't be read: {exc.strerror}") from None
    except (ValueError, RecursionError):
        raise SettingsError(f"the request {file} is no JSON; it must be a payload, or one job line") from None
    if not isinstance(value, dict):
        raise SettingsError(f"the request {file} must be a JSON object: a payload, or one job line")
    return value.get("payload") or value.get("request") or value


def _error_class(verdict: Verdict) -> str | None:
    from parked.verdict import Disposition, Kind

    if verdict.ok:
        return None
    return verdict.error_class(Disposition.PERMANENT if verdict.kind is Kind.PERMANENT else Disposition.EXHAUSTED)


def _why(verdict: Verdict) -> tuple[str, str | None]:
    """Return what the deciding rule looks at, and where that is known from."""
    from parked.rulebook import SUCCESSES, evidence_text, rules_named

    rules = rules_named(verdict.rule)
    if not rules:
        return SUCCESSES[verdict.rule], None
    evidence = "; or ".join(evidence_text(rule).replace("`", "") for rule in rules)
    return evidence, rules[0].source


def _told(found: Pasted) -> Iterator[str]:
    from parked.rulebook import what_parked_does
    from parked.verdict import MEANINGS

    verdict = found.verdict
    evidence, source = _why(verdict)
    if len(evidence) > _EVIDENCE_CHARS:
        evidence = f"{evidence[: _EVIDENCE_CHARS - 1]}…"
    facts: list[tuple[str, str | None]] = [("read as", found.read_as)]
    if verdict.reason is None:
        facts += [("verdict", "a success")]
    else:
        meaning = MEANINGS[verdict.reason]
        delay_s = verdict.retry_after_s
        facts += [
            ("kind", verdict.kind),
            ("reason", verdict.reason),
            ("scope", verdict.scope),
            ("delay", "none asked for" if delay_s is None else f"{number_text(delay_s)} s, as the server asks"),
            ("class", f"{_error_class(verdict)}, once it is parked"),
            ("means", meaning.meaning),
            ("parked", what_parked_does(verdict.reason)),
            ("what to do", meaning.remedy),
        ]
    facts += [
        ("rule", verdict.rule),
        ("looks at", evidence),
        ("source", source),
        ("quota", verdict.quota_id),
        ("cause", verdict.fingerprint),
        ("message", verdict.message),
    ]
    for name, value in facts:
        if value:
            yield f"{name:<11}{printable(value)}"


def _as_json(found: Pasted) -> dict[str, Any]:
    from parked.verdict import MEANINGS

    verdict = found.verdict
    evidence, source = _why(verdict)
    meaning = None if verdict.reason is None else MEANINGS[verdict.reason]
    return {
        "read_as": found.read_as,
        "ok": verdict.ok,
        "kind": verdict.kind,
        "reason": verdict.reason,
        "scope": verdict.scope,
        "retry_after_s": verdict.retry_after_s,
        "status": verdict.status,
        "error_class": _error_class(verdict),
        "meaning": meaning and meaning.meaning,
        "remedy": meaning and meaning.remedy,
        "rule": verdict.rule,
        "evidence": evidence,
        "source": source,
        "quota_id": verdict.quota_id,
        "fingerprint": verdict.fingerprint,
        "message": verdict.message,
    }
