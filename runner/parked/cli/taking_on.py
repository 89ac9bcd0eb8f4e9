"""What `run` and `submit` have in common: which jobs, and what is looked at before any of them is taken on."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parked.cli.output import command_line, counted, flag, hint
from parked.errors import SettingsError
from parked.job import ANSWERED, State, check_name
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Parser
    from parked.job import Job
    from parked.jobfile import Scan
    from parked.ledger import Ledger


def add_job_flags(parser: Parser) -> None:
    parser.add_argument("jobs", metavar="JOBS", help="a JSONL file; - for standard input")
    parser.add_argument(
        "--pipeline", metavar="NAME", default="default", help="under which name the jobs are counted; default: default"
    )
    parser.add_argument("--batch", metavar="NAME", default="", help="ids are unique in a batch; e.g. the date")
    parser.add_argument(
        "--model", metavar="M", help="for lines that name none; known jobs that are still pending go to it, too"
    )
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
    parser.add_argument("--skip-bad-lines", action="store_true", help="set bad lines aside in JOBS.rejected.jsonl")


def check_job_flags(args: argparse.Namespace, settings: Settings, *, writes: Mapping[str, str]) -> None:
    """Refuse names that can't be, and a file to be written that is another file of this command, before any is opened.

    `writes` are such files by the words that name them.

    Raises:
        SettingsError: names the flag or the file.
    """
    from parked.jobfile import rejects_of

    check_name("--pipeline", args.pipeline)
    check_name("--batch", args.batch, empty=True)
    rejected = str(rejects_of(args.jobs))
    ledger = settings.ledger.removeprefix("sqlite:///")
    others = {
        "the job file": args.jobs,
        "the ledger": ledger,
        "a file of the ledger": f"{ledger}-wal",
        "a file that belongs to the ledger": f"{ledger}-shm",
    }
    if args.skip_bad_lines:
        _refuse_same_file({f"the file of rejected lines {rejected}": rejected}, others)
    _refuse_same_file(writes, {**others, "the file of rejected lines": rejected})


def _refuse_same_file(writes: Mapping[str, str], others: Mapping[str, str]) -> None:
    for what, name in writes.items():
        for other, path in others.items():
            if os.path.realpath(name) == os.path.realpath(path):
                raise SettingsError(f"{what} is {other}; give each a file of its own")


def tell_created(ledger: Ledger) -> None:
    if ledger.created:
        hint(f"made the ledger {ledger.where}")


def refuse_conflicts(ledger: Ledger, scanned: Scan, args: argparse.Namespace) -> None:
    """Refuse the lines of a file that hold a known id with another payload, before anything of it is taken on.

    Raises:
        InvalidJobFile: names them, unless they are to be set aside.
        TextMissing: a known one was accepted under a key that isn't there.
    """
    from parked.ledger.codec import identity
    from parked.pool import CHUNK

    examples: dict[State, str] = {}  # by the state of the jobs that are known: the id of the first

    def refusals(jobs: list[Job]) -> Iterator[tuple[str, str]]:
        known = reader.identities(args.pipeline, args.batch, [job.job_id for job in jobs])
        for job in jobs:
            if job.job_id not in known or ledger.vault.is_same(known[job.job_id], identity(job.payload)):
                continue
            for row in reader.jobs_by_key(job.job_id, pipeline=args.pipeline, batch=args.batch):
                example = examples.setdefault(row.state, job.job_id)
                yield job.job_id, f"id known with another payload (its job: {row.state}); the first is {example!r}"

    with ledger.ask() as reader:
        scanned.refuse(refusals, size=CHUNK)
    scanned.remedies += _for_other_payloads(args, examples)
    scanned.refuse_bad()


def _for_other_payloads(args: argparse.Namespace, examples: Mapping[State, str]) -> Iterator[str]:
    """What to do about jobs that are known with another payload; `examples` has an id for each state of them."""
    place = [*flag("--pipeline", args.pipeline), *(flag("--batch", args.batch) if args.batch else [])]
    if examples:
        yield "What was accepted stands; another payload is run under an id of its own, or in another --batch."
    if State.PARKED in examples:
        replay = command_line(args, "replay", *place, *flag("--payload", "FILE" if args.jobs == "-" else args.jobs))
        yield f"To replay what is parked with the payloads of the file: {replay}"
    if State.PENDING in examples:
        one = [*place, *flag("--job", examples[State.PENDING]), "--state", str(State.PENDING), "--reason", "TEXT"]
        yield f"To put away what is pending: {command_line(args, 'discard', *one)}"


@dataclass(slots=True)
class OtherModels:
    """Known jobs that stand in a file with another model than they had: what became of that."""

    moved: Counter[tuple[str, str]] = field(default_factory=Counter)  # from, to: they were pending
    kept: Counter[tuple[State, str, str]] = field(default_factory=Counter)  # their own, and the one of the file

    def add(self, state: State, model: str, *, was: str | None, wanted: str | None) -> None:
        """Count a job that was accepted: in which state it is, and with which model."""
        if was is not None:
            self.moved[was, model] += 1
        if wanted is not None:
            self.kept[state, model, wanted] += 1

    def as_json(self) -> dict[str, int]:
        return {"moved": self.moved.total(), "other_model": self.kept.total()}

    def tell(self, args: argparse.Namespace) -> None:
        for (was, model), jobs in sorted(self.moved.items()):
            hint(f"{counted(jobs, 'pending job')} moved from the model {was} to {model}")
        for (state, model, wanted), jobs in sorted(self.kept.items()):
            keep = "keeps" if jobs == 1 else "keep"
            hint(f"{counted(jobs, 'job')} {_standing(state)} {keep} the model {model}, not {wanted}")
            if state is State.PARKED:
                words = [*flag("--pipeline", args.pipeline), *(flag("--batch", args.batch) if args.batch else [])]
                words += [*flag("--model", model), *flag("--to-model", wanted)]
                hint(f"to replay what is parked with the other model: {command_line(args, 'replay', *words)}")


def _standing(state: State) -> str:
    if state in ANSWERED:
        return "answered before"
    if state is State.PENDING:
        return "that another process has moved meanwhile"
    return "run by another process" if state in (State.RUNNING, State.REPLAYING) else f"{state} before"


def tell_rejected(scanned: Scan) -> None:
    if scanned.rejected_to is not None:
        for text in (*scanned.bad.texts(), *scanned.remedies):
            hint(text)
        hint(f"bad lines were set aside in {scanned.rejected_to}")
