"""`parked replay`: what would run again, and with --apply running it."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from parked.cli.drain import Drain, tell_lost
from parked.cli.exits import Exit
from parked.cli.filters import add_filters, filter_words, filters_of
from parked.cli.jobs import job_as_json, job_table
from parked.cli.ledgers import existing_ledger
from parked.cli.nearest import whole_number
from parked.cli.output import OTHER_MODEL, command_line, counted, flag, hint, put, put_json, table
from parked.cli.pending import Pauses, waiting_text
from parked.cli.progress import progress, watching
from parked.clock import minute_text
from parked.errors import SettingsError
from parked.job import State
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.callers import Callers
    from parked.cli.frame import Subparsers
    from parked.course import Hold
    from parked.ledger import Ledger
    from parked.ledger.operations import Called, JobRow
    from parked.ledger.store import Filters
    from parked.pool import Pool
    from parked.replays import Choice, Mending, Results
    from parked.running import Running

DEFAULT_CONCURRENCY: Final = 8
DEFAULT_CANARIES: Final = 3

_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)/(s|m|h)")
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}

DESCRIPTION: Final = """\
Run parked jobs again, once the cause is mended. Without --apply it only says what would run. Canaries go first: a few
jobs of each cause; the others of a cause follow if one of them recovers. What fails again goes behind the others and
stays parked; answers are stored in the ledger (parked answers --new gives them out).

example:
  parked replay --class exhausted:503
  parked replay --class exhausted:503 --limit 20 --apply
  parked replay --reason input_too_large --payload shorter.jsonl --apply
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("replay", help="run parked jobs again", description=DESCRIPTION)
    add_filters(parser)
    parser.add_argument("--limit", metavar="N", type=whole_number, help="at most so many, oldest first")
    parser.add_argument("--all", action="store_true", help="every parked job; needed where nothing else limits --apply")
    parser.add_argument("--apply", action="store_true", help="do it, instead of saying what would be done")
    parser.add_argument("--name", metavar="NAME", default="", help="a name for this replay, kept in the ledger")
    parser.add_argument(
        "--canary",
        metavar="N",
        type=_canaries,
        default=DEFAULT_CANARIES,
        help=f"jobs of each cause that go first; 0: none, default {DEFAULT_CANARIES}",
    )
    parser.add_argument(
        "--rate", metavar="N/s", type=_rate, help="start at most so many calls a second (N/m: a minute)"
    )
    parser.add_argument(
        "--payload",
        metavar="FILE",
        help="send these payloads instead: job lines, one for each job, or the payload of a single one",
    )
    parser.add_argument(
        "--call",
        metavar="MODULE:FUNCTION",
        help="who calls instead of the Gemini adapter, and for jobs whose function was part of a script",
    )
    parser.add_argument("--to-model", metavar="M", help="call this model instead of the jobs' own")
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

    from parked.callers import Callers
    from parked.named import caller_named
    from parked.replays import choose

    mending = _mending(args)
    if args.call is not None:
        caller_named(args.call, timeout_s=settings.attempt_timeout_s)
    with existing_ledger(settings, role="replay") as ledger:
        callers = Callers(ledger, settings.policy(), stand_in=args.call)
        refusals = _Refusals(callers, mending)
        refusals.orphans = {row.id for row in ledger.sweep()} if args.apply else set()
        with ledger.ask() as reader:
            refusals.unreadable = reader.unreadable(State.PARKED, pipeline=filters.pipeline)
            parked = reader.jobs(filters, states=(State.PARKED,))
            choice = choose(parked, limit=args.limit, now=now, refusal=refusals.refusal)
        _check_payloads(args, mending, refusals)
        if not args.apply:
            _tell_dry_run(args, ledger, choice)
            return Exit.OK
        refusals.refuse_without_callers(choice)
        return _apply(args, settings, ledger, filters, choice, callers, mending)


class _Refusals:
    """Why jobs can't be run here; what is found for the others is kept by `Callers`."""

    def __init__(self, callers: Callers, mending: Mending) -> None:
        self._callers, self._mending = callers, mending
        self._known: dict[Called, str | None] = {}
        self.mended: Counter[str] = Counter()  # jobs by the id under which a payload was found for them
        self.unreadable: dict[int, str] = {}  # jobs whose payload can't be read here, and why
        self.orphans: set[int] = set()  # jobs that were found orphaned just now; nobody has seen them yet

    def refusal(self, row: JobRow) -> str | None:
        """Return why a job can't be run here, None if it can."""
        from parked.ledger.operations import Called

        if row.id in self.orphans:
            return "orphaned just now by a process that died; look at it, and give the command again"
        if row.erased_at is not None:
            return "erased, so that nothing is left to send"
        payloads = self._mending.payloads
        if payloads is None and row.id in self.unreadable:
            return f"payload {self.unreadable[row.id]}; or send another by --payload FILE"
        if payloads is not None:
            if row.job_id not in payloads:
                return "the file of --payload has none for it"
            self.mended[row.job_id] += 1
        called = Called(row.caller, row.checker)
        if called not in self._known:
            self._known[called] = self._missing(called)
        if self._known[called] is None and payloads is not None:
            return self._unsendable(called, payloads[row.job_id])
        return self._known[called]

    def refuse_without_callers(self, choice: Choice) -> None:
        """Refuse a replay that could call for none of the jobs, as a run without a key is refused.

        Raises:
            SettingsError: says how many jobs lack what.
        """
        missing = set(self._known.values())
        if choice.refused and choice.refused.keys() <= missing and not choice.jobs and not choice.not_due:
            told = "; ".join(f"{counted(jobs, 'job')}: {why}" for why, jobs in choice.refused.items())
            raise SettingsError(f"none of these jobs can be replayed here: {told}")

    def _missing(self, called: Called) -> str | None:
        try:
            self._callers.running(called)
        except SettingsError as exc:
            return str(exc)
        return None

    def _unsendable(self, called: Called, payload: Any) -> str | None:
        from parked.errors import InvalidJob

        check_payload = getattr(self._callers.running(called).call_model, "check_payload", None)
        try:
            if check_payload is not None:
                check_payload(payload)
        except InvalidJob as exc:
            return f"its payload in the file of --payload can't be sent: {exc}"
        return None


def _mending(args: argparse.Namespace) -> Mending:
    """Return what is to be sent instead.

    Raises:
        InvalidJob: the file can't be read, or a line of it is bad.
        SettingsError: a single payload for more than one job.
    """
    from parked.job import check_name
    from parked.replays import Mending

    check_name("--name", args.name, empty=True)
    if args.to_model is not None:
        check_name("--to-model", args.to_model)
    if args.payload is None:
        return Mending(model=args.to_model)
    from parked.jobfile import payloads_in

    payloads, single = payloads_in(args.payload)
    if payloads is None:
        if len(args.job_ids) != 1:
            raise SettingsError(
                f"{args.payload} holds a single payload; name the one job that it is for with --job, or write job lines"
            )
        payloads = {args.job_ids[0]: single}
    return Mending(payloads, args.to_model)


def _check_payloads(args: argparse.Namespace, mending: Mending, refusals: _Refusals) -> None:
    """Say which payloads are for nobody; refuse one that would go to several jobs.

    Raises:
        SettingsError: names the first id that stands for more than one of the jobs.
    """
    if mending.payloads is None:
        return
    for job_id, jobs in refusals.mended.items():
        if jobs > 1:
            raise SettingsError(
                f"{jobs} of the jobs are called {job_id!r}, and {args.payload} has one payload for it; choose one with"
                " --pipeline or --batch"
            )
    if unused := sorted(mending.payloads.keys() - refusals.mended.keys()):
        hint(f"{counted(len(unused), 'payload')} of {args.payload} for none of these jobs, e.g. {unused[0]}")


def _apply(
    args: argparse.Namespace,
    settings: Settings,
    ledger: Ledger,
    filters: Filters,
    choice: Choice,
    callers: Callers,
    mending: Mending,
) -> int:
    from parked.ledger.operations import OpenReplay
    from parked.replays import Results, entered
    from parked.tracing import tracing

    who = f"{_user()}@{socket.gethostname()}"
    said = {name: value for name, value in filters._asdict().items() if value}
    replay = OpenReplay(args.name, who, json.dumps(said))
    results, drain = Results(), Drain()
    with tracing("parked"), entered(ledger, replay, results, pipeline=filters.pipeline) as replay_id:
        drain.run(lambda: _run(args, settings, choice, callers, mending, replay_id, results, drain))
    results.not_run += choice.jobs - results.recovered - results.parked_again - results.not_run - results.spared
    _tell_results(args, ledger, choice, results)
    if drain.received is not None:
        return drain.exit()
    if results.not_run:
        return Exit.PENDING
    left = choice.not_due or choice.refused or results.spared
    return Exit.PARKED if results.parked_again or left else Exit.OK


async def _run(
    args: argparse.Namespace,
    settings: Settings,
    choice: Choice,
    callers: Callers,
    mending: Mending,
    replay_id: int,
    results: Results,
    drain: Drain,
) -> None:
    from parked.pool import Pool
    from parked.replays import replayed

    pauses = Pauses()
    pool: Pool | None = None

    def make_pool(on: Running) -> Pool:
        nonlocal pool
        pool = Pool(on, concurrency=args.concurrency, rate=args.rate.per_s if args.rate else None)
        drain.watch(pool, drain_s=settings.drain_s)
        pool.turns.heard.append(pauses.heard)
        return pool

    try:
        with progress(choice.jobs) as shown, watching(shown, lambda: "" if pool is None else waiting_text(pool)):
            for called, causes in choice.ids.items():
                async for hold in replayed(
                    callers.running(called), causes, replay_id,
                    results=results, make_pool=make_pool, canaries=args.canary, mending=mending,
                ):  # fmt: skip
                    if callers.ledger.vault.omits:
                        _put_answer(hold)
                    shown.advance(parked=results.parked_again)
                if drain.received is not None:
                    return
    finally:
        tell_lost(results.lost)
        pauses.tell(lambda model: f"the same command, with --to-model {OTHER_MODEL}")
        await callers.aclose()


def _put_answer(hold: Hold) -> None:
    """Where answers aren't stored, this is the only place where this one can be given out."""
    from parked.answerfile import AnswerLine

    if hold.row.state is State.RECOVERED and hold.judged is not None and hold.judged.verdict.ok:
        put(AnswerLine.of_job(hold.row, hold.judged.answer).json())


def _tell_results(args: argparse.Namespace, ledger: Ledger, choice: Choice, results: Results) -> None:
    if args.json:
        put_json(
            {
                "ledger": ledger.where,
                "replayed": results.recovered + results.parked_again,
                "recovered": results.recovered,
                "parked_again": results.parked_again,
                "not_run": results.not_run,
                "left": _left_as_json(choice) | {"canaries_failed": results.spared},
            }
        )
    _tell_left(choice)
    _tell_kept_callers(args, choice)
    if results.spared:
        hint(f"left {counted(results.spared, 'job')}: no canary of their cause recovered (--canary 0 tries them all)")
    others = f", {results.not_run} not run" if results.not_run else ""
    jobs = counted(results.recovered + results.parked_again, "job")
    hint(f"{jobs} replayed: {results.recovered} recovered, {results.parked_again} parked again{others}")
    if results.recovered and not ledger.vault.omits:
        hint(f"the answers: {command_line(args, 'answers', '--new')}")


def _tell_dry_run(args: argparse.Namespace, ledger: Ledger, choice: Choice) -> None:
    causes = choice.causes()
    if args.json:
        put_json(
            {
                "ledger": ledger.where,
                "would_replay": choice.jobs,
                "causes": [{**cause._asdict(), "jobs": jobs} for cause, jobs in causes],
                "sample": [job_as_json(row) for row in choice.sample],
                "left": _left_as_json(choice),
            }
        )
    elif choice.jobs:
        rows = [(str(jobs), cause.error_class, cause.reason, cause.fingerprint or "") for cause, jobs in causes]
        for line in table(("JOBS", "CLASS", "REASON", "CAUSE"), rows):
            put(line)
        put("")
        for line in job_table(choice.sample, is_parked=True):
            put(line)
    _tell_left(choice)
    _tell_kept_callers(args, choice)
    if not choice.jobs:
        hint(f"nothing to replay in {ledger.where}")
        return
    chosen = filter_words(args) + (flag("--limit", str(args.limit)) if args.limit else [])
    again = command_line(args, "replay", *(chosen or ["--all"]), *_other_flags(args), "--apply")
    hint(f"would replay {counted(choice.jobs, 'job')}; nothing was called. To do it: {again}")


def _other_flags(args: argparse.Namespace) -> list[str]:
    """The flags that say how, as they were given."""
    words: list[str] = []
    for name in ("payload", "call", "to_model", "name"):
        if value := getattr(args, name):
            words += flag("--" + name.replace("_", "-"), value)
    words += ["--canary", str(args.canary)] if args.canary != DEFAULT_CANARIES else []
    words += ["--rate", args.rate.text] if args.rate else []
    words += ["--concurrency", str(args.concurrency)] if args.concurrency != DEFAULT_CONCURRENCY else []
    return words


def _tell_left(choice: Choice) -> None:
    if choice.due_at is not None:
        hint(f"left {counted(choice.not_due, 'job')}: not due until {minute_text(choice.due_at)} or later")
    for why, jobs in choice.refused.items():
        hint(f"left {counted(jobs, 'job')}: {why}")
    if choice.over_limit:
        hint(f"left {counted(choice.over_limit, 'job')}: over the limit")


def _tell_kept_callers(args: argparse.Namespace, choice: Choice) -> None:
    """Name the functions for which --call doesn't stand in."""
    from parked.named import names_a_function

    for called, causes in choice.ids.items():
        if args.call not in (None, called.caller) and names_a_function(called.caller):
            jobs = counted(sum(len(ids) for ids in causes.values()), "job")
            hint(f"{jobs} called by {called.caller} as before: --call stands in for no other function")


def _left_as_json(choice: Choice) -> dict[str, Any]:
    return {"not_due": choice.not_due, "refused": dict(choice.refused), "over_limit": choice.over_limit}


def _canaries(text: str) -> int:
    return whole_number(text, at_least=0)


class _Rate(NamedTuple):
    text: str  # as it was given
    per_s: float


def _rate(text: str) -> _Rate:
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"must be like 5/s or 30/m, got {text!r}")
    return _Rate(text.strip(), float(match[1]) / _UNIT_S[match[2]])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())
