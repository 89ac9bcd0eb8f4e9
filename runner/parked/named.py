"""Callers and checks by name. A job remembers who calls and who checks it, and a replay finds them again."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from parked.check import Check, Checker, CheckerName
from parked.errors import SettingsError
from parked.running import CallModel, refuse_generator

GEMINI = "parked.gemini:Gemini"
_SCRIPT = "__main__:"  # before the name of a function of the program that was started


def caller_named(name: str, *, timeout_s: float) -> CallModel:
    """Return the caller of that name: the Gemini adapter, made from the environment, or `module:function`.

    A function may take the payload alone, as those of the article do.

    Raises:
        SettingsError: there is no such function, it takes other arguments, or the adapter has no credentials.
    """
    if name in ("", GEMINI):
        from parked.gemini import Gemini

        return Gemini(timeout_s=timeout_s)
    if name.startswith(_SCRIPT):
        raise SettingsError(
            f"can't import {name}, which is part of a script; move it into a module, and name that by --call"
            " (parked replay) or PARKED_CALL (the sidecar)"
        )
    function = function_named(name)
    refuse_generator(f"the caller {name}", function)
    if _takes(function, "payload", "model"):
        return function
    if not _takes(function, "payload") or inspect.iscoroutinefunction(function):
        path = name.rpartition(":")[2]
        raise SettingsError(f"the caller {name} must be a function that can be called as {path}(payload, model)")

    @wraps(function)
    def call(payload: Any, model: str) -> Any:
        return function(payload)

    return call


def names_a_function(name: str) -> bool:
    """Whether a caller's name is that of a function in some module, here or elsewhere.

    Neither the adapter's is, nor that of a script's own function, of a lambda, or of one that a function has made.
    """
    return name not in ("", GEMINI) and not name.startswith(_SCRIPT) and "<" not in name


def check_function(setting: str, name: str, *, arguments: tuple[str, ...]) -> None:
    """See that the function which a setting names can be imported and called with so many arguments.

    Raises:
        SettingsError: names the setting, and what is wrong.
    """
    try:
        function = function_named(name)
    except SettingsError as exc:
        raise SettingsError(f"{setting}: {exc}") from exc
    refuse_generator(setting, function)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as exc:
        raise SettingsError(
            f"{setting}={name} must be a function that can be called as {name.rpartition(':')[2]}"
            f"({', '.join(arguments)}): {exc}"
        ) from None
    except ValueError:  # written in C, say: nobody knows
        return


def _takes(function: Callable[..., Any], *arguments: str) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # written in C, say: nobody knows
        pass
    return True


def payload_check(name: str) -> Callable[[Any], None] | None:
    """Return what refuses a payload that the caller of that name can't send, if it has such; needs no credentials.

    Raises:
        SettingsError: there is no such function.
    """
    if name in ("", GEMINI):
        from parked.gemini import check_payload

        return check_payload
    function = function_named(name)
    refuse_generator(f"the caller {name}", function)
    return getattr(function, "check_payload", None)


def checker_named(name: str, *, mark: Callable[[str], Any]) -> Checker:
    """Return what judges the answers of a job that remembers this name (`CheckerName`).

    `mark` is that of a reader of the job's ledger, where schemas are kept.

    Raises:
        SettingsError: there is no such function or schema.
    """
    from parked import schema

    parsed = CheckerName.parse(name)
    check: Check | None = None
    if parsed.check.startswith(schema.PREFIX):
        kept = mark(parsed.check)
        if kept is None:
            raise SettingsError(f"the ledger doesn't hold the {parsed.check} that the answers are to be held against")
        check = schema.SchemaCheck(kept)
    elif parsed.check:
        check = function_named(parsed.check)
    return Checker(check, parsed.allow_truncated)


def function_named(name: str) -> Callable[..., Any]:
    """Import `module:function`; the working folder is looked in too, as `python -m` does.

    Raises:
        SettingsError: it can't be imported, or is no function.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise SettingsError(f"{name!r} names no function; write module:function, e.g. mypipeline.calls:call")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as exc:  # a script that isn't written to be imported may end
        why = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise SettingsError(
            f"can't import {name} ({why}); it has to be a function in a module, and parked has to run where that module"
            " can be imported"
        ) from exc
    if not callable(found):
        raise SettingsError(f"{name} is no function but {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # checked to be callable just now
