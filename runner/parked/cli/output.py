"""How commands write: data to standard output, all else to standard error, and no control character of a text."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from parked.errors import SettingsError
from parked.plain import flag as flag
from parked.plain import printable
from parked.reasons import OTHER_MODEL as OTHER_MODEL

OTHER_LEDGER: Final = "LEDGER"  # where somebody is to put an address


def put(text: str) -> None:
    """Write one line of data (or several) to standard output."""
    sys.stdout.write(text + "\n")


def put_json(value: Any) -> None:
    """Write a JSON value to standard output, in ASCII: a terminal finds no control characters in it."""
    put(json.dumps(value, indent=2))


def hint(text: str) -> None:
    """Write to standard error, behind what was put so far."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if sys.stderr is not None:
        with suppress(OSError):  # a full disk behind `2>`: what can't be said is no reason to fail, nor to say 1
            sys.stderr.write("\n".join(printable(line) for line in text.split("\n")) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose columns are as wide as what they hold."""
    lines = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def command_line(args: argparse.Namespace, command: str, *words: str) -> str:
    """Return a command to type next, on the ledger that this one was told to use."""
    return command_on(getattr(args, "ledger", None), command, *words)


def command_on(ledger: str | None, command: str, *words: str) -> str:
    """Return a command to type, on the ledger of this URL; None: on the one that `PARKED_LEDGER` names.

    Nothing that may be a secret is in it (`as_shown`).
    """
    from parked.ledger.databases import as_shown

    told = [] if ledger is None else ["--ledger", as_shown(ledger)]
    return printable(shlex.join(["parked", command, *told, *words]))


def same_command(args: argparse.Namespace, *, but_model: str | None = None) -> str:
    """Return the whole command as it was typed, but for what may be a secret in a ledger's address.

    `but_model` is a value of --model, in whose place another one is to be put.
    """
    words = [_without_secrets(word) for word in args.words]
    if but_model is not None:
        instead = {f"--model={but_model}": f"--model={OTHER_MODEL}"}
        named = zip(["", *words], words, strict=False)
        words = [
            OTHER_MODEL if (flag, word) == ("--model", but_model) else instead.get(word, word) for flag, word in named
        ]
    return printable(shlex.join(["parked", *words]))


def _without_secrets(word: str) -> str:
    from parked.ledger.databases import as_shown

    name, equals, value = word.partition("=")
    if name != "--ledger":
        name, equals, value = "", "", word
    try:
        return f"{name}{equals}{as_shown(value)}"
    except SettingsError:  # no address, but a text that begins like one
        return OTHER_LEDGER


def counted(number: int, thing: str) -> str:
    """`1 parked job`, `2 parked jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
