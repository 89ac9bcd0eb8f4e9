"""The file of a SQLite ledger: where it is, whether it may be used, how it is opened, and what its errors mean."""

from __future__ import annotations

import errno
import os
import random
import shlex
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from parked.errors import LedgerMissing, LedgerReplaced, LedgerUnavailable, ParkedError, SettingsError
from parked.ledger.newfile import SIDES
from parked.ledger.store import Denied

APPLICATION_ID: Final = 1885434475  # "park" in ASCII; the first migration sets it
DEFAULT_MODE: Final = 0o600
PATIENCE_S: Final = 30.0  # for a lock that others hold
INTERRUPT_AGAIN_S: Final = 0.05

BUSY: Final = 5
READ_ONLY: Final = 8
# Primary result codes of SQLite, https://www.sqlite.org/rescode.html, and what they mean for a ledger.
MEANINGS: Final = {
    BUSY: f"was held locked by another process for {PATIENCE_S:.0f} s",
    6: "is locked by this process itself",
    7: "can't be used: SQLite is out of memory",
    READ_ONLY: "may not be written by this user",
    10: "can't be read or written: the disk reports an I/O error",
    11: "is damaged; restore a backup, or save what can still be read as docs/operating.md says",
    13: "can't be written: the disk is full",
    14: "can't be opened; look at the rights of the file and its folder, and whether they are still there",
    15: "is locked in a way that this file system doesn't support; a network file system can't hold a SQLite ledger",
    26: "is not a SQLite database; if it was one, its beginning is damaged: restore a backup",
}
# Extended codes whose primary one would mislead.
NO_SHARED_MEMORY: Final = (
    "can't be used there: the file system has no shared memory, which SQLite's WAL needs; put it on a local disk, or"
    " use PostgreSQL"
)
EXACT_MEANINGS: Final = {
    sqlite3.SQLITE_IOERR_WRITE: (
        "can't be written: the disk reports an I/O error, or files may not grow that large (`ulimit -f`)"
    ),
    sqlite3.SQLITE_IOERR_FSYNC: "can't be written: the disk reports an I/O error when it is to keep it",
    sqlite3.SQLITE_IOERR_NOMEM: MEANINGS[7],
    sqlite3.SQLITE_IOERR_SHMSIZE: "can't be used: its -shm file finds no room on the disk, or can't be written",
    sqlite3.SQLITE_IOERR_SHMMAP: NO_SHARED_MEMORY,
}
ON_READ_ONLY: Final = (
    "lies on a file system that is read-only, and SQLite's WAL needs to write even for reading; mount it to be written,"
    " or look at a copy elsewhere"
)
BOTH_REMEDIES: Final = (
    "run all programs of a ledger as one user, or create it with PARKED_LEDGER_MODE=0660 in a setgid folder of one"
    " group"
)
CREATORS: Final = "name another by --ledger or PARKED_LEDGER, or create one with `parked migrate` or `parked run`"

T = TypeVar("T")
FileId = tuple[int, int]  # of a device and a file on it; a name may come to mean another one


def path_of(url: str) -> Path:
    """Return the file that `sqlite:///relative.db` or `sqlite:////absolute.db` names, as an absolute path.

    Raises:
        SettingsError: the URL has a host, a query or no file, or names a database in memory.
    """
    rest = url.removeprefix("sqlite:")
    if not rest.startswith("///"):
        raise SettingsError(
            f"the ledger {url!r} must be sqlite:///relative/file.db or sqlite:////absolute/file.db, with three or four"
            " slashes"
        )
    name = rest[3:]
    if name == ":memory:":
        raise SettingsError("a ledger in memory would forget its jobs; name a file: sqlite:///parked.db")
    if not name or name.endswith("/"):
        raise SettingsError(f"the ledger {url!r} names no file; write sqlite:///parked.db")
    if "?" in name or "\0" in name:
        raise SettingsError(f"the ledger {url!r} has a '?' or NUL in it; a SQLite ledger takes no options in its URL")
    return Path(name).absolute()


def make_sure(path: Path, *, create: bool, mode: int | None) -> None:
    """See that there is a file that this process can use; with `create`, make an empty one where there is none.

    `mode` is for a file that is made here; None: 0600.

    Raises:
        LedgerMissing: there is none, and none is to be created.
        LedgerUnavailable: the folder is missing, or the file can't be read and written.
    """
    try:
        there = path.exists()
    except OSError as exc:
        raise LedgerUnavailable(f"the ledger {path} can't be reached: {exc.strerror}; {_remedy(exc)}") from exc
    if not there:
        if not create and path.parent.is_dir() and not os.access(path.parent, os.W_OK | os.X_OK):
            why = OSError(errno.EROFS if _is_read_only(path.parent) else errno.EACCES, "")
            raise LedgerUnavailable(
                f"there is no ledger at {path}, nor could this user ({os.geteuid()}) make or use one there, since its"
                f" folder may not be written; {_remedy(why)}"
            )
        if not create:
            raise LedgerMissing(f"there is no ledger at {path}; {CREATORS}")
        if not path.parent.is_dir():
            raise LedgerUnavailable(f"the folder {path.parent} for the ledger does not exist; create it first")
        _make(path, DEFAULT_MODE if mode is None else mode)
    if not path.is_file():
        raise LedgerUnavailable(f"the ledger {path} is not a file")
    if not os.access(path, os.R_OK):
        raise LedgerUnavailable(f"the ledger {path} may not be read by {_this_user(path)}; {BOTH_REMEDIES}")
    if _is_read_only(path):
        raise LedgerUnavailable(f"the ledger {path} {ON_READ_ONLY}")
    # A reader without the right to write would leave side files behind that lock the writers out.
    if not os.access(path, os.W_OK):
        raise LedgerUnavailable(
            f"the ledger {path} may be read but not written by {_this_user(path)}, and SQLite's WAL needs both even for"
            f" reading; {BOTH_REMEDIES}"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise LedgerUnavailable(
            f"the folder of the ledger {path} may not be written by {_this_user(path.parent)}, and SQLite needs that"
            f" for its side files; {BOTH_REMEDIES}"
        )


def _this_user(path: Path) -> str:
    """Who this process is, and who the owner; by their numbers, for in a container few users have names."""
    try:
        return f"this user ({os.geteuid()}; it belongs to {path.stat().st_uid})"
    except OSError:  # gone meanwhile
        return f"this user ({os.geteuid()})"


def refuse_exposed(path: Path) -> None:
    """See that a ledger, and what SQLite keeps beside it, is for those alone who may write it.

    Raises:
        LedgerUnavailable: it isn't; says what mends it.
    """
    for file in (path, *(Path(f"{path}{side}") for side in SIDES)):
        try:
            mode = file.stat().st_mode
        except FileNotFoundError:
            continue
        if (fault := fault_of_mode(mode, file)) is not None:
            raise LedgerUnavailable(fault)


def fault_of_mode(mode: int, file: Path) -> str | None:
    """Why a file of a ledger with this mode is refused, and what mends it; None if nothing is wrong with it. Pure.

    Whoever reads it has to be able to write it, and nobody else is to see the prompts and answers in it: so it is for
    one user, or for one user and one group.
    """
    name, shown = shlex.quote(str(file)), f"{stat.S_IMODE(mode):04o}"
    group = mode & (stat.S_IRGRP | stat.S_IWGRP)
    whole_group = stat.S_IRGRP | stat.S_IWGRP
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        kept = 660 if group == whole_group else 600
        return (
            f"{file} may be read or written by every user of this machine (mode {shown}), and it holds what the ledger"
            f" keeps of prompts and answers; its owner mends that: chmod {kept} {name}"
        )
    if group not in (0, whole_group):
        half = "read but not written" if group == stat.S_IRGRP else "written but not read"
        return (
            f"{file} may be {half} by its group (mode {shown}), and SQLite's WAL needs both; its owner mends that:"
            f" chmod 600 {name}, or chmod 660 {name} where the programs of one group share it"
        )
    return None


def file_id(path: Path) -> FileId:
    """Which file has this name now.

    Raises:
        LedgerUnavailable: none.
    """
    try:
        facts = path.stat()
    except OSError as exc:
        raise LedgerUnavailable(
            f"the ledger {path} is gone ({exc.strerror}): it was moved or deleted while this process had it open;"
            " put it back"
        ) from exc
    return facts.st_dev, facts.st_ino


def check_same(path: Path, known: FileId) -> None:
    """See that a name still means the file that was opened: ids of jobs mean something else in any other.

    Raises:
        LedgerReplaced: it doesn't.
    """
    if file_id(path) != known:
        raise LedgerReplaced(
            f"the ledger {path} is another file than this process has opened, so nothing is written to it; put the"
            " first one back, or end the program and start it again (a sidecar goes on with the new one by itself)"
        )


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _remedy(failure: OSError) -> str:
    """What to do where a ledger couldn't be made."""
    elsewhere = "name another place by --ledger or PARKED_LEDGER"
    match failure.errno:
        case errno.EACCES | errno.EPERM:
            return (
                f"let user {os.geteuid()} write its folder (chown; fsGroup on Kubernetes), run this as the user who"
                f" may, or {elsewhere}"
            )
        case errno.EROFS:
            return f"mount a volume there that can be written, or {elsewhere}"
        case _:
            return elsewhere


def _make(path: Path, mode: int) -> None:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return  # another process was faster
    except OSError as exc:
        raise LedgerUnavailable(f"the ledger {path} can't be created: {exc.strerror}; {_remedy(exc)}") from exc
    try:
        os.fchmod(file, mode)  # whatever the umask says; SQLite gives its side files the same
    finally:
        os.close(file)


def connect(path: Path, *, only_asks: bool = False) -> sqlite3.Connection:
    """Open the file, which must exist. Who only asks waits for a lock in SQLite; the writer has its own patience."""
    name = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(
        f"file:{name}?mode=rw",
        uri=True,
        timeout=PATIENCE_S if only_asks else 0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        # Patiently: whoever closes a ledger last locks it for a moment, to take its WAL in.
        patiently(lambda: connection.execute("PRAGMA synchronous = FULL"))
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # SqliteStore says who checkpoints, and when
        if only_asks:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def stays_locked(path: Path, *, patience_s: float) -> bool:
    """Return whether others hold the lock for so long that it takes to write. Nothing is written."""
    with closing(connect(path)) as connection:
        try:
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), patience_s=patience_s)
        except sqlite3.OperationalError as exc:
            if _code(exc) == BUSY:
                return True
            raise
    return False


def patiently(
    act: Callable[[], T], *, monotonic: Callable[[], float] = time.monotonic, patience_s: float | None = None
) -> T:
    """Do what needs a lock, again while others hold it, for 30 s.

    At random 0.5–3 ms: SQLite's own busy handler backs off ever longer, so that some of many processes starve.
    """
    deadline = monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            return act()
        except sqlite3.OperationalError as exc:
            if _code(exc) != BUSY or monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.003))


def interruptibly(connection: sqlite3.Connection, act: Callable[[], T]) -> T:
    """Do what keeps SQLite busy for long, so that a signal can end it: whoever waits inside SQLite hears of none."""
    from concurrent.futures import Future, wait

    doing: Future[T] = Future()

    def do() -> None:
        if not doing.set_running_or_notify_cancel():
            return
        try:
            doing.set_result(act())
        except BaseException as exc:  # noqa: BLE001 - raised to whoever waits
            doing.set_exception(exc)

    # No executor: a signal that comes while it starts its thread leaves that one behind, inside SQLite, and the
    # connection would be closed under it.
    try:
        threading.Thread(target=do, name="parked-sqlite", daemon=True).start()
        return doing.result()
    except BaseException:
        while not doing.cancel() and not doing.done():
            connection.interrupt()  # without effect between two statements, so again
            wait([doing], timeout=INTERRUPT_AGAIN_S)
        raise


def explain(exc: Exception, path: Path) -> Exception:
    """Return what a SQLite error means to parked, in one sentence; any other exception as it is."""
    if isinstance(exc, ParkedError) or not isinstance(exc, sqlite3.Error):
        return exc
    exact: int = getattr(exc, "sqlite_errorcode", 0)
    meaning = EXACT_MEANINGS.get(exact, MEANINGS.get(_code(exc)))
    if meaning is None:
        return exc
    remedy = ""
    if _code(exc) == READ_ONLY:
        meaning, remedy = (ON_READ_ONLY, "") if _is_read_only(path) else (meaning, f"; {BOTH_REMEDIES}")
    kind = Denied if remedy else LedgerUnavailable
    return kind(f"the ledger {path} {meaning}{remedy}")


def _code(exc: sqlite3.Error) -> int:
    """The primary result code; 0 where the error isn't SQLite's own."""
    code: int = getattr(exc, "sqlite_errorcode", 0)
    return code & 0xFF
