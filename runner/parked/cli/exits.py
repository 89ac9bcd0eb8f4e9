"""What the exit status of a command says. Each means one thing; scripts rely on it."""

from __future__ import annotations

from enum import IntEnum

from parked.errors import InvalidJob, JobConflict, ParkedError, SettingsError, TransitionError


class Exit(IntEnum):
    OK = 0  # every job of the command has its answer or was discarded; for commands that only show: always
    PARKED = 1  # at least one job is parked; of `audit`: the law does not hold
    USAGE = 2  # wrong usage, settings or input; nothing was started
    SURROUNDINGS = 3  # the ledger, a missing extra, the disk; of `doctor`: something is broken
    PENDING = 4  # jobs are still pending
    BUG = 70  # in parked
    HUNG_UP = 129  # the terminal was closed
    INTERRUPTED = 130  # Ctrl-C
    TERMINATED = 143  # SIGTERM


def exit_of(error: Exception) -> Exit:
    """Return the status for an error that ended a command."""
    match error:
        case SettingsError() | InvalidJob() | JobConflict():
            return Exit.USAGE
        case TransitionError():
            return Exit.BUG
        case ParkedError() | OSError():
            return Exit.SURROUNDINGS
        case _:
            return Exit.BUG
