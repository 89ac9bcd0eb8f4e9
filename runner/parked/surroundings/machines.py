"""Whether another machine uses the same SQLite file, or it goes with a container.

A boot id alone proves nothing: it tells kernels apart, but LXC and systemd-nspawn give each container one of its own,
and a machine that was started again has another than its processes of before. So it counts only on a file system that
two kernels can share, and only while that owner's beat moves. The clone of a running machine has the same one: such two
are not told apart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parked import owners
from parked.errors import LedgerUnavailable
from parked.surroundings.volumes import REACHED_BY_OTHERS, Kind, Volume, seen_at_open

if TYPE_CHECKING:
    from parked.ledger.operations import OwnerRow

# Longer than two beats, so that a living owner has raised its own by then.
WATCH_S: Final = 2 * owners.BEAT_S + 2.0
LOOK_S: Final = 0.5

MOVE: Final = "put the ledger on a local disk of one machine, or use PostgreSQL for several"
ON_A_NETWORK: Final = {
    Kind.NETWORK: "a network file system, where SQLite loses commits as soon as two machines use it",
    Kind.SHARED: "a file system that is shared with another kernel, with which SQLite's WAL shares no memory",
    Kind.FUSE: "a file system of FUSE, which may be a network's; there SQLite loses commits with two machines",
}

GONE_WITH_IT: Final = "in a container's own layer ({type} at {mount_point}), and goes with the container"
VOLUME: Final = "put it on a volume"

_log = logging.getLogger("parked.ledger")
_warned: set[Path] = set()


def elsewhere(alive: Iterable[OwnerRow], *, boot_id: str) -> list[OwnerRow]:
    """Return the owners that run under another kernel, or have run before this one was started."""
    return [owner for owner in alive if owner.facts.boot_id and boot_id and owner.facts.boot_id != boot_id]


def check_at_open(
    path: Path,
    alive: Callable[[], list[OwnerRow]],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Warn, once a process, of a SQLite ledger where other machines may reach it; refuse it while one does.

    `alive` asks the ledger for the owners that are neither ended nor lost. On a local disk it isn't asked. While one is
    there that may be of another machine, its beat is watched for up to 12 s.

    Raises:
        LedgerUnavailable: a process of another machine uses it.
    """
    volume = seen_at_open(path.parent)
    if volume is None or volume.kind not in REACHED_BY_OTHERS:
        return
    if path not in _warned:
        _warned.add(path)
        _log.warning("ledger_reached_by_other_machines: %s", _suspicion(path, volume))
    boot_id = owners.boot_id()
    first = {owner.id: owner for owner in elsewhere(alive(), boot_id=boot_id)}
    if not first:
        return
    names = ", ".join(sorted({owner.facts.host for owner in first.values()}))
    _log.warning(
        "watching_other_machines: looking for %.0f s whether %s still uses the ledger %s", WATCH_S, names, path
    )
    deadline = monotonic() + WATCH_S
    while monotonic() < deadline:
        wait(LOOK_S)
        for owner in elsewhere(alive(), boot_id=boot_id):
            if owner.id not in first or owner.beat != first[owner.id].beat:
                raise LedgerUnavailable(
                    f"the ledger {path} is used by another machine ({owner.facts.host} pid {owner.facts.pid}), and two"
                    f" machines lose each other's commits on one SQLite file; {MOVE}"
                )


def warn_of_a_layer(path: Path) -> None:
    """Warn, once a process, of a SQLite ledger that goes with the container in which it takes jobs on.

    What lies in the folder for temporary files is meant to go.
    """
    volume = seen_at_open(path.parent)
    if volume is None or volume.kind is not Kind.LAYER or path in _warned:
        return
    import tempfile

    if not path.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve()):
        _warned.add(path)
        where = GONE_WITH_IT.format(**volume._asdict())
        _log.warning("ledger_goes_with_its_container: the ledger %s is %s; %s", path, where, VOLUME)


def _suspicion(path: Path, volume: Volume) -> str:
    return f"the ledger {path} lies on {ON_A_NETWORK[volume.kind]} ({volume.type}); {MOVE}"
