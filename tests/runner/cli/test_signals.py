"""What signals do to a command: the first has it clean up, its echo does nothing more, another one ends it at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from parked.cli import main, signals
from parked.cli.drain import Drain
from parked.job import State
from parked.ledger import open_ledger

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


@pytest.mark.parametrize(("second", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
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


def test_a_command_that_ran_jobs_handles_signals_as_before():
    seen = []

    async def work():
        seen.append([signal.getsignal(number) for number in signals.STATUS])

    with signals.stopping():
        before = [signal.getsignal(number) for number in signals.STATUS]
        Drain().run(work)

        assert [signal.getsignal(number) for number in signals.STATUS] == before
    assert before not in seen


def test_a_command_leaves_signals_as_it_found_them(capsys):
    before = [signal.getsignal(number) for number in signals.STATUS]

    main(["--version"])

    assert [signal.getsignal(number) for number in signals.STATUS] == before


# --- a process from its first to its last moment -------------------------------------------------------------------

STRIKING = """
import atexit, os, signal, sys

number, moment = signal.Signals[sys.argv.pop(1)], sys.argv.pop(1)

def strike():
    os.kill(os.getpid(), number)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            strike()

if moment == "its end":
    atexit.register(strike)
sys.meta_path.insert(0, Finder())
from {module} import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "moment", "name", "flag", "status"),
    [
        ("parked.cli", "parked.cli.frame", "SIGINT", "--version", 130),
        ("parked.cli", "parked.cli.frame", "SIGTERM", "--version", 143),
        ("parked.cli", "its end", "SIGINT", "--version", 130),
        ("parked_exporter.cli", "parked_exporter.command", "SIGINT", "--version", 130),
        ("parked_exporter.cli", "parked_exporter.command", "SIGTERM", "--version", 0),
        ("parked_exporter.cli", "parked_exporter.command", "SIGTERM", "--check", 143),
        ("parked_exporter.cli", "its end", "SIGINT", "--version", 130),
    ],
)
def test_a_signal_while_modules_are_imported_or_at_the_end_says_what_it_always_says(module, moment, name, flag, status):
    command = [sys.executable, "-c", STRIKING.format(module=module), name, moment, flag]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (status, "")


# Is `parked run`, and sends itself SIGTERM when the socket by which a loop is woken was made, or was just closed.
AROUND_THE_LOOP = """
import asyncio, os, signal, socket, sys
from asyncio.selector_events import BaseSelectorEventLoop

def and_strike(does):
    def struck(*given, **named):
        result = does(*given, **named)
        os.kill(os.getpid(), signal.SIGTERM)
        return result
    return struck

if sys.argv.pop(1) == "made":
    socket.socketpair = and_strike(socket.socketpair)
else:
    BaseSelectorEventLoop._close_self_pipe = and_strike(BaseSelectorEventLoop._close_self_pipe)
from parked.cli import main
sys.exit(main())
"""


@pytest.fixture
def command_on(tmp_path):
    """Returns a function that runs a script, which is `parked run` of jobs in a folder of its own, with its caller."""

    def run(script, *words, caller, jobs=3):
        (tmp_path / "calls.py").write_text(caller)
        lines = [{"job_id": f"a-{n}", "model": "m", "payload": {"contents": "x"}} for n in range(jobs)]
        (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [sys.executable, "-c", script, *words, "run", "jobs.jsonl", "--call", "calls:call"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.mark.parametrize("moment", ["made", "closed"])
def test_a_signal_while_the_loop_is_made_or_closed_is_neither_lost_nor_complained_of(command_on, moment):
    done = command_on(AROUND_THE_LOOP, moment, caller="def call(payload):\n    return 'an answer'\n")

    assert done.returncode == 143
    for complaint in ("Traceback", "ignored", "never awaited"):
        assert complaint not in done.stderr
    assert f"3 lines: {'3 pending' if moment == 'made' else '3 answered'}" in done.stderr


def test_a_run_whose_terminal_is_closed_hands_back_what_it_has(command_on, tmp_path):
    caller = "import os, signal\ndef call(payload):\n    os.kill(os.getpid(), signal.SIGHUP)\n    return 'an answer'\n"

    done = command_on("import sys; from parked.cli import main; sys.exit(main())", caller=caller, jobs=300)

    assert done.returncode == 129
    with open_ledger(f"sqlite:///{tmp_path}/parked.db", create=False) as ledger, ledger.ask() as reader:
        assert {state for (_, state), jobs in reader.states().items() if jobs} == {State.SUCCEEDED, State.PENDING}


# Is `parked run`, and sends itself two signals when an answer was handed in, or while the disk takes long to sync it.
BEING_WRITTEN = """
import os, signal, sys, time
import calls
from parked.cli import drain, main
from parked.ledger import Ledger, pulse
from parked.ledger.operations import OUTCOMES
from parked.ledger.sqlite import SqliteStore

moment, commit, hand_in = sys.argv.pop(1), SqliteStore.commit, Ledger.hand_in

def strike():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)

def slowly(store):
    if moment == "synced" and calls.answered.is_set():
        calls.answered.clear()
        strike()
        time.sleep(0.2)
    commit(store)

def struck(ledger, tickets, **given):
    hand_in(ledger, tickets, **given)
    if moment == "handed in" and any(isinstance(ticket.operation, OUTCOMES) for ticket in tickets):
        strike()

SqliteStore.commit, Ledger.hand_in = slowly, struck
drain.LAST_COMMIT_S = 30.0
pulse.BEAT_S = 1000.0  # no beat has the ledger look at what was handed in
sys.exit(main())
"""


@pytest.mark.parametrize("moment", ["handed in", "synced"])
def test_a_second_signal_does_not_call_an_answer_lost_that_is_just_being_written(command_on, moment, tmp_path):
    caller = (
        "import threading\n"
        "answered = threading.Event()\n"
        "def call(payload):\n"
        "    answered.set()\n"
        "    return 'an answer'\n"
    )

    done = command_on(BEING_WRITTEN, moment, caller=caller, jobs=1)

    assert done.returncode == 130
    assert "could not be written" not in done.stderr
    with open_ledger(f"sqlite:///{tmp_path}/parked.db", create=False) as ledger, ledger.ask() as reader:
        assert {state: jobs for (_, state), jobs in reader.states().items() if jobs} == {State.SUCCEEDED: 1}
