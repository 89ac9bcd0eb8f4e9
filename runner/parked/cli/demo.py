"""`parked demo`: the whole story in a minute, with no key and no network. Every command in it is the real one."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parked.cli.exits import Exit
from parked.cli.output import put, put_json
from parked.errors import OutputFailed, ParkedError, SettingsError
from parked.extras import install
from parked.settings import Settings

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.simulator import Simulator

READY_S: Final = 20.0  # how long the sidecar may take to start on a busy machine
SHOWN_METRICS: Final = ("parked_jobs{", "parked_ledger_jobs{", "parked_unaccounted_jobs{", "parked_ledger_up")
RUN: Final = ("run", "jobs.jsonl", "--out", "answers.jsonl", "--pipeline", "nightly-captions", "--max-attempts", "3")

DESCRIPTION: Final = """\
Tell the whole story: a simulator of the Gemini API that fails now and then, a run, the summary, a scrape of the
sidecar's metrics, the cause mended, and a replay that recovers. Needs no key, calls nobody, takes about 30 s.

example:
  parked demo
"""


def add_parser(subparsers: Subparsers) -> None:
    subparsers.add_parser("demo", help="the whole story in a minute, without a key", description=DESCRIPTION)


def run(args: argparse.Namespace, settings: Settings) -> int:
    if args.ledger is not None:
        raise SettingsError("parked demo makes a ledger of its own; leave --ledger out")
    from parked.simulator import Simulator
    from parked.simulator.demo import demo_script

    try:
        folder = Path(tempfile.mkdtemp(prefix="parked-demo-"))
    except OSError as exc:
        raise OutputFailed(
            f"can't make a folder for the demo: {exc.strerror}; name one that can be written in TMPDIR, in a container"
            " mount one (--tmpfs /tmp)"
        ) from exc
    with Simulator() as simulator:
        simulator.answers(demo_script())
        story = _Story(folder, simulator, quiet=args.json)
        story.tell()
    if args.json:
        put_json({"folder": str(folder), "ledger": story.ledger, "answers": story.answers(), "calls": story.calls})
    return Exit.OK


class _Story:
    def __init__(self, folder: Path, simulator: Simulator, *, quiet: bool) -> None:
        self.ledger = f"sqlite:///{folder / 'parked.db'}"
        self.calls = 0
        self._folder, self._simulator, self._quiet = folder, simulator, quiet
        # Nothing of the caller's settings, and above all not the caller's key.
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PARKED_", "GOOGLE_", "GEMINI_"))
        }
        self._env = kept | {"GEMINI_API_KEY": "demo", "GOOGLE_GEMINI_BASE_URL": simulator.url}

    def tell(self) -> None:
        from parked.simulator.demo import MODEL, demo_prompts, demo_script

        self._say(f"In {self._folder}, 50 photos wait for their captions. A local simulator plays the Gemini API.\n")
        with (self._folder / "jobs.jsonl").open("w") as jobs:
            for number, prompt in enumerate(demo_prompts(50), start=1):
                line = {"job_id": f"photo-{number:02}", "model": MODEL, "payload": {"contents": prompt}}
                jobs.write(json.dumps(line) + "\n")

        self._parked(*RUN, ends_with=Exit.PARKED)
        self._say("Some calls failed and were retried. Some jobs can't be answered: they are parked, not lost.\n")
        self._parked("summary")
        self._scrape()

        self._say("Somebody mends what can be mended: the model is no longer overloaded, the missing file is back.\n")
        self._simulator.answers(demo_script(mended=True))
        self._parked("replay", "--all")
        self._parked("replay", "--all", "--apply", ends_with=Exit.PARKED)
        self._say("What a filter refuses stays parked until its input is another. The others have their answers:\n")
        self._parked(*RUN, ends_with=Exit.PARKED)
        self._parked("audit")
        self.calls = len(self._simulator.requests)
        self._say(f"{self.answers()} of 50 answers in answers.jsonl, each once, from {self.calls} calls; none is lost.")
        command = "parked" if shutil.which("parked") else str(Path(sys.executable).parent / "parked")
        self._say(f"Look around: {command} list --ledger {shlex.quote(self.ledger)}\n")
        self._say_real()
        self._say(f"\nAll of this stays in {self._folder}. To delete it: rm -r {shlex.quote(str(self._folder))}")

    def answers(self) -> int:
        with (self._folder / "answers.jsonl").open() as lines:
            return sum(1 for _ in lines)

    def _parked(self, *words: str, ends_with: int = Exit.OK) -> None:
        """Run a command as a user would; the demo ends where one does something else than the story says.

        Raises:
            ParkedError: another exit status.
        """
        self._say(f"$ parked {shlex.join(words)}")
        done = subprocess.run(
            [sys.executable, "-m", "parked.cli", *words],
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self._say(done.stdout)
        if done.returncode != ends_with:
            raise ParkedError(
                f"the demo's `parked {shlex.join(words)}` ended with status {done.returncode} instead of {ends_with};"
                f" its files are in {self._folder}: {done.stdout.strip()[-500:]}"
            )

    def _scrape(self) -> None:
        """Show what Prometheus would see."""
        if find_spec("prometheus_client") is None or find_spec("apscheduler") is None:
            self._say(f"(The sidecar isn't installed here: {install('exporter')})\n")
            return
        from urllib.request import urlopen

        with self._sidecar() as url:
            self._say(f"$ curl {url}/metrics    # the lines of what is parked, and that nothing is lost")
            with urlopen(f"{url}/metrics", timeout=READY_S) as response:
                lines = response.read().decode().splitlines()
            self._say("\n".join(line for line in lines if line.startswith(SHOWN_METRICS)) + "\n")

    @contextmanager
    def _sidecar(self) -> Iterator[str]:
        """A real sidecar beside the ledger, on a port of its own."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{probe.getsockname()[1]}"
        self._say(f"$ parked-exporter --listen {listen} &")
        sidecar = subprocess.Popen(
            [sys.executable, "-m", "parked_exporter.cli", "--listen", listen],
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_until_ready(f"http://{listen}/-/ready", sidecar)
            yield f"http://{listen}"
        finally:
            sidecar.send_signal(signal.SIGTERM)
            sidecar.wait(READY_S)

    def _say_real(self) -> None:
        if os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY"):
            jobs = shlex.quote(str(self._folder / "jobs.jsonl"))
            self._say(
                "There is an API key in your environment, which the demo has not used. The same against the real API:\n"
                f"$ parked run {jobs} --out answers.jsonl --pipeline nightly-captions"
            )
        else:
            self._say("With GEMINI_API_KEY set, `parked run jobs.jsonl --out answers.jsonl` does the same for real.")

    def _say(self, text: str) -> None:
        if not self._quiet:
            put(text)
            sys.stdout.flush()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Raises ParkedError if the sidecar ends, or doesn't get ready in time."""
    from urllib.request import urlopen

    give_up = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            with urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise ParkedError("the demo's sidecar did not get ready; try `parked-exporter` by itself to see why")
