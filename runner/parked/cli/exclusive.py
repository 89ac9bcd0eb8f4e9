"""`parked run --exclusive`: one run of a pipeline at a time; the others hand their jobs over to it.

Either the run that is alive sees the jobs before it leaves, or whoever hands them over is told that nobody runs the
pipeline any more, and runs them: see `LeaveRun`.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.output import command_line, flag, hint, put_json, same_command
from parked.cli.pending import pending_text
from parked.cli.progress import progress
from parked.cli.signals import noting
from parked.cli.tally import Tally
from parked.clock import iso_text, minute_text

if TYPE_CHECKING:
    from parked.jobfile import Scan
    from parked.ledger import Ledger
    from parked.ledger.operations import Called, JobRow, OwnerRow, Run

LOOK_AGAIN_S: Final = 0.5


def enter_alone(ledger: Ledger, run: Run, *, quiet: bool) -> OwnerRow | None:
    """Enter as the only run of a pipeline; else return whose run of it is alive.

    One of which nothing is known here must have raised its beat. That takes 5 s; if it is dead, 30 s until it is lost.
    """
    from parked.owners import facts, lives_here

    here, beats = facts("runner"), dict[int, int]()
    while (other := ledger.enter_run(run, alone=True)) is not None:
        if lives_here(other.facts, here=here) or beats.setdefault(other.id, other.beat) != other.beat:
            return other
        if not quiet:
            hint(f"waiting to see whether {_who(other)} is alive")
            quiet = True
        time.sleep(LOOK_AGAIN_S)
    return None


def hand_over(args: argparse.Namespace, ledger: Ledger, scanned: Scan, run: Run, called: Called) -> Exit | None:
    """Have the run that is alive take up the jobs of a file; None: there is none, and this process has entered `run`.

    `called` is who calls and checks these jobs.

    Raises:
        JobConflict: an id was taken meanwhile for another payload; the jobs before it are accepted.
        LedgerUnavailable: it went away before all were accepted.
    """
    from parked.cli.submit import Submission, operations

    other = ledger.enter_run(run, alone=True)
    if other is None:
        return None
    tally = Tally(lines=scanned.lines, repeated=scanned.repeated, rejected=scanned.rejected)
    submission = Submission()

    def counted_one(row: JobRow) -> None:
        tally.add_row(row, called=False)
        shown.advance(parked=tally.parked)

    with progress(scanned.jobs) as shown, noting() as signals:
        submission.take_on(
            ledger,
            operations(scanned, args, called),
            counted_one=counted_one,
            goes_on=lambda: signals.first is None,
        )
    tally.not_taken_on = scanned.jobs - submission.seen
    if signals.first is None:
        other = enter_alone(ledger, run, quiet=args.quiet)
        if other is None:
            return None
    if args.json and args.out:
        as_json = {**tally.as_json(), **submission.models.as_json(), "run_by": run_by(other)}
        put_json({"ledger": ledger.where, **as_json})
    takes_up = _takes_up(args, other, called)
    if args.quiet:
        hint(f"{tally.text()}; {takes_up}")
    else:
        submission.models.tell(args)
        hint(takes_up)
        if (pending := pending_text(ledger, pipeline=args.pipeline)) is not None:
            hint(f"{pending}; their answers come by the same command, once that run is over: {same_command(args)}")
        hint(tally.text())
    return Exit.PENDING if signals.first is None else signals.exit()


def run_by(other: OwnerRow | None) -> dict[str, Any] | None:
    """For JSON: whose run takes up the jobs."""
    if other is None:
        return None
    return {"host": other.facts.host, "pid": other.facts.pid, "since": iso_text(other.run_began_at)}


def _takes_up(args: argparse.Namespace, other: OwnerRow, called: Called) -> str:
    from parked.ledger.operations import FILE_ALONE

    theirs = None if other.run is None else other.run.called
    is_run = f"the pipeline {args.pipeline!r} is run by {_who(other)}"
    if theirs == called:
        return f"{is_run}, which takes up what is pending"
    work = command_line(args, "work", *flag("--pipeline", args.pipeline), "--until-empty")
    differs = "stores no texts or can't read all of them" if theirs == FILE_ALONE else "calls or checks in another way"
    return f"{is_run}, which {differs} and leaves these jobs; to run them: {work}"


def _who(other: OwnerRow) -> str:
    since = other.started_at if other.run_began_at is None else other.run_began_at
    return f"pid {other.facts.pid} on {other.facts.host} since {minute_text(since)}"
