"""Who may do what with the files of a SQLite ledger, and as whom its programs run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from parked import owners
from parked.ledger.newfile import SIDES
from parked.surroundings.finding import Finding, attention, broken, ok, skipped, worst

if TYPE_CHECKING:
    from parked.ledger.operations import OwnerRow

ONE_USER: Final = (
    "run all programs of a ledger as one user (chown its files to that one), or share it by a group: mode 0660 in a"
    " setgid folder"
)
GROUP_RIGHTS: Final = stat.S_IRGRP | stat.S_IWGRP


class File(NamedTuple):
    name: str
    mode: int  # permission bits
    user: int
    group: int

    @property
    def is_shared_by_group(self) -> bool:
        return self.mode & GROUP_RIGHTS == GROUP_RIGHTS


class Seen(NamedTuple):
    path: Path  # of the folder
    me: int  # the user that asks
    my_groups: frozenset[int]
    folder: File | None  # None: there is none
    may_create: bool  # files in that folder
    files: tuple[File, ...]  # the ledger and its side files, those that there are; the ledger first
    running: tuple[tuple[str, int], ...] = ()  # processes of this machine that use it, and their users


def look(path: Path) -> Seen:
    """To be called before the ledger is opened: for root, SQLite gives side files to whom the ledger belongs.

    Raises:
        OSError: this user may not enter the folder.
    """
    return Seen(
        path.parent,
        os.geteuid(),
        frozenset({os.getegid(), *os.getgroups()}),
        _file(path.parent),
        os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True),
        tuple(file for side in ("", *SIDES) if (file := _file(Path(f"{path}{side}"))) is not None),
    )


def running(alive: Iterable[OwnerRow]) -> tuple[tuple[str, int], ...]:
    """Return those owners that are processes of this machine, and as which user each runs."""
    here = owners.facts("doctor")
    return tuple(
        (f"{owner.facts.role} pid {owner.facts.pid}", user)
        for owner in alive
        if (owner.facts.boot_id, owner.facts.pid_namespace) == (here.boot_id, here.pid_namespace)
        and (user := owners.user_of(owner.facts.pid)) is not None
    )


def judge(seen: Seen) -> Finding:
    if seen.folder is None:
        return broken("the folder of the ledger is missing", "create it, as the user of the ledger's programs")
    if not seen.files:
        if seen.may_create:
            return skipped("there is no file yet; its folder may be written")
        return broken(f"no file can be made in {seen.path}", f"let user {user_name(seen.me)} write that folder")
    ledger = seen.files[0]
    return worst(
        [
            ok(f"{ledger.mode:04o}, user {user_name(ledger.user)}; its folder {seen.folder.mode:04o}"),
            *_of_users(seen, ledger),
            *_of_modes(seen, ledger),
        ]
    )


def _of_users(seen: Seen, ledger: File) -> Iterable[Finding]:
    if not ledger.is_shared_by_group:
        for file in seen.files:
            if file.user != ledger.user:
                yield broken(
                    f"{ledger.name} belongs to user {user_name(ledger.user)}, and {file.name} to"
                    f" {user_name(file.user)}: whoever may not write both is locked out",
                    ONE_USER,
                )
        for label, user in seen.running:
            if user != ledger.user:
                yield attention(
                    f"{label} runs as user {user_name(user)}, but the file belongs to {user_name(ledger.user)}",
                    ONE_USER,
                )
        if seen.me not in (0, ledger.user):
            yield broken(f"the file belongs to user {user_name(ledger.user)}, not to {user_name(seen.me)}", ONE_USER)
    if not seen.may_create:
        yield broken("the folder may not be written by this user, which SQLite needs for its side files", ONE_USER)


def _of_modes(seen: Seen, ledger: File) -> Iterable[Finding]:
    assert seen.folder is not None
    for file in seen.files:
        if file.mode & stat.S_IRWXO:
            yield attention(
                f"{file.name} may be read or written by every user of this machine (mode {file.mode:04o}); it holds"
                " prompts and answers",
                "chmod o-rwx the ledger and its -wal and -shm",
            )
    if ledger.is_shared_by_group and not (seen.folder.mode & stat.S_ISGID and seen.folder.group == ledger.group):
        yield attention(
            f"the group shares the ledger (mode {ledger.mode:04o}), but files that are made beside it don't get that"
            " group",
            f"chgrp the folder to group {ledger.group}, and chmod g+ws it",
        )
    if ledger.mode & GROUP_RIGHTS == stat.S_IRGRP:
        yield attention(
            "the group may read the ledger but not write it, and a reader of SQLite's WAL has to write",
            "chmod 0660 it in a setgid folder, or chmod 0600",
        )
    if seen.folder.mode & stat.S_IWOTH and not seen.folder.mode & stat.S_ISVTX:
        yield attention("every user may put another file in the ledger's place", "chmod o-w its folder")


def user_name(user: int) -> str:
    """`1000 (ada)`; the number alone where the name isn't known, as in most containers."""
    import pwd

    try:
        return f"{user} ({pwd.getpwuid(user).pw_name})"
    except KeyError:
        return str(user)


def _file(path: Path) -> File | None:
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return File(path.name, stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid)
