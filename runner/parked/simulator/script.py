"""Script files: what the simulator answers to which request, and when, as JSON. `docs/simulator.md` has the format."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from random import Random
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from parked.errors import SettingsError
from parked.simulator import replies
from parked.simulator.delays import MAX_DELAY_S, Delay, Fixed, Lognormal, Uniform
from parked.simulator.quotas import MINUTE_S, Counted, Meters, Period, Quota, Said, Window
from parked.simulator.replies import Reply, quota_exceeded, usual
from parked.simulator.request import Request, tokens_of

REPLIES: Final[Mapping[str, Callable[..., Reply]]] = {
    make.__name__: make
    for make in (
        replies.text,
        replies.json_answer,
        replies.image,
        replies.function_call,
        replies.thoughts_and,
        replies.thoughts_only,
        replies.no_candidates,
        replies.no_parts,
        replies.blank,
        replies.blocked_prompt,
        replies.stopped,
        replies.repetition_loop,
        replies.broken_json,
        replies.unfinished,
        replies.error_under_200,
        replies.empty_body,
        replies.null_body,
        replies.html,
        replies.broken_error_body,
        replies.error,
        replies.rate_limited,
        replies.rate_limited_without_details,
        replies.daily_quota,
        replies.no_quota,
        replies.billing_required,
        replies.overloaded,
        replies.server_error,
        replies.deadline_exceeded,
        replies.cancelled,
        replies.bad_key,
        replies.unauthenticated,
        replies.permission_denied,
        replies.api_disabled,
        replies.account_suspended,
        replies.location_unsupported,
        replies.model_not_found,
        replies.file_missing,
        replies.file_processing,
        replies.invalid_request,
        replies.too_large,
        replies.drop_connection,
        replies.cut_body,
        replies.hang,
    )
}

SCRIPT_FIELDS: Final = ("rules", "minute_s", "seed")
RULE_FIELDS: Final = ("when", "reply", "delay_s", "quotas")
WHEN_FIELDS: Final = (
    "text", "text_matches", "model", "key", "from_s", "to_s", "share", "calls", "first", "every",
)  # fmt: skip
QUOTA_FIELDS: Final = (
    "requests", "tokens", "per", "window", "holds", "resets_at_s", "of", "quota_id", "says",
)  # fmt: skip

_NOT_FOR_FILES: Final = frozenset({"then"})  # what is released later makes sense in a test only


@dataclass(frozen=True, slots=True)
class When:
    """Which requests a rule is for: all conditions that are given must hold."""

    text: str | None = None  # stands somewhere in the prompt
    text_matches: re.Pattern[str] | None = None  # is found somewhere in the prompt
    model: str | None = None
    key: str | None = None  # the API key that it comes with
    from_s: float = 0.0  # seconds since the first request
    to_s: float = math.inf
    calls: frozenset[int] | None = None  # how often this prompt was asked so far, 1-based
    first: int | None = None  # the first n calls of each prompt
    share: float | None = None  # of the requests that meet the other conditions, drawn for each
    every: int | None = None  # each nth of the requests that meet the other conditions, counted over all prompts

    def names(self, request: Request) -> bool:
        """Whether all conditions but `share` and `every` hold."""
        return (
            (self.text is None or self.text in request.text)
            and (self.text_matches is None or self.text_matches.search(request.text) is not None)
            and (self.model is None or self.model == request.model)
            and (self.key is None or self.key == request.key)
            and self.from_s <= request.at_s < self.to_s
            and (self.calls is None or request.call in self.calls)
            and (self.first is None or request.call <= self.first)
        )


@dataclass(frozen=True, slots=True)
class ScriptRule:
    when: When
    reply: Reply | None = None  # None: the usual answer
    delay: Delay | None = None
    meters: Meters | None = None  # quotas; the rule answers only what they refuse


class Script:
    """Rules in their order; the first that is for a request answers it. A rule for `Simulator.answers`."""

    def __init__(self, rules: tuple[ScriptRule, ...], *, seed: int = 0) -> None:
        self.rules = rules
        self._random = Random(seed)
        self._met: Counter[int] = Counter()  # by the rule's place: requests that its `every` has counted

    def __call__(self, request: Request) -> Reply | None:
        for place, rule in enumerate(self.rules):
            if not self._is_for(request, place, rule.when):
                continue
            if rule.meters is None:
                reply = rule.reply or usual(request)
            elif refusal := rule.meters.admit(request.model, tokens_of(request.text), request.at_s):
                reply = quota_exceeded(refusal)
            else:
                continue
            return reply if rule.delay is None else replace(reply, delay_s=rule.delay.draw(self._random))
        return None

    def _is_for(self, request: Request, place: int, when: When) -> bool:
        if not when.names(request) or (when.share is not None and self._random.random() >= when.share):
            return False
        if when.every is None:
            return True
        self._met[place] += 1
        return self._met[place] % when.every == 0


def load_script(file: Path) -> Script:
    """Read a script file.

    Raises:
        SettingsError: it can't be read, or a rule is malformed; the message names the file, the rule and what is wrong.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except OSError as exc:
        raise SettingsError(f"can't read the script {file}: {exc.strerror}") from exc
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as exc:  # the last: nested too deep
        raise SettingsError(f"the script {file} is not JSON: {exc}") from exc
    except ValueError as exc:
        raise SettingsError(f"the script {file}: {exc}") from exc
    try:
        return parse_script(value)
    except SettingsError as exc:
        raise SettingsError(f"the script {file}: {exc}") from exc.__cause__


def parse_script(value: Any) -> Script:
    """Turn the JSON value of a script into rules: `{"rules": [{"when": {…}, "reply": …, "delay_s": …}, …]}`.

    Raises:
        SettingsError: a rule is malformed; the message names it by its number (1-based) and says what is wrong.
    """
    if not isinstance(value, dict) or not isinstance(value.get("rules"), list):
        raise SettingsError('a script is an object with a list of rules: {"rules": [{"when": …, "reply": …}]}')
    try:
        _check_keys("a script", value, SCRIPT_FIELDS)
        minute_s = _seconds("minute_s", value.get("minute_s", MINUTE_S), least=0.01)
        if not _fits(seed := value.get("seed", 0), int):
            raise ValueError(f"seed must be a whole number, got {seed!r}")
    except ValueError as exc:
        raise SettingsError(str(exc)) from exc
    rules = []
    for number, rule in enumerate(value["rules"], start=1):
        try:
            rules.append(_rule(rule, minute_s=minute_s))
        except ValueError as exc:
            raise SettingsError(f"rule {number}: {exc}") from exc
    return Script(tuple(rules), seed=seed)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What is said twice in one object would hold only as it is said last."""
    value = dict(pairs)
    for key, _ in pairs if len(value) < len(pairs) else ():
        if sum(other == key for other, _ in pairs) > 1:
            raise ValueError(f"{key!r} stands twice in one object")
    return value


def _rule(value: Any, *, minute_s: float) -> ScriptRule:
    _check_keys("a rule", value, RULE_FIELDS)
    if not value.keys() & {"reply", "delay_s", "quotas"}:
        raise ValueError(
            "it says neither what to reply, nor which quotas hold, nor by how much to delay the usual answer"
        )
    if value.keys() >= {"reply", "quotas"}:
        raise ValueError("it has both a reply and quotas, which reply by themselves; make two rules of it")
    return ScriptRule(
        _when(value.get("when", {})),
        reply=_reply(value["reply"]) if "reply" in value else None,
        delay=_delay(value["delay_s"]) if "delay_s" in value else None,
        meters=Meters(_quotas(value["quotas"]), minute_s=minute_s) if "quotas" in value else None,
    )


def _delay(value: Any) -> Delay:
    """`1.5`, `{"uniform": {"from": 0.5, "to": 2}}`, or `{"lognormal": {"median": 1, "p95": 4}}`."""
    if not isinstance(value, dict):
        return Fixed(_seconds("delay_s", value))
    match value:
        case {"uniform": {"from": first, "to": second, **others}} if len(value) == 1 and not others:
            delay: Delay = Uniform(_seconds("delay_s: from", first), _seconds("delay_s: to", second))
        case {"lognormal": {"median": first, "p95": second, **others}} if len(value) == 1 and not others:
            # From a millisecond on: what takes no time at all has no logarithm.
            delay = Lognormal(
                _seconds("delay_s: median", first, least=0.001), _seconds("delay_s: p95", second, least=0.001)
            )
        case _:
            raise ValueError(
                'delay_s must be a number of seconds, {"uniform": {"from": …, "to": …}} or'
                f' {{"lognormal": {{"median": …, "p95": …}}}}, got {value!r}'
            )
    if second < first:
        raise ValueError(f"delay_s: the second number must be at least the first, got {value!r}")
    return delay


def _quotas(value: Any) -> tuple[Quota, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f'quotas must be a list such as [{{"requests": 15, "per": "minute"}}], got {value!r}')
    quotas = []
    for number, quota in enumerate(value, start=1):
        try:
            quotas.append(_quota(quota))
        except ValueError as exc:
            raise ValueError(f"quota {number}: {exc}") from exc
    return tuple(quotas)


def _quota(value: Any) -> Quota:
    _check_keys("a quota", value, QUOTA_FIELDS)
    counted = [name for name in Counted if name in value]
    if len(counted) != 1:
        raise ValueError("it must have one of requests and tokens")
    if not _is_count(limit := value[counted[0]]):
        raise ValueError(
            f"{counted[0]} must be a whole number from 1 (for none there is the reply no_quota), got {limit!r}"
        )
    window = Window(_one_of("window", value.get("window", Window.FIXED), Window))
    for name, fits in (("holds", window is Window.BUCKET), ("resets_at_s", window is Window.FIXED)):
        if name in value and not fits:
            raise ValueError(f"{name} is nothing for a {window} window")
    if not _is_count(value.get("holds", 1)):
        raise ValueError(f"holds must be a whole number from 1, got {value['holds']!r}")
    if not isinstance(value.get("quota_id", ""), str):
        raise ValueError(f"quota_id must be text, got {value['quota_id']!r}")
    says = value.get("says", list(Said))
    if not isinstance(says, list):
        raise ValueError(f"says must be a list, got {says!r}")
    return Quota(
        limit,
        counted=counted[0],
        per=Period(_one_of("per", value.get("per"), Period)),
        window=window,
        holds=value.get("holds"),
        resets_at_s=_seconds("resets_at_s", value["resets_at_s"], most=math.inf) if "resets_at_s" in value else None,
        per_model=_one_of("of", value.get("of", "model"), ("model", "project")) == "model",
        id=value.get("quota_id"),
        says=frozenset(Said(_one_of("says", said, Said)) for said in says),
    )


def _when(value: Any) -> When:
    _check_keys("when", value, WHEN_FIELDS)
    if len(value.keys() & {"calls", "first", "every"}) > 1:
        raise ValueError("only one of calls, first and every can be given")
    for name in ("text", "text_matches", "model", "key"):
        if not isinstance(value.get(name, ""), str):
            raise ValueError(f"{name} must be text, got {value[name]!r}")
    for name in ("first", "every"):
        if not _is_count(value.get(name, 1)):
            raise ValueError(f"{name} must be a whole number from 1, got {value[name]!r}")
    from_s = _seconds("from_s", value.get("from_s", 0), most=math.inf)
    to_s = _seconds("to_s", value["to_s"], most=math.inf) if "to_s" in value else math.inf
    if to_s <= from_s:
        raise ValueError(f"to_s must be later than from_s ({from_s:g}), got {to_s:g}")
    share = value.get("share")
    if share is not None and not (_fits(share, float) and 0 < share <= 1):
        raise ValueError(f"share must be a number over 0, up to 1, got {share!r}")
    calls = value.get("calls")
    if calls is not None and not (isinstance(calls, list) and calls and all(_is_count(call) for call in calls)):
        raise ValueError(f"calls must be a list of whole numbers from 1, got {calls!r}")
    try:
        pattern = re.compile(value["text_matches"]) if "text_matches" in value else None
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"text_matches is no regular expression: {exc}") from exc
    return When(
        text=value.get("text"),
        text_matches=pattern,
        model=value.get("model"),
        key=value.get("key"),
        from_s=from_s,
        to_s=to_s,
        calls=None if calls is None else frozenset(calls),
        first=value.get("first"),
        share=share,
        every=value.get("every"),
    )


def _reply(value: Any) -> Reply:
    """`"overloaded"`, or with options `{"rate_limited": {"retry_delay_s": 2}}`."""
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError(f"reply must be a name, or an object of one name and its options, got {value!r}")
    [(name, options)] = value.items()
    if name not in REPLIES:
        swapped = [reply for reply in REPLIES if sorted(reply.split("_")) == sorted(str(name).split("_"))]
        near = swapped or get_close_matches(name, REPLIES, n=1)
        raise ValueError(f"there is no reply {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    make = REPLIES[name]
    known = {option: hint for option, hint in get_type_hints(make).items() if option not in {"return", *_NOT_FOR_FILES}}
    _check_keys(f"reply {name}", options, tuple(known))
    for option, hint in known.items():
        if option in options and not _fits(options[option], hint):
            raise ValueError(f"reply {name}: {option} can't be {options[option]!r}")
    missing = [
        option
        for option, parameter in signature(make).parameters.items()
        if parameter.default is parameter.empty and option not in options
    ]
    if missing:
        raise ValueError(f"reply {name} needs {', '.join(missing)}")
    reply = make(**options)
    if not 200 <= reply.status <= 599:
        raise ValueError(f"reply {name}: {reply.status} is no status of an answer; those are 200 to 599")
    return reply


def _check_keys(what: str, value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, got {value!r}")
    for key in value:
        if key not in known:
            raise ValueError(f"{what} has no {key!r}; it knows {', '.join(known) or 'no options'}")


def _seconds(name: str, value: Any, *, least: float = 0.0, most: float = MAX_DELAY_S) -> float:
    if not _fits(value, float) or not least <= value <= most:
        bound = f" to {most:g}" if math.isfinite(most) else ""
        raise ValueError(f"{name} must be a number of seconds from {least:g}{bound}, got {value!r}")
    return float(value)


def _one_of(name: str, value: Any, known: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in tuple(known):
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return value


def _is_count(value: Any) -> bool:
    return _fits(value, int) and value >= 1


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value may stand for a parameter with this annotation."""
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return isinstance(value, get_origin(hint) or hint)
