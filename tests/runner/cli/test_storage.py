"""Commands whose disk is full, spoiled or gone: one sentence, a status, and nothing half done."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disks import SmallDisk
from parked import AsyncRunner, Job, Policy
from parked.errors import OutputFailed
from parked.job import State
from parked.jobfile import scan
from parked.ledger import open_ledger
from parked.ledger.store import Filters
from parked.simulator import replies as reply
from servers import sqlite_only

pytestmark = pytest.mark.slow

WAIT_S = 30.0


def start(*words: str, **env: str) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "parked.cli", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def states(url: str) -> dict[str, State]:
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return {row.job_id: row.state for row in reader.jobs(Filters(), states=list(State))}


@pytest.fixture
def disk_url(small_disk: SmallDisk) -> str:
    return f"sqlite:///{small_disk.path}/parked.db"


def test_a_run_whose_disk_stays_full_ends_with_3_and_names_what_goes_with_it(
    api, jobs, small_disk, disk_url, tmp_path, parked
):
    def fill(request: Any) -> None:
        if request.text == "two":
            small_disk.fill()

    api.answers(fill)
    words = ("run", jobs("one", "two", "three", "four"), "--out", str(tmp_path / "out.jsonl"), "--ledger", disk_url)
    run = start(*words, "--concurrency", "1", PARKED_WRITE_PATIENCE_S="1")
    _, err = run.communicate(timeout=WAIT_S)

    assert run.returncode == 3
    assert "the ledger could not be written: what came of job-1 is lost, and they will be parked as orphaned" in err
    assert "not recorded after 1 s of trying" in err
    assert "the disk is full" in err
    assert "Traceback" not in err
    assert len(api.bodies) == 2  # no call was started while an answer waited

    small_disk.free()
    api.answers(lambda request: None)
    again = parked(*words)
    assert again.status == 1
    assert "1 job of a process that died parked as orphaned: its call may have been made" in again.err
    assert states(disk_url) == {
        "job-0": State.SUCCEEDED, "job-1": State.PARKED, "job-2": State.SUCCEEDED, "job-3": State.SUCCEEDED,
    }  # fmt: skip
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["job_id"] for line in lines) == ["job-0", "job-2", "job-3"]


def test_a_run_goes_on_once_there_is_room_and_starts_no_call_before(small_disk, disk_url):
    ledger = open_ledger(disk_url)
    called: list[str] = []
    during_the_fault: list[int] = []

    def make_room() -> None:
        deadline = time.monotonic() + WAIT_S
        while not ledger.stalled:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(30):  # several tries of the writer
            time.sleep(0.01)
            assert ledger.stalled
        during_the_fault.append(len(called))
        small_disk.free()

    async def call(payload: Any, model: str) -> str:
        called.append(payload)
        if len(called) == 3:
            small_disk.fill()
            room.start()
        return "x" * 20_000

    room = threading.Thread(target=make_room)

    async def run() -> list[State]:
        runner = AsyncRunner(ledger, call, policy=Policy())
        work = [Job(f"job-{n}", model="m", payload=f"{n}") for n in range(8)]
        return [outcome.state async for outcome in runner.run_many(work, concurrency=1)]

    ended = asyncio.run(run())
    room.join()
    ledger.close()

    assert ended == [State.SUCCEEDED] * 8
    assert during_the_fault == [3]
    assert sorted(called) == [str(n) for n in range(8)]
    assert set(states(disk_url).values()) == {State.SUCCEEDED}


def test_answers_that_their_file_has_no_room_for_are_in_it_once_it_has(parked, api, jobs, small_disk, url):
    out = small_disk.path / "out.jsonl"

    def fill(request: Any) -> Any:
        if request.text == "two":
            small_disk.fill()
        return reply.text("y" * 9000)

    api.answers(fill)
    words = ("run", jobs("one", "two", "three"), "--out", str(out), "--concurrency", "1")
    full = parked(*words)

    assert full.status == 3
    assert f"can't write to {out}: No space left on device; the answers are in the ledger" in full.err
    assert [json.loads(line)["job_id"] for line in out.read_text().splitlines()] == ["job-0"]

    small_disk.free()
    assert parked(*words).status == 0
    assert sorted(json.loads(line)["job_id"] for line in out.read_text().splitlines()) == ["job-0", "job-1", "job-2"]
    assert len(api.bodies) == 3


def test_bad_lines_that_there_is_no_room_for_are_no_bug(parked, small_disk, url):
    file = small_disk.path / "jobs.jsonl"
    file.write_text('{"job_id": "a", "model": "m", "payload": {"contents": "x"}}\nno json at all\n')
    small_disk.fill()

    said = parked("run", str(file), "--skip-bad-lines", "--call", "json:dumps")

    assert said.status == 3
    assert f"can't write the bad lines to {file}.rejected.jsonl: No space left on device" in said.err
    assert said.err.count("\n") == 1


def many_lines(number: int) -> bytes:
    line = {"model": "m", "payload": {"contents": "x"}}
    return b"".join(json.dumps({"job_id": f"{n}-{'j' * 300}"} | line).encode() + b"\n" for n in range(number))


def test_an_input_that_there_is_no_room_for_is_said(small_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk.path))
    small_disk.fill()

    with pytest.raises(OutputFailed, match=f"can't keep a copy of the input in {small_disk.path}: No space left"):
        scan("-", stdin=io.BytesIO(many_lines(10)))


def test_an_index_that_there_is_no_room_for_is_said(small_disk, tmp_path, url):
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(many_lines(20_000))
    small_disk.fill()

    run = start("run", str(file), "--call", "json:dumps", SQLITE_TMPDIR=str(small_disk.path))
    _, err = run.communicate(timeout=WAIT_S)

    assert run.returncode == 3
    assert "can't keep an index of what was read in the folder for temporary files" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["list"], ["summary"], ["audit"], ["answers"], ["list", "--json"]])
def test_output_that_there_is_no_room_for_is_said_with_3(story, shell, words, url):
    story.answered("a-1")
    story.parked("a-2")
    story.ledger.close()
    done = shell(f"{sys.executable} -m parked.cli {' '.join(words)} > /dev/full")

    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "status"), [("list", 0), ("show nobody", 2), ("audit --ledger sqlite:///no.db", 3)])
def test_a_status_stands_also_where_nothing_can_be_said(story, shell, words, status, url):
    story.parked("a-1")
    story.ledger.close()

    assert shell(f"{sys.executable} -m parked.cli {words} 2> /dev/full").returncode == status


LOOKS = (
    ["list"], ["list", "--state", "succeeded"], ["causes"], ["show", "a-1", "--payload"], ["summary"], ["answers"],
    ["audit"], ["replay"], ["discard", "--all", "--reason", "x"], ["backup", "kept.db"], ["migrate"],
)  # fmt: skip


@sqlite_only
def test_a_damaged_ledger_is_one_sentence_for_every_command(parked, story, tmp_path, url):
    for n in range(20):
        story.parked(f"a-{n}", payload="x" * 5000)
        story.answered(f"b-{n}")
    story.ledger.close()
    file = tmp_path / "parked.db"
    whole = file.read_bytes()
    damaged = whole[:8192] + b"\xff" * (len(whole) - 8192)
    for words in LOOKS:
        file.write_bytes(damaged)

        said = parked(*words)

        assert said.status == 3, words
        assert "parked.db is damaged; restore a backup" in said.err
        assert said.err.count("\n") == 1
        assert file.read_bytes() == damaged
    assert not (tmp_path / "kept.db").exists()


def test_a_backup_and_a_copy_without_room_end_with_3_and_leave_nothing(parked, story, small_disk, tmp_path, url):
    for n in range(40):
        story.pending(f"a-{n}", payload="x" * 400_000)
    story.ledger.close()

    backed_up = parked("backup", str(small_disk.path / "kept.db"))
    copied = parked("copy", url, f"sqlite:///{small_disk.path}/target.db")

    assert (backed_up.status, copied.status) == (3, 3)
    assert "the disk is full" in backed_up.err
    assert copied.err == f"parked: the ledger {small_disk.path}/target.db can't be written: the disk is full\n"
    assert list(small_disk.path.iterdir()) == []
    assert parked("audit").status == 0


def test_rows_that_there_is_no_room_for_are_no_bug_of_an_import(parked, small_disk, source_of, url):
    file = source_of(small_disk.path / "dead_letter.db", good=300, bad=200)
    small_disk.fill()

    said = parked("import", file)

    assert said.status == 3
    assert (
        f"parked: {file}.rejected.jsonl can't be written: No space left on device; mend that and run it again"
        in said.err
    )


def test_an_import_into_a_ledger_without_room_says_how_far_it_came_and_goes_on_later(
    parked, small_disk, disk_url, source_of, tmp_path
):
    file = source_of(tmp_path / "dead_letter.db", good=20_000, bad=0)

    said = parked("import", file, "--ledger", disk_url)

    assert said.status == 3
    taken = len(states(disk_url))
    assert 0 < taken < 20_000
    assert re.search(r"(\d+) rows taken over before that; give the same command again for the rest\n", said.err)
    assert said.err.endswith("the disk is full\n")


@pytest.fixture
def source_of() -> Callable[..., str]:
    """Returns a function that makes a table of the article's with so many rows, the bad ones last; and its name."""

    def make(file: Path, *, good: int, bad: int) -> str:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("CREATE TABLE dead_letter (job_id, payload, model, error_class, error_message)")
            connection.executemany(
                "INSERT INTO dead_letter VALUES (?, ?, 'm', 'exhausted:503', '')",
                [(f"j-{n}", json.dumps({"prompt": f"{n}"}) if n < good else "no json") for n in range(good + bad)],
            )
        return str(file)

    return make
