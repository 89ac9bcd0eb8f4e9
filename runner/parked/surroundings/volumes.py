"""On which file system a folder is, and whether a SQLite ledger is safe there.

SQLite's WAL lives in memory that all who have the file open share. Processes of one kernel do; two machines that reach
the same file over a network don't, whatever the file system promises, and lose each other's commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

MOUNTS: Final = Path("/proc/self/mountinfo")


class Kind(StrEnum):
    LOCAL = "local"
    NETWORK = "network"  # other machines may have it mounted, too
    SHARED = "shared"  # with another kernel on this machine: the host of a virtual machine
    FUSE = "fuse"  # a program of somebody's keeps the files, who knows where
    MEMORY = "memory"  # gone when the machine stops, or its container
    LAYER = "layer"  # of a container: gone with it


# As the kernel names them in mountinfo. What is in none of them is local.
_KINDS: Final = {
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "lustre", "gpfs", "beegfs", "orangefs",
         "pvfs2", "glusterfs", "gfs2", "ocfs2", "davfs", "panfs", "wekafs", "acfs"),
        Kind.NETWORK,
    ),
    **dict.fromkeys(("9p", "virtiofs", "fakeowner", "vboxsf", "prl_fs", "vmhgfs"), Kind.SHARED),
    **dict.fromkeys(("tmpfs", "ramfs", "rootfs"), Kind.MEMORY),
    **dict.fromkeys(("overlay", "aufs"), Kind.LAYER),
}  # fmt: skip
# Of FUSE, behind the dot of `fuse.sshfs`.
_KINDS_OF_FUSE: Final = {
    **dict.fromkeys(
        ("sshfs", "s3fs", "gcsfuse", "goofys", "rclone", "glusterfs", "ceph", "ceph-fuse", "juicefs", "curlftpfs",
         "davfs2", "mfs", "moosefs", "seaweedfs", "blobfuse", "blobfuse2", "smbnetfs", "afpfs", "mount-s3", "cvmfs2"),
        Kind.NETWORK,
    ),
    **dict.fromkeys(("grpcfuse", "osxfs", "vmhgfs-fuse"), Kind.SHARED),
    "fuse-overlayfs": Kind.LAYER,
}  # fmt: skip
# Where two kernels may have the same file open. On any other a second one would destroy the file system itself.
REACHED_BY_OTHERS: Final = frozenset({Kind.NETWORK, Kind.SHARED, Kind.FUSE})


class Volume(NamedTuple):
    mount_point: str
    type: str  # as the kernel names it: `ext4`, `nfs4`, `fuse.sshfs`
    read_only: bool = False

    @property
    def kind(self) -> Kind:
        if self.type in _KINDS:
            return _KINDS[self.type]
        if self.type == "fuse" or self.type.startswith("fuse."):  # not `fuseblk`, which is on a disk
            return _KINDS_OF_FUSE.get(self.type.partition(".")[2], Kind.FUSE)
        return Kind.LOCAL


def volume_of(path: Path, *, mounts: str | None = None) -> Volume | None:
    """Return the volume that a path is on, there or not; None where the system doesn't tell.

    `mounts` is the text of proc(5)'s /proc/PID/mountinfo; this process's own unless given.
    """
    if mounts is None:
        try:
            mounts = MOUNTS.read_text("utf-8", "surrogateescape")
            path = Path(path).resolve()
        except OSError:
            return None
    found: Volume | None = None
    for volume in _parsed(mounts):
        # What was mounted later lies on top of what has the same mount point.
        is_on_it = path.is_relative_to(volume.mount_point)
        if is_on_it and (found is None or len(volume.mount_point) >= len(found.mount_point)):
            found = volume
    return found


@cache
def seen_at_open(folder: Path) -> Volume | None:
    """The same, looked up once in a process: for who opens a ledger, which the sidecar does all the time."""
    return volume_of(folder)


def _parsed(mounts: str) -> Iterator[Volume]:
    """`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`, a line a mount."""
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and kind[0]:
            super_options = kind[2] if len(kind) > 2 else ""
            read_only = "ro" in (*fields[5].split(","), *super_options.split(","))
            yield Volume(_unescaped(fields[4]), kind[0], read_only)


def _unescaped(text: str) -> str:
    """Blanks in names are written as `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
