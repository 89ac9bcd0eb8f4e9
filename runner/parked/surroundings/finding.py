"""What a check has found, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How it stands, from what says least to the worst."""

    SKIPPED = "skipped"  # not looked at: told not to, or what it needs isn't there
    OK = "ok"
    ATTENTION = "attention"  # parked works, but something may go wrong that somebody can prevent
    BROKEN = "broken"  # something doesn't work as it stands


class Finding(NamedTuple):
    level: Level
    found: str  # one sentence, without its full stop: never a secret, a prompt, or what a server said
    next_step: str = ""  # empty: nothing is to be done


def ok(found: str) -> Finding:
    return Finding(Level.OK, found)


def skipped(found: str) -> Finding:
    return Finding(Level.SKIPPED, found)


def attention(found: str, next_step: str) -> Finding:
    return Finding(Level.ATTENTION, found, next_step)


def broken(found: str, next_step: str) -> Finding:
    return Finding(Level.BROKEN, found, next_step)


def worst(findings: list[Finding]) -> Finding:
    """Return the worst of several about one thing, the first of equals; there must be one."""
    return max(findings, key=lambda finding: list(Level).index(finding.level))
