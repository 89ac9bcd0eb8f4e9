"""What signals do to a command: the first has it clean up, its echo does nothing more, another one ends it at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from parked.cli import main, signals
from parked.cli.drain import run_draining

# Sends itself signals while they are only noted; what it does before comes first.
NOTED = """
import os, signal, sys
from parked.cli import signals

{before}
with signals.stopping(), signals.noting() as arrivals:
    for name in sys.argv[1:]:
        os.kill(os.getpid(), signal.Signals[name])
    print(arrivals.first)
"""


def after(*names, before=""):
    """The status of a process that was sent these, and what it said."""
    script = NOTED.format(before=before)
    done = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def test_the_first_signal_is_noted_and_its_echo_is_not_taken_for_a_second():
    assert after() == (0, "None")
    assert after("SIGTERM") == (0, str(signal.SIGTERM.value))
    assert after("SIGTERM", "SIGTERM", "SIGTERM") == (0, str(signal.SIGTERM.value))


@pytest.mark.parametrize(("second", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_second_signal_ends_the_process_at_once(second, status):
    assert after("SIGTERM", second, before="signals.SAME_SIGNAL_S = 0.0") == (status, "")


def test_another_signal_is_no_echo():
    assert after("SIGTERM", "SIGINT") == (130, "")
    assert after("SIGINT", "SIGTERM") == (143, "")


def test_what_whoever_started_the_command_has_ignored_stays_ignored():
    """`nohup` does so, and a shell with what it starts behind it."""
    assert after("SIGINT", before="signal.signal(signal.SIGINT, signal.SIG_IGN)") == (0, "None")


def test_a_library_that_makes_another_error_of_a_signal_does_not_hide_it(tmp_path):
    """As pydantic does, where it is broken off while it builds a class."""
    (tmp_path / "building.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except BaseException:\n"
        "    raise TypeError('error building a validator') from None\n"
    )
    (tmp_path / "jobs.jsonl").write_text('{"job_id": "a", "model": "m", "payload": {"contents": "x"}}\n')
    command = [sys.executable, "-m", "parked.cli", "run", "jobs.jsonl", "--call", "building:call"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (143, "")


SWALLOWED = """
import os, signal, time
from parked.cli import signals

def struck():
    os.kill(os.getpid(), signal.SIGTERM)

class Dropped:
    def __del__(self):
        struck()

def finalizer():
    Dropped()

def bare_except():
    try:
        struck()
    except BaseException:
        pass

try:
    with signals.stopping():
        {place}()
        print("goes on")
        time.sleep(60)
except signals.Stopped as stopped:
    print(int(stopped.status))
"""


@pytest.mark.parametrize("place", ["finalizer", "bare_except"])
def test_a_signal_that_strikes_where_no_exception_gets_out_comes_again(place):
    """As where pydantic builds its classes, and in modules that guard an import with a bare `except`."""
    script = SWALLOWED.format(place=place)

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)

    assert (done.returncode, done.stdout.split("\n"), done.stderr) == (0, ["goes on", "143", ""], "")


def test_a_swallowed_signal_still_ends_a_run(tmp_path):
    """It is no second signal either, which would end the run at once."""
    (tmp_path / "calls.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except BaseException:\n"
        "    pass\n"
        "def call(payload):\n"
        "    time.sleep(0.1)\n"
        "    return 'an answer'\n"
    )
    job = '{"job_id": "a-%d", "model": "m", "payload": {"contents": "x"}}\n'
    (tmp_path / "jobs.jsonl").write_text("".join(job % (number,) for number in range(600)))
    command = [sys.executable, "-m", "parked.cli", "run", "jobs.jsonl", "--call", "calls:call", "--concurrency", "1"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)

    assert done.returncode == 143
    assert "Traceback" not in done.stderr


def test_a_loop_that_handled_signals_leaves_them_as_it_found_them():
    async def watch():
        for number in signals.STATUS:
            asyncio.get_running_loop().add_signal_handler(number, print)

    with signals.stopping():
        before = [signal.getsignal(number) for number in signals.STATUS]
        run_draining(watch())

        assert [signal.getsignal(number) for number in signals.STATUS] == before


def test_a_command_leaves_signals_as_it_found_them(capsys):
    before = [signal.getsignal(number) for number in signals.STATUS]

    main(["--version"])

    assert [signal.getsignal(number) for number in signals.STATUS] == before
