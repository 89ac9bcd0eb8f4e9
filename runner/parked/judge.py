"""An outcome becomes a `Verdict`: an answer, an error of the API, an exception, a row of a batch.

This module gathers the evidence, `rules.py` decides. Nothing here raises, whatever it is handed, and no package of
Google or of an HTTP client is imported: their classes are known by module and name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from parked import answers, completions, rules
from parked.answers import NO_USAGE, Flaw, Usage, text_of
from parked.carried import Carried, carried_error, class_names, exception_text, retold_error
from parked.delay import asked_delay_s
from parked.evidence import ErrorEvidence, Quota, embedded_error, evidence_of, json_like
from parked.fingerprint import fingerprint
from parked.request import request_facts
from parked.rules import SHAPE_RULES, ExceptionRule, HttpRule
from parked.scrub import scrubbed
from parked.stopped import flaw_of_exception
from parked.verdict import MEANINGS, Kind, Reason, Scope, Verdict

__all__ = [
    "HttpAnswer",
    "Judged",
    "Usage",
    "classify",
    "classify_batch_row",
    "classify_http_error",
    "judge_answer",
    "judge_exception",
    "request_facts",
    "response_in",
    "text_of",
]

_QUOTAS: Final = frozenset({Reason.RATE_LIMITED, Reason.DAILY_QUOTA_EXHAUSTED, Reason.NO_QUOTA})
_CHAIN_LENGTH: Final = 20
_ID_CHARS: Final = 200  # of an id of the server's
_TOKEN_FAULT: Final = ("google.auth.RefreshError",)  # as what it is judged where gRPC found no token


class HttpAnswer(NamedTuple):
    """A response of the API as it came, unjudged. The Gemini adapter returns one for an HTTP 200."""

    status: int
    headers: Mapping[str, str]
    body: str | bytes


class Judged(NamedTuple):
    """What one attempt brought."""

    verdict: Verdict
    answer: Any = None  # what to keep, if ok: the response as the REST API spells it, or the caller's value
    text: str | None = None  # its text, where it has one; of a failure None
    usage: Usage = NO_USAGE  # also of a failure: it was billed
    response_id: str | None = None
    finish_reasons: tuple[str, ...] = ()  # one a candidate; `error` for one that was expected and didn't come


_WHOLE: Final = Verdict(ok=True, rule=answers.WHOLE)
_TRUNCATED: Final = Verdict(ok=True, rule=answers.TRUNCATED)
_OWN_VALUE: Final = Verdict(ok=True, rule="value.given")


def judge_answer(value: Any, *, request: Mapping[str, Any] | None = None, allow_truncated: bool = False) -> Judged:
    """Judge what a call returned.

    An `HttpAnswer`, a `GenerateContentResponse` and a mapping with `candidates`, `promptFeedback` or `error` are judged
    as responses of the API, and so is a chat completion of another one (`choices`), be it JSON or an object of a client
    library. Any other value is a success unless it is None, blank or empty, or still has to be run or read (a
    coroutine, a stream). `request` holds the facts that the judgement needs (`request_facts`), or is the payload
    itself. `allow_truncated` takes text that stopped at the token limit for an answer.
    """
    try:
        facts = request_facts(request) if request else {}
        if isinstance(value, HttpAnswer):
            return _judge_http_answer(value, facts, allow_truncated=allow_truncated)
        if (response := _response_of(value)) is not None:
            return _judge_response(response, facts, allow_truncated=allow_truncated)
        if answers.is_blank(value):
            return Judged(_shape_verdict("value.empty", f"the caller returned {_described(value)}"))
        if (unfinished := answers.not_run(value)) is not None:
            return Judged(_shape_verdict("value.not_run", _not_run_text(unfinished)))
        return Judged(_OWN_VALUE, answer=value, text=text_of(value))
    except Exception as exc:  # noqa: BLE001 - a foreign object may raise anything when it is looked at
        return Judged(_unreadable(exc))


def response_in(value: Any) -> Mapping[str, Any] | None:
    """Return the response of the API that a call returned, a chat completion spelled as one; None for another value.

    Raises:
        Exception: it can't be read, as where a body is no JSON.
    """
    response = _response_of(value)
    if isinstance(value, HttpAnswer):
        body = json.loads(value.body)
        body = body[0] if isinstance(body, list) and len(body) == 1 else body
        response = body if isinstance(body, Mapping) else {}
    return None if response is None else completions.response_of(response) or response


def judge_exception(exc: BaseException, *, request: Mapping[str, Any] | None = None) -> Judged:
    """Judge what a call raised. The exceptions that it was raised from are looked at where it says nothing itself.

    `request` is taken for symmetry with `judge_answer`; no rule for exceptions needs it yet.
    """
    try:
        return Judged(_exception_verdict(exc))
    except Exception as failure:  # noqa: BLE001 - as above
        return Judged(_unreadable(failure))


def classify(outcome: Any, *, request: Mapping[str, Any] | None = None) -> Verdict:
    """Judge an exception, a `GenerateContentResponse`, the JSON of one, or any other value that a call returned."""
    if isinstance(outcome, BaseException) or (isinstance(outcome, type) and issubclass(outcome, BaseException)):
        return judge_exception(outcome, request=request).verdict  # type: ignore[arg-type]  # a class is judged by name
    return judge_answer(outcome, request=request).verdict


def classify_http_error(status: int | None, body: Any, headers: Mapping[str, str] | None = None) -> Verdict:
    """Judge an error as it came over the wire: `body` is JSON (decoded or not), HTML or plain text."""
    try:
        return _error_verdict(evidence_of(body, status=status), headers=headers)
    except Exception as exc:  # noqa: BLE001 - as above
        return _unreadable(exc)


def classify_batch_row(row: Any, *, job_state: Any = None, request: Mapping[str, Any] | None = None) -> Verdict:
    """Judge one row of a batch.

    `row` is Gemini's (`key` with `response` or `error`), Vertex AI's (`status`, `response`), or None where none came
    back. `job_state` is the state of the batch, in either API's spelling. Without `request`, that of the row counts.
    """
    try:
        return _row_verdict(row, job_state, request)
    except Exception as exc:  # noqa: BLE001 - as above
        return _unreadable(exc)


def rejected_by_check(why: str) -> Verdict:
    """The verdict of an answer that a check of the pipeline's own finds fault with; `why` is what it says."""
    return _shape_verdict("value.rejected", why)


def _judge_http_answer(answer: HttpAnswer, facts: Mapping[str, Any], *, allow_truncated: bool = False) -> Judged:
    if answer.status >= 400:
        return Judged(_error_verdict(evidence_of(answer.body, status=answer.status), headers=answer.headers))
    if not answer.body.strip():
        return Judged(_shape_verdict("answer.no_body", "the body is empty"))
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError) as exc:
        why = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        return Judged(_shape_verdict("answer.not_json", f"{why}; it begins: {_beginning(answer.body)}"))
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if answers.is_blank(value):
        return Judged(_shape_verdict("answer.no_body", f"the body is {_described(value)}"))
    if not isinstance(value, dict):
        return Judged(_shape_verdict("answer.not_json", f"the body is {_described(value)}, not an object"))
    return _judge_response(value, facts, headers=answer.headers, allow_truncated=allow_truncated)


def _judge_response(
    value: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    allow_truncated: bool = False,
) -> Judged:
    response = completions.response_of(value) or value
    if response.get("error"):
        return Judged(_error_verdict(evidence_of(response), headers=headers))
    flaw = answers.flaw_of(response, facts, allow_truncated=allow_truncated)
    response_id = response.get("responseId") or response.get("response_id")
    success = _TRUNCATED if allow_truncated and answers.is_truncated(response, facts) else _WHOLE
    return Judged(
        success if flaw is None else _flaw_verdict(flaw),
        answer=value if flaw is None else None,
        text=text_of(response) if flaw is None else None,
        usage=answers.usage_of(response),
        response_id=_kept_id(response_id) if isinstance(response_id, str) else None,
        finish_reasons=answers.finish_reasons_of(response, facts),
    )


def _response_of(value: Any) -> Mapping[str, Any] | None:
    """Return the JSON of a response, from a mapping or an object of the SDK; None if `value` is neither."""
    if isinstance(value, Mapping):
        return value if value.get("error") or answers.is_response(value) else None
    for cls in type(value).__mro__:
        if cls.__name__ == "GenerateContentResponse" and cls.__module__.startswith("google."):
            return _dumped(value)
    return completions.dumped(value)


def _dumped(response: Any) -> Mapping[str, Any]:
    """Return an object of the SDK as the REST API spells it. A raw body that it carries unparsed counts instead."""
    if not hasattr(response, "model_dump"):
        dumped: Mapping[str, Any] = response.to_dict()
        return dumped
    raw = getattr(getattr(response, "sdk_http_response", None), "body", None)
    if raw and response.candidates is None and response.prompt_feedback is None:
        value = json.loads(raw)
        if isinstance(value, dict):
            return value
    parsed: Mapping[str, Any] = response.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        exclude={"parsed", "sdk_http_response", "automatic_function_calling_history"},
        warnings=False,  # a finish reason that the SDK doesn't know is ours to name
    )
    return parsed


def _row_verdict(row: Any, job_state: Any, request: Mapping[str, Any] | None) -> Verdict:
    if isinstance(row, str):
        row = json.loads(row)
    if row is not None and not isinstance(row, Mapping) and hasattr(row, "model_dump"):
        row = row.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
    row = row if isinstance(row, Mapping) else {}
    if row.get("error"):
        return _error_verdict(evidence_of(row))
    status = row.get("status")
    if isinstance(status, str) and status.strip():
        prose = embedded_error(status) or {"status": status.partition(":")[0], "message": status}
        return _error_verdict(evidence_of(prose))
    if isinstance(status, Mapping) and status:  # google.rpc.Status
        return _error_verdict(evidence_of(status))
    response = row.get("response")
    facts = request_facts(row.get("request") if request is None else request)
    if isinstance(response, str) and response.strip():  # as BigQuery hands it out
        return _judge_http_answer(HttpAnswer(200, {}, response), facts).verdict
    # Vertex AI's rows always hold a response; an empty one means there is none.
    if isinstance(response, Mapping) and (response or "status" not in row):
        return _judge_response(response, facts).verdict
    return _state_verdict(answers.name_of(job_state))


def _state_verdict(state: str) -> Verdict:
    """Judge a request for which a batch gave nothing, by the state of the batch."""
    state = state.rpartition("STATE_")[2]
    rule = next(rule for rule in rules.BATCH_STATE_RULES if state in rule.values or not rule.values)
    return _failure(rule.name, rule.reason, message=f"no result in a batch that is {state or 'in an unknown state'}")


def _error_verdict(found: ErrorEvidence, *, headers: Mapping[str, str] | None = None) -> Verdict:
    rule = next(rule for rule in rules.HTTP_RULES if _holds(rule, found))
    quota = _deciding_quota(rule, found)
    kind = MEANINGS[rule.reason].kind
    delay_s = None
    if kind is not Kind.PERMANENT:
        delay_s = asked_delay_s(found.retry_delay, headers=headers, message=found.wording)
    message = found.message
    if rule.reason is Reason.UNCLASSIFIED:
        known = found.status or found.canonical or "none"
        message = f"no rule for this error (status {known}): {message}"
    return _failure(
        rule.name,
        rule.reason,
        scope=_quota_scope(rule, found),
        message=message,
        status=found.http_status,
        quota_id=(quota.id or quota.metric) if quota else None,
        delay_s=delay_s,
    )


def _holds(rule: HttpRule, found: ErrorEvidence) -> bool:
    return (
        (not rule.statuses or found.status in rule.statuses)
        and (not rule.canonical or found.canonical in rule.canonical)
        and (not rule.infos or any(info in rule.infos for info in found.infos))
        and (not rule.quota or any(_fits(rule.quota, quota) for quota in found.quotas))
        and (not rule.text or _says(rule.text, found.wording[: rules.TEXT_CHARS]))
    )


def _fits(which: str, quota: Quota) -> bool:
    return which == "named" or (quota.limit == 0 if which == "zero" else quota.per_day)


def _says(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def _deciding_quota(rule: HttpRule, found: ErrorEvidence) -> Quota | None:
    fitting = (quota for quota in found.quotas if _fits(rule.quota or "named", quota))
    return next(fitting, None) if found.status == 429 else None


def _quota_scope(rule: HttpRule, found: ErrorEvidence) -> Scope | None:
    """A limit that isn't per model stops every job of the project."""
    if rule.reason not in _QUOTAS or not found.quotas:
        return rule.scope
    fitting = [quota for quota in found.quotas if _fits(rule.quota or "named", quota)]
    return Scope.MODEL if all(quota.per_model for quota in fitting) else Scope.PROJECT


def _exception_verdict(exc: Any) -> Verdict:
    links = sorted(_chain(exc), key=lambda link: not set(rules.VAGUE).isdisjoint(_names(link)))
    for link in links:
        verdict = _link_verdict(link)
        if verdict is not None:
            return verdict
    for link in links:
        retold = retold_error(link, _names(link))
        if retold is not None:
            return _carried_verdict(retold)
    rule = rules.EXCEPTION_FALLBACK
    return _failure(rule.name, rule.reason, message=worded(exc))


def _link_verdict(exc: Any) -> Verdict | None:
    """Judge one exception of a chain by what it carries or what it is; None if it says nothing."""
    names = _names(exc)
    text = exception_text(exc)
    carried = carried_error(exc, names)
    rule = _exception_rule(rules.CLIENT_RULES, names, carried.message if carried is not None else text)
    if rule is None and carried is not None:
        if not carried.token_fault:
            return _carried_verdict(carried)
        rule = _exception_rule(rules.EXCEPTION_RULES, _TOKEN_FAULT, carried.token_fault)
    if rule is None and (flaw := flaw_of_exception(exc, names, text)) is not None:
        return _flaw_verdict(flaw)
    rule = rule or _exception_rule(rules.EXCEPTION_RULES, names, text)
    return _failure(rule.name, rule.reason, message=worded(exc)) if rule is not None else None


def _exception_rule(table: tuple[ExceptionRule, ...], names: tuple[str, ...], text: str) -> ExceptionRule | None:
    for rule in table:
        if not set(rule.names).isdisjoint(names) and (not rule.text or _says(rule.text, text)):
            return rule
    return None


def _carried_verdict(carried: Carried) -> Verdict:
    return classify_http_error(carried.status, carried.body, carried.headers)


def _names(exc: Any) -> tuple[str, ...]:
    return class_names(exc if isinstance(exc, type) else type(exc))


def _chain(exc: Any) -> Iterator[Any]:
    """Yield an exception and those it was raised from or groups, the outermost first, each once."""
    waiting, seen = [exc], set[int]()
    while waiting and len(seen) < _CHAIN_LENGTH:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseException):
            waiting.append(link.__cause__)
            waiting.extend(
                getattr(link, "exceptions", ())[:_CHAIN_LENGTH] if isinstance(link, BaseExceptionGroup) else ()
            )
            if not link.__suppress_context__:
                waiting.append(link.__context__)


def worded(exc: Any) -> str:
    """Return an exception as a traceback's last line says it.

    Raises:
        Exception: its own `__str__` does.
    """
    cls = exc if isinstance(exc, type) else type(exc)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    text = exception_text(exc)
    return f"{name}: {text}" if text else name


def _flaw_verdict(flaw: Flaw) -> Verdict:
    return _failure(flaw.rule.name, flaw.rule.reason, message=flaw.message, finish_reason=flaw.finish_reason)


def _shape_verdict(name: str, message: str) -> Verdict:
    rule = SHAPE_RULES[name]
    return _failure(rule.name, rule.reason, message=message)


def _kept_id(text: str) -> str:
    """An id of the server's as any database and exporter takes it."""
    return text if len(text) <= _ID_CHARS and text.isascii() and text.isprintable() else scrubbed(text, limit=_ID_CHARS)


def _unreadable(exc: Exception) -> Verdict:
    return _shape_verdict("judge.failed", f"the outcome could not be read: {type(exc).__name__}")


def _failure(
    rule: str,
    reason: Reason,
    *,
    message: str,
    scope: Scope | None = None,
    status: int | None = None,
    quota_id: str | None = None,
    delay_s: float | None = None,
    finish_reason: str | None = None,
) -> Verdict:
    meaning = MEANINGS[reason]
    message = scrubbed(message)
    quota_id = scrubbed(quota_id, limit=_ID_CHARS) if quota_id else None
    return Verdict(
        ok=False,
        rule=rule,
        kind=meaning.kind,
        reason=reason,
        scope=scope or meaning.scope,
        retry_after_s=None if reason is Reason.DAILY_QUOTA_EXHAUSTED else delay_s,
        status=status,
        fingerprint=fingerprint(
            rule=rule,
            reason=reason,
            status=status,
            quota_id=quota_id,
            finish_reason=finish_reason,
            message=message,
        ),
        message=message,
        quota_id=quota_id,
        shorter_delay_s=delay_s if reason is Reason.DAILY_QUOTA_EXHAUSTED else None,
    )


def _beginning(body: str | bytes) -> str:
    text = body[:400].decode("utf-8", "replace") if isinstance(body, bytes) else body[:400]
    return " ".join(text.split())


def _not_run_text(value: Any) -> str:
    return f"the caller returned a {type(value).__name__}, which is no answer yet; await, call or read it first"


def _described(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, (str, bytes, bytearray)):
        return "blank text"
    return f"an empty {type(value).__name__}" if answers.is_blank(value) else json_like(value)
