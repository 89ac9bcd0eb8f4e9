"""Script files: what the simulator answers to which request, as JSON. `docs/simulator.md` explains the format."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from parked.errors import SettingsError
from parked.simulator import replies
from parked.simulator.replies import Reply, echo
from parked.simulator.request import Request

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
MAX_DELAY_S: Final = 3600.0

_NOT_FOR_FILES: Final = frozenset({"then"})  # what is released later makes sense in a test only


@dataclass(frozen=True, slots=True)
class When:
    """Which requests a rule is for: all conditions that are given must hold."""

    text: str | None = None  # stands somewhere in the prompt
    text_matches: re.Pattern[str] | None = None  # is found somewhere in the prompt
    model: str | None = None
    calls: frozenset[int] | None = None  # how often this prompt was asked so far, 1-based
    first: int | None = None  # the first n calls of each prompt
    every: int | None = None  # each nth of the requests that meet the other conditions, counted over all prompts

    def names(self, request: Request) -> bool:
        """Whether all conditions but `every` hold."""
        return (
            (self.text is None or self.text in request.text)
            and (self.text_matches is None or self.text_matches.search(request.text) is not None)
            and (self.model is None or self.model == request.model)
            and (self.calls is None or request.call in self.calls)
            and (self.first is None or request.call <= self.first)
        )


@dataclass(frozen=True, slots=True)
class ScriptRule:
    when: When
    reply: Reply | None  # None: the usual answer
    delay_s: float = 0.0


class Script:
    """Rules in their order; the first that is for a request answers it. A rule for `Simulator.answers`."""

    def __init__(self, rules: tuple[ScriptRule, ...]) -> None:
        self.rules = rules
        self._met: Counter[int] = Counter()  # by the rule's place: requests that its `every` has counted

    def __call__(self, request: Request) -> Reply | None:
        for place, rule in enumerate(self.rules):
            if not rule.when.names(request):
                continue
            if rule.when.every is not None:
                self._met[place] += 1
                if self._met[place] % rule.when.every:
                    continue
            reply = rule.reply or echo(request)
            return replace(reply, delay_s=rule.delay_s) if rule.delay_s else reply
        return None


def load_script(file: Path) -> Script:
    """Read a script file.

    Raises:
        SettingsError: it can't be read, or a rule is malformed; the message names the file, the rule and what is wrong.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsError(f"can't read the script {file}: {exc.strerror}") from exc
    except ValueError as exc:  # of JSON or of UTF-8
        raise SettingsError(f"the script {file} is not JSON: {exc}") from exc
    try:
        return parse_script(value)
    except SettingsError as exc:
        raise SettingsError(f"the script {file}: {exc}") from exc.__cause__


def parse_script(value: Any) -> Script:
    """Turn the JSON value of a script into rules: `{"rules": [{"when": {…}, "reply": …, "delay_s": …}, …]}`.

    Raises:
        SettingsError: a rule is malformed; the message names it by its number (1-based) and says what is wrong.
    """
    if not isinstance(value, dict) or value.keys() != {"rules"} or not isinstance(value["rules"], list):
        raise SettingsError('a script is an object with a list of rules: {"rules": [{"when": …, "reply": …}]}')
    rules = []
    for number, rule in enumerate(value["rules"], start=1):
        try:
            rules.append(_rule(rule))
        except ValueError as exc:
            raise SettingsError(f"rule {number}: {exc}") from exc
    return Script(tuple(rules))


def _rule(value: Any) -> ScriptRule:
    _check_keys("a rule", value, ("when", "reply", "delay_s"))
    if "reply" not in value and "delay_s" not in value:
        raise ValueError("it says neither what to reply nor by how much to delay the usual answer")
    delay_s = value.get("delay_s", 0)
    if not _fits(delay_s, float) or not 0 <= delay_s <= MAX_DELAY_S:
        raise ValueError(f"delay_s must be a number of seconds from 0 to {MAX_DELAY_S:g}, got {delay_s!r}")
    reply = _reply(value["reply"]) if "reply" in value else None
    return ScriptRule(_when(value.get("when", {})), reply, float(delay_s))


def _when(value: Any) -> When:
    _check_keys("when", value, ("text", "text_matches", "model", "calls", "first", "every"))
    if len(value.keys() & {"calls", "first", "every"}) > 1:
        raise ValueError("only one of calls, first and every can be given")
    for name in ("text", "text_matches", "model"):
        if not isinstance(value.get(name, ""), str):
            raise ValueError(f"{name} must be text, got {value[name]!r}")
    for name in ("first", "every"):
        if not _is_count(value.get(name, 1)):
            raise ValueError(f"{name} must be a whole number from 1, got {value[name]!r}")
    calls = value.get("calls")
    if calls is not None and not (isinstance(calls, list) and calls and all(_is_count(call) for call in calls)):
        raise ValueError(f"calls must be a list of whole numbers from 1, got {calls!r}")
    try:
        pattern = re.compile(value["text_matches"]) if "text_matches" in value else None
    except re.error as exc:
        raise ValueError(f"text_matches is no regular expression: {exc}") from exc
    return When(
        text=value.get("text"),
        text_matches=pattern,
        model=value.get("model"),
        calls=None if calls is None else frozenset(calls),
        first=value.get("first"),
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
        near = get_close_matches(name, REPLIES, n=1)
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
    return make(**options)


def _check_keys(what: str, value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, got {value!r}")
    for key in value:
        if key not in known:
            raise ValueError(f"{what} has no {key!r}; it knows {', '.join(known) or 'no options'}")


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
        return isinstance(value, (int, float)) and math.isfinite(value)
    return isinstance(value, get_origin(hint) or hint)
