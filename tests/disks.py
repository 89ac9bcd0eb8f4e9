"""Disks that a test can fill, spoil and take away: real ones, mounted for it. As root, on Linux."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from servers import missing

CHILD_WITHIN_S = 120.0


class SmallDisk:
    """A file system of its own, of 3 MB."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Take all the room that is left."""
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        ballast.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        (self.path / "ballast").unlink()


def _mount(*command: str | Path) -> None:
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        missing("the right to mount a file system")


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder on the disk, where a sync takes its time; that of `tmp_path` may be in memory (`servers.memory`)."""
    with tempfile.TemporaryDirectory(prefix="parked-") as folder:
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    _mount("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", path)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def disk_without_shared_memory(tmp_path: Path) -> Iterator[Path]:
    """What a network file system may be like: files can't be mapped into memory and shared."""
    with _fuse(tmp_path, "-o", "direct_io") as path:
        yield path


@pytest.fixture
def fuse_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of FUSE on which SQLite works, as far as one machine can tell."""
    with _fuse(tmp_path) as path:
        yield path


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is bound to another, `real`, and mounted read-only."""
    real, path = tmp_path / "real", tmp_path / "mounted"
    real.mkdir()
    path.mkdir()
    _mount("mount", "--bind", real, path)
    try:
        _mount("mount", "-o", "remount,ro,bind", path)
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def container_layer(tmp_path: Path) -> Iterator[Path]:
    """What the files of a container lie on, unless they are on a volume."""
    under = tmp_path / "overlay"
    under.mkdir()
    # Not in memory with the rest, nor on another overlay: neither is always taken for the upper layer.
    _mount("mount", "-t", "tmpfs", "tmpfs", under)
    folders = {name: under / name for name in ("lower", "upper", "work", "merged")}
    try:
        for folder in folders.values():
            folder.mkdir()
        layers = f"lowerdir={folders['lower']},upperdir={folders['upper']},workdir={folders['work']}"
        _mount("mount", "-t", "overlay", "-o", layers, "overlay", folders["merged"])
        try:
            yield folders["merged"]
        finally:
            subprocess.run(["umount", "--lazy", folders["merged"]], check=True)
    finally:
        subprocess.run(["umount", "--lazy", under], check=True)


@contextmanager
def _fuse(folder: Path, *options: str) -> Iterator[Path]:
    if shutil.which("bindfs") is None or not Path("/dev/fuse").exists():
        missing("bindfs")
    real, path = folder / "real", folder / "mounted"
    real.mkdir()
    path.mkdir()
    _mount("bindfs", *options, real, path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


# What every child script begins with. `fail_from(name, error, n)` lets system calls of that kind fail from the n-th on,
# until `mend(name)`, which returns how many there were; names are those of libfiu, where `*` stands for anything.
_FAULTS = """
import ctypes, errno, json, sys
_fiu = ctypes.CDLL("libfiu.so.0")
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_uint),
)
_faults = {}

def fail_from(name, error, n=1):
    count = [0]
    def decide(*_):
        count[0] += 1
        return count[0] >= n
    _faults[name] = (count, _CALLBACK(decide))
    assert _fiu.fiu_enable_external(name.encode(), 1, ctypes.c_void_p(error), 0, _faults[name][1]) == 0

def mend(name):
    assert _fiu.fiu_disable(name.encode()) == 0
    return _faults[name][0][0]
"""


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., Any]:
    """Returns a function that runs a script in a process of its own and returns the JSON that it printed last."""

    def run(script: str, *words: str | Path, faulty: bool = False) -> Any:
        command: list[str | Path] = [
            sys.executable,
            "-c",
            (_FAULTS if faulty else "import json, sys\n") + script,
            *words,
        ]
        if faulty:
            if shutil.which("fiu-run") is None:
                missing("libfiu (fiu-utils)")
            command = ["fiu-run", "-x", *command]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=CHILD_WITHIN_S
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
