"""What `discard`, `restore` and `erase` have in common: flags, the dry run, and telling what was done and was left."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from parked.cli.filters import FAILED_WITH, add_filters, filter_words, filters_of
from parked.cli.jobs import job_as_json, job_table
from parked.cli.output import command_line, counted, hint, put, put_json, table
from parked.cli.progress import progress
from parked.errors import SettingsError
from parked.job import State, check_name
from parked.reasons import EXPLAINED

if TYPE_CHECKING:
    from parked.ledger import Ledger
    from parked.ledger.operations import Operation
    from parked.ledger.store import Filters
    from parked.triage import Selection

# Why a job was left: it has moved on since it was chosen, or nothing is left of it to erase.
CHANGED: Final = "changed"
ERASED_BEFORE: Final = "erased_before"


def add_flags(parser: argparse.ArgumentParser, *, verb: str, time: str) -> None:
    add_filters(parser, time=time, reason_says_why=True)
    parser.add_argument("--reason", dest="why", metavar="TEXT", required=True, help="why; kept with the jobs")
    parser.add_argument("--all", action="store_true", help="every job; needed where no filter limits --apply")
    parser.add_argument("--apply", action="store_true", help=f"{verb} them, instead of saying which")


def read_flags(args: argparse.Namespace) -> Filters:
    """Return the filters, once all is said that a change needs.

    Raises:
        SettingsError, InvalidJob: something is missing or can't be read; nothing was changed.
    """
    check_name("--reason", args.why)
    filters = filters_of(args, now=time.time())
    if args.apply and not (filters or args.all):
        raise SettingsError(
            f"parked {args.command} --apply without a filter takes every job; say --all, or name a filter"
            f" (--reason says why it is done; {FAILED_WITH} chooses by what the jobs failed with)"
        )
    if args.why in EXPLAINED:
        hint(f"--reason only says why; to choose the jobs that failed with {args.why}: {FAILED_WITH} {args.why}")
    return filters


def tell_dry_run(
    args: argparse.Namespace,
    ledger: Ledger,
    selection: Selection,
    *,
    left_means: Mapping[str, str],
    words: Sequence[str],
) -> None:
    """Say what would be done. `words` are the flags beside the filters for the command that does it."""
    jobs = len(selection.ids)
    causes = selection.causes.most_common()
    if args.json:
        put_json(
            {
                "ledger": ledger.where,
                f"would_{args.command}": jobs,
                "causes": [
                    {"state": state, "error_class": error_class, "reason": reason, "jobs": number}
                    for (state, error_class, reason), number in causes
                ],
                "sample": [job_as_json(row) for row in selection.sample],
                "left": dict(selection.left),
            }
        )
    elif jobs:
        for line in table(("JOBS", "STATE", "CLASS", "REASON"), [(str(number), *cause) for cause, number in causes]):
            put(line)
        put("")
        is_parked = all(state is State.PARKED for state, _, _ in selection.causes)
        for line in job_table(selection.sample, is_parked=is_parked):
            put(line)
    tell_left(selection.left, left_means)
    if not jobs:
        hint(f"nothing to {args.command} in {ledger.where}")
        return
    chosen = filter_words(args, reason=FAILED_WITH) or ["--all"]
    again = command_line(args, args.command, *chosen, *words, "--apply")
    hint(f"would {args.command} {counted(jobs, 'job')}; nothing was changed. To do it: {again}")


def do(ledger: Ledger, selection: Selection, operation: Callable[[int], Operation]) -> int:
    """Do it with each job, a page a commit, and return with how many it was done; those that moved on are left."""
    from parked.ledger.moves import ERASED
    from parked.triage import apply

    done = 0
    with progress(len(selection.ids)) as shown:
        for refused in apply(ledger, selection.ids, operation):
            if refused is None:
                done += 1
            else:
                selection.left[ERASED_BEFORE if refused.state == ERASED else CHANGED] += 1
            shown.advance(parked=0)
    return done


def tell_done(
    args: argparse.Namespace, ledger: Ledger, selection: Selection, told: dict[str, Any], left_means: Mapping[str, str]
) -> None:
    if args.json:
        put_json({"ledger": ledger.where, **told, "left": dict(selection.left)})
    tell_left(selection.left, left_means)


def tell_left(left: Counter[str], means: Mapping[str, str]) -> None:
    for why, jobs in left.most_common():
        hint(f"left {counted(jobs, 'job')}: {means[why]}")
