"""The page `docs/failures.md`, made from the tables by `python -m parked.failures_page`. A test compares them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from parked import rules
from parked.rules import ExceptionRule, HttpRule, ShapeRule, ValueRule
from parked.verdict import MEANINGS, Kind, Meaning, Reason, Scope

_INTRODUCTION = """\
# What a failure means

This page is made from the tables in `runner/parked/verdict.py` and `runner/parked/rules.py`. Change those, then run
`python -m parked.failures_page > docs/failures.md`.

A failure has a **reason**. The reason fixes its **kind**: `retryable` (the same request may succeed later),
`permanent` (it can't until somebody changes input, configuration or code) or `unknown` (no evidence). The **scope**
says whose fault it is: this job's, the model's, or the whole project's. `rate_limited` and `no_quota` have the scope
`project` where the limit that the API names is not per model.

## Reasons
"""

_RULES = """\
## Rules

The first row that holds decides, and its name is the `rule` of the verdict. In the tables, text is a regular expression
that is searched in any letter case in the first {chars} characters of the message, without what stands in quotes.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield from _table(
        ("reason", "kind", "scope", "meaning", "what parked does", "what an operator does"),
        (
            (f"`{reason}`", m.kind, m.scope, m.meaning, _what_parked_does(reason, m), m.remedy)
            for reason, m in MEANINGS.items()
        ),
    )
    yield _RULES.format(chars=rules.TEXT_CHARS)
    tables: tuple[tuple[str, tuple[HttpRule | ExceptionRule | ValueRule | ShapeRule, ...]], ...] = (
        ("An error of the API (HTTP, an `error` object, a row of a batch)", rules.HTTP_RULES),
        ("A block reason of the prompt", rules.BLOCK_RULES),
        ("A finish reason of an answer other than STOP", rules.FINISH_RULES),
        ("The shape of an answer", tuple(rules.SHAPE_RULES.values())),
        ("An exception, or one that it was raised from", (*rules.EXCEPTION_RULES, rules.EXCEPTION_FALLBACK)),
        ("A request for which a batch gave nothing, by the state of the batch", rules.BATCH_STATE_RULES),
    )
    for title, table in tables:
        yield f"### {title}\n"
        yield from _table(
            ("rule", "evidence", "reason", "source"),
            ((f"`{rule.name}`", _evidence(rule), f"`{rule.reason}`", f"<{rule.source}>") for rule in table),
        )


def _what_parked_does(reason: Reason, meaning: Meaning) -> str:
    if meaning.kind is Kind.UNKNOWN:
        return "tries at most twice, then parks"
    if meaning.kind is Kind.PERMANENT:
        return "parks at once" if meaning.scope is Scope.JOB else "parks at once; more jobs would fail alike"
    if reason is Reason.DAILY_QUOTA_EXHAUSTED:
        return "retries up to max_attempts; a parked one is not replayed before midnight Pacific time"
    return "retries up to max_attempts, then parks"


def _evidence(rule: HttpRule | ExceptionRule | ValueRule | ShapeRule) -> str:
    if isinstance(rule, ShapeRule):
        return rule.evidence
    if isinstance(rule, ValueRule):
        return _codes(rule.values) or "every other value, also one that this version doesn't know"
    text = f"the text `{rule.text}`" if rule.text else ""
    if isinstance(rule, ExceptionRule):
        return "; ".join(filter(None, (_codes(rule.names), text)))
    quota = {"zero": "a quota with the limit 0", "day": "a quota per day", "named": "any quota that is named", "": ""}
    parts = (
        f"status {', '.join(map(str, rule.statuses))}" if rule.statuses else "",
        f"`error.status` {_codes(rule.canonical)}" if rule.canonical else "",
        f"`ErrorInfo.reason` {_codes(rule.infos)}" if rule.infos else "",
        quota[rule.quota],
        text,
    )
    return "; ".join(filter(None, parts)) or "every other error"


def _codes(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
