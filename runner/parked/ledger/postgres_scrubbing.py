"""Removing the copies of erased texts that PostgreSQL leaves behind in its tables."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import psycopg

from parked.ledger.postgres_schema import begin
from parked.ledger.postgres_server import PATIENCE_S, Server

# CLUSTER, since VACUUM FULL can't stand in a transaction, and so can't be told how long to wait for a lock.
REWRITES: Final = (
    b"CLUSTER VERBOSE parked.payloads USING payloads_pkey",
    b"CLUSTER VERBOSE parked.answers USING answers_pkey",
    b"CLUSTER VERBOSE parked.attempts USING attempts_pkey",
)
PAUSE_S: Final = 1.0  # between two tries


def scrub(
    server: Server, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Rewrite the tables that hold texts; False if others went on reading old rows for 30 s: then copies are left.

    One table after the other, and others wait for that one meanwhile. The server's log of changes (WAL), its replicas
    that lag, and backups hold what they held; they age by the rules of whoever runs the server.
    """
    deadline = monotonic() + PATIENCE_S
    with closing(server.connect()) as connection:
        for rewrite in REWRITES:
            while not _leaves_nothing(connection, rewrite):
                if monotonic() >= deadline:
                    return False
                sleep(PAUSE_S)
    return True


def _leaves_nothing(connection: psycopg.Connection[tuple[Any, ...]], rewrite: bytes) -> bool:
    """Rewrite a table. A row that an open snapshot may still see is copied, dead or not; VERBOSE counts those."""
    details: list[str] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:  # it can be read only now
        details.append(notice.message_detail or "")

    connection.add_notice_handler(keep)
    begin(connection)
    try:
        connection.execute(rewrite)
        connection.execute(b"COMMIT")
    except psycopg.errors.LockNotAvailable:
        connection.execute(b"ROLLBACK")
        return False
    finally:
        connection.remove_notice_handler(keep)
    # `7 dead row versions cannot be removed yet.`, in the language of the server.
    return all(count == "0" for detail in details for count in re.findall(r"\d+", detail)[:1])
