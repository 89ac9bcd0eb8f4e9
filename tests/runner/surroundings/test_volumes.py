"""On which file system a ledger is, as the kernel tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from parked.surroundings.volumes import Kind, Volume, seen_at_open, volume_of

ROOT = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"


def line(mount_point: str, type: str, *, options: str = "rw", super_options: str = "rw") -> str:
    return f"36 22 0:40 / {mount_point} {options} shared:9 - {type} source {super_options}\n"


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("ext4", Kind.LOCAL),
        ("xfs", Kind.LOCAL),
        ("btrfs", Kind.LOCAL),
        ("fuseblk", Kind.LOCAL),  # NTFS on a disk
        ("nfs", Kind.NETWORK),
        ("nfs4", Kind.NETWORK),
        ("cifs", Kind.NETWORK),
        ("smb3", Kind.NETWORK),
        ("ceph", Kind.NETWORK),
        ("fuse.sshfs", Kind.NETWORK),
        ("fuse.gcsfuse", Kind.NETWORK),
        ("9p", Kind.SHARED),
        ("virtiofs", Kind.SHARED),
        ("fuse.grpcfuse", Kind.SHARED),
        ("fuse.something", Kind.FUSE),
        ("fuse", Kind.FUSE),
        ("tmpfs", Kind.MEMORY),
        ("overlay", Kind.LAYER),
        ("fuse.fuse-overlayfs", Kind.LAYER),
    ],
)
def test_each_type_of_file_system_is_of_a_kind(type, kind):
    volume = volume_of(Path("/data/night/parked.db"), mounts=ROOT + line("/data", type))

    assert volume is not None
    assert (volume.type, volume.kind, volume.mount_point) == (type, kind, "/data")


@pytest.mark.parametrize(
    ("mounts", "path", "where"),
    [
        (line("/data", "nfs4"), "/database/parked.db", "/"),  # a name that only begins alike
        (line("/data", "nfs4") + line("/data/fast", "xfs"), "/data/fast/parked.db", "/data/fast"),
        (line("/data/fast", "xfs") + line("/data", "nfs4"), "/data/fast/parked.db", "/data/fast"),
        (line(r"/my\040data", "nfs4"), "/my data/parked.db", "/my data"),
    ],
)
def test_the_volume_of_a_path_is_the_innermost_that_holds_it(mounts, path, where):
    volume = volume_of(Path(path), mounts=ROOT + mounts)

    assert volume is not None
    assert volume.mount_point == where


def test_what_was_mounted_last_lies_on_top():
    mounts = ROOT + line("/data", "ext4") + line("/data", "nfs4")

    assert volume_of(Path("/data/parked.db"), mounts=mounts) == Volume("/data", "nfs4")


@pytest.mark.parametrize("how", [{"options": "ro,relatime"}, {"super_options": "ro"}])
def test_a_volume_is_read_only_as_a_mount_or_as_a_whole(how):
    assert volume_of(Path("/data/parked.db"), mounts=ROOT + line("/data", "ext4", **how)) == Volume(
        "/data", "ext4", read_only=True
    )


@pytest.mark.parametrize("text", ["", "\n", "garbage", "36 22 0:40 / /data rw - \n", "1 2 - ext4"])
def test_what_the_kernel_never_writes_is_passed_over(text):
    assert volume_of(Path("/data/parked.db"), mounts=text) is None


def test_the_volume_of_a_file_is_found_on_this_machine(fuse_disk):
    volume = volume_of(fuse_disk / "not" / "there.db")

    assert volume is not None
    assert (volume.mount_point, volume.kind) == (str(fuse_disk), Kind.FUSE)
    assert seen_at_open(fuse_disk) == volume


def test_a_link_is_followed_to_where_the_file_is(fuse_disk, tmp_path):
    (tmp_path / "link").symlink_to(fuse_disk)

    volume = volume_of(tmp_path / "link" / "parked.db")

    assert volume is not None
    assert volume.mount_point == str(fuse_disk)
