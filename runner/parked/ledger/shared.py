"""Ledgers that a program doesn't open by itself: one a place and process, closed when the process ends."""

from __future__ import annotations

import os
import threading

from parked.ledger import Ledger, full_name, open_ledger

_open: dict[str, Ledger] = {}
_opening = threading.Lock()


def shared_ledger(url: str | None = None, *, role: str) -> Ledger:
    """Return the open ledger of that URL, None being the one that the settings name; it is created if it is missing.

    Raises what `open_ledger` does.
    """
    if url is None:
        from parked.settings import Settings

        url = Settings.load().ledger
    place = full_name(url)
    with _opening:
        if place not in _open:  # opened for each call, it would add an owner a call
            _open[place] = open_ledger(url, role=role)
        return _open[place]


def _forked() -> None:
    global _opening
    _opening = threading.Lock()  # the parent's may be held by a thread that a forked child doesn't have


os.register_at_fork(after_in_child=_forked)
