"""The flags that choose jobs, the same for every command that takes them."""

from __future__ import annotations

import argparse
from typing import Final

from parked import clock
from parked.cli.nearest import one_of
from parked.cli.output import flag
from parked.errors import SettingsError
from parked.job import check_name
from parked.ledger.store import Filters
from parked.reasons import EXPLAINED

FAILED_WITH: Final = "--failed-with"  # what --reason is called where that says why something is done

_NAMES: Final = {  # flag -> field of `Filters`, in the order of the documentation
    "--pipeline": "pipeline",
    "--batch": "batch",
    "--model": "model",
    "--class": "error_class",
    "--reason": "reason",
    "--fingerprint": "fingerprint",
}


def add_filters(
    parser: argparse.ArgumentParser, *, time: str = "parked (of other states: accepted)", reason_says_why: bool = False
) -> None:
    """Add the flags. `time` says what --since and --until mean.

    With `reason_says_why`, --reason is somebody's reason for a change, and only its other name is one of a verdict.
    """
    group = parser.add_argument_group("filters", "which jobs; all that are given must hold")
    group.add_argument("--pipeline", metavar="NAME")
    group.add_argument("--batch", metavar="NAME", help='of this batch; "" for jobs without one')
    group.add_argument("--model", metavar="M")
    group.add_argument("--class", dest="error_class", metavar="CLASS", help="e.g. exhausted:429, or exhausted:*")
    names = [FAILED_WITH] if reason_says_why else ["--reason", FAILED_WITH]
    group.add_argument(
        *names, dest="reason", metavar="REASON", type=one_of("reason", EXPLAINED), help="e.g. rate_limited"
    )
    group.add_argument("--fingerprint", metavar="F", help="those with this cause (see parked causes)")
    group.add_argument("--job", dest="job_ids", metavar="ID", action="append", default=[], help="may be repeated")
    group.add_argument(
        "--since",
        metavar="T",
        help=f"{time} since 2h, 3d, or an ISO 8601 time (in UTC if it names no zone)",
    )
    group.add_argument("--until", metavar="T", help=f"{time} before then")


def filters_of(args: argparse.Namespace, *, now: float) -> Filters:
    """Return what the flags say. `now` is what `2h` counts from.

    Raises:
        SettingsError: a time that can't be read.
        InvalidJob: a name that no job can have.
    """
    for name, attribute in _NAMES.items():
        if (value := getattr(args, attribute)) is not None:
            check_name(name, value, empty=True)
    for job_id in args.job_ids:
        check_name("--job", job_id)
    return Filters(
        **{name: getattr(args, name) for name in _NAMES.values()},
        job_ids=tuple(args.job_ids),
        since=moment_of("--since", args.since, now=now),
        until=moment_of("--until", args.until, now=now),
    )


def filter_words(args: argparse.Namespace, *, reason: str = "--reason") -> list[str]:
    """Return the filters as they were given, for a command that takes the same jobs; `reason` is that flag's name."""
    words: list[str] = []
    for name, attribute in _NAMES.items():
        value = getattr(args, attribute)
        words += [] if value is None else flag(reason if attribute == "reason" else name, value)
    for job_id in args.job_ids:
        words += flag("--job", job_id)
    for name in ("since", "until"):
        value = getattr(args, name)
        words += [] if value is None else flag(f"--{name}", value)
    return words


def moment_of(name: str, text: str | None, *, now: float) -> float | None:
    """Return the epoch seconds of a flag's time, None if it wasn't given.

    Raises:
        SettingsError: it can't be read.
    """
    if text is None:
        return None
    try:
        return clock.moment(text, now=now)
    except SettingsError as exc:
        raise SettingsError(f"{name} {exc}") from None
