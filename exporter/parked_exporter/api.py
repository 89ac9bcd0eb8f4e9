"""`/api/…`: what is parked, as the JSON that the commands print; only reads.

A page is a command of `parked`, and its query the flags of that command without their dashes, so that both say the same
and refuse the same: `/api/parked?pipeline=captions&class=exhausted:*` is
`parked list --json --pipeline captions --class 'exhausted:*'`.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from parked import summary
from parked.cli import causes, listing
from parked.cli.filters import filters_of, moment_of
from parked.cli.frame import Parser, build_parser
from parked.cli.nearest import did_you_mean
from parked.cli.output import command_line
from parked.errors import SettingsError
from parked.ledger import full_name, look_into
from parked.ledger.databases import from_anywhere
from parked.ledger.store import Reader
from parked.ledger.vault import PLAIN_VAULT, Vault
from parked_exporter.collector import DEADLINE_S

FILTERS: Final = ("pipeline", "batch", "model", "class", "reason", "fingerprint", "job", "since", "until")
# What one answer may hold: the sidecar stays small, and who needs more has the command.
MOST_ROWS: Final = 1000
# An answer that a lock holds up keeps its thread of the web server; most are for scrapes and probes.
AT_ONCE: Final = 2


class Busy(Exception):
    """As many questions as may be asked at once are being answered."""


@dataclass(frozen=True, slots=True)
class Page:
    command: str
    flags: tuple[str, ...]
    answer: Callable[[argparse.Namespace, Reader, str], dict[str, Any]]  # from the flags, and the ledger's full name


def _parked(args: argparse.Namespace, reader: Reader, where: str) -> dict[str, Any]:
    return listing.as_json(args, filters_of(args, now=time.time()), reader, where=where)


def _causes(args: argparse.Namespace, reader: Reader, where: str) -> dict[str, Any]:
    return causes.as_json(args, filters_of(args, now=time.time()), reader, where=where)


def _summary(args: argparse.Namespace, reader: Reader, where: str) -> dict[str, Any]:
    found = summary.summarise(
        reader, where=where, since=moment_of("--since", args.since, now=time.time()), messages=args.messages
    )
    return summary.as_json(found, [command_line(args, *words) for words in summary.next_commands(found)])


PAGES: Final = {
    "/api/parked": Page("list", (*FILTERS, "state", "limit"), _parked),
    "/api/causes": Page("causes", (*FILTERS, "limit"), _causes),
    "/api/summary": Page("summary", ("since",), _summary),
}

_places = threading.BoundedSemaphore(AT_ONCE)


def answer(
    page: Page, query: str, *, ledger_url: str, vault: Vault = PLAIN_VAULT, messages: bool = False
) -> dict[str, Any]:
    """Return what a page holds for a query string; `messages` says whether a summary tells them.

    Raises:
        SettingsError, InvalidJob: the query can't be understood.
        LedgerUnavailable: the ledger can't be read now.
        Busy: try again in a moment.
    """
    args = _read(page, query)
    if not _places.acquire(blocking=False):
        raise Busy
    try:
        args.messages = messages
        args.ledger = from_anywhere(ledger_url)  # for the commands that an answer names
        with look_into(ledger_url, patience_s=DEADLINE_S, vault=vault) as reader:
            return page.answer(args, reader, full_name(ledger_url))
    finally:
        _places.release()


def _read(page: Page, query: str) -> argparse.Namespace:
    given = parse_qsl(query, keep_blank_values=True)
    for name, _ in given:
        if name not in page.flags:
            near = did_you_mean(name, page.flags) or f"; there are {', '.join(page.flags)}"
            raise SettingsError(f"this page doesn't take {name!r}{near}")
    parser: Parser = build_parser([page.command])
    args = parser.parse_args([page.command, *(f"--{name}={value}" for name, value in given)])
    if getattr(args, "limit", 0) > MOST_ROWS:
        raise SettingsError(f"limit must be at most {MOST_ROWS}, got {args.limit}; parked {page.command} shows more")
    return args
