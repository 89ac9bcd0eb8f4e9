"""A file that is there whole, or not at all, and never in the place of another."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from parked.errors import OutputFailed, SettingsError

# What SQLite keeps beside a database. One that is left of another database would be taken for part of a new one.
SIDES: Final = ("-wal", "-shm", "-journal")


@contextmanager
def new_file(file: Path, *, mode: int) -> Iterator[Path]:
    """Yield an empty file beside `file`, for a database; it takes that name once it is written and synced.

    Raises:
        SettingsError: `file` is there already, or can't be.
        OutputFailed: it can't be written; nothing of it is left.
    """
    check_free(file)
    try:
        handle, name = tempfile.mkstemp(prefix=".parked-", suffix=".partial", dir=file.parent)
    except OSError as exc:
        raise OutputFailed(f"can't write {file}: {exc.strerror}") from exc
    partial = Path(name)
    try:
        os.fchmod(handle, mode)
        os.close(handle)
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
        for side in ("", *SIDES):
            Path(f"{partial}{side}").unlink(missing_ok=True)


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
