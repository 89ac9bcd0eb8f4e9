"""Which database a ledger's URL names."""

from __future__ import annotations

import time
from collections.abc import Callable

from parked.errors import SettingsError
from parked.ledger.store import Database
from parked.ledger.vault import PLAIN_VAULT, Vault


def locate(
    url: str,
    *,
    mode: int | None = None,
    vault: Vault = PLAIN_VAULT,
    clock: Callable[[], float] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Database:
    """Return what a URL names, connected or not. See `open_ledger` for the rest.

    Raises:
        SettingsError: the URL is none that parked understands.
        LedgerUnavailable: the extra for this database isn't installed.
    """
    scheme, colon, _ = url.partition(":")  # no more of it is ever shown: it may hold a password
    if scheme == "sqlite" and colon:
        from parked.ledger.sqlite import SqliteDatabase
        from parked.ledger.sqlite_file import path_of

        return SqliteDatabase(path_of(url), mode=mode, vault=vault, clock=clock or time.time, monotonic=monotonic)
    if scheme in ("postgres", "postgresql") and colon:
        from parked.ledger.postgres_server import Server, require_psycopg

        server = Server.of(url)
        require_psycopg()
        from parked.ledger.postgres import PostgresDatabase

        return PostgresDatabase(server, vault=vault, clock=clock)
    what = f"the scheme {scheme!r}" if colon else f"{url!r}, without a scheme"
    raise SettingsError(
        f"a ledger is named by a URL like sqlite:///parked.db or postgresql://host/database, got {what}"
    )
