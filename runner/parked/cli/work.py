"""`parked work`: runs what is pending, beside any number of others on the same ledger."""

from __future__ import annotations

import argparse
import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from parked.cli.drain import Drain, tell_lost
from parked.cli.exits import Exit
from parked.cli.ledgers import existing_ledger
from parked.cli.nearest import whole_number
from parked.cli.output import command_line, counted, flag, hint, put_json, same_command
from parked.cli.pending import (
    Pauses,
    command_for_pending,
    pending_of,
    refuse_omitted,
    refuse_unreadable,
    tell_orphans,
    to_go_on,
)
from parked.errors import LedgerUnavailable, SettingsError, TextMissing
from parked.job import ANSWERED, State, check_name
from parked.logs import fields
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.course import Hold
    from parked.ledger import Ledger
    from parked.ledger.operations import Called
    from parked.retired import Retired
    from parked.running import Running

DEFAULT_CONCURRENCY: Final = 8  # what the smallest quotas bear; more is faster where the quota allows it

DESCRIPTION: Final = """\
Run what is pending, of one pipeline or of all, until it is told to end. Any number of workers may share a ledger: each
job is run by one of them, in order of acceptance and fairly among pipelines, within a second of being submitted. Who
calls and who checks is what the job was submitted with; jobs whose caller can't be imported here are left to others.
SIGTERM and Ctrl-C let running calls end.

example:
  parked work --pipeline nightly --until-empty
"""

_log = logging.getLogger("parked.work")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("work", help="run what was submitted", description=DESCRIPTION)
    parser.add_argument("--pipeline", metavar="NAME", help="only jobs of this pipeline; default: of all")
    parser.add_argument("--until-empty", action="store_true", help="end once nothing is pending that could be run here")
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=whole_number,
        default=DEFAULT_CONCURRENCY,
        help=f"calls at a time, of all pipelines together, default {DEFAULT_CONCURRENCY}",
    )
    parser.add_argument("--parked-ok", action="store_true", help="exit with 0 also if jobs are parked")
    parser.add_argument(
        "--quiet", action="store_true", help="say nothing if nothing is left to be done, else one line; for cron"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    if args.pipeline is not None:
        check_name("--pipeline", args.pipeline)
    refuse_omitted(settings, "work")
    if args.quiet:
        logging.getLogger().setLevel(logging.ERROR)  # a pause that ended in time is no reason for a mail

    from parked.tracing import tracing

    with tracing("parked"), existing_ledger(settings, role="worker") as ledger:
        refuse_unreadable(ledger, pipeline=args.pipeline)
        tell_orphans(ledger.sweep())  # now: a worker that finds nothing to do may be gone before its first beat
        work = _Work(args, settings, ledger)
        try:
            work.drain.run(work.run)
        except TextMissing as exc:  # it came meanwhile; with one that was there before, nothing would have begun
            raise LedgerUnavailable(f"a pending job in {ledger.where}: payload {exc.why}") from exc
        return work.tell()


class _Work:
    """One worker: its pool, and what became of the jobs that left it."""

    def __init__(self, args: argparse.Namespace, settings: Settings, ledger: Ledger) -> None:
        from parked.callers import Callers

        self._args, self._ledger = args, ledger
        self._callers = Callers(ledger, settings.policy())
        self.drain = Drain()
        self._pauses = Pauses()
        self._ended: Counter[State] = Counter()

    async def run(self) -> None:
        from parked.claims import claiming
        from parked.pool import Pool

        args, ledger = self._args, self._ledger
        pool = Pool(
            self._callers,
            concurrency=args.concurrency,
            resumes=not args.until_empty,
            pipelines=None if args.pipeline is None else (args.pipeline,),
        )
        pool.turns.heard.append(self._pauses.heard)
        self.drain.watch(pool, drain_s=self._callers.policy.drain_s)
        _log.info("work_began", extra=fields(ledger=ledger.where, pipeline=args.pipeline))
        # With nothing to do and nothing to lose, a worker that is to stay waits for its ledger as long as it takes.
        patience_s = ledger.write_patience_s if args.until_empty else math.inf
        source = claiming(pool, self._find, pipeline=args.pipeline, until_empty=args.until_empty, patience_s=patience_s)
        try:
            async for hold in pool.run(source):
                self._ended[_end_of(hold)] += 1
        finally:
            await pool.close()
            tell_lost(pool.lost)
            await self._callers.aclose()

    def tell(self) -> int:
        """The last lines, and the status that says it."""
        args, ended = self._args, self._ended
        pending, text = pending_of(self._ledger, pipeline=args.pipeline)
        status = self._exit(pending)
        if args.json:
            put_json(
                {
                    "ledger": self._ledger.where,
                    "answered": self._answered,
                    "parked": ended[State.PARKED],
                    "handed_back": ended[State.PENDING],
                    "pending": pending,
                }
            )
        go_on = [f"{text}; to go on: {self._to_go_on()}"] if text is not None else []
        if args.quiet:
            if status is not Exit.OK:
                whys = [f"why: {self._command_for_parked('causes')}"] if ended[State.PARKED] else []
                hint("; ".join(part for part in (self._text(), self._pauses.text(), *whys, *go_on) if part))
            return status
        if ended[State.PARKED]:
            hint(f"to see what is parked and why: {self._command_for_parked('list')}")
        self._pauses.tell(self._with_another_model)
        for line in (*go_on, self._text()):
            hint(line)
        return status

    @property
    def _answered(self) -> int:
        return sum(self._ended[state] for state in ANSWERED)

    def _text(self) -> str:
        """`2 jobs: 1 answered, 1 parked`."""
        ended = self._ended
        parts = [(self._answered, "answered"), (ended[State.PARKED], "parked"), (ended[State.PENDING], "handed back")]
        told = ", ".join(f"{number} {what}" for number, what in parts if number) or "nothing to do"
        return f"{counted(ended.total(), 'job')}: {told}"

    def _exit(self, pending: int) -> Exit:
        if self.drain.received is not None:
            return self.drain.exit()
        if pending:
            return Exit.PENDING
        return Exit.PARKED if self._ended[State.PARKED] and not self._args.parked_ok else Exit.OK

    def _command_for_parked(self, command: str) -> str:
        words = flag("--pipeline", self._args.pipeline) if self._args.pipeline is not None else []
        return command_line(self._args, command, *words)

    def _to_go_on(self) -> str:
        from parked.retired import pending_by_way_on, with_another_model

        args = self._args
        with self._ledger.ask() as reader:
            pending = pending_by_way_on(reader, pipeline=args.pipeline)
        same = same_command(args)

        def with_another(one: Retired) -> str:
            submit = with_another_model("submit", pipeline=one.pipeline, batch=one.batch)
            return f"{command_line(args, *submit)}, then {same}"

        return to_go_on(pending, same=same, with_another=with_another)

    def _with_another_model(self, model: str) -> str:
        """What to type so that what is pending for a model is run with another."""
        return command_for_pending(self._args, self._ledger, "submit", pipeline=self._args.pipeline, model=model)

    def _find(self, called: Called) -> Running | None:
        try:
            return self._callers.running(called)
        except SettingsError as exc:
            _log.warning("jobs_left", extra=fields(caller=called.caller, checker=called.checker, why=str(exc)))
            return None


def _end_of(hold: Hold) -> State:
    """How a job left; one that others have by now ended here as handed back."""
    return hold.row.state if hold.row.state in (*ANSWERED, State.PARKED) else State.PENDING
