"""The rules for people: each by its name, what it looks at in words, and what follows."""

from __future__ import annotations

from typing import Final

from parked import rules
from parked.answers import TRUNCATED, WHOLE
from parked.pauses import ITS_OWN_PERHAPS, OUTAGE, STAYS_HERE
from parked.policy import MAX_REFUSALS
from parked.rules import ExceptionRule, HttpRule, ShapeRule, ValueRule
from parked.verdict import MEANINGS, Kind, Reason, Scope

Rule = HttpRule | ExceptionRule | ValueRule | ShapeRule

TABLES: Final[tuple[tuple[str, tuple[Rule, ...]], ...]] = (
    ("An error of the API (HTTP, an `error` object, a row of a batch)", rules.HTTP_RULES),
    ("A block reason of the prompt", rules.BLOCK_RULES),
    ("A finish reason of an answer other than STOP", rules.FINISH_RULES),
    ("The shape of an answer", tuple(rules.SHAPE_RULES.values())),
    ("An exception that says more than the status it carries", rules.CLIENT_RULES),
    ("An exception, or one that it was raised from", (*rules.EXCEPTION_RULES, rules.EXCEPTION_FALLBACK)),
    ("A request for which a batch gave nothing, by the state of the batch", rules.BATCH_STATE_RULES),
)
SUCCESSES: Final = {
    WHOLE: "every candidate, or choice, stopped by itself with content of the kind that was asked for",
    TRUNCATED: "text that stopped at the output token limit, where that is allowed",
}
_QUOTAS: Final = {
    "zero": "a quota with the limit 0",
    "day": "a quota per day",
    "named": "any quota that is named",
    "": "",
}


def rules_named(name: str) -> tuple[Rule, ...]:
    """Return the rows of that name, of which one has decided; none for a success."""
    return tuple(rule for _, table in TABLES for rule in table if rule.name == name)


def evidence_text(rule: Rule) -> str:
    """Return what a rule looks at, as Markdown: names and patterns stand in backticks."""
    if isinstance(rule, ShapeRule):
        return rule.evidence
    if isinstance(rule, ValueRule):
        return _codes(rule.values) or "every other value, also one that this version doesn't know"
    text = f"the text `{rule.text}`" if rule.text else ""
    if isinstance(rule, ExceptionRule):
        return "; ".join(filter(None, (_codes(rule.names), text)))
    parts = (
        f"status {', '.join(map(str, rule.statuses))}" if rule.statuses else "",
        f"`error.status` {_codes(rule.canonical)}" if rule.canonical else "",
        f"`ErrorInfo.reason` {_codes(rule.infos)}" if rule.infos else "",
        _QUOTAS[rule.quota],
        text,
    )
    return "; ".join(filter(None, parts)) or "every other error"


def what_parked_does(reason: Reason) -> str:
    """Return what a run of many jobs does; one that runs alone is parked where that would wait or pause."""
    meaning = MEANINGS[reason]
    if reason in STAYS_HERE:
        return "stops this process once several jobs agree; parks none"
    if meaning.kind is Kind.PERMANENT and meaning.scope is not Scope.JOB:
        what = "all models" if meaning.scope is Scope.PROJECT else "the model"
        only_one = ", or is the only one" if reason in ITS_OWN_PERHAPS else ""
        return f"pauses {what} once several jobs agree; parks only a job that meets it while others do not{only_one}"
    if meaning.kind is Kind.PERMANENT:
        return "parks at once"
    if meaning.kind is Kind.UNKNOWN:
        return "tries at most twice, then parks"
    if reason is Reason.DAILY_QUOTA_EXHAUSTED:
        return "tries once after a minute, then pauses until midnight Pacific time; parks none"
    if reason is Reason.RATE_LIMITED:
        return f"waits with all jobs of the model; parks one that is refused {MAX_REFUSALS} times while others succeed"
    if reason in OUTAGE:
        return (
            "retries up to max_attempts, then parks; waits with all jobs where several meet it, and counts it for none"
        )
    return "retries up to max_attempts, then parks"


def _codes(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)
