"""The answers of recovered jobs, handed to a function of the user's (`PARKED_ON_ANSWER`) until it has returned once.

By whom a job was replayed makes no difference, nor whether `parked answers` gave its answer out as well: whoever names
a function wants to see every one that came back. What came back before that, and was given out then, stays with that.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parked.answerfile import AnswerLine
from parked.answers import not_run
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.ledger.store import Undelivered
from parked.logs import fields

if TYPE_CHECKING:
    from parked_exporter.schedule import Context

NAME: Final = "on_answer"  # of the task, its lease, and the mark that says since when there is a function
CALLED_MARK: Final = "on_answer_called"  # [job, tries before]: for what the function was last called
LOOK_S: Final = 15.0
LEASE_S: Final = 60.0
RENEW_S: Final = 15.0
ROUND_S: Final = 60.0  # then the next look goes on: a run that takes much longer hangs
TRIES: Final = 10
# Doubled with each: the ten take two hours, so that the night's restart of a database costs nobody an answer.
FIRST_WAIT_S: Final = 30.0
LONGEST_WAIT_S: Final = 1800.0
# So many in a row, and the function is left alone until the next look: whatever it needs seems to be away.
FAILURES_IN_A_ROW: Final = 5
PAGE: Final = 20  # answers read at a time

log = logging.getLogger(__name__)


def wait_s(tries: int) -> float | None:
    """How long to wait after so many tries in vain; None: it was the last."""
    return None if tries >= TRIES else min(FIRST_WAIT_S * 2.0 ** (tries - 1), LONGEST_WAIT_S)


def deliver_answers(ledger: Ledger, context: Context) -> None:
    """Hand over the answers that are due. A failure is noted and tried again later; it doesn't fail the task.

    Raises:
        TextMissing: an answer can't be read here. No fault of the function: the task fails until the key is there, and
            no try is used up.
    """
    from parked.named import function_named  # with what runs jobs: most sidecars don't need it

    assert context.on_answer is not None
    function = function_named(context.on_answer)
    since = _since(ledger, now=context.now())
    failures = delivered = 0
    unfinished = _called_last(ledger)
    for one in _while_ours(ledger, context, since=since):
        calling = [one.answer.job.id, one.tries]
        if calling == unfinished:
            # It took the sidecar with it, or hangs in another. Called again at once, it would do so for ever.
            fault: str | None = "the sidecar ended in it, or it has not returned yet"
        else:
            line = AnswerLine.of(one.answer).as_dict()
            ledger.record(op.SetMark(CALLED_MARK, calling))
            fault = _fault(function, line)
        _note(ledger, one.answer.job, fault, tries=one.tries + 1)
        delivered += fault is None
        failures = 0 if fault is None else failures + 1
        if failures == FAILURES_IN_A_ROW:
            break
    if delivered:
        log.info("answers_delivered", extra=fields(jobs=delivered))


def _while_ours(ledger: Ledger, context: Context, *, since: float) -> Iterator[Undelivered]:
    """What is due, for a round, as long as the sidecar runs and no other one has taken the task over."""
    began = renewed_at = context.monotonic()
    while page := _due(ledger, since, context):
        for one in page:
            if context.stopping.is_set() or context.monotonic() - began >= ROUND_S:
                return
            if context.monotonic() - renewed_at >= RENEW_S:
                renewed_at = context.monotonic()
                if not ledger.record(op.TakeLease(NAME, ledger.owner_id, LEASE_S)):
                    return
            yield one


def _since(ledger: Ledger, *, now: float) -> float:
    """When there was a function for the first time."""
    with ledger.ask() as reader:
        since: float | None = reader.mark(NAME)
    if since is None:
        ledger.record(op.SetMark(NAME, now))
    return now if since is None else since


def _due(ledger: Ledger, since: float, context: Context) -> list[Undelivered]:
    with ledger.ask() as reader:
        return reader.undelivered(since=since, now=context.now(), limit=PAGE)


def _called_last(ledger: Ledger) -> Any:
    """For what the function was called last, by whichever process. A call that was noted has one try more since."""
    with ledger.ask() as reader:
        return reader.mark(CALLED_MARK)


def _fault(function: Callable[[dict[str, Any]], object], line: dict[str, Any]) -> str | None:
    """Call the function; return what it raised and where, or left undone. Not the text of it: it may quote."""
    try:
        returned = function(line)
        if inspect.isawaitable(returned):
            asyncio.run(_awaited(returned))
        elif (unfinished := not_run(returned)) is not None:
            return f"it returned a {type(unfinished).__name__} that nobody runs"
    except BaseException as exc:  # noqa: BLE001 - also SystemExit, which would end the task's thread and nothing else
        *_, last = traceback.extract_tb(exc.__traceback__)
        return f"{type(exc).__name__} at {Path(last.filename).name}:{last.lineno}"
    return None


async def _awaited(returned: Awaitable[object]) -> None:
    await returned


def _note(ledger: Ledger, job: op.JobRow, fault: str | None, *, tries: int) -> None:
    if fault is None:
        ledger.record(op.NoteDelivery(job.id))
        return
    again_in_s = wait_s(tries)
    ledger.record(op.NoteDelivery(job.id, fault, again_in_s))
    names = {"job_id": job.job_id, "pipeline": job.pipeline, "batch": job.batch}
    if again_in_s is None:
        log.error("delivery_given_up", extra=fields(**names, tries=tries, fault=fault, left_for="parked answers --new"))
    else:
        log.warning("delivery_failed", extra=fields(**names, tries=tries, fault=fault, again_in_s=again_in_s))
