"""Commands that take much on or write much down, killed or told to end in the middle of it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from parked.ledger import open_ledger
from parked.ledger.vault import key_id
from servers import sqlite_only
from torture.conftest import until

ROWS = 600  # some pages
KEY = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE="
ENDS = {"SIGTERM": 143, "SIGINT": 130}


@pytest.fixture(params=["sqlite", "postgres"])
def target(request, tmp_path, postgres):
    """A second database, without a ledger."""
    if request.param == "sqlite":
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        yield f"sqlite:///{folder}/parked.db"
        return
    postgres.run("DROP DATABASE IF EXISTS elsewhere WITH (FORCE)", "CREATE DATABASE elsewhere")
    yield postgres.url("elsewhere")
    postgres.run("DROP DATABASE IF EXISTS elsewhere WITH (FORCE)")


@pytest.fixture
def folder(tmp_path):
    """For backups alone."""
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


@pytest.fixture
def source(commands, books, table):
    """The URL of a ledger that holds `ROWS` parked jobs."""
    commands.run("parked", "import", table(ROWS))
    return commands.env["PARKED_LEDGER"]


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def texts_by_key(url):
    with open_ledger(url, create=False) as ledger, ledger.ask() as reader:
        counts = Counter[str | None]()
        for use in reader.keys_used():
            counts[use.key_id] += use.number
        return counts


def jobs_in(url):
    with open_ledger(url, create=False) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return sum(reader.states().values())


# --- killed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["filled:jobs", "filled:marks"])
def test_a_copy_that_is_killed_leaves_its_source_whole_and_a_target_that_the_next_one_fills(
    commands, books, source, target, point
):
    commands.run("parked", "copy", source, target, die_at=point)

    assert commands.run("parked", "audit").status == 0
    refused = commands.run("parked", "audit", "--ledger", target)
    assert (refused.status, "there is no ledger" in refused.said) == (3, True)
    assert len(books.jobs()) == ROWS
    books.close()
    again = commands.run("parked", "copy", source, target)
    assert f"copied {ROWS} jobs" in again.said
    assert jobs_in(target) == ROWS


@pytest.mark.parametrize(("point", "there"), [("vacuum", False), ("unnamed", False), ("named", True)])
def test_a_backup_that_is_killed_is_there_whole_or_not_and_the_next_one_removes_its_rest(
    commands, books, source, folder, point, there
):
    if point == "vacuum" and source.startswith("postgres"):
        point = "filled:payloads"
    commands.run("parked", "backup", str(folder / "first.db"), die_at=point)
    (rest,) = [name for name in names(folder) if name.endswith(".partial")]
    assert ("first.db" in names(folder)) == there

    said = commands.run("parked", "backup", str(folder / "second.db")).said

    assert f"unfinished_copy_removed file={folder}/{rest}" in said
    assert names(folder) == (["first.db", "second.db"] if there else ["second.db"])
    for name in names(folder):
        assert jobs_in(f"sqlite:///{folder}/{name}") == ROWS


def test_what_another_backup_is_just_writing_is_not_taken_for_a_rest(commands, books, source, folder, stopped_at):
    writing = stopped_at("unnamed", "parked", "backup", str(folder / "first.db"))

    said = commands.run("parked", "backup", str(folder / "second.db")).said

    assert "removed" not in said
    writing.kill(signal.SIGCONT)
    assert writing.end() == 0
    assert names(folder) == ["first.db", "second.db"]


@pytest.fixture
def stopped_at(commands):
    """Returns a function that begins a command and waits until it has stopped itself there."""

    def begin(point, *words):
        command = commands.begin(*words, points=["by:SIGSTOP", point])
        stat = Path(f"/proc/{command.pid}/stat")
        until(lambda: stat.read_bytes().rpartition(b")")[2].split()[0] == b"T")
        return command

    return begin


@pytest.mark.parametrize("point", ["before:rekey", "after:rekey"])
def test_a_rekeying_that_is_killed_is_finished_by_the_next_one(commands, books, source, point):
    done = rekeyed(commands, source, die_at=point)

    assert done == 0 if point == "before:rekey" else 0 < done < 2 * ROWS


@sqlite_only  # PostgreSQL rewrites its tables by itself
def test_a_rekeying_that_is_killed_while_it_rewrites_the_file_is_finished_by_the_next_one(commands, books, source):
    assert rekeyed(commands, source, die_at="vacuum") == 2 * ROWS


def rekeyed(commands, source, *, die_at):
    """Encrypt a ledger by one command that is killed and a second one; return how many texts the first had done."""
    commands.env |= {"PARKED_STORE": "encrypted", "PARKED_STORE_KEYS": KEY}
    texts = 2 * ROWS  # a payload and a message each

    commands.run("parked", "rekey", "--apply", die_at=die_at)
    done = texts_by_key(source)[key_id(KEY)]
    again = commands.run("parked", "rekey", "--apply")

    assert (again.status, f"{texts - done} texts rekeyed" in again.said) == (0, True), again.said
    assert texts_by_key(source) == {key_id(KEY): texts}
    assert commands.run("parked", "audit", "--bodies").status == 0
    return done


# --- told to end -------------------------------------------------------------------------------------------------


def test_a_copy_that_is_told_to_end_leaves_nothing(commands, books, source, target):
    ended = commands.begin("parked", "copy", source, target, points=["by:SIGTERM", "filled:jobs"])

    assert (ended.end(), ended.said) == (ENDS["SIGTERM"], "")
    assert commands.run("parked", "audit", "--ledger", target).status == 3
    if target.startswith("sqlite"):
        assert names(Path(target.removeprefix("sqlite:///")).parent) == []


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("point", ["vacuum", "unnamed"])
def test_a_backup_that_is_told_to_end_leaves_nothing(commands, books, source, folder, how, point):
    if point == "vacuum" and source.startswith("postgres"):
        point = "filled:payloads"

    ended = commands.begin("parked", "backup", str(folder / "kept.db"), points=[f"by:{how}", point])

    assert (ended.end(), ended.said) == (ENDS[how], "")
    assert names(folder) == []


@pytest.fixture
def jobs_file(tmp_path):
    """Some chunks of lines."""
    file = tmp_path / "jobs.jsonl"
    lines = [{"job_id": f"job-{n}", "model": "m", "payload": {"contents": f"prompt {n}"}} for n in range(6000)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


@pytest.mark.parametrize("how", ENDS)
def test_a_submission_that_is_told_to_end_says_how_many_it_took_on_and_how_to_go_on(commands, books, jobs_file, how):
    words = ("parked", "submit", jobs_file, "--pipeline", "nightly")

    ended = commands.begin(*words, points=[f"by:{how}", "after:accept"])

    assert ended.end() == ENDS[how]
    taken_on = len(books.jobs())
    assert 0 < taken_on < 6000
    assert ended.said.splitlines()[1:] == [
        "to run them: parked work --pipeline nightly",
        f"to take on the rest: parked submit {jobs_file} --pipeline nightly",
        f"6000 lines: {taken_on} new, {6000 - taken_on} not taken on",
    ]
    again = commands.run(*words)
    assert again.said.splitlines()[-1] == f"6000 lines: {6000 - taken_on} new, {taken_on} known ({taken_on} pending)"


@pytest.mark.parametrize("how", ENDS)
def test_an_import_that_is_told_to_end_says_how_many_it_took_over_and_how_to_go_on(commands, books, table, how):
    file = table(ROWS)

    ended = commands.begin("parked", "import", file, points=[f"by:{how}", "after:take_over"])

    assert ended.end() == ENDS[how]
    taken = len(books.jobs())
    assert 0 < taken < ROWS
    assert ended.said.splitlines()[1:] == [
        f"{taken} taken over, 0 known before, 0 refused",
        f"stopped after row {taken}; to go on: parked import {file}",
        "to see what is parked and why: parked list --pipeline default",
    ]
    again = commands.run("parked", "import", file)
    assert f"{ROWS - taken} taken over, {taken} known before" in again.said


@sqlite_only
def test_an_erasure_that_is_told_to_end_while_it_rewrites_the_file_is_finished_by_the_next_one(
    commands, books, source, tmp_path
):
    words = ("parked", "erase", "--job", "job-1", "--reason", "asked for", "--apply")
    ended = commands.begin(*words, points=["by:SIGTERM", "vacuum"])
    assert ended.end() == ENDS["SIGTERM"]

    assert commands.run(*words).status == 0


def test_a_run_that_is_told_to_end_while_it_takes_jobs_on_counts_those_that_were_being_committed(
    commands, books, simulator, jobs_file
):
    simulator.hold()
    words = ("parked", "run", jobs_file, "--out", f"{jobs_file}.out")

    ended = commands.begin(*words, points=["by:SIGTERM", "after:accept"], PARKED_DRAIN_S="0")

    assert ended.end() == ENDS["SIGTERM"]
    simulator.release()
    taken_on = len(books.jobs())
    assert 0 < taken_on < 6000
    assert ended.said.splitlines()[-1] == f"6000 lines: {taken_on} pending, {6000 - taken_on} not taken on"
