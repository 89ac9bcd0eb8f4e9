"""`parked run`: every job of a file, through Gemini or a caller of one's own, until each is answered or parked."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from parked.cli.drain import Drain, tell_lost
from parked.cli.nearest import whole_number
from parked.cli.output import command_line, counted, flag, hint, put_json, same_command
from parked.cli.progress import Progress, progress
from parked.cli.tally import Tally
from parked.clock import minute_text
from parked.errors import JobConflict, OutputFailed, SettingsError
from parked.job import ANSWERED, Job, State, check_name
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.answerfile import AnswerOutput
    from parked.check import Check
    from parked.cli.frame import Subparsers
    from parked.course import Hold
    from parked.jobfile import Scan
    from parked.ledger import Ledger
    from parked.ledger.operations import JobRow
    from parked.pool import Pool
    from parked.running import Running

DEFAULT_CONCURRENCY: Final = 8  # what the smallest quotas bear; more is faster where the quota allows it
HANDED_OUT: Final = 256  # answers noted as handed out in one operation

DESCRIPTION: Final = """\
Run every job of a JSONL file; - is standard input. Each is committed to the ledger before its first call, retried,
and ends answered or parked. Run again, it calls only what is pending or new: a job answered before is written from
the ledger, a parked one stays parked (parked replay is for it). What earlier runs of the pipeline have left over is
taken up after the file's own.

example:
  parked run jobs.jsonl --out answers.jsonl --pipeline nightly --batch "$(date -I)"
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("run", help="run every job of a file", description=DESCRIPTION)
    parser.add_argument("jobs", metavar="JOBS", help="a JSONL file; - for standard input")
    parser.add_argument("--out", metavar="FILE", help="add answers to this file, each once; default: print them all")
    parser.add_argument(
        "--pipeline", metavar="NAME", default="default", help="under which name the jobs are counted; default: default"
    )
    parser.add_argument("--batch", metavar="NAME", default="", help="ids are unique in a batch; e.g. the date")
    parser.add_argument("--model", metavar="M", help="for lines that name none")
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=whole_number,
        default=DEFAULT_CONCURRENCY,
        help=f"calls at a time, default {DEFAULT_CONCURRENCY}",
    )
    parser.add_argument("--max-attempts", metavar="N", help="after so many a job is parked; default 4")
    parser.add_argument(
        "--call", metavar="MODULE:FUNCTION", help="what is called instead of Gemini: (payload, model) -> answer"
    )
    parser.add_argument(
        "--schema",
        metavar="FILE",
        help="a JSON Schema: an answer whose text isn't JSON or breaks it has failed, and is asked for again",
    )
    parser.add_argument(
        "--allow-truncated",
        action="store_true",
        help="text that stopped at the output token limit is an answer; counted as truncated",
    )
    parser.add_argument("--parked-ok", action="store_true", help="exit with 0 also if jobs are parked")
    parser.add_argument("--skip-bad-lines", action="store_true", help="set bad lines aside in JOBS.rejected.jsonl")


def run(args: argparse.Namespace, settings: Settings) -> int:
    check_name("--pipeline", args.pipeline)
    check_name("--batch", args.batch, empty=True)

    import asyncio

    from parked.answerfile import open_answers
    from parked.jobfile import scan
    from parked.ledger import open_ledger
    from parked.named import GEMINI, caller_named
    from parked.schema import keep, read_schema
    from parked.tracing import set_up

    _refuse_same_file(args, settings)
    check = read_schema(args.schema) if args.schema is not None else None
    call_model = caller_named(args.call or GEMINI, timeout_s=settings.attempt_timeout_s)
    check_payload = getattr(call_model, "check_payload", None)
    with (
        scan(
            args.jobs, default_model=args.model, check_payload=check_payload, skip_bad_lines=args.skip_bad_lines
        ) as scanned,
        open_answers(args.out) as out,
        _telemetry(set_up("parked")),
        open_ledger(settings.ledger, mode=settings.ledger_mode, write_patience_s=settings.write_patience_s) as ledger,
    ):
        if ledger.created:
            hint(f"made the ledger {ledger.where}")
        _refuse_conflicts(ledger, scanned, args)
        if check is not None:
            keep(ledger, check)
        tell_orphans(ledger.sweep())
        # The SDK's 100,000 objects are here to stay: walked by each full collection they cost 5 % of a run.
        gc.freeze()
        work = _Work(args, settings, scanned, out, ledger, call_model, check)
        asyncio.run(work.run())
        work.tell()
        return work.exit()


def tell_orphans(orphans: list[JobRow]) -> None:
    """Say that a process has died, and what became of its jobs."""
    if orphans:
        hint(
            f"{counted(len(orphans), 'job')} of a process that died parked as orphaned: their calls may have been made"
        )


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
    ) -> None:
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
        )
        self._tally = Tally(lines=scanned.lines, repeated=scanned.repeated, rejected=scanned.rejected)
        self._written: list[int] = []
        self._drain = Drain()
        self._failure: OutputFailed | None = None

    async def run(self) -> None:
        from parked.pool import Pool

        pool = Pool(self._on, concurrency=self._args.concurrency)
        self._drain.watch(pool, drain_s=self._on.policy.drain_s)
        try:
            with progress(self._scanned.jobs) as shown:
                async for hold in pool.run(pool.accepting(self._chunks()), pool.claiming()):
                    self._take(hold, shown, pool)
        finally:
            await pool.close()
            tell_lost(pool.lost)
            self._hand_out()
            if (aclose := getattr(self._on.call_model, "aclose", None)) is not None:
                await aclose()

    def tell(self) -> None:
        """The last lines: what was what, and what is still to be done."""
        args, tally = self._args, self._tally
        tally.not_taken_on = self._scanned.jobs - tally.seen  # the run was stopped before
        if self._scanned.rejected_to is not None:
            for line in self._scanned.bad:
                hint(f"line {line.number}: {line.why}")
            hint(f"bad lines were set aside in {self._scanned.rejected_to}")
        if tally.parked or tally.parked_before or tally.taken_up[State.PARKED]:
            words = flag("--pipeline", args.pipeline) + (flag("--batch", args.batch) if args.batch else [])
            hint(f"to see what is parked and why: {command_line(args, 'list', *words)}")
        if tally.taken_up[State.SUCCEEDED]:
            hint(f"the answers of jobs left over from earlier: {command_line(args, 'answers', '--new')}")
        self._tell_pending()
        if args.json and args.out:
            put_json({"ledger": self._ledger.where, **tally.as_json()})
        hint(tally.text())

    def exit(self) -> int:
        if self._failure is not None:
            raise self._failure
        if self._drain.received is not None:
            return self._drain.exit()
        return self._tally.exit(parked_ok=self._args.parked_ok)

    def _take(self, hold: Hold, shown: Progress, pool: Pool) -> None:
        self._tally.add(hold)
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

    async def _chunks(self) -> AsyncIterator[list[Job]]:
        from parked.pool import CHUNK

        for chunk in self._scanned.chunks(CHUNK):
            yield chunk

    def _tell_pending(self) -> None:
        from parked.ledger.store import Filters

        filters = Filters(pipeline=self._args.pipeline)
        with self._ledger.ask() as reader:
            pending = reader.count(filters, states=(State.PENDING,))
            oldest = next(iter(reader.jobs(filters, states=(State.PENDING,), limit=1)), None)
        if oldest is not None:
            since = minute_text(oldest.accepted_at)
            said = f"{counted(pending, 'job')} of the pipeline {self._args.pipeline!r} pending since {since}"
            hint(f"{said}; to go on: {same_command(self._args)}")


def _refuse_same_file(args: argparse.Namespace, settings: Settings) -> None:
    """Refuse answers that would be written into another file of this run, before any is opened.

    Raises:
        SettingsError: names that file.
    """
    if args.out is None:
        return
    ledger = settings.ledger.removeprefix("sqlite:///")
    others = {
        "the job file": args.jobs,
        "the file of rejected lines": f"{args.jobs}.rejected.jsonl",
        "the ledger": ledger,
        "a file of the ledger": f"{ledger}-wal",
        "a file that belongs to the ledger": f"{ledger}-shm",
    }
    for what, name in others.items():
        if os.path.realpath(args.out) == os.path.realpath(name):
            raise SettingsError(f"--out {args.out} is {what}; give the answers a file of their own")


def _refuse_conflicts(ledger: Ledger, scanned: Scan, args: argparse.Namespace) -> None:
    """Refuse a file that holds a known id with another payload, before anything of it is taken on.

    Raises:
        JobConflict: names the first.
    """
    from parked.ledger.codec import identity
    from parked.pool import CHUNK

    with ledger.ask() as reader:
        for chunk in scanned.chunks(CHUNK):
            known = reader.identities(args.pipeline, args.batch, [job.job_id for job in chunk])
            for job in chunk:
                if known.get(job.job_id) not in (None, identity(job.payload)):
                    raise JobConflict(args.pipeline, args.batch, job.job_id)


@contextmanager
def _telemetry(shut_down: Any) -> Iterator[None]:
    try:
        yield
    finally:
        shut_down()
