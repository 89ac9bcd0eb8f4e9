"""Flags and settings of `parked-exporter`, and what an error looks like outside. `sidecar.py` is what runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from parked import tracing
from parked.cli.exits import Exit
from parked.cli.frame import Parser, Shown
from parked.cli.output import hint
from parked.errors import ParkedError, SettingsError
from parked.extras import install
from parked.ledger import full_name
from parked.ledger.vault import vault_of
from parked.logs import configure
from parked.settings import SidecarSettings, StoredBodies, check_unknown, parse_duration_s, variable
from parked.version import __version__
from parked_exporter import notify

EXTRA: Final = frozenset({"apscheduler", "prometheus_client", "tzlocal", "waitress"})

PROGRAM: Final = "parked-exporter"
FUNCTIONS: Final = {"call": ("payload", "model"), "on_answer": ("answer",)}  # settings that name one -> its arguments

EPILOG: Final = """\
exit status:
  0  ended by SIGTERM, or --check found nothing wrong
  2  wrong settings; nothing was started
  3  the surroundings failed: the port is in use, the extra isn't installed
  130 after Ctrl-C

example:
  parked-exporter --ledger sqlite:////data/parked.db --listen 127.0.0.1:9465
"""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar until a signal ends it, and return the exit status."""
    try:
        return _run(argv)
    except KeyboardInterrupt:  # while it was still starting
        return int(Exit.INTERRUPTED)


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = parser().parse_args(argv)
    except Shown:
        return int(Exit.OK)
    except SettingsError as exc:
        return _say(str(exc), Exit.USAGE)
    settings, wrong = SidecarSettings.load_what_can_be(
        {"ledger": arguments.ledger, "listen": arguments.listen, "log_level": arguments.log_level}
    )
    if faults := _faults(settings, wrong):
        is_wrong = any(isinstance(fault, SettingsError) for fault in faults)
        return _say("; ".join(map(str, faults)), Exit.USAGE if is_wrong else Exit.SURROUNDINGS)
    if arguments.check:
        return _say("; ".join(["the settings are fine", *_what_is_missing(settings)]), Exit.OK)
    configure(settings.log_level, settings.log_format)
    try:
        from parked_exporter import sidecar  # what it imports is an extra
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in EXTRA:
            raise
        return _say(f"{exc.name} is not installed; {install('exporter')} brings it", Exit.SURROUNDINGS)
    try:
        return sidecar.serve(settings, read_only=arguments.read_only, linger_s=arguments.linger)
    except sidecar.CannotListen as exc:
        return _say(str(exc), Exit.SURROUNDINGS)


def parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Show what a ledger holds on /metrics, and do what is due: sweep orphans, audit, summarise.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--ledger", metavar="URL", help="default PARKED_LEDGER, else sqlite:///parked.db (in this folder)"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="default PARKED_LISTEN, else 127.0.0.1:9465")
    parser.add_argument("--read-only", action="store_true", help="run no tasks and write nothing: only show")
    parser.add_argument(
        "--linger",
        metavar="TIME",
        type=_duration,
        default=0.0,
        help="after SIGTERM go on answering for so long, for example 45s, so that the last scrape sees the end",
    )
    parser.add_argument("--check", action="store_true", help="check the settings and end")
    parser.add_argument(
        "--debug", dest="log_level", action="store_const", const="debug", help="log everything, tracebacks included"
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


def _faults(settings: SidecarSettings, wrong: Mapping[str, str]) -> list[ParkedError]:
    """Return all that a start is refused with. `wrong` are settings that are at their defaults, {name: sentence}."""
    faults: list[ParkedError] = [SettingsError(sentence) for sentence in (*check_unknown(), *wrong.values())]
    checks: list[Callable[[], object]] = [tracing.check, partial(full_name, settings.ledger)]
    checks += [partial(_check_function, settings, name) for name in FUNCTIONS]
    if not wrong.keys() & {"store", "store_keys"}:
        checks.append(partial(_check_store, settings))
    if settings.notify is not None:
        checks.append(partial(notify.check, settings.notify))
    for check in checks:
        try:
            check()
        except ParkedError as exc:
            faults.append(exc)
    return faults


def _check_function(settings: SidecarSettings, name: str) -> None:
    """See that the function which a setting names is there, if it names one.

    Raises:
        SettingsError: it isn't, or can't be called as it would be.
    """
    if (function := getattr(settings, name)) is not None:
        from parked.named import check_function  # with what runs jobs: most sidecars have none to run

        check_function(variable(name), function, arguments=FUNCTIONS[name])


def _check_store(settings: SidecarSettings) -> None:
    """See that texts are kept in a way that the sidecar's tasks can work with.

    Raises:
        SettingsError: there is no key; or nothing is kept that a replay could send, or a function be given.
        LedgerUnavailable: the extra for encryption isn't installed.
    """
    vault_of(settings)
    for name in ("auto_replay", "on_answer"):
        if settings.store is StoredBodies.NONE and getattr(settings, name) is not None:
            raise SettingsError(
                f"{variable(name)} needs payloads and answers in the ledger, which PARKED_STORE=none keeps out of it;"
                " leave out one of the two"
            )


def _what_is_missing(settings: SidecarSettings) -> list[str]:
    """What jobs may need that isn't here. A start doesn't look: google-genai is imported once there is a job to run."""
    if settings.auto_replay is None or settings.call is not None:
        return []
    from parked.named import GEMINI, caller_named

    try:
        caller_named(GEMINI, timeout_s=settings.attempt_timeout_s)
    except SettingsError as exc:
        return [f"but {variable('auto_replay')} can't replay jobs of the Gemini API here: {exc}"]
    return []


def _duration(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def _say(sentence: str, status: Exit) -> int:
    hint(f"{PROGRAM}: {sentence}")
    return int(status)
