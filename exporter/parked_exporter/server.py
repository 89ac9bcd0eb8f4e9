"""The web server: waitress, bounded so that no client keeps others out, and the process from nothing else it needs."""

from __future__ import annotations

import logging
import resource
import socket
from typing import TYPE_CHECKING, Any, Final

import waitress
from waitress.channel import HTTPChannel

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

# A scrape of a ledger that hangs keeps a thread until its deadline, and the probes must still be answered.
THREADS: Final = 8
# Idle connections must not keep a scrape out: there may be many, and each goes soon.
MOST_CONNECTIONS: Final = 1000
IDLE_S: Final = 15


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection on which a request that is never finished counts as idle, however often a byte of it comes."""

    last_activity: float

    def handle_read(self) -> None:
        before = self.last_activity
        super().handle_read()
        if self.request is not None:  # the beginning of one
            self.last_activity = before


def make_server(app: WSGIApplication, listening: socket.socket, *, idle_s: int = IDLE_S) -> Any:
    """Return a server whose `run` answers until the process ends.

    A connection without a whole request goes after `idle_s` to twice that.
    """
    # It would log each request that waits for a thread, and with a traceback each connection that can't be taken.
    logging.getLogger("waitress").setLevel(logging.ERROR)
    server = waitress.create_server(
        app,
        sockets=[listening],
        threads=THREADS,
        ident=None,
        connection_limit=_connections(),
        channel_timeout=idle_s,
        cleanup_interval=idle_s,
        asyncore_use_poll=True,  # select() takes no file beyond the 1,024th
    )
    server.channel_class = _Channel
    return server


def _connections() -> int:
    """Half of the files that this process may open: the other half is for the ledger, its tasks and couriers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)
