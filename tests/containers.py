"""A private Docker engine for tests, and the project's image on it: all of it built once a run, and gone at the end.

The base of the Dockerfile can't be had without a registry. A Debian of the same release, with Python at its own place,
stands in for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from parked.version import __version__
from servers import memory, missing, wait_until

ROOT: Final = Path(__file__).parents[1]
IMAGE: Final = "parked"
BASE: Final = "python:3.11-slim-bookworm"
REVISION: Final = "0123456789abcdef"
# Where a machine names its own authorities, pip needs them in a build as well. Read before tests clean the environment.
AUTHORITIES: Final = os.environ.get("SSL_CERT_FILE")
# As little as a cluster's strictest policy gives.
HARDENED: Final = (
    "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--memory=128m", "--pids-limit=64",
)  # fmt: skip
PATIENCE_S: Final = 60.0


class Container:
    def __init__(self, engine: Engine, number: str) -> None:
        self.engine, self.number = engine, number

    def is_healthy(self) -> bool:
        """Raises AssertionError if it has ended."""
        state = self.state()
        assert state["Running"], self.logs()
        return bool(state["Health"]["Status"] == "healthy")

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.engine("inspect", "--format={{json .State}}", self.number))
        return state

    def logs(self) -> str:
        return self.engine("logs", self.number, and_errors=True)

    def execute(self, *words: str) -> str:
        return self.engine("exec", self.number, *words)

    def get(self, url: str) -> str:
        """What a program in this container sees there."""
        code = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=10).read().decode())"
        return self.execute("python", "-c", code, url)

    def stop(self, how: str = "SIGTERM") -> tuple[int, float]:
        """Send one signal; return the exit status, and the seconds that it took."""
        began = time.monotonic()
        self.engine("kill", f"--signal={how}", self.number)
        return self.wait(), time.monotonic() - began

    def wait(self) -> int:
        return int(self.engine("wait", self.number))


class Engine:
    """A `dockerd` that has no network but loopback, and whose files lie in a folder of its own."""

    def __init__(self, folder: Path, client: str) -> None:
        self.folder, self.client = folder, client
        self.env = {**os.environ, "DOCKER_HOST": f"unix://{folder}/docker.sock", "DOCKER_BUILDKIT": "1"}
        self.env.pop("DOCKER_CONTEXT", None)

    def __call__(self, *words: str, and_errors: bool = False, stdin: Any = None) -> str:
        done = self.attempt(*words, stdin=stdin)
        assert done.returncode == 0, f"docker {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr if and_errors else done.stdout.strip()

    def attempt(self, *words: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.client, *words], env=self.env, stdin=stdin or subprocess.DEVNULL, capture_output=True, text=True
        )

    @contextmanager
    def running(self, *words: str) -> Iterator[Container]:
        """A container that is started with these options, image and command, and removed at the end."""
        container = Container(self, self("run", "--detach", *words))
        try:
            yield container
        finally:
            self("rm", "--force", "--volumes", container.number)

    @contextmanager
    def volume(self) -> Iterator[str]:
        name = self("volume", "create")
        try:
            yield name
        finally:
            self("volume", "rm", name)

    def start(self) -> None:
        command = [
            "setsid", "--fork", "dockerd", f"--host={self.env['DOCKER_HOST']}", f"--data-root={self.folder}/data",
            f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid",
            "--bridge=none", "--iptables=false", "--ip6tables=false",
        ]  # fmt: skip
        with (self.folder / "log").open("w") as log:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(lambda: self.attempt("version").returncode == 0)

    def stop(self) -> None:
        if containers := self("ps", "--all", "--quiet").split():
            self("rm", "--force", "--volumes", *containers)
        # Who stops it isn't always who has started it, and so can't wait for it as for a child.
        number = int((self.folder / "pid").read_text())
        ended = os.pidfd_open(number)
        os.kill(number, signal.SIGTERM)
        is_over, _, _ = select.select([ended], [], [], PATIENCE_S)
        os.close(ended)
        assert is_over, f"dockerd did not end: {(self.folder / 'log').read_text()[-2000:]}"
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([each for each in mounts if each.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self.folder)

    def build(self) -> None:
        self._import_base()
        arguments = [f"--build-arg=VERSION={__version__}", f"--build-arg=REVISION={REVISION}"]
        self("build", "--network=host", *arguments, f"--tag={IMAGE}", str(ROOT))

    def _import_base(self) -> None:
        """The pip of the real one, which mustn't be found in ours, is made up."""
        hooks = [
            'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; ln -sf python3 "$1"/usr/bin/python',
            'mkdir -p "$1"/usr/local/lib/python3.11/site-packages/pip; touch "$1"/usr/local/bin/pip3',
        ]
        env = ["LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"]
        if AUTHORITIES:
            hooks.append(f"copy-in {AUTHORITIES} {Path(AUTHORITIES).parent}")
            env += [f"PIP_CERT={AUTHORITIES}", f"SSL_CERT_FILE={AUTHORITIES}"]
        command = ["mmdebstrap", "--variant=apt", "--include=python3-venv,ca-certificates", "--dpkgopt=force-unsafe-io"]
        command += [f"--customize-hook={hook}" for hook in hooks]
        room = {**os.environ, "TMPDIR": str(self.folder)}
        with (
            (self.folder / "base.log").open("w") as log,
            subprocess.Popen([*command, "bookworm", "-"], env=room, stdout=subprocess.PIPE, stderr=log) as making,
        ):
            self("import", f"--change=ENV {' '.join(env)}", '--change=CMD ["python3"]', "-", BASE, stdin=making.stdout)
        assert making.returncode == 0, (self.folder / "base.log").read_text()[-2000:]


def _client() -> str:
    """Debian's client goes with Debian's daemon; another that comes first may have no builder."""
    found = shutil.which("docker", path="/usr/bin") or shutil.which("docker")
    if found is None or not all(map(shutil.which, ("dockerd", "mmdebstrap"))):
        missing("Docker, or mmdebstrap,")
    if os.geteuid() != 0:
        missing("root, who alone may run a Docker engine,")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One for all processes of a test run: the first that asks starts it and builds, the last that goes stops it."""
    client = _client()
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    with _locked(place):
        engine = _join(place, client)
    yield engine
    with _locked(place):
        if _count(place, -1) == 0:
            engine.stop()
            (place / "engine").unlink()


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    with (place / "engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _join(place: Path, client: str) -> Engine:
    noted = place / "engine"
    if noted.exists():
        _count(place, 1)
        return Engine(Path(noted.read_text()), client)
    # Not in pytest's folders: the name of a socket has to be short.
    engine = Engine(Path(tempfile.mkdtemp(prefix="parked-docker-", dir=memory())), client)
    engine.start()
    try:
        engine.build()
    except BaseException:
        engine.stop()
        raise
    noted.write_text(str(engine.folder))
    _count(place, 1)
    return engine


def _count(place: Path, change: int) -> int:
    """How many processes use it, this one counted in or out."""
    file = place / "engine.users"
    users = (int(file.read_text()) if file.exists() else 0) + change
    file.write_text(str(users))
    return users
