"""Many processes on one SQLite ledger: nothing is run twice, no lock is anybody's error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import parked
from parked.job import State
from parked.ledger import open_ledger

pytestmark = pytest.mark.slow

WAIT_S = 120.0

CALLER = """
import json
import os
from pathlib import Path

def call(payload, model):
    if payload.startswith("broken") and not Path("mended").exists():
        raise ValueError("not mended yet")
    log = os.open("calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{payload}\\n".encode())
    os.close(log)
    return "42"
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ourcalls.py").write_text(CALLER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    url = f"sqlite:///{tmp_path}/parked.db"
    monkeypatch.setenv("PARKED_LEDGER", url)
    return url


def start(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_four_replays_and_four_runs_share_a_ledger_and_each_job_is_called_once(url, tmp_path):
    broken = [f"broken {n}" for n in range(300)]
    ourcalls = __import__("ourcalls")
    with open_ledger(url) as ledger:
        runner = parked.Runner(ledger, ourcalls.call, policy=parked.Policy(max_attempts=1, stop_after_alike=0))
        jobs = [parked.Job(payload, model="m", payload=payload) for payload in broken]
        assert {outcome.state for outcome in runner.run_many(jobs)} == {State.PARKED}
    (tmp_path / "mended").touch()
    fresh = [f"fresh {name} {n}" for name in "abcd" for n in range(100)]
    for name in "abcd":
        lines = [f'{{"job_id": "{one}", "model": "m", "payload": "{one}"}}\n' for one in fresh if f" {name} " in one]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))

    replays = [start("-m", "parked.cli", "replay", "--class", "exhausted:*", "--apply") for _ in range(4)]
    runs = [
        start("-m", "parked.cli", "run", f"{name}.jsonl", "--pipeline", name, "--call", "ourcalls:call")
        for name in "abcd"
    ]
    said = [process.communicate(timeout=WAIT_S) for process in (*replays, *runs)]

    # 4: what others took was theirs to run.
    assert {process.returncode for process in replays} <= {0, 4}, said
    assert {process.returncode for process in runs} == {0}, said
    assert not any("locked" in err for _, err in said)
    assert Counter((tmp_path / "calls").read_text().splitlines()) == dict.fromkeys([*broken, *fresh], 1)
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        states = Counter(dict.fromkeys(State, 0))
        for (_, state), jobs_there in reader.states().items():
            states[state] += jobs_there
        assert (states[State.RECOVERED], states[State.SUCCEEDED]) == (300, 400)


WRITERS = """
import json, os, sys
from parked.ledger import codec, open_ledger, operations as op

url, writers, commits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
open_ledger(url).close()
ready, go, done = os.pipe(), os.pipe(), os.pipe()
for n in range(writers):
    if os.fork() == 0:
        ledger = open_ledger(url)
        ledger.record(op.SetMark(f"ready {n}", True))
        os.write(ready[1], b".")
        os.close(go[1])
        os.read(go[0], 1)  # until nobody can write there any more
        mine, last = 0, 0
        while last < commits:
            accept = op.Accept("p", "", f"{n}-{mine}", "m", codec.encode("x"), codec.identity("x"))
            last = ledger.record(accept).row.id
            mine += last <= commits
        ledger.close()
        os.write(done[1], f"{mine}\\n".encode())
        os._exit(0)
for _ in range(writers):
    os.read(ready[0], 1)
os.close(go[1])
for _ in range(writers):
    assert os.wait()[1] == 0
os.close(done[1])
with open(done[0]) as counts:
    print(json.dumps([int(line) for line in counts]))
"""


def test_of_16_processes_that_write_all_the_time_the_slowest_gets_a_quarter_of_the_fastest(url):
    """Counted in commits, not in seconds: so it is as true on a busy machine."""
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, url, "16", "1200"], capture_output=True, text=True, check=False, timeout=WAIT_S
    )

    assert (done.returncode, done.stderr) == (0, "")
    commits = json.loads(done.stdout)
    assert (len(commits), sum(commits)) == (16, 1200)
    assert min(commits) >= max(commits) / 4, sorted(commits)
