"""What a command says of jobs that nobody runs: at its start of orphans, at its end of those that are still pending."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from parked.cli.output import command_line, counted, hint
from parked.clock import minute_text, span_text
from parked.errors import LedgerUnavailable, SettingsError
from parked.gate import PROBE_MAX_S
from parked.job import State
from parked.settings import Settings, StoredBodies

if TYPE_CHECKING:
    from parked.ledger import Ledger
    from parked.ledger.operations import JobRow
    from parked.news import News, Pause
    from parked.pool import Pool
    from parked.retired import Pending, Retired

SHOWN_RETIRED: Final = 3  # models, in a line
SAME_OUTAGE_S: Final = 5.0  # outages that are given up at times so close are one


def refuse_omitted(settings: Settings, command: str) -> None:
    """Refuse a command that goes by payloads in the ledger, where none are to be stored.

    Raises:
        SettingsError: names the setting.
    """
    if settings.store is StoredBodies.NONE:
        raise SettingsError(
            f"parked {command} needs payloads and answers in the ledger, and PARKED_STORE=none keeps them out of it;"
            " use parked run with the file of the jobs"
        )


def refuse_unreadable(ledger: Ledger, *, pipeline: str | None) -> None:
    """Refuse to run what is pending, of a pipeline or of all, where some of it can't be read here.

    Raises:
        LedgerUnavailable: says how many jobs, and why.
    """
    with ledger.ask() as reader:
        whys = Counter(reader.unreadable(State.PENDING, pipeline=pipeline).values())
    for why, jobs in whys.most_common(1):
        raise LedgerUnavailable(f"{counted(jobs, 'pending job')} in {ledger.where}: payload {why}")


class Pauses:
    """The pauses of a run, as they come and go, and the outages that may become one."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        """Unless it is to be quiet, it says of an outage how long that is waited for, since nothing else happens."""
        self.now: dict[str, Pause] = {}  # by scope
        self._is_quiet = is_quiet
        self._told_until: dict[str, float] = {}  # outages that were told of -> when they are going to be a pause

    def heard(self, news: News) -> None:
        from parked.news import GateMoved, Pause, Resumed

        if isinstance(news, Pause):
            self.now[news.scope] = news
        elif isinstance(news, Resumed):
            self.now.pop(news.scope, None)
        elif isinstance(news, GateMoved) and news.pauses_in_s is not None and not self._is_quiet:
            self._tell_outage(news.model, time.time() + news.pauses_in_s)

    def _tell_outage(self, scope: str, until: float) -> None:
        """Say it once, however often the gate reopens for a moment."""
        if until - self._told_until.get(scope, -math.inf) <= SAME_OUTAGE_S:
            return
        self._told_until[scope] = until
        hint(
            f"an outage, {_where(scope)}: one job tries every {PROBE_MAX_S:g} s or sooner, until {minute_text(until)}"
            " at the latest; Ctrl-C ends it before, and loses nothing"
        )

    def text(self) -> str:
        """In a word each, for one line; empty if there is none."""
        paused = (f"{pause.scope or 'all models'} ({pause.reason})" for pause in self.now.values())
        return ", ".join(f"paused: {pause}" for pause in paused)

    def tell(self, with_another: Callable[[str], str]) -> None:
        """Say of each pause what happened, and what to do about it.

        `with_another` says what to type so that what is pending for a model is run with another.
        """
        from parked.reasons import ANOTHER_MODEL_HELPS, explain, going_on

        for pause in self.now.values():
            what = explain(pause.reason)
            hint(f"paused, {_where(pause.scope)}: {what.meaning} ({pause.reason})")
            helps = pause.scope and pause.reason in ANOTHER_MODEL_HELPS
            another = f": {with_another(pause.scope)}" if helps else ""  # their remedies end with the other model
            hint(f"what to do: {going_on(what.remedy)}{another}")


def _where(scope: str) -> str:
    return f"the model {scope}" if scope else "all models"


def waiting_text(pool: Pool) -> str:
    """`waiting 34 s for the quota of gemini-…`; empty while nothing is waited for."""
    now = pool.premises.clock.monotonic()
    waits, gives_up_in_s = pool.line.waits_for(now), pool.line.gives_up_at - now
    if waits is None or waits.wait_s < 1:
        return ""
    model, length = waits.model or "all models", span_text(waits.wait_s)
    if waits.why in ("rate", "rate_limited", "daily_quota_exhausted"):
        return f"waiting {length} for the quota of {model}"
    if waits.why == "outage":
        return f"waiting {length} to see whether {model} answers again"
    if gives_up_in_s < waits.wait_s:
        return f"paused ({waits.why}): ends in {span_text(gives_up_in_s)}"
    return f"paused ({waits.why}): one job tries in {length}"


def command_for_pending(
    args: argparse.Namespace, ledger: Ledger, command: str, *, pipeline: str | None, model: str
) -> str:
    """Return the command that gives another model to what waits longest for this one: with the file of its batch."""
    from parked.ledger.store import Filters
    from parked.retired import with_another_model

    with ledger.ask() as reader:
        filters = Filters(pipeline=pipeline, model=model)
        row = next(iter(reader.jobs(filters, states=(State.PENDING,), limit=1)), None)
    if row is not None:
        pipeline = row.pipeline
    words = with_another_model(command, pipeline=pipeline, batch="" if row is None else row.batch)
    return command_line(args, *words)


def to_go_on(pending: Pending, *, same: str, with_another: Callable[[Retired], str]) -> str:
    """Return what to type to go on with what is pending.

    `same` goes on with all that needs nothing else; `with_another` says what gives another model to the rest.
    """
    ways = [same] if pending.as_it_is else []
    for one in pending.retired[:SHOWN_RETIRED]:
        way = with_another(one)
        ways.append(f"for what is pending for {one.model}: {way}" if ways else way)
    if len(pending.retired) > SHOWN_RETIRED:
        ways.append(f"so for {counted(len(pending.retired) - SHOWN_RETIRED, 'more retired model')}")
    return "; ".join(ways)


def pending_text(ledger: Ledger, *, pipeline: str | None) -> str | None:
    """`3 jobs of the pipeline 'nightly' pending since 2026-03-02 02:07Z`; None where none is."""
    return pending_of(ledger, pipeline=pipeline)[1]


def pending_of(ledger: Ledger, *, pipeline: str | None) -> tuple[int, str | None]:
    """How many jobs of a pipeline (None: of all) are pending, and what `pending_text` says of them."""
    from parked.ledger.store import Filters

    filters = Filters(pipeline=pipeline)
    with ledger.ask() as reader:
        pending = reader.count(filters, states=(State.PENDING,))
        oldest = next(iter(reader.jobs(filters, states=(State.PENDING,), limit=1)), None)
    if oldest is None:
        return pending, None
    whose = "" if pipeline is None else f" of the pipeline {pipeline!r}"
    return pending, f"{counted(pending, 'job')}{whose} pending since {minute_text(oldest.accepted_at)}"


def tell_orphans(orphans: list[JobRow]) -> None:
    """Say that a process has died, and what became of its jobs."""
    from parked.ledger.moves import MAYBE_SENT

    if orphans:
        sent = sum(row.reason == MAYBE_SENT for row in orphans)
        if len(orphans) == 1:
            told = "its call may have been made" if sent else "its call was not made"
        else:
            whose = "their calls" if sent in (0, len(orphans)) else f"the calls of {sent}"
            told = f"{whose} {'may have been made' if sent else 'were not made'}"
        hint(f"{counted(len(orphans), 'job')} of a process that died parked as orphaned: {told}")
