"""Looks at everything around parked, all at once and each for a bounded time. Nothing is changed, made or locked."""

from __future__ import annotations

import os
import platform
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from parked import owners
from parked.errors import LedgerMissing, ParkedError
from parked.settings import SidecarSettings, check_unknown
from parked.surroundings import certificates, key, neighbour, proxies, rights, starts
from parked.surroundings.volumes import Volume, volume_of

if TYPE_CHECKING:
    from parked.ledger.operations import OwnerRow
    from parked.verdict import Verdict

DEADLINE_S: Final = 10.0  # for all looks together, which go on side by side
PATIENCE_S: Final = 5.0  # of each that asks somebody
LOCK_PATIENCE_S: Final = 3.0  # a commit holds the lock for milliseconds, a large erasure for longer

# Distributions by the extra that brings them; those without one come with parked.
PACKAGES: Final = {
    "google-genai": "",
    "prometheus-client": "exporter",
    "apscheduler": "exporter",
    "waitress": "exporter",
    "psycopg": "postgres",
    "apprise": "notify",
    "cryptography": "encrypted",
}


class Trouble(NamedTuple):
    """Why a look has found nothing."""

    why: str


class NotAsked(NamedTuple):
    why: str


class Ledger(NamedTuple):
    """A ledger that can be read. Times are UTC epoch seconds."""

    name: str
    version: str  # of its database
    alive: tuple[OwnerRow, ...]
    boot_id: str  # of this machine
    ours: float  # this machine's clock, when `theirs` was the database's
    theirs: float
    newest: float | None
    labels: frozenset[tuple[str, str]]  # pairs of pipeline and model that are counted by name
    size_bytes: int
    lacking_rights: tuple[str, ...]
    is_locked: bool  # a SQLite file that others kept from being written all the time


class Texts(NamedTuple):
    """How many texts are encrypted, and with which keys."""

    encrypted: int
    locked: Mapping[str, int]  # by the id of a key that isn't there
    pending: int  # jobs whose payload is locked


class NoVault(NamedTuple):
    why: str  # new texts couldn't be encrypted


class NoLedger(NamedTuple):
    why: str
    missing: bool  # there is none; else there is one that can't be used


class Place(NamedTuple):
    """Where the file of a SQLite ledger is, or would be."""

    path: Path
    volume: Volume | None  # None: the system doesn't tell
    free_bytes: int | None
    free_files: int | None  # None: this file system doesn't count them
    changed_at: float | None  # the newest of its files; None: there is none
    ours: float  # this machine's clock then


class Api(NamedTuple):
    """What the API has answered."""

    verdict: Verdict | None  # None: it took the key
    status: int | None  # None: there was no answer
    ours: float  # this machine's clock then
    theirs: float | None  # what its Date header says


class Python(NamedTuple):
    python: str
    sqlite: tuple[int, ...]
    packages: Mapping[str, str | None]  # distribution: version; None: not installed


class Seen(NamedTuple):
    """All that was found. Whatever couldn't be looked at is a `Trouble`, what wasn't to be a `NotAsked`."""

    settings: SidecarSettings
    wrong_settings: Mapping[str, str]
    unknown_settings: tuple[str, ...]
    starts: list[str] | Trouble | NotAsked  # what a start would be refused with
    python: Python
    ledger: Ledger | NoLedger | Trouble | NotAsked
    texts: Texts | NoVault | Trouble | NotAsked
    place: Place | Trouble | NotAsked
    rights: rights.Seen | Trouble | NotAsked
    certificates: certificates.Seen | Trouble
    proxy: proxies.Seen | Trouble
    key: key.Seen
    api: Api | Trouble | NotAsked
    sidecar: neighbour.Seen | Trouble | NotAsked


def see(settings: SidecarSettings, wrong: Mapping[str, str], *, offline: bool) -> Seen:
    """Look at everything; `offline` leaves out what asks another machine, or a server on this one."""
    from parked.ledger.sqlite_file import path_of

    path = path_of(settings.ledger) if settings.ledger.startswith("sqlite:") and "ledger" not in wrong else None
    no_key = key.look()
    looks: dict[str, Callable[[], Any]] = {
        "starts": lambda: starts.look(settings, patience_s=PATIENCE_S),
        "ledger": lambda: look_at_ledger(settings.ledger),
        "texts": lambda: look_at_texts(settings),
        "place": lambda: look_at_place(path),
        "certificates": certificates.look,
        "proxy": lambda: proxies.look(connects=not offline),
        "api": lambda: look_at_api(),
        "sidecar": lambda: neighbour.look(settings.listen),
    }
    told = {name: NotAsked("not asked (--offline)") for name in ("api", "sidecar") if offline}
    if wrong or check_unknown():
        told["starts"] = NotAsked("a setting is wrong")
    if "ledger" in wrong:
        told["ledger"] = told["texts"] = NotAsked("its setting is wrong")
    elif offline and path is None:
        told["ledger"] = told["texts"] = NotAsked("not asked (--offline)")
    if wrong.keys() & {"store", "store_keys"}:
        told["texts"] = NotAsked("their setting is wrong")
    if path is None:
        told["place"] = told["rights"] = NotAsked("")
    if not offline and no_key.variable is None and not no_key.vertex:
        told["api"] = NotAsked("not asked, for there is no key")
    found: dict[str, Any] = dict(told)
    if path is not None:
        found |= all_at_once({"rights": lambda: rights.look(path)}, within_s=PATIENCE_S)
    found |= all_at_once({name: look for name, look in looks.items() if name not in told}, within_s=DEADLINE_S)
    if isinstance(found["rights"], rights.Seen) and isinstance(found["ledger"], Ledger):
        found["rights"] = found["rights"]._replace(running=rights.running(found["ledger"].alive))
    return Seen(
        settings=settings,
        wrong_settings=wrong,
        unknown_settings=tuple(check_unknown()),
        python=look_at_python(),
        key=no_key,
        **found,
    )


def all_at_once(looks: Mapping[str, Callable[[], Any]], *, within_s: float) -> dict[str, Any]:
    """Return what each look has found, or a `Trouble`. One that hangs, on a dead network disk say, is left behind."""
    found: dict[str, Any] = {}

    def take(name: str, look: Callable[[], Any]) -> None:
        try:
            found[name] = look()
        except ParkedError as exc:
            found[name] = Trouble(str(exc))
        except OSError as exc:
            found[name] = Trouble(exc.strerror or type(exc).__name__)
        except Exception as exc:  # noqa: BLE001 - it may quote a key; a check that fails must not keep the others
            found[name] = Trouble(f"it could not be looked at ({type(exc).__name__})")

    threads = [
        threading.Thread(target=take, args=each, name=f"parked-doctor-{each[0]}", daemon=True) for each in looks.items()
    ]
    deadline = time.monotonic() + within_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = Trouble(f"there was no answer within {within_s:.0f} s")
    return {name: found.get(name, late) for name in looks}


def look_at_ledger(url: str) -> Ledger | NoLedger:
    from parked.ledger import look_into
    from parked.ledger.counters import Metric
    from parked.ledger.sqlite_file import path_of, stays_locked

    try:
        with look_into(url, patience_s=PATIENCE_S) as reader:
            ours, theirs = time.time(), reader.clock()
            return Ledger(
                name=reader.name,
                version=reader.version(),
                alive=tuple(reader.owners_alive()),
                boot_id=owners.boot_id(),
                ours=ours,
                theirs=theirs,
                newest=reader.newest(),
                labels=frozenset((row.pipeline, row.model) for row in reader.counters(Metric.JOBS_ACCEPTED)),
                size_bytes=reader.size_bytes(),
                lacking_rights=tuple(reader.lacking_rights()),
                is_locked=url.startswith("sqlite:") and stays_locked(path_of(url), patience_s=LOCK_PATIENCE_S),
            )
    except LedgerMissing as exc:
        return NoLedger(str(exc), missing=True)
    except ParkedError as exc:
        return NoLedger(str(exc), missing=False)


def look_at_texts(settings: SidecarSettings) -> Texts | NoVault | NotAsked:
    from parked.ledger import look_into
    from parked.ledger.vault import vault_of

    try:
        known = vault_of(settings).key_ids
    except ParkedError as exc:
        return NoVault(str(exc))
    try:
        with look_into(settings.ledger, patience_s=PATIENCE_S) as reader:
            used = [(use.what, use.key_id, use.number) for use in reader.keys_used() if use.key_id is not None]
    except LedgerMissing:
        return NotAsked("there are none without a ledger")
    locked = Counter[str]()
    for what, key_id, number in used:
        if key_id not in known and what != "pending":
            locked[key_id] += number
    return Texts(
        encrypted=sum(number for what, _, number in used if what != "pending"),
        locked=locked,
        pending=sum(number for what, key_id, number in used if what == "pending" and key_id not in known),
    )


def look_at_place(path: Path | None) -> Place:
    assert path is not None
    from parked.ledger.newfile import SIDES

    there = next(folder for folder in path.parents if os.access(folder, os.F_OK, effective_ids=True))
    room = os.statvfs(there)
    times = []
    with suppress(OSError):  # it may not be looked at, which is said of its rights
        times = [file.stat().st_mtime for side in ("", *SIDES) if (file := Path(f"{path}{side}")).exists()]
    return Place(
        path,
        volume_of(path),
        room.f_bavail * room.f_frsize,
        room.f_favail if room.f_files else None,
        max(times, default=None),
        time.time(),
    )


def look_at_api() -> Api:
    from parked.gemini import greet
    from parked.judge import classify, classify_http_error

    ours = time.time()
    try:
        answer = greet(timeout_s=PATIENCE_S)
    except ParkedError:
        raise
    except Exception as exc:  # noqa: BLE001 - whatever an HTTP client raises is a verdict, as in a run
        return Api(classify(exc), None, ours, None)
    ours = (ours + time.time()) / 2
    theirs = _moment(answer.headers.get("date", ""))
    verdict = None if answer.status == 200 else classify_http_error(answer.status, answer.body, answer.headers)
    return Api(verdict, answer.status, ours, theirs)


def look_at_python() -> Python:
    return Python(platform.python_version(), sqlite3.sqlite_version_info, {name: _version(name) for name in PACKAGES})


def _version(distribution: str) -> str | None:
    try:
        return version_of(distribution)
    except PackageNotFoundError:
        return None


def _moment(date: str) -> float | None:
    """A header like `Mon, 30 Nov 2026 04:48:07 GMT`."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
