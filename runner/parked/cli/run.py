"""`parked run`: every job of a file, through Gemini or a caller of one's own, until each is answered or parked."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from parked.cli.drain import Drain, tell_lost
from parked.cli.exits import Exit
from parked.cli.nearest import per_minute, whole_number
from parked.cli.output import command_line, counted, flag, hint, put_json, same_command
from parked.cli.pending import (
    Pauses,
    command_for_pending,
    pending_text,
    refuse_omitted,
    tell_orphans,
    to_go_on,
    waiting_text,
)
from parked.cli.progress import Progress, progress, watching
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
from parked.errors import LedgerUnavailable, OutputFailed, ParkedError, TextMissing
from parked.job import ANSWERED, HELD, Job, State
from parked.settings import Settings
from parked.surroundings.clocks import warn_at_start

if TYPE_CHECKING:
    from parked.answerfile import AnswerOutput
    from parked.cli.frame import Subparsers
    from parked.course import Hold
    from parked.jobfile import Scan
    from parked.ledger import Ledger
    from parked.ledger.operations import Called
    from parked.pool import Handful, Pool
    from parked.running import Running

DEFAULT_CONCURRENCY: Final = 8  # what the smallest quotas bear; more is faster where the quota allows it
DEFAULT_WAIT_S: Final = 24 * 3600.0
HANDED_OUT: Final = 256  # answers noted as handed out in one operation
CLOSING_S: Final = 30.0  # how long a run that has left its pipeline may take to let go of its output

DESCRIPTION: Final = """\
Run every job of a JSONL file; - is standard input. Each is committed to the ledger before its first call, retried,
and ends answered or parked. Run again, it calls only what is pending or new: a job answered before is written from
the ledger, a parked one stays parked (parked replay is for it), a pending one goes to the model that is named now. What
earlier runs of the pipeline have left over is taken up, too. A fault that every job would meet pauses the run: what is
left stays pending, and the status is 4.

Runs of one pipeline may overlap: each works on the jobs of its file, and leaves what another living one runs. With
--exclusive only one of them runs: where another is alive, its jobs are accepted and left to that one, which takes them
up before it ends; the status is 4.

example:
  parked run jobs.jsonl --out answers.jsonl --pipeline nightly --batch "$(date -I)"
  parked run jobs.jsonl --out answers.jsonl --pipeline nightly --exclusive --quiet    # from cron
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
    parser.add_argument(
        "--exclusive",
        action="store_true",
        help="if another run of the pipeline is alive, leave the jobs to it and exit with 4",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="say nothing if nothing is left to be done, else one line; for cron"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked.answerfile import open_answers
    from parked.cli.exclusive import hand_over
    from parked.gates import Gates
    from parked.jobfile import scan
    from parked.ledger import open_ledger
    from parked.ledger.operations import FILE_ALONE, Called, Run
    from parked.named import GEMINI, caller_named
    from parked.running import Running
    from parked.schema import keep, read_schema
    from parked.tracing import tracing

    waits_s = wait_s_of(args, now=time.time())
    if args.exclusive:  # the run that is alive couldn't read what it is handed
        refuse_omitted(settings, "run --exclusive")
    if args.quiet:
        logging.getLogger().setLevel(logging.ERROR)  # a pause that ended in time is no reason for a mail
    check_job_flags(args, settings, writes={} if args.out is None else {f"--out {args.out}": args.out})
    check = read_schema(args.schema) if args.schema is not None else None
    call_model = caller_named(args.call or GEMINI, timeout_s=settings.attempt_timeout_s)
    check_payload = getattr(call_model, "check_payload", None)
    with ExitStack() as stack:
        scanned = stack.enter_context(
            scan(args.jobs, default_model=args.model, check_payload=check_payload, skip_bad_lines=args.skip_bad_lines)
        )
        # The run that is alive may be writing to the same file.
        out = None if args.exclusive else stack.enter_context(open_answers(args.out))
        stack.enter_context(tracing("parked"))
        ledger = stack.enter_context(
            open_ledger(settings.ledger, mode=settings.ledger_mode, write_patience_s=settings.write_patience_s)
        )
        tell_created(ledger)  # also with --quiet: at the second night it would be the wrong one
        warn_at_start(ledger)
        refuse_conflicts(ledger, scanned, args)
        if check is not None:
            keep(ledger, check)
        tell_orphans(ledger.sweep())  # nobody else may ever say so
        on = Running(
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
        takes_up, called = _can_take_up(ledger, args.pipeline), Called(on.caller, on.checker)
        this = Run(args.pipeline, called if takes_up else FILE_ALONE)
        if not args.exclusive:
            ledger.enter_run(this)
        elif (status := hand_over(args, ledger, scanned, this, called)) is not None:
            return status
        if out is None:
            out = stack.enter_context(open_answers(args.out, patience_s=CLOSING_S))
        # The SDK's 100,000 objects are here to stay: walked by each full collection they cost 5 % of a run.
        gc.freeze()
        work = _Work(args, scanned, out, on, waits_s=waits_s, takes_up=takes_up)
        work.drain.run(work.run)
        with suppress(LedgerUnavailable):  # what was seen then stands
            work.look_again()
        ledger.leave_run()  # before it is counted what is pending: of what is accepted later, others are told
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


def _can_take_up(ledger: Ledger, pipeline: str) -> bool:
    """Whether the payloads of jobs that were left over can be read here; else only those of the file are run."""
    if ledger.vault.omits:
        return False
    with ledger.ask() as reader:
        return not reader.unreadable(State.PENDING, pipeline=pipeline)


class _Work:
    """One run: the pool, and what is done with each job that leaves it."""

    def __init__(
        self,
        args: argparse.Namespace,
        scanned: Scan,
        out: AnswerOutput,
        on: Running,
        *,
        waits_s: float | None,
        takes_up: bool,
    ) -> None:
        self._args, self._scanned, self._out, self._on, self._ledger = args, scanned, out, on, on.ledger
        self._waits_s = waits_s
        self._pauses = Pauses(is_quiet=args.quiet)
        self._tally = Tally(lines=scanned.lines, repeated=scanned.repeated, rejected=scanned.rejected)
        self._models = OtherModels()
        self._takes_up = takes_up
        self._moved_away: set[int] = set()  # jobs of the file that another process has given another model meanwhile
        self._elsewhere: dict[int, str] = {}  # jobs of the file that another process had when it came to them: ids
        self._written: list[int] = []
        self.drain = Drain()
        self._failure: OutputFailed | None = None
        self._answers_missing: Counter[str] = Counter()  # why answers of earlier runs can't be written -> jobs

    async def run(self) -> None:
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
        sources = [pool.accepting(self._on, self._chunks())]
        if self._takes_up:
            failed = failed_before(self._on, (job for chunk in self._scanned.chunks(CHUNK) for job in chunk))
            sources = [beside(sources[0], self._on, failed), self._left_over(pool)]
        self.drain.watch(pool, drain_s=self._on.policy.drain_s)
        try:
            with (
                progress(self._scanned.jobs) as shown,
                watching(shown, lambda: waiting_text(pool)),
                self._waiting(pool),
            ):
                async for hold in pool.run(*sources):
                    self._take(hold, shown, pool)
        finally:
            await pool.close()
            tell_lost(pool.lost)
            self._hand_out()
            if (aclose := getattr(self._on.call_model, "aclose", None)) is not None:
                await aclose()

    async def _left_over(self, pool: Pool) -> AsyncIterator[Handful]:
        """What is pending besides the file, until some of it turns out to be unreadable here: then it is left."""
        from parked.claims import claiming
        from parked.ledger.operations import FILE_ALONE, Run

        claimed = claiming(
            pool,
            self._find,
            pipeline=self._args.pipeline,
            until_empty=True,
            patience_s=self._ledger.write_patience_s,
            may_end=self._may_end,
        )
        try:
            async with aclosing(claimed):  # what it has claimed and not given out is handed back at once
                async for handful in claimed:
                    yield handful
        except TextMissing:  # another process has it encrypted with a key that isn't here, since this run began
            self._takes_up = False
            # Whoever hands jobs over from now on is told that this run leaves them.
            await asyncio.to_thread(self._ledger.enter_run, Run(self._args.pipeline, FILE_ALONE))

    @contextmanager
    def _waiting(self, pool: Pool) -> Iterator[None]:
        """Give up waiting at the time that was named."""
        timer = None if self._waits_s is None else pool.wait_at_most(self._waits_s)
        try:
            yield
        finally:
            if timer is not None:
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
        if args.json and args.out:
            as_json = {**tally.as_json(), **self._models.as_json(), "run_by": None}
            put_json({"ledger": self._ledger.where, **as_json})
        if args.quiet:
            self._tell_in_a_line()
            return
        tell_rejected(self._scanned)
        if tally.parked or tally.parked_before or tally.taken_up[State.PARKED]:
            words = flag("--pipeline", args.pipeline) + (flag("--batch", args.batch) if args.batch else [])
            hint(f"to see what is parked and why: {command_line(args, 'list', *words)}")
        if tally.taken_up[State.SUCCEEDED]:
            hint(f"the answers of jobs left over from earlier: {command_line(args, 'answers', '--new')}")
        self._models.tell(args)
        self._pauses.tell(self._with_another_model)
        if (pending := pending_text(self._ledger, pipeline=args.pipeline)) is not None:
            hint(f"{pending}; to go on: {self._to_go_on()}")
        hint(tally.text())
        for told in self._unwritten():
            hint(told)

    def _tell_in_a_line(self) -> None:
        """Say what somebody has to do something about, and nothing if there is none: cron sends a mail for any word."""
        args, tally = self._args, self._tally
        if self._failure is not None:  # it is going to be said
            return
        pending = pending_text(self._ledger, pipeline=args.pipeline)
        if self.exit() is Exit.OK and pending is None and not tally.rejected:
            return
        told = [tally.text(), self._pauses.text()]
        told += self._unwritten()
        if tally.rejected:
            told.append(f"bad lines were set aside in {self._scanned.rejected_to}")
        if tally.parked or tally.parked_before or tally.taken_up[State.PARKED]:
            told.append(f"why: {command_line(args, 'causes', *flag('--pipeline', args.pipeline))}")
        if pending is not None:
            told.append(f"{pending}; to go on: {self._to_go_on()}")
        hint("; ".join(part for part in told if part))

    def _to_go_on(self) -> str:
        from parked.retired import Pending, pending_by_way_on

        args = self._args
        with self._ledger.ask() as reader:
            pending = pending_by_way_on(reader, pipeline=args.pipeline)
        same = same_command(args)
        if not self._takes_up:
            same = "parked run with the file that they came from, since not all their payloads can be read here"
        elif any(one.model == args.model for one in pending.retired):  # with another, it runs the others as well
            own_first = sorted(pending.retired, key=lambda one: one.model != args.model)
            pending = Pending(as_it_is=False, retired=tuple(own_first))
        return to_go_on(pending, same=same, with_another=lambda one: self._with_another_model(one.model))

    def _with_another_model(self, model: str) -> str:
        """What to type so that what is pending for a model is run with another."""
        args = self._args
        if model == args.model:
            return same_command(args, but_model=model)
        if self._scanned.names(model):
            return f"name another one in the lines of {args.jobs} instead of {model}, and give the same command again"
        return command_for_pending(args, self._ledger, "run", pipeline=args.pipeline, model=model)

    def _unwritten(self) -> list[str]:
        missing = self._answers_missing.items()
        return [f"{counted(jobs, 'answer')} of earlier runs not written: {why}" for why, jobs in missing]

    def exit(self) -> Exit:
        if self._failure is not None:
            raise self._failure
        if self.drain.received is not None:
            return self.drain.exit()
        if self._answers_missing:
            return Exit.SURROUNDINGS
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
        if not hold.claimed and hold.row.state in HELD:
            self._elsewhere[hold.row.id] = hold.row.job_id
        if hold.claimed or hold.row.state not in ANSWERED or hold.row.erased_at is not None:
            return
        self._write(hold)
        if self._failure is not None:  # the answers are in the ledger; the calls that run now are waited for
            pool.stop()

    def look_again(self) -> None:
        """Look once more at the jobs of the file that another process had: it may be done with them by now."""
        from parked.course import Hold

        with self._ledger.ask() as reader:
            now = {
                row.id: row
                for job_id in self._elsewhere.values()
                for row in reader.jobs_by_key(job_id, pipeline=self._on.pipeline, batch=self._on.batch)
                if row.id in self._elsewhere and row.state not in HELD
            }
        for row in now.values():
            self._tally.elsewhere -= 1
            self._tally.add_row(row, called=False)
            if row.state in ANSWERED and row.erased_at is None:
                self._write(Hold(row, None, self._ledger.owner_id))
        self._hand_out()

    def _write(self, hold: Hold) -> None:
        """Add the answer of a job of the file to the output."""
        if self._failure is not None:
            return
        from parked.answerfile import AnswerLine, Key

        row = hold.row
        try:
            if not self._out.has(Key(row.pipeline, row.batch, row.job_id)):
                answer = self._on.answer(hold)
                if answer is None:
                    raise TextMissing("not stored, since PARKED_STORE=none")
                self._out.add(AnswerLine.of_job(row, answer))
        except TextMissing as exc:
            self._answers_missing[exc.why] += 1
            return
        except OutputFailed as exc:
            self._failure = exc
            return
        self._written.append(row.id)
        if len(self._written) >= HANDED_OUT:
            self._hand_out()

    def _hand_out(self) -> None:
        from parked.ledger.operations import HandOut

        if self._written:
            self._ledger.submit(HandOut(tuple(self._written)))
            self._written = []

    async def _may_end(self, paused: tuple[str, ...]) -> bool:
        """Leave the pipeline, unless somebody has handed jobs over meanwhile."""
        from parked.driver import in_thread

        try:
            return await in_thread(lambda: self._ledger.leave_run(unless_waiting=True, closed=paused))
        except LedgerUnavailable:  # the next claim finds out how long it is away
            return False

    def _find(self, called: Called) -> Running | None:
        """What was left over by another caller, or is for another check, is left to those."""
        return self._on if called == (self._on.caller, self._on.checker) else None

    async def _chunks(self) -> AsyncIterator[list[Job]]:
        from parked.pool import CHUNK

        for chunk in self._scanned.chunks(CHUNK):
            yield chunk
