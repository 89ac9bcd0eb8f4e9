"""A file that is there whole, or not at all, and never in the place of another."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from parked.errors import OutputFailed, SettingsError

# What SQLite keeps beside a database. One that is left of another database would be taken for part of a new one.
SIDES: Final = ("-wal", "-shm", "-journal")
# What a file is called that isn't whole yet.
PREFIX: Final = ".parked-"
SUFFIX: Final = ".partial"

_log = logging.getLogger("parked.ledger")


@contextmanager
def new_file(file: Path, *, mode: int) -> Iterator[Path]:
    """Yield an empty file beside `file`, for a database; it takes that name once it is written and synced.

    What others that were killed meanwhile have left in this folder is removed first.

    Raises:
        SettingsError: `file` is there already, or can't be.
        OutputFailed: it can't be written; nothing of it is left.
    """
    check_free(file)
    _remove_abandoned(file.parent)
    try:
        handle, partial = _make_partial(file.parent)
    except OSError as exc:
        raise OutputFailed(f"can't write {file}: {exc.strerror}") from exc
    try:
        os.fchmod(handle, mode)
        yield partial
        try:
            _sync(partial)
            _give_name(partial, file)
            try:
                _sync(file.parent)
            except OSError:
                file.unlink()
                raise
        except OSError as exc:
            raise OutputFailed(f"can't write {file}: {exc.strerror}") from exc
    finally:
        _remove(partial)
        os.close(handle)


def check_free(file: Path) -> None:
    """See that a database may be made there.

    Raises:
        SettingsError: something is there, or beside it what SQLite would take for part of it.
    """
    if not file.parent.is_dir():
        raise SettingsError(f"the folder {file.parent} for {file.name} does not exist; create it first")
    if os.path.lexists(file):
        raise SettingsError(f"{file} is there already, and nothing is overwritten; name another file")
    for side in SIDES:
        if os.path.lexists(f"{file}{side}"):
            raise SettingsError(
                f"{file}{side} is left of another database, and SQLite would take it for part of {file.name}; move it"
                " away, or name another file"
            )
        if file.name.endswith(side) and os.path.lexists(str(file).removesuffix(side)):
            raise SettingsError(
                f"SQLite would take {file} for part of the database {file.name.removesuffix(side)}; name another file"
            )


def _make_partial(folder: Path) -> tuple[int, Path]:
    """Make a file that is locked as long as this process writes it, so that others know."""
    while True:
        handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=folder)
        with suppress(OSError):  # a file system without such locks; then nobody takes it for abandoned either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # somebody has looked between the two, and removed it


def _remove_abandoned(folder: Path) -> None:
    for partial in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # somebody else's, or gone by now
            if _remove_if_abandoned(partial):
                _log.warning("unfinished_copy_removed file=%s", json.dumps(str(partial)))


def _remove_if_abandoned(partial: Path) -> bool:
    facts = partial.lstat()
    if not stat.S_ISREG(facts.st_mode):
        return False
    if facts.st_nlink > 1:
        # Whole, and with its name besides. It may be a ledger that this process uses: it isn't opened, since closing it
        # would end the locks that SQLite has on it.
        _remove(partial)
        return True
    handle = os.open(partial, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(partial)  # still locked: whoever has just made it is told apart by what is left of it then
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _remove(partial: Path) -> None:
    for side in (*SIDES, ""):  # itself last: without it nobody would find the others
        Path(f"{partial}{side}").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _give_name(partial: Path, file: Path) -> None:
    """A link fails if somebody was faster; where there are no links, a glance before the renaming has to do."""
    try:
        os.link(partial, file)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        check_free(file)
        partial.rename(file)
