"""`parked replay`: what would run again, and with --apply running it."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from parked.cli.drain import Drain, tell_lost
from parked.cli.exits import Exit
from parked.cli.filters import add_filters, filter_words, filters_of
from parked.cli.jobs import job_as_json
from parked.cli.ledgers import existing_ledger
from parked.cli.nearest import whole_number
from parked.cli.output import command_line, counted, flag, hint, put, put_json, table
from parked.cli.progress import progress
from parked.clock import minute_text
from parked.errors import SettingsError
from parked.job import State
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.ledger import Ledger
    from parked.ledger.store import Filters
    from parked.replays import Called, Choice
    from parked.running import CallModel

DEFAULT_CONCURRENCY: Final = 8

DESCRIPTION: Final = """\
Run parked jobs again, once the cause is mended. Without --apply it only says what would run. What fails again goes
behind the others and stays parked; answers are stored in the ledger (parked answers --new gives them out).

example:
  parked replay --class exhausted:503
  parked replay --class exhausted:503 --limit 20 --apply
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("replay", help="run parked jobs again", description=DESCRIPTION)
    add_filters(parser)
    parser.add_argument("--limit", metavar="N", type=whole_number, help="at most so many, oldest first")
    parser.add_argument("--all", action="store_true", help="every parked job; needed where nothing else limits --apply")
    parser.add_argument("--apply", action="store_true", help="do it, instead of saying what would be done")
    parser.add_argument("--name", metavar="NAME", default="", help="a name for this replay, kept in the ledger")
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=whole_number,
        default=DEFAULT_CONCURRENCY,
        help=f"calls at a time, default {DEFAULT_CONCURRENCY}",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    now = time.time()
    filters = filters_of(args, now=now)
    if args.apply and not (filters or args.all or args.limit):
        raise SettingsError("parked replay --apply without a filter runs every parked job; say --all, or --limit N")

    from parked.replays import choose

    callers = _Callers(settings)
    with existing_ledger(settings, role="replay") as ledger:
        if args.apply:
            ledger.sweep()
        with ledger.ask() as reader:
            choice = choose(reader, filters, limit=args.limit, now=now, missing=callers.missing)
        if not args.apply:
            _tell_dry_run(args, ledger, choice)
            return Exit.OK
        return _apply(args, settings, ledger, filters, choice, callers)


class _Callers:
    """The callers and checks that can be found here, each made once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[str, CallModel] = {}

    def missing(self, called: Called) -> str | None:
        """Return why jobs of this caller and check can't be run here, None if they can."""
        from parked.named import function_named

        try:
            self.of(called)
            if called.checker:
                function_named(called.checker)
        except SettingsError as exc:
            return str(exc)
        return None

    def of(self, called: Called) -> CallModel:
        from parked.named import caller_named

        if called.caller not in self._found:
            self._found[called.caller] = caller_named(called.caller, timeout_s=self._settings.attempt_timeout_s)
        return self._found[called.caller]

    async def aclose(self) -> None:
        for caller in self._found.values():
            if (aclose := getattr(caller, "aclose", None)) is not None:
                await aclose()


def _apply(
    args: argparse.Namespace, settings: Settings, ledger: Ledger, filters: Filters, choice: Choice, callers: _Callers
) -> int:
    import asyncio

    from parked.ledger.operations import CloseReplay, OpenReplay
    from parked.tracing import set_up

    shut_down = set_up("parked")
    who = f"{_user()}@{socket.gethostname()}"
    said = {name: value for name, value in filters._asdict().items() if value}
    replay_id = ledger.record(OpenReplay(args.name, who, json.dumps(said)))
    states: Counter[State] = Counter()
    drain = Drain()
    try:
        asyncio.run(_run(args, settings, ledger, choice, callers, replay_id, states, drain))
    finally:
        recovered, again = states[State.RECOVERED], states[State.PARKED]
        with suppress(Exception):  # the replay's row is for people; what became of the jobs is in their own
            ledger.record(CloseReplay(replay_id, recovered, again, choice.jobs - recovered - again))
        shut_down()
    not_run = choice.jobs - recovered - again
    if args.json:
        put_json(
            {"ledger": ledger.where, "replayed": choice.jobs, "recovered": recovered, "parked_again": again}
            | {"not_run": not_run, "left": _left_as_json(choice)}
        )
    _tell_left(choice)
    others = f", {not_run} not run" if not_run else ""
    hint(f"{counted(choice.jobs, 'job')} replayed: {recovered} recovered, {again} parked again{others}")
    if recovered:
        hint(f"the answers: {command_line(args, 'answers', '--new')}")
    if drain.received is not None:
        return drain.exit()
    left = choice.not_due or choice.no_caller
    return Exit.PARKED if again or not_run or left else Exit.OK


async def _run(
    args: argparse.Namespace,
    settings: Settings,
    ledger: Ledger,
    choice: Choice,
    callers: _Callers,
    replay_id: int,
    states: Counter[State],
    drain: Drain,
) -> None:
    from parked.named import function_named
    from parked.pool import Pool
    from parked.replays import replaying
    from parked.running import Running

    try:
        with progress(choice.jobs) as shown:
            for called, ids in choice.ids.items():
                if drain.received is not None:
                    break
                on = Running(
                    ledger,
                    callers.of(called),
                    policy=settings.policy(),
                    check=function_named(called.checker) if called.checker else None,
                    caller=called.caller,
                    checker=called.checker,
                )
                pool = Pool(on, concurrency=args.concurrency)
                drain.watch(pool, drain_s=settings.drain_s)
                try:
                    async for hold in pool.run(replaying(on, ids, replay_id)):
                        states[hold.row.state if hold.called else State.REPLAYING] += 1
                        shown.advance(parked=states[State.PARKED])
                finally:
                    await pool.close()
                    tell_lost(pool.lost)
    finally:
        await callers.aclose()


def _tell_dry_run(args: argparse.Namespace, ledger: Ledger, choice: Choice) -> None:
    if args.json:
        put_json(
            {
                "ledger": ledger.where,
                "would_replay": choice.jobs,
                "causes": [
                    {"error_class": error_class, "reason": reason, "jobs": jobs}
                    for (error_class, reason), jobs in choice.causes.most_common()
                ],
                "sample": [job_as_json(row) for row in choice.sample],
                "left": _left_as_json(choice),
            }
        )
    elif choice.jobs:
        rows = [(str(jobs), *cause) for cause, jobs in choice.causes.most_common()]
        for line in table(("JOBS", "CLASS", "REASON"), rows):
            put(line)
        put("")
        sample = [(row.job_id, row.pipeline, row.error_class or "", str(row.calls)) for row in choice.sample]
        for line in table(("JOB", "PIPELINE", "CLASS", "ATTEMPTS"), sample):
            put(line)
    _tell_left(choice)
    if not choice.jobs:
        hint(f"nothing to replay in {ledger.where}")
        return
    words = filter_words(args) + (flag("--limit", str(args.limit)) if args.limit else [])
    again = command_line(args, "replay", *(words or ["--all"]), "--apply")
    hint(f"would replay {counted(choice.jobs, 'job')}; nothing was called. To do it: {again}")


def _tell_left(choice: Choice) -> None:
    if choice.due_at is not None:
        hint(f"left {counted(choice.not_due, 'job')}: not due until {minute_text(choice.due_at)} or later")
    for why, jobs in choice.no_caller.items():
        hint(f"left {counted(jobs, 'job')}: {why}")
    if choice.over_limit:
        hint(f"left {counted(choice.over_limit, 'job')}: over the limit")


def _left_as_json(choice: Choice) -> dict[str, Any]:
    return {"not_due": choice.not_due, "no_caller": dict(choice.no_caller), "over_limit": choice.over_limit}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())
