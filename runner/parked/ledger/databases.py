"""Which database a ledger's URL names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from parked.arguments import check_kind
from parked.errors import WORKING_FOLDER_GONE, LedgerUnavailable, SettingsError
from parked.ledger.store import Database
from parked.ledger.vault import PLAIN_VAULT, Vault

_POSTGRES: Final = ("postgres", "postgresql")


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
        LedgerUnavailable: the extra for this database isn't installed, or the folder that a path starts from is gone.
    """
    check_kind("a ledger's URL", url, str, rule="text like sqlite:///parked.db or postgresql://host/database")
    scheme, colon, rest = url.partition(":")
    if scheme == "sqlite" and colon:
        from parked.ledger.sqlite import SqliteDatabase
        from parked.ledger.sqlite_file import path_of

        try:
            path = path_of(url)
        except FileNotFoundError as exc:
            raise LedgerUnavailable(
                f"{WORKING_FOLDER_GONE}, or name the ledger by an absolute path: sqlite:////absolute/file.db"
            ) from exc
        return SqliteDatabase(path, mode=mode, vault=vault, clock=clock or time.time, monotonic=monotonic)
    if scheme in _POSTGRES and colon:
        from parked.ledger.postgres_server import Server, require_psycopg

        server = Server.of(url)
        require_psycopg()
        from parked.ledger.postgres import PostgresDatabase

        return PostgresDatabase(server, vault=vault, clock=clock)
    # No more of it is ever shown: it may hold a password.
    what = "text without a scheme"
    if rest.startswith("//") and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        what = f"the scheme {scheme!r}"
    elif re.fullmatch(r"[\w./-]*", url):
        what = f"{url!r}, without a scheme"
    raise SettingsError(
        f"a ledger is named by a URL like sqlite:///parked.db or postgresql://host/database, got {what}"
    )


def as_shown(url: str) -> str:
    """Return a ledger's URL as it may stand in a command that is shown.

    What may be a secret is left out, and a word in capitals stands for it: until that is filled in the command fails,
    rather than go to another ledger.

    Raises:
        SettingsError: the URL can't be read.
    """
    if url.partition(":")[0] not in _POSTGRES:
        return url
    from parked.ledger.postgres_server import Server

    return Server.of(url).shown


def from_anywhere(url: str) -> str:
    """Return a ledger's URL for a command that somebody types in another folder."""
    return url if url.partition(":")[0] in _POSTGRES else locate(url).where
