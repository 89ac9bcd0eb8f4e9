"""`parked submit`: accepts the jobs of a file as pending; `parked work` runs them, here or elsewhere."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.ledgers import trouble_said_once
from parked.cli.output import command_line, counted, flag, hint, put_json, same_command
from parked.cli.pending import refuse_omitted
from parked.cli.progress import progress
from parked.cli.signals import noting
from parked.cli.taking_on import (
    OtherModels,
    add_job_flags,
    check_job_flags,
    refuse_conflicts,
    tell_created,
    tell_rejected,
)
from parked.errors import ParkedError
from parked.job import State
from parked.settings import Settings
from parked.surroundings.clocks import warn_at_start

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.jobfile import Scan
    from parked.ledger import Ledger, Ticket
    from parked.ledger.operations import Accept, Accepted, Called, JobRow

DESCRIPTION: Final = """\
Accept the jobs of a JSONL file as pending, and return; - is standard input. parked work runs them, on any machine that
shares the ledger. Nothing is called and no key is needed. Submitted again, known jobs stay what they are; those that
are still pending go to the model that the file names now.

example:
  parked submit jobs.jsonl --pipeline nightly --batch "$(date -I)"
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("submit", help="accept the jobs of a file, for workers", description=DESCRIPTION)
    add_job_flags(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from parked.check import CheckerName
    from parked.jobfile import scan
    from parked.ledger import open_ledger
    from parked.ledger.operations import Called
    from parked.named import GEMINI, payload_check
    from parked.schema import keep, read_schema

    refuse_omitted(settings, "submit")
    check_job_flags(args, settings, writes={})
    check = read_schema(args.schema) if args.schema is not None else None
    caller = args.call or GEMINI
    called = Called(caller, str(CheckerName(check.name if check else "", args.allow_truncated)))
    with (
        trouble_said_once(),
        scan(
            args.jobs,
            default_model=args.model,
            check_payload=payload_check(caller),
            skip_bad_lines=args.skip_bad_lines,
        ) as scanned,
        open_ledger(settings.ledger, mode=settings.ledger_mode, write_patience_s=settings.write_patience_s) as ledger,
    ):
        tell_created(ledger)
        warn_at_start(ledger)
        refuse_conflicts(ledger, scanned, args)
        if check is not None:
            keep(ledger, check)
        submission = Submission()
        try:
            with progress(scanned.jobs) as shown, noting() as signals:
                submission.take_on(
                    ledger,
                    operations(scanned, args, called),
                    counted_one=lambda _: shown.advance(parked=0),
                    goes_on=lambda: signals.first is None,
                )
        except BaseException:
            if submission.new:
                hint(f"{counted(submission.new, 'job')} accepted before that; give the same command again for the rest")
            raise
        not_taken_on = scanned.jobs - submission.seen
        _tell(args, ledger, scanned, submission, not_taken_on)
    return signals.exit() if not_taken_on else Exit.OK


class Submission:
    """What became of the lines of a file, counted as they are accepted."""

    def __init__(self) -> None:
        self.new = 0
        self.known: Counter[State] = Counter()
        self.models = OtherModels()

    @property
    def seen(self) -> int:
        return self.new + self.known.total()

    def take_on(
        self,
        ledger: Ledger,
        chunks: Iterator[list[Accept]],
        *,
        counted_one: Callable[[JobRow], None],
        goes_on: Callable[[], bool],
    ) -> None:
        """Have each chunk committed, as long as it goes on. While one is synced, the next is read.

        All that was handed in is counted, however this ends.
        """
        committing: list[tuple[Accept, Ticket]] = []
        try:
            while goes_on() and (chunk := next(chunks, None)) is not None:
                synced, committing = committing, list(zip(chunk, ledger.submit_many(chunk), strict=True))
                self._count_all(synced, counted_one)
        finally:
            self._count_all(committing, counted_one)

    def _count_all(self, handed_in: list[tuple[Accept, Ticket]], counted_one: Callable[[JobRow], None]) -> None:
        """
        Raises:
            ParkedError: one of them was refused; the others are counted.
        """
        refused: ParkedError | None = None
        for accept, ticket in handed_in:
            try:
                accepted = ticket.wait()
                self._count(accept, accepted)
            except ParkedError as exc:
                refused = exc
            else:
                counted_one(accepted.row)
        if refused is not None:
            raise refused

    def _count(self, accept: Accept, accepted: Accepted) -> None:
        if accepted.created:
            self.new += 1
            return
        row = accepted.row
        self.known[row.state] += 1
        wanted = accept.model if accept.model != row.model else None
        self.models.add(row.state, row.model, was=accepted.was_model, wanted=wanted)


def operations(scanned: Scan, args: argparse.Namespace, called: Called) -> Iterator[list[Accept]]:
    from parked.pool import CHUNK
    from parked.running import acceptance

    for jobs in scanned.chunks(CHUNK):
        yield [acceptance(job, args.pipeline, args.batch, called) for job in jobs]


def _tell(args: argparse.Namespace, ledger: Ledger, scanned: Scan, submission: Submission, not_taken_on: int) -> None:
    tell_rejected(scanned)
    if args.json:
        put_json(
            {
                "ledger": ledger.where,
                "lines": scanned.lines,
                "new": submission.new,
                "known": {str(state): jobs for state, jobs in sorted(submission.known.items())},
                "not_taken_on": not_taken_on,
                "repeated": scanned.repeated,
                "rejected": scanned.rejected,
                **submission.models.as_json(),
            }
        )
    submission.models.tell(args)
    if submission.new or submission.known[State.PENDING]:
        hint(f"to run them: {command_line(args, 'work', *flag('--pipeline', args.pipeline))}")
    if not_taken_on:
        hint(f"to take on the rest: {same_command(args)}")
    states = ", ".join(f"{jobs} {state}" for state, jobs in sorted(submission.known.items()) if jobs)
    parts = [
        (submission.new, "new"),
        (submission.known.total(), f"known ({states})"),
        (not_taken_on, "not taken on"),
        (scanned.repeated, "repeated"),
        (scanned.rejected, "rejected"),
    ]
    told = ", ".join(f"{number} {what}" for number, what in parts if number) or "nothing to do"
    hint(f"{counted(scanned.lines, 'line')}: {told}")
