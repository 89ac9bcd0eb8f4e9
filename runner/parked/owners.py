"""This process as an owner of jobs, and how it is told that another one is gone.

No two clocks are compared, and an equal host name proves nothing: two containers of one pod share it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parked.version import __version__

if TYPE_CHECKING:
    from parked.ledger.operations import OwnerFacts, OwnerRow

BEAT_S: Final = 5.0
LOST_AFTER_S: Final = 30.0
# A look is due at every beat. One that comes later than this proves nothing about the time between: the ledger was
# away, or this process stood still.
MAX_GAP_S: Final = 3 * BEAT_S

_PROC: Final = Path("/proc")


def facts(role: str) -> OwnerFacts:
    """Return what is known of this process; what the system doesn't tell is empty."""
    from parked.ledger.operations import OwnerFacts  # here, since the ledger imports this module

    pid = os.getpid()
    return OwnerFacts(
        token=os.urandom(8).hex(),
        role=role,
        host=os.uname().nodename,
        boot_id=boot_id(),
        pid_namespace=_pid_namespace(),
        pid=pid,
        process_start=_start_and_state(pid)[0],
        version=__version__,
    )


def boot_id() -> str:
    """Which start of which kernel this is; a container manager may have given its container one of its own."""
    return _text(_PROC / "sys/kernel/random/boot_id")


def dead_here(other: OwnerFacts, *, here: OwnerFacts) -> bool:
    """Whether it is certain that an owner's process is gone: same boot and PID namespace, and no such process."""
    return lives_here(other, here=here) is False


def lives_here(other: OwnerFacts, *, here: OwnerFacts) -> bool | None:
    """Whether an owner's process lives, where that is certain: in the same boot and PID namespace; else None."""
    if not (other.boot_id and other.pid_namespace and other.process_start):
        return None
    if (other.boot_id, other.pid_namespace) != (here.boot_id, here.pid_namespace):
        return None
    try:
        os.kill(other.pid, 0)  # asks only; /proc may hide what belongs to other users
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists and isn't ours
    start, state = _start_and_state(other.pid)
    if not start:
        return None
    return start == other.process_start and state not in "ZX"


def gone_here(owners: Iterable[OwnerRow]) -> dict[int, int]:
    """Return the owners, id -> pid, of which nobody has noted yet that their process is certainly gone."""
    here = facts("")
    open_ones = (owner for owner in owners if owner.ended_at is None and owner.lost_at is None)
    return {owner.id: owner.facts.pid for owner in open_ones if dead_here(owner.facts, here=here)}


def user_of(pid: int) -> int | None:
    """As which user a process of this PID namespace runs; None where that isn't known, or it is gone."""
    try:
        return (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None


class Watch:
    """An owner is lost when its beat stood still for so long of our own, unbroken watching."""

    def __init__(self, *, timeout_s: float = LOST_AFTER_S, max_gap_s: float = MAX_GAP_S) -> None:
        self._timeout_s = timeout_s
        self._max_gap_s = max_gap_s
        self._last: float | None = None
        self._seen: dict[int, tuple[int, float]] = {}

    def look(self, beats: Mapping[int, int], now: float) -> list[int]:
        """Return who is lost. `beats` are those of all owners that count as alive, `now` is our monotonic clock.

        To be called only when the ledger could just be written: else a living owner might not have been able to beat.
        """
        if self._last is not None and now - self._last > self._max_gap_s:
            self._seen.clear()
        self._last = now
        self._seen = {
            owner: self._seen[owner] if owner in self._seen and self._seen[owner][0] == beat else (beat, now)
            for owner, beat in beats.items()
        }
        return [owner for owner, (_, since) in self._seen.items() if now - since >= self._timeout_s]


def _text(file: Path) -> str:
    try:
        return file.read_text("ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _start_and_state(pid: int) -> tuple[str, str]:
    """When that process started, in clock ticks since boot, and its state letter; empty where it can't be read.

    Source: proc(5), /proc/PID/stat: field 22 and field 3. The second field is a name that may hold spaces and brackets.
    """
    fields = _text_of_stat(pid).rpartition(")")[2].split()
    return (fields[19], fields[0]) if len(fields) > 19 else ("", "")


def _text_of_stat(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return ""
