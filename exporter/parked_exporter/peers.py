"""Sidecars that share a ledger share its tasks, so it matters which of them does what: settings that differ are said.

Each leaves a digest of every setting that its tasks go by in one mark, under its id as an owner. Whoever finds itself
missing there (two may write at once) enters itself again, and whoever has gone is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.logs import fields
from parked.settings import SidecarSettings, variable

SIDECARS_MARK: Final = "sidecars"  # {owner id as text: {variable: digest of its value}}

COMPARED: Final = (
    "summary_cron", "timezone", "retention", "notify", "auto_replay", "auto_replay_classes", "auto_replay_limit",
    "auto_replay_max", "call", "on_answer", "export_messages",
)  # fmt: skip

log = logging.getLogger(__name__)


def digests(settings: SidecarSettings) -> dict[str, str]:
    """What is left of the settings for others to compare: no value can be read from it."""
    return {variable(name): _digest(name, getattr(settings, name)) for name in COMPARED}


class Peers:
    """This sidecar among the others of its ledger."""

    def __init__(self, mine: Mapping[str, str]) -> None:
        self._mine = dict(mine)
        self._said: tuple[str, ...] = ()

    def compare(self, ledger: Ledger) -> None:
        """Enter this sidecar, and say once which settings differ from those of another that lives."""
        ledger.sweep()  # so that one which was killed and started anew with other settings isn't taken for two
        me = str(ledger.owner_id)
        with ledger.ask() as reader:
            entered: dict[str, dict[str, str]] = reader.mark(SIDECARS_MARK) or {}
            alive = {str(row.id): row for row in reader.owners_alive()}
        others = {id: theirs for id, theirs in entered.items() if id in alive and id != me}
        if (now := {**others, me: self._mine}) != entered:
            ledger.record(op.SetMark(SIDECARS_MARK, now))
        differing = {id: found for id, theirs in others.items() if (found := self._differing(theirs))}
        names = tuple(sorted(set().union(*differing.values())))
        if names and names != self._said:
            hosts = sorted({alive[id].facts.host for id in differing})
            log.warning("sidecars_differ", extra=fields(settings=", ".join(names), hosts=", ".join(hosts)))
        self._said = names

    def _differing(self, theirs: Mapping[str, str]) -> set[str]:
        """A setting that one of the two versions doesn't know can't be compared."""
        return {name for name in self._mine.keys() & theirs.keys() if self._mine[name] != theirs[name]}


def _digest(name: str, value: Any) -> str:
    if name == "notify":
        value = value is not None  # its addresses are secrets
    if isinstance(value, Mapping):
        value = sorted(value.items())
    return sha256(repr(value).encode()).hexdigest()[:8]
