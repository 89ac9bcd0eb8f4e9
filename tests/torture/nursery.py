"""Real processes that start in 20 ms: forked from one that has imported all that the commands need, and opened nothing.

`python -m torture.nursery` reads orders, a JSON object a line, and says what became of them. When its input ends, so do
its children. A child is the command in every other way: a session, a log, an environment and an end of its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from parked.owners import _start_and_state

PRELOADED: Final = (
    "aiohttp", "google.genai", "parked.answerfile", "parked.callers", "parked.check", "parked.claims",
    "parked.deadtable", "parked.elsewhere", "parked.gemini", "parked.jobfile", "parked.ledger.postgres",
    "parked.ledger.sqlite", "parked.named", "parked.pool", "parked.replays", "parked.runner", "parked.schema",
    "parked.tracing", "parked_exporter.sidecar",
)  # fmt: skip

# Signals that the nursery ignores, and what a new interpreter does about them.
ENDINGS: Final[dict[int, Any]] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class Started(NamedTuple):
    name: str
    pid: int
    process_start: str  # as the ledger's owners know it


class Ended(NamedTuple):
    name: str
    status: int  # as `subprocess` has it: negative for a signal


class Nursery:
    """The parent's end. `fileno` is readable when there is something to hear."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torture.nursery"],
            env={**os.environ, "PYTHONPATH": path, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._heard = b""

    def start(
        self,
        name: str,
        words: list[str],
        env: Mapping[str, str],
        *,
        cpu_s: float | None = None,
        points: Sequence[str] = (),
    ) -> None:
        """Start `parked …` or `parked-exporter …`.

        It dies once it has used that much CPU, or at one of these points (`points.py`).
        """
        self.log(name).touch(mode=0o600)  # there, however soon it dies
        order: dict[str, Any] = {"name": name, "words": words, "env": dict(env), "log": str(self.log(name))}
        order |= {"cpu_s": cpu_s, "points": points}
        self._order(order)

    def kill(self, name: str, how: signal.Signals) -> None:
        """Send it a signal, unless it has ended: only its parent can know that its pid isn't another's by now."""
        self._order({"name": name, "signal": how})

    def _order(self, order: dict[str, Any]) -> None:
        _stream(self._process.stdin).write(json.dumps(order).encode() + b"\n")
        _stream(self._process.stdin).flush()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def fileno(self) -> int:
        return _stream(self._process.stdout).fileno()

    def hear(self) -> list[Started | Ended]:
        """What has happened since; blocks if nothing has."""
        *lines, self._heard = (self._heard + os.read(self.fileno(), 1 << 16)).split(b"\n")
        if not lines and not self._heard:
            raise RuntimeError("the nursery has ended")
        told = [json.loads(line) for line in lines]
        return [Started(**said) if "pid" in said else Ended(**said) for said in told]

    def close(self) -> None:
        _stream(self._process.stdin).close()
        self._process.wait()
        _stream(self._process.stdout).close()


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def run_command(words: list[str]) -> int:
    """Be `parked …` or `parked-exporter …`."""
    program, *rest = words
    main = importlib.import_module({"parked": "parked.cli", "parked-exporter": "parked_exporter.cli"}[program]).main
    return int(main(rest))


# --- the other end ---


class _Child(SystemExit):
    """Leaves the loop of the nursery in a child, so that its interpreter ends as that of any command."""


def serve() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    woken, waker = os.pipe()
    for end in (woken, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in ENDINGS:  # what a terminal or a supervisor sends to all at once: our end is that of our input
        signal.signal(number, signal.SIG_IGN)
    names: dict[int, str] = {}
    pipes = (woken, waker)
    try:
        waiting = b""
        while True:
            ready, _, _ = select.select([0, woken], [], [])
            if woken in ready:
                os.read(woken, 1 << 12)
                _tell_ended(names)
            if 0 in ready:
                more = os.read(0, 1 << 16)
                if not more:
                    return
                *lines, waiting = (waiting + more).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    if "signal" in order:
                        _signal(order, names)
                    else:
                        _start(order, names, pipes)
    except _Child:
        names.clear()
        raise
    finally:
        for pid in names:
            os.kill(pid, signal.SIGKILL)


def _start(order: dict[str, Any], names: dict[int, str], pipes: tuple[int, ...]) -> None:
    pid = os.fork()
    if pid == 0:
        raise _Child(_run(order, pipes))
    names[pid] = order["name"]
    _say(Started(order["name"], pid, _start_and_state(pid)[0])._asdict())


def _signal(order: dict[str, Any], names: dict[int, str]) -> None:
    for pid, name in names.items():
        if name == order["name"]:
            os.kill(pid, order["signal"])


def _run(order: dict[str, Any], pipes: tuple[int, ...]) -> int:
    """Be that command."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, handler in ENDINGS.items():
        signal.signal(number, handler)
    for end in pipes:
        os.close(end)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, file in ((0, nothing), (1, log), (2, log)):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(order["env"])
    if order["cpu_s"] is not None:
        # Nobody handles SIGPROF, so the kernel ends the process where it stands, as SIGKILL would.
        signal.setitimer(signal.ITIMER_PROF, order["cpu_s"])
    sys.argv = order["words"]
    for point in order["points"]:
        importlib.import_module("torture.points").arm(point)
    return run_command(order["words"])


def _tell_ended(names: dict[int, str]) -> None:
    while names:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        _say(Ended(names.pop(pid), os.waitstatus_to_exitcode(status))._asdict())


def _say(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    serve()
