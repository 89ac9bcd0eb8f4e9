"""The nearest name, for somebody who mistyped one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import Final

# A call in ten minutes: what is slower is no pace, and would look like a run that hangs.
PER_MINUTE: Final = (0.1, 1_000_000)


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Return `; did you mean 'list'?`, or nothing if no name is near."""
    from difflib import get_close_matches  # only for a mistake

    # Without the dashes, which would make any two flags look alike.
    by_stem = {other.lstrip("-"): other for other in names}
    near = get_close_matches(name.lstrip("-"), by_stem, n=1)
    return f"; did you mean {by_stem[near[0]]}?" if near else ""


def one_of(what: str, names: Collection[str]) -> Callable[[str], str]:
    """Return a type for a flag that takes one of these names."""

    def read(text: str) -> str:
        if text in names:
            return text
        near = did_you_mean(text, names) or f"; there are {', '.join(names)}"
        raise argparse.ArgumentTypeError(f"{text!r} is no {what}{near}")

    return read


def per_minute(text: str) -> float:
    """Read a rate in calls a minute.

    Raises:
        argparse.ArgumentTypeError: it is no number, or none that makes sense.
    """
    least, most = PER_MINUTE
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not least <= rate <= most:
        raise argparse.ArgumentTypeError(f"must be a number of calls a minute from {least} to {most}, got {text!r}")
    return rate


def whole_number(text: str, *, at_least: int = 1) -> int:
    """A type for a flag that counts."""
    if text.isascii() and text.isdigit() and int(text) >= at_least:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number from {at_least}, got {text!r}")
