"""Claiming: the source of a pool that runs what is pending in the ledger, whoever submitted it or left it over.

A job is claimed when a worker is free for it, and its attempt is opened by the claim: so each is run by one process,
and nothing is claimed that could only wait. There is no notice of new jobs but to look again.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from parked.course import Hold
from parked.driver import AWAY_S
from parked.errors import LedgerUnavailable, OwnerLost, TextDamaged
from parked.fingerprint import fingerprint
from parked.ledger import operations as op
from parked.ledger.codec import decode
from parked.ledger.operations import Called
from parked.pauses import ALL
from parked.pool import Handful, Pool
from parked.running import Running
from parked.verdict import MEANINGS, Disposition, Reason, Verdict

# Steps of the loop before a claim: whoever comes free in them shares it, and two half-full commits become one.
TURNS: Final = 2
# How soon to look again, at random in between, so that many processes don't look at once. A submitted job is to start
# within a second, and an idle process to cost next to nothing.
LOOK_AGAIN_S: Final = (0.25, 0.75)

TAKEN_S: Final = 0.05  # how soon to look again for jobs that others were just about to take

Find = Callable[[Called], Running | None]
# Told for which models nothing is called any more, and asked whether this may end: not if more came meanwhile.
MayEnd = Callable[[tuple[str, ...]], Awaitable[bool]]


async def _always(_: tuple[str, ...]) -> bool:
    return True


async def claiming(
    pool: Pool,
    find: Find,
    *,
    pipeline: str | None,
    until_empty: bool,
    patience_s: float,
    may_end: MayEnd = _always,
) -> AsyncGenerator[Handful]:
    """Claim what is pending, of one pipeline or (None) of all, as workers come free.

    `find` returns who runs the jobs of a caller and a check here. It is asked once for each such pair, when the first
    job of it waits; where it returns None, they are left for others. With `until_empty` this ends when nothing is left
    that could be run here, nothing is in hand, and `may_end` agrees. A ledger that is away is waited for, up to
    `patience_s`.

    Raises:
        LedgerUnavailable: it was away for longer.
        TextMissing: a payload can't be read here; what was claimed with it is handed back.
    """
    premises, turns, line = pool.premises, pool.turns, pool.line
    runnings: dict[Called, Running | None] = {}
    strangers: set[Called] = set()
    last = ""  # the pipeline that went last
    gives_up = premises.clock.monotonic() + patience_s
    while True:
        await pool.until_room()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        most, closed, wait_s = turns.claimable()
        if most == 0:
            if until_empty and line.is_paused_for_good(ALL) and not pool.in_hand():
                return
            await turns.until_changed(wait_s)
            continue
        claimed: op.Claimed | None = None
        try:
            runnings |= {called: find(called) for called in strangers}
            claimed = await pool.started(
                op.Claim(
                    pipeline,
                    premises.ledger.owner_id,
                    limit=most,
                    served=tuple(called for called, on in runnings.items() if on is not None),
                    closed=closed,
                    in_hand=tuple(pool.in_hand().items()),
                    far_end=most == 1 and line.asks_the_far_end,
                    after=last,
                )
            )
        except (OwnerLost, LedgerUnavailable) as exc:
            if isinstance(exc, LedgerUnavailable) and premises.clock.monotonic() >= gives_up:
                raise
            away = isinstance(exc, LedgerUnavailable)
        finally:
            turns.give_back(most)  # the jobs take their own
        if claimed is None:
            if away:
                await turns.sleep(AWAY_S)
            continue
        gives_up = premises.clock.monotonic() + patience_s
        waiting = deque(claimed.started)
        try:
            while waiting:
                row = waiting[0].row
                on = runnings[Called(row.caller, row.checker)]
                assert on is not None  # only what is served was claimed
                try:
                    handful = _handful(on, waiting[0])
                except TextDamaged as exc:  # it would end each run that comes to it
                    handful = Handful(on, [await _put_away(pool, on, waiting[0], exc)])
                waiting.popleft()
                last = row.pipeline
                yield handful
        finally:  # ended in between, or a payload can't be read
            for started in waiting:
                pool.hand_back(Hold(started.row, None, premises.ledger.owner_id, attempt=started.attempt))

        strangers = {lane.called for lane in claimed.left} - runnings.keys()
        if claimed.started or strangers:
            line.more = True
            continue
        if claimed.taken_by_others:  # by the next look they are; or they were left, and are still there
            await turns.until_changed(TAKEN_S)
            continue
        for _ in range(2):  # steps of the loop, in which courses end that were answered by the commit of this claim
            await asyncio.sleep(0)
        paused = tuple({lane.model for lane in claimed.left if line.is_paused_for_good(lane.model)})
        at_a_gate = any(runnings[lane.called] and lane.model not in paused for lane in claimed.left)
        line.more = at_a_gate  # nothing else waits, as far as is known: whoever is in hand is all there is
        if until_empty and not at_a_gate and not pool.in_hand():
            if await may_end(paused):
                return
            continue
        await turns.until_changed(random.uniform(*LOOK_AGAIN_S))


def _handful(on: Running, started: op.Started) -> Handful:
    row = started.row
    assert started.payload is not None  # a claim always brings it
    assert row.owner_id is not None  # whoever claimed it
    payload = decode(on.ledger.vault.opened(started.payload))
    return Handful(on, [Hold(row, payload, row.owner_id, attempt=started.attempt, claimed=True)])


async def _put_away(pool: Pool, on: Running, started: op.Started, damage: TextDamaged) -> Hold:
    """Park a job whose payload is damaged: nothing can be sent for it until somebody gives another."""
    row = started.row
    assert row.owner_id is not None
    reason, rule = Reason.RESOURCE_MISSING, "parked.payload_damaged"
    verdict = Verdict(
        ok=False,
        rule=rule,
        kind=MEANINGS[reason].kind,
        reason=reason,
        scope=MEANINGS[reason].scope,
        fingerprint=fingerprint(rule=rule, reason=reason, status=None, quota_id=None, finish_reason=None, message=""),
        message=f"its payload in the ledger is {damage.why}; to send another: parked replay --payload FILE",
    )
    park = op.Park(
        row.id,
        row.owner_id,
        started.attempt,
        op.Closing.of(verdict),
        verdict.error_class(Disposition.PERMANENT),
        strike=False,
        called=False,
    )
    (parked,) = await pool.record_all([park])
    return Hold(parked, None, row.owner_id, claimed=True, finished=True)
