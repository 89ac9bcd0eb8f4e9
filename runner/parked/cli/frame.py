"""The frame of all commands: the flags they share, which module does which, and what an error looks like outside.

A command is a module with `add_parser(subparsers)` and `run(args, settings) -> int`; only the one that was asked for
is imported. What it raises becomes one sentence on standard error and an exit status (`exits.py`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

from parked import logs
from parked.cli.exits import Exit, exit_of
from parked.cli.nearest import did_you_mean
from parked.cli.output import hint
from parked.cli.signals import Stopped, arrivals, stopping
from parked.errors import WORKING_FOLDER_GONE, OutputFailed, ParkedError, SettingsError
from parked.settings import Settings, refuse_unknown
from parked.version import __version__

# In the order of `parked --help`: what runs jobs, what looks at them, what tries it all out.
COMMANDS: Final = {
    "run": "parked.cli.run",
    "submit": "parked.cli.submit",
    "work": "parked.cli.work",
    "import": "parked.cli.importing",
    "list": "parked.cli.listing",
    "causes": "parked.cli.causes",
    "show": "parked.cli.show",
    "replay": "parked.cli.replay",
    "discard": "parked.cli.discard",
    "restore": "parked.cli.restore",
    "erase": "parked.cli.erase",
    "rekey": "parked.cli.rekey",
    "answers": "parked.cli.answers",
    "summary": "parked.cli.summary",
    "classify": "parked.cli.classify",
    "audit": "parked.cli.audit",
    "backup": "parked.cli.backup",
    "copy": "parked.cli.copying",
    "migrate": "parked.cli.migrate",
    "doctor": "parked.cli.doctor",
    "simulate": "parked.cli.simulate",
    "demo": "parked.cli.demo",
}

# Those that look into the settings themselves, and have to go on with wrong ones.
JUDGE_SETTINGS: Final = frozenset({"doctor"})

DESCRIPTION: Final = "Run Gemini jobs so that none disappears silently: what fails is parked, shown, and run again."
EPILOG: Final = """\
exit status, about the jobs of the command:
  0  every one has its answer or was discarded; commands that only show: always
  1  at least one is parked (audit: the law does not hold)
  2  wrong usage, settings or input; nothing was started
  3  the surroundings failed: the ledger, a missing extra, the disk; of doctor: something is broken
  4  jobs are still pending
  70 a bug in parked; 143, 130 and 129 after SIGTERM, Ctrl-C and a closed terminal

example:
  parked run jobs.jsonl --out answers.jsonl; parked summary
"""

_USER_OF_ADDRESS: Final = re.compile(r"://[^\s'\"]*@")

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    Subparsers = argparse._SubParsersAction["Parser"]  # argparse has no public name for what `add_subparsers` returns


class Command(Protocol):
    def add_parser(self, subparsers: Subparsers) -> None: ...
    def run(self, args: argparse.Namespace, settings: Settings) -> int: ...


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `SettingsError`s; help texts keep their lines."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter, **given})

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Shown

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """As argparse's own, which keeps quiet about a full disk."""
        (file or sys.stderr).write(message)


class Shown(Exception):
    """--help or --version was printed; there is nothing else to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; nothing but that leaves it."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with stopping():
            try:
                status = _run(words)
            except Shown:
                status = Exit.OK
            sys.stdout.flush()
    except SystemExit:
        hint("parked: the caller or the check ended the program (SystemExit); jobs that were not finished are pending")
        status = Exit.SURROUNDINGS
    except BrokenPipeError:  # `parked list | head`: whoever read has seen enough
        _forget_output()
        status = Exit.OK
    except KeyboardInterrupt as exc:
        status = exc.status if isinstance(exc, Stopped) else Exit.INTERRUPTED
    except Exception as exc:  # noqa: BLE001 - the outermost place: everything becomes a sentence and a status
        _forget_output()
        if arrivals().broke_off:  # some libraries make an error of their own of what breaks them off
            status = arrivals().exit()
        else:
            if "--debug" in words:
                traceback.print_exc()
            hint(f"parked: {_sentence(exc)}")
            status = exit_of(exc)
    return int(status)


def build_parser(names: Iterable[str] = COMMANDS) -> Parser:
    """Return the parser with these commands."""
    parser = Parser(prog="parked", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"parked {__version__}")
    parser.set_defaults(ledger=None, json=False, debug=False)
    _add_common_flags(parser)
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name in names:
        command(name).add_parser(subparsers)
    for subparser in subparsers.choices.values():
        _add_common_flags(subparser)
    return parser


def command(name: str) -> Command:
    """Return the module that does a command."""
    return cast(Command, importlib.import_module(COMMANDS[name]))


def _run(words: list[str]) -> int:
    if sys.stdout is None:
        raise OutputFailed("standard output is closed; send it to /dev/null if it isn't wanted")
    # What a terminal's encoding doesn't have is written as an escape instead of failing half-way.
    with suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a replaced stdout has none
    name = _command_word(words)
    if name is not None and name not in COMMANDS:
        raise SettingsError(f"{name!r} is no command of parked{did_you_mean(name, COMMANDS)} (see parked --help)")
    parser = build_parser(COMMANDS if name is None else [name])
    args, unknown = parser.parse_known_args(words)
    if name is None:
        raise SettingsError("name a command; parked --help lists them")
    if unknown:
        _refuse(unknown, name)
    if name in JUDGE_SETTINGS:
        settings = Settings.load(env={})
    else:
        refuse_unknown()
        # A flag that is called like a setting is that setting's flag.
        settings = Settings.load({item.name: getattr(args, item.name, None) for item in fields(Settings)})
    logs.configure(settings.log_level, settings.log_format)
    args.words = words
    return command(name).run(args, settings)


def _add_common_flags(parser: Parser) -> None:
    group = parser.add_argument_group("understood by all commands")
    keep = argparse.SUPPRESS  # the flags may stand before and behind the command; the one that is there counts
    group.add_argument(
        "--ledger", metavar="URL", default=keep, help="default PARKED_LEDGER, else sqlite:///parked.db (in this folder)"
    )
    group.add_argument("--json", action="store_true", default=keep, help="print JSON; docs/cli-json.md has the fields")
    group.add_argument("--debug", action="store_true", default=keep, help="show the traceback of an error")


def _command_word(words: list[str]) -> str | None:
    """Return the first word that is neither a flag nor a flag's value."""
    waiting = iter(words)
    for word in waiting:
        if word == "--ledger":
            next(waiting, None)
        elif not word.startswith("-"):
            return word
    return None


def _refuse(unknown: list[str], name: str) -> NoReturn:
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    if not flags:
        raise SettingsError(f"parked {name} can't do anything with {unknown[0]!r} (see parked {name} --help)")
    alone = Parser(prog="parked", add_help=False).add_subparsers()
    command(name).add_parser(alone)
    known = ["--ledger", "--json", "--debug", *re.findall(r"--[a-z][a-z-]*", alone.choices[name].format_usage())]
    near = did_you_mean(flags[0], known)
    raise SettingsError(f"parked {name} has no flag {flags[0]}{near} (see parked {name} --help)")


def _sentence(error: Exception) -> str:
    if isinstance(error, ParkedError):
        # It may quote a word of the command line, and that may be an address with a password.
        return _USER_OF_ADDRESS.sub("://…@", str(error))
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return WORKING_FOLDER_GONE
    if isinstance(error, OSError):
        return f"{error.filename or 'reading or writing failed'}: {error.strerror or type(error).__name__}"
    # Its text may quote a prompt or a key: that is for those who ask for it.
    return f"a bug in parked ({type(error).__name__}); please report it with what --debug shows"


def _is_nowhere() -> bool:
    """Whether the working folder was deleted."""
    try:
        os.getcwd()  # noqa: PTH109 - only this fails there
    except FileNotFoundError:
        return True
    return False


def _forget_output() -> None:
    """Point standard output nowhere, so that the interpreter doesn't fail at its end over what can't be written."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
