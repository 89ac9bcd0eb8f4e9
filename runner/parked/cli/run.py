"""`parked run`: every job of a file, through Gemini or a caller of one's own, until each is answered or parked."""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from parked.cli.drain import Drain, run_draining, tell_lost
from parked.cli.nearest import per_minute, whole_number
from parked.cli.output import command_line, flag, hint, put_json, same_command
from parked.cli.pending import Pauses, command_for_pending, tell_orphans, tell_pending, waiting_text
from parked.cli.progress import Progress, progress
from parked.cli.taking_on import (
    OtherModels,
    add_job_flags,
    check_job_flags,
    refuse_conflicts,
    tell_created,
    tell_rejected,
)
from parked.cli.tally import Tally
from parked.clock import from_now_s
from parked.errors import OutputFailed, ParkedError
from parked.job import ANSWERED, Job, State
from parked.settings import Settings
from parked.surroundings.clocks import warn_at_start

if TYPE_CHECKING:
    from parked.answerfile import AnswerOutput
    from parked.check import Check
    from parked.cli.frame import Subparsers
    from parked.course import Hold
    from parked.jobfile import Scan
    from parked.ledger import Ledger
    from parked.ledger.operations import Called
    from parked.pool import Pool
    from parked.running import Running

DEFAULT_CONCURRENCY: Final = 8  # what the smallest quotas bear; more is faster where the quota allows it
DEFAULT_WAIT_S: Final = 24 * 3600.0
HANDED_OUT: Final = 256  # answers noted as handed out in one operation

DESCRIPTION: Final = """\
Run every job of a JSONL file; - is standard input. Each is committed to the ledger before its first call, retried,
and ends answered or parked. Run again, it calls only what is pending or new: a job answered before is written from
the ledger, a parked one stays parked (parked replay is for it), a pending one goes to the model that is named now. What
earlier runs of the pipeline have left over is taken up, too. A fault that every job would meet pauses the run: what is
left stays pending, and the status is 4.

example:
  parked run jobs.jsonl --out answers.jsonl --pipeline nightly --batch "$(date -I)"
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("run", help="run every job of a file", description=DESCRIPTION)
    add_job_flags(parser)
    parser.add_argument("--out", metavar="FILE", help="add answers to this file, each once; default: print them all")
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=whole_number,
        default=DEFAULT_CONCURRENCY,
        help=f"calls at a time, default {DEFAULT_CONCURRENCY}",
    )
    parser.add_argument(
        "--rpm",
        metavar="N",
        type=per_minute,
        help="at most so many calls a minute for each model; default: as many as the quota turns out to bear",
    )
    parser.add_argument(
        "--wait", action="store_true", help="at a pause don't end: let one job try every five minutes, or at the reset"
    )
    parser.add_argument(
        "--wait-until", metavar="T", help="how long to wait so: 6h, or 2026-03-02T12:00Z; default 24h, with --wait"
    )
    parser.add_argument("--max-attempts", metavar="N", help="after so many a job is parked; default 4")
    parser.add_argument("--parked-ok", action="store_true", help="exit with 0 also if jobs are parked")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked.answerfile import open_answers
    from parked.jobfile import scan
    from parked.ledger import open_ledger
    from parked.named import GEMINI, caller_named
    from parked.schema import keep, read_schema
    from parked.tracing import tracing

    waits_s = wait_s_of(args, now=time.time())
    check_job_flags(args, settings, writes={} if args.out is None else {f"--out {args.out}": args.out})
    check = read_schema(args.schema) if args.schema is not None else None
    call_model = caller_named(args.call or GEMINI, timeout_s=settings.attempt_timeout_s)
    check_payload = getattr(call_model, "check_payload", None)
    with (
        scan(
            args.jobs, default_model=args.model, check_payload=check_payload, skip_bad_lines=args.skip_bad_lines
        ) as scanned,
        open_answers(args.out) as out,
        tracing("parked"),
        open_ledger(settings.ledger, mode=settings.ledger_mode, write_patience_s=settings.write_patience_s) as ledger,
    ):
        tell_created(ledger)
        warn_at_start(ledger)
        refuse_conflicts(ledger, scanned, args)
        if check is not None:
            keep(ledger, check)
        tell_orphans(ledger.sweep())
        # The SDK's 100,000 objects are here to stay: walked by each full collection they cost 5 % of a run.
        gc.freeze()
        work = _Work(args, settings, scanned, out, ledger, call_model, check, waits_s=waits_s)
        run_draining(work.run())
        work.tell()
        return work.exit()


def wait_s_of(args: argparse.Namespace, *, now: float) -> float | None:
    """How long the run may wait at pauses, in seconds; None: not at all.

    Raises:
        SettingsError: --wait-until names no time to come.
    """
    if args.wait_until is None:
        return DEFAULT_WAIT_S if args.wait else None
    return from_now_s(args.wait_until, now=now, what="--wait-until")


class _Work:
    """One run: the pool, and what is done with each job that leaves it."""

    def __init__(
        self,
        args: argparse.Namespace,
        settings: Settings,
        scanned: Scan,
        out: AnswerOutput,
        ledger: Ledger,
        call_model: Any,
        check: Check | None,
        *,
        waits_s: float | None,
    ) -> None:
        from parked.gates import Gates
        from parked.running import Running

        self._args, self._scanned, self._out, self._ledger = args, scanned, out, ledger
        self._on: Running = Running(
            ledger,
            call_model,
            pipeline=args.pipeline,
            batch=args.batch,
            policy=settings.policy(),
            check=check,
            allow_truncated=args.allow_truncated,
            caller=args.call or "",
            gates=Gates(rpm=args.rpm),
        )
        self._waits_s = waits_s
        self._pauses = Pauses()
        self._tally = Tally(lines=scanned.lines, repeated=scanned.repeated, rejected=scanned.rejected)
        self._models = OtherModels()
        self._moved_away: set[int] = set()  # jobs of the file that another process has given another model meanwhile
        self._written: list[int] = []
        self._drain = Drain()
        self._failure: OutputFailed | None = None

    async def run(self) -> None:
        from parked.claims import claiming
        from parked.leftovers import beside, failed_before
        from parked.pool import CHUNK, Pool

        waits = self._waits_s is not None
        pool = Pool(
            self._on,
            concurrency=self._args.concurrency,
            keeps=waits,
            resumes=waits,
            pipelines=(self._on.pipeline,),
        )
        pool.turns.heard.append(self._pauses.heard)
        failed = failed_before(self._on, (job for chunk in self._scanned.chunks(CHUNK) for job in chunk))
        own = beside(pool.accepting(self._on, self._chunks()), self._on, failed)
        left_over = claiming(
            pool,
            self._find,
            pipeline=self._args.pipeline,
            until_empty=True,
            patience_s=self._ledger.write_patience_s,
        )
        self._drain.watch(pool, drain_s=self._on.policy.drain_s)
        try:
            with progress(self._scanned.jobs) as shown, self._watching(pool, shown):
                async for hold in pool.run(own, left_over):
                    self._take(hold, shown, pool)
        finally:
            await pool.close()
            tell_lost(pool.lost)
            self._hand_out()
            if (aclose := getattr(self._on.call_model, "aclose", None)) is not None:
                await aclose()

    @contextmanager
    def _watching(self, pool: Pool, shown: Progress) -> Iterator[None]:
        """Say every second what is waited for, on a terminal, and give up waiting at the time that was named."""
        loop = asyncio.get_running_loop()
        timers: dict[str, asyncio.TimerHandle] = {}

        def look() -> None:
            shown.say(waiting_text(pool.line.waits_for(self._on.clock.monotonic())))
            timers["look"] = loop.call_later(1.0, look)

        if self._waits_s is not None:
            timers["give up"] = loop.call_later(self._waits_s, pool.give_up_waiting)
        if shown.is_shown:
            look()
        try:
            yield
        finally:
            for timer in timers.values():
                timer.cancel()

    def _known_here(self) -> int:
        """How many of the file's jobs the ledger knows, with what was still being accepted when the run ended."""
        from parked.ledger.operations import Consult
        from parked.pool import CHUNK

        args, known = self._args, 0
        with suppress(ParkedError):
            self._ledger.record(Consult())  # changes nothing, and comes after all that was handed in before
            with self._ledger.ask() as reader:
                for chunk in self._scanned.chunks(CHUNK):
                    known += len(reader.identities(args.pipeline, args.batch, [job.job_id for job in chunk]))
        return known

    def tell(self) -> None:
        """The last lines: what was what, and what is still to be done."""
        args, tally = self._args, self._tally
        if tally.seen < self._scanned.jobs:  # the run was stopped before
            known = self._known_here()
            tally.pending += max(0, known - tally.seen)
            tally.not_taken_on = self._scanned.jobs - tally.seen
        tell_rejected(self._scanned)
        if tally.parked or tally.parked_before or tally.taken_up[State.PARKED]:
            words = flag("--pipeline", args.pipeline) + (flag("--batch", args.batch) if args.batch else [])
            hint(f"to see what is parked and why: {command_line(args, 'list', *words)}")
        if tally.taken_up[State.SUCCEEDED]:
            hint(f"the answers of jobs left over from earlier: {command_line(args, 'answers', '--new')}")
        self._models.tell(args)
        self._pauses.tell(self._with_another_model)
        retired = args.model if self._pauses.is_retired(args.model) else None
        tell_pending(self._ledger, pipeline=args.pipeline, go_on=same_command(args, but_model=retired))
        if args.json and args.out:
            put_json({"ledger": self._ledger.where, **tally.as_json(), **self._models.as_json()})
        hint(tally.text())

    def _with_another_model(self, model: str) -> str:
        """What to type so that what is pending for a model is run with another."""
        args = self._args
        if model == args.model:
            return same_command(args, but_model=model)
        if self._scanned.names(model):
            return f"name another model in the lines of {args.jobs}, and the same command again"
        return command_for_pending(args, self._ledger, "run", pipeline=args.pipeline, model=model)

    def exit(self) -> int:
        if self._failure is not None:
            raise self._failure
        if self._drain.received is not None:
            return self._drain.exit()
        return self._tally.exit(parked_ok=self._args.parked_ok)

    def _take(self, hold: Hold, shown: Progress, pool: Pool) -> None:
        if hold.claimed and hold.row.id in self._moved_away:
            hold.claimed = False
            self._tally.pending -= 1
        elif hold.wanted_model is not None and hold.row.state is State.PENDING:
            self._moved_away.add(hold.row.id)
        self._tally.add(hold)
        self._models.add(hold.row.state, hold.row.model, was=hold.was_model, wanted=hold.wanted_model)
        shown.advance(parked=self._tally.parked)
        if hold.claimed or hold.row.state not in ANSWERED or hold.row.erased_at is not None or self._failure:
            return
        from parked.answerfile import AnswerLine, Key

        row = hold.row
        try:
            if not self._out.has(Key(row.pipeline, row.batch, row.job_id)):
                self._out.add(AnswerLine.of_job(row, self._on.answer(hold)))
        except OutputFailed as exc:  # the answers are in the ledger; the calls that run now are waited for
            self._failure = exc
            pool.stop()
            return
        self._written.append(row.id)
        if len(self._written) >= HANDED_OUT:
            self._hand_out()

    def _hand_out(self) -> None:
        from parked.ledger.operations import HandOut

        if self._written:
            self._ledger.submit(HandOut(tuple(self._written)))
            self._written = []

    def _find(self, called: Called) -> Running | None:
        """What was left over by another caller, or is for another check, is left to those."""
        return self._on if called == (self._on.caller, self._on.checker) else None

    async def _chunks(self) -> AsyncIterator[list[Job]]:
        from parked.pool import CHUNK

        for chunk in self._scanned.chunks(CHUNK):
            yield chunk
