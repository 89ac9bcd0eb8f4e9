"""What a process that owns jobs does every few seconds: beat, watch the others, park the jobs of the lost ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from parked.errors import LedgerUnavailable
from parked.ledger.operations import Beat, Beats, JobRow, Lose, OwnerFacts, OwnerRow
from parked.owners import BEAT_S, Watch, dead_here

JOBS_IN_LOG: Final = 20

_log = logging.getLogger("parked.ledger")


class Pulse:
    """Beats once this process is an owner. Used by the writer's thread, and by whoever wants to sweep at once."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self.owner_id: int | None = None  # None: not registered yet, or declared lost
        self._facts: OwnerFacts | None = None
        self._monotonic = monotonic
        self._watch = Watch()
        self._due_at = 0.0
        self._mutex = threading.Lock()

    def forget(self) -> None:
        """A forked child is no owner yet, and has watched nobody."""
        self.__init__(monotonic=self._monotonic)  # type: ignore[misc]  # all of it is new, the mutex too

    def begin(self, owner_id: int, facts: OwnerFacts) -> None:
        self._facts = facts
        self._due_at = self._monotonic()  # look at once: who died on this machine is known without watching
        self.owner_id = owner_id

    def wait_s(self) -> float | None:
        """How long until the next beat is due; None while there is no owner."""
        return None if self.owner_id is None else max(0.0, self._due_at - self._monotonic())

    def beat(self, record: Callable[[Beat | Lose], Any]) -> list[JobRow]:
        """Beat, look, and declare lost who is. Return the jobs that were parked.

        Raises:
            ParkedError: the ledger can't be written; the watch starts anew after the gap.
        """
        with self._mutex:
            return self._beat(record)

    def beat_if_it_can(self, record: Callable[[Beat | Lose], Any]) -> None:
        """The same for the writer's thread, which goes on when the ledger is away, and waits for nobody."""
        if not self._mutex.acquire(blocking=False):
            # Whoever sweeps just now beats as well, and waits for this very thread to record it.
            self._due_at = self._monotonic() + BEAT_S
            return
        try:
            self._beat(record)
        except LedgerUnavailable:  # the writer says it
            return
        except Exception:  # noqa: BLE001 - a bug here must not end the thread that all others wait for
            _log.exception("beat_failed")
        finally:
            self._mutex.release()

    def _beat(self, record: Callable[[Beat | Lose], Any]) -> list[JobRow]:
        self._due_at = self._monotonic() + BEAT_S
        if self.owner_id is None or self._facts is None:
            return []
        beats: Beats = record(Beat(self.owner_id))
        if not beats.mine:
            self.owner_was_lost(self.owner_id)
        parked: list[JobRow] = []
        for owner in self._lost(beats.owners, self._facts):
            theirs: list[JobRow] = record(Lose({owner.id: owner.beat}))
            _say_lost(owner, theirs)
            parked += theirs
        return parked

    def owner_was_lost(self, owner_id: int) -> None:
        """Forget this owner, so that the process registers anew."""
        if self.owner_id == owner_id:
            self.owner_id = None
            _log.warning("owner_was_declared_lost owner=%d", owner_id, extra={"owner_id": owner_id})

    def _lost(self, others: dict[int, OwnerRow], here: OwnerFacts) -> list[OwnerRow]:
        stood_still = self._watch.look({id: owner.beat for id, owner in others.items()}, self._monotonic())
        return [owner for id, owner in others.items() if id in stood_still or dead_here(owner.facts, here=here)]


def _say_lost(owner: OwnerRow, parked: list[JobRow]) -> None:
    """Ids, never texts. Two sweepers may see the same owner; only the one that parked its jobs names them."""
    jobs = [job.job_id for job in parked]
    _log.warning(
        "owner_lost owner=%d role=%s host=%s pid=%d jobs_parked=%d",
        owner.id, owner.facts.role, owner.facts.host, owner.facts.pid, len(jobs),
        extra={"owner_id": owner.id, "job_ids": jobs[:JOBS_IN_LOG]},
    )  # fmt: skip
