"""Disks that are full, spoiled, locked or gone, with the real thing: nothing is taken on, nothing that was paid for is
lost, and whoever looks is told what to do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disks import SmallDisk
from parked.errors import LedgerUnavailable, OutputFailed
from parked.job import State
from parked.ledger import Ledger, open_ledger, sqlite_file
from parked.ledger import operations as op
from parked.ledger.codec import encode_answer
from parked.ledger.copying import backup, copy
from parked.ledger.migrations import Migration, Upgrade, bring_up_to_date, migrations
from parked.ledger.sqlite_schema import SqliteSchema
from parked.ledger.store import Filters

pytestmark = pytest.mark.slow

WAIT_S = 30.0


@pytest.fixture
def on_disk(small_disk: SmallDisk) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{small_disk.path}/parked.db") as ledger:
        yield ledger


def answer(row: op.JobRow) -> op.Answer:
    assert row.owner_id is not None
    return op.Answer(row.id, row.owner_id, row.calls, encode_answer("x" * 5000), op.Closing())


def names(ledger: Ledger) -> list[str]:
    with ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return sorted(row.job_id for row in reader.jobs(Filters(), states=list(State)))


# --- a full disk ---


def test_on_a_full_disk_nothing_is_accepted_and_an_answer_waits_until_there_is_room(on_disk, small_disk, at_desk):
    desk = at_desk(on_disk)
    row = desk.running(desk.owner())
    small_disk.fill()
    ticket = on_disk.submit(answer(row))

    with pytest.raises(LedgerUnavailable, match="can't be written: the disk is full"):
        desk.accept("refused")

    assert on_disk.stalled
    assert on_disk.unwritten == [ticket.operation]
    small_disk.free()
    assert ticket.wait(WAIT_S).state is State.SUCCEEDED
    assert names(on_disk) == ["job-1"]
    assert desk.answer_of(row) == "x" * 5000


def test_a_ledger_that_finds_no_room_to_be_made_is_made_once_there_is(small_disk):
    url = f"sqlite:///{small_disk.path}/parked.db"
    small_disk.fill()

    with pytest.raises(LedgerUnavailable, match=r"the disk is full|no room"):
        open_ledger(url)

    small_disk.free()
    with open_ledger(url) as ledger:
        assert names(ledger) == []


def test_a_full_disk_can_still_be_looked_at(on_disk, small_disk, at_desk):
    at_desk(on_disk).accept("a-1")

    small_disk.fill()

    assert names(on_disk) == ["a-1"]


def test_a_backup_on_a_full_disk_is_not_there_at_all(url_of_many, small_disk):
    small_disk.fill()
    os.truncate(small_disk.path / "ballast", 2**21)

    with pytest.raises(OutputFailed, match="can't be written: the disk is full; nothing of it is left"):
        backup(url_of_many, small_disk.path / "kept.db")

    assert [file.name for file in small_disk.path.iterdir()] == ["ballast"]


def test_a_copy_on_a_full_disk_is_not_there_at_all(url_of_many, small_disk):
    small_disk.fill()
    os.truncate(small_disk.path / "ballast", 2**21)

    with pytest.raises(LedgerUnavailable, match=r"target\.db can't be written: the disk is full"):
        copy(url_of_many, f"sqlite:///{small_disk.path}/target.db")

    assert [file.name for file in small_disk.path.iterdir()] == ["ballast"]


def test_a_breaking_step_that_can_keep_no_copy_is_not_made(on_disk, small_disk, at_desk):
    for n in range(5):
        at_desk(on_disk).accept(f"large-{n}", payload="x" * 100_000)
    on_disk.close()
    file = small_disk.path / "parked.db"
    small_disk.fill()
    os.truncate(small_disk.path / "ballast", (small_disk.path / "ballast").stat().st_size - 400_000)
    step = Migration(9001, "other", False, ("ALTER TABLE marks ADD COLUMN other TEXT",))

    def upgrade() -> None:
        with closing(sqlite_file.connect(file)) as connection:
            schema = SqliteSchema(connection, file, clock=lambda: 1.0)
            bring_up_to_date(schema, create=False, upgrade=Upgrade.ALL, steps=[*migrations("sqlite"), step])

    with pytest.raises(LedgerUnavailable, match=r"is not upgraded, since no copy .* can be kept: .*the disk is full"):
        upgrade()

    assert sorted(path.name for path in small_disk.path.iterdir()) == ["ballast", "parked.db"]
    small_disk.free()
    upgrade()
    assert (small_disk.path / "parked.db.before-9001").exists()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept.db"


def test_a_backup_that_can_not_be_synced_is_not_there_at_all(child, sqlite_url, at_desk, file):
    with open_ledger(sqlite_url) as ledger:
        at_desk(ledger).accept("a-1")
    script = """
from pathlib import Path
from parked.errors import LedgerUnavailable, OutputFailed
from parked.ledger.copying import backup
said = []
n = calls = 0
while calls >= n:  # each of the system calls is the first that fails, once
    n += 1
    Path(sys.argv[2]).unlink(missing_ok=True)
    fail_from(sys.argv[3], errno.EIO, n)
    try:
        backup(sys.argv[1], Path(sys.argv[2]))
    except (OutputFailed, LedgerUnavailable) as exc:  # the ledger itself needs to write its -shm file
        said.append(str(exc))
        assert not Path(sys.argv[2]).exists()
    calls = mend(sys.argv[3])
print(json.dumps(said))
"""
    for fault, fewest in (("posix/io/sync/*", 2), ("posix/io/rw/pwrite*", 10)):
        said = child(script, sqlite_url, file, fault, faulty=True)

        assert len(said) >= fewest
        assert sorted(path.name for path in file.parent.iterdir()) == ["kept.db", "parked.db"]
        file.unlink()


@pytest.fixture
def url_of_many(sqlite_url: str, at_desk: Callable[[Ledger], Any]) -> str:
    """A ledger of 4 MB that nobody uses."""
    with open_ledger(sqlite_url) as ledger:
        for n in range(40):
            at_desk(ledger).accept(f"large-{n}", payload="x" * 100_000)
    return sqlite_url


# Goes through the life of jobs while one kind of system call fails from the n-th on, and mends it as soon as something
# was refused. At the end all must be as if nothing had happened.
LIFE = """
import shutil, tempfile
from pathlib import Path
from parked.errors import LedgerUnavailable
from parked.job import State
from parked.ledger import codec, open_ledger, operations as op
from parked.ledger.store import Filters
from parked.verdict import Kind, Reason

fault, error, folder, step = sys.argv[1], getattr(errno, sys.argv[2]), sys.argv[3], int(sys.argv[4])
refusals = set()

def life(place, n):
    fail_from(fault, error, n)
    broken = True

    def repair():
        nonlocal broken, calls
        if broken:
            calls, broken = mend(fault), False

    def insist(act):
        try:
            return act()
        except LedgerUnavailable as exc:
            refusals.add(str(exc).replace(str(place), "D"))
            assert broken, exc
            repair()
            return act()

    def outcome(operation):
        ticket = ledger.submit(operation)
        try:
            ledger.record(op.SetMark("m", 1))
        except LedgerUnavailable as exc:
            assert broken, exc
            refusals.add(str(exc).rpartition("waits for the ledger: ")[2].replace(str(place), "D"))
            repair()
        return ticket.wait(30)

    calls = 0
    ledger = insist(lambda: open_ledger(f"sqlite:///{place}/parked.db"))
    facts = op.OwnerFacts("t", "runner", "h", "", "", 1, "", "1")
    owner = insist(lambda: ledger.record(op.Register(facts)))
    body = codec.encode("x" * 9000)
    for name in ("a", "b", "c"):
        accept = op.Accept("p", "", name, "m", body, name.encode(), start_for=owner)
        row = insist(lambda: ledger.record(accept)).row
        if name == "a":
            answered = outcome(op.Answer(row.id, owner, 1, codec.encode_answer("y" * 9000), op.Closing()))
            assert answered.state is State.SUCCEEDED
        if name == "b":
            closing = op.Closing(kind=Kind.RETRYABLE, reason=Reason.OVERLOADED, status=503, message="z" * 2000)
            assert outcome(op.Retried(row.id, owner, 1, closing, strike=True)).strikes == 1
            assert insist(lambda: ledger.record(op.Start(row.id, owner, previous=1))).attempt == 2
            assert outcome(op.Park(row.id, owner, 2, closing, "exhausted:503")).state is State.PARKED
        if name == "c":
            assert outcome(op.Release(row.id, owner)).state is State.PENDING
    repair()
    ledger.record(op.Leave(owner))
    ledger.close()
    with open_ledger(f"sqlite:///{place}/parked.db") as again, again.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        rows = [(row.job_id, row.state, row.calls) for row in reader.jobs(Filters(), states=list(State))]
        assert sorted(rows) == [("a", "succeeded", 1), ("b", "parked", 2), ("c", "pending", 1)], rows
        assert reader.answer(1).body.data == b'"' + b"y" * 9000 + b'"'
    return calls

n, failed = 1, 0
while True:
    place = Path(tempfile.mkdtemp(dir=folder))
    calls = life(place, n)
    shutil.rmtree(place)
    if calls < n:
        break
    failed += 1
    n += step
print(json.dumps({"failed": failed, "refusals": sorted(refusals)}))
"""
DISK_FULL = "the ledger D/parked.db can't be written: the disk is full"


@pytest.mark.parametrize(
    ("fault", "error", "step", "said"),
    [
        ("posix/io/rw/pwrite*", "ENOSPC", 7, "the disk is full"),
        ("posix/io/rw/pwrite*", "EIO", 11, "the disk reports an I/O error"),
        ("posix/io/sync/*", "EIO", 1, "the disk reports an I/O error when it is to keep it"),
        ("posix/io/rw/pread*", "EIO", 5, "the disk reports an I/O error"),
        ("posix/io/dir/ftruncate*", "ENOSPC", 1, ""),
    ],
)
def test_whichever_write_fails_first_nothing_is_lost_or_half_done(child, fault, error, step, said):
    found = child(LIFE, fault, error, Path.cwd(), str(step), faulty=True)

    assert not said or found["failed"] > 5
    assert not said or any(said in refusal for refusal in found["refusals"])
    assert [refusal for refusal in found["refusals"] if not refusal.startswith("the ledger D/parked.db ")] == []


FILES_OF_LIMITED_SIZE = """
import resource, tempfile
from parked.errors import LedgerUnavailable
from parked.ledger import codec, open_ledger, operations as op
from parked.ledger.store import Filters
from parked.job import State

said, folder = set(), sys.argv[1]
for limit in (*range(1024, 40_000, 6000), *range(40_000, 600_000, 40_000)):
    place = tempfile.mkdtemp(dir=folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    taken = []
    try:
        ledger = open_ledger(f"sqlite:///{place}/parked.db")
        for n in range(30):
            ledger.record(op.Accept("p", "", f"{n:02}", "m", codec.encode("x" * 20_000), b"h"))
            taken.append(f"{n:02}")
    except LedgerUnavailable as exc:
        said.add(str(exc).replace(place, "D"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with open_ledger(f"sqlite:///{place}/parked.db") as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        assert [row.job_id for row in reader.jobs(Filters(), states=list(State))] == taken
print(json.dumps(sorted(said)))
"""


def test_where_files_may_not_grow_what_was_not_taken_on_is_not_there(child, tmp_path):
    said = child(FILES_OF_LIMITED_SIZE, tmp_path)

    assert any("files may not grow that large (`ulimit -f`)" in sentence for sentence in said)
    assert all(sentence.startswith("the ledger D/parked.db can't be ") for sentence in said)


# --- a ledger that can't be opened any more ---


def test_an_answer_waits_for_a_folder_that_disappeared(tmp_path, at_desk):
    home = tmp_path / "home"
    home.mkdir()
    with open_ledger(f"sqlite:///{home}/parked.db") as ledger:
        desk = at_desk(ledger)
        row = desk.running(desk.owner())
        home.rename(tmp_path / "away")
        ticket = ledger.submit(answer(row))

        for _ in range(2):  # also once the connection was given up, and none can be opened
            with pytest.raises(LedgerUnavailable, match=r"parked\.db is gone|parked\.db can't be opened"):
                desk.accept("refused")
        with pytest.raises(LedgerUnavailable):
            names(ledger)

        (tmp_path / "away").rename(home)
        assert ticket.wait(WAIT_S).state is State.SUCCEEDED
        assert desk.answer_of(row) == "x" * 5000
        assert names(ledger) == ["job-1"]


def test_nothing_is_written_to_another_ledger_that_was_put_in_the_place_of_the_first(tmp_path, at_desk):
    url = f"sqlite:///{tmp_path}/parked.db"
    file = tmp_path / "parked.db"
    with open_ledger(url) as ledger:
        desk = at_desk(ledger)
        row = desk.running(desk.owner())
        for side in ("", "-wal", "-shm"):
            Path(f"{file}{side}").rename(f"{file}.first{side}")
        with open_ledger(url) as other:
            theirs = at_desk(other).running(at_desk(other).owner())  # the same ids
            assert (theirs.id, theirs.owner_id) == (row.id, row.owner_id)
            ticket = ledger.submit(answer(row))
            with pytest.raises(LedgerUnavailable, match="is another file than this process has opened"):
                desk.accept("refused")
            with pytest.raises(LedgerUnavailable, match="is another file"), ledger.ask():
                pass
            assert at_desk(other).now(theirs).state is State.RUNNING
        for side in ("", "-wal", "-shm"):
            Path(f"{file}{side}").unlink(missing_ok=True)
            if Path(f"{file}.first{side}").exists():
                Path(f"{file}.first{side}").rename(f"{file}{side}")

        assert ticket.wait(WAIT_S).state is State.SUCCEEDED


def test_a_ledger_that_was_deleted_takes_nothing_on(tmp_path, at_desk):
    with open_ledger(f"sqlite:///{tmp_path}/parked.db", write_patience_s=0) as ledger:
        desk = at_desk(ledger)
        desk.accept("a-1")
        for file in tmp_path.glob("parked.db*"):
            file.unlink()

        with pytest.raises(LedgerUnavailable, match="it was moved or deleted while this process had it open"):
            desk.accept("refused")


def test_a_file_system_without_shared_memory_is_named(disk_without_shared_memory):
    url = f"sqlite:///{disk_without_shared_memory}/parked.db"

    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match="has no shared memory, which SQLite's WAL needs"):
            open_ledger(url)


def test_a_file_system_that_is_read_only_is_named(small_disk, at_desk):
    url = f"sqlite:///{small_disk.path}/parked.db"
    with open_ledger(url) as ledger:
        at_desk(ledger).accept("a-1")
    subprocess.run(["mount", "-o", "remount,ro", small_disk.path], check=True)

    with pytest.raises(LedgerUnavailable, match=r"parked\.db lies on a file system that is read-only"):
        open_ledger(url, create=False)

    subprocess.run(["mount", "-o", "remount,rw", small_disk.path], check=True)
    with open_ledger(url) as ledger:
        assert names(ledger) == ["a-1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user_is_named(child):
    said = child("""
import os, tempfile
folder = tempfile.mkdtemp()
from parked.errors import LedgerUnavailable
from parked.ledger import open_ledger
open_ledger(f"sqlite:///{folder}/parked.db").close()
os.setuid(65534)
said = []
for create in (True, False):
    try:
        open_ledger(f"sqlite:///{folder}/parked.db", create=create)
    except LedgerUnavailable as exc:
        said.append(str(exc).replace(folder, "D"))
print(json.dumps(said))
""")

    reached = "the ledger D/parked.db can't be reached: Permission denied; let user 65534 write its folder"
    assert [one.partition(" (chown")[0] for one in said] == [reached] * 2


# --- a ledger that somebody else has locked ---


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is waited for 0.2 s instead of 30."""
    monkeypatch.setattr(sqlite_file, "PATIENCE_S", 0.2)


def test_a_ledger_that_another_program_has_locked_takes_answers_once_it_lets_go(
    impatient, sqlite_url, tmp_path, at_desk
):
    with open_ledger(sqlite_url) as ledger:
        desk = at_desk(ledger)
        row = desk.running(desk.owner())
        with closing(sqlite3.connect(tmp_path / "parked.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            ticket = ledger.submit(answer(row))
            with pytest.raises(LedgerUnavailable, match="was held locked by another process"):
                desk.accept("refused")
            assert names(ledger) == ["job-1"]  # whoever only asks is let in
            assert ledger.stalled

        assert ticket.wait(WAIT_S).state is State.SUCCEEDED
        assert names(ledger) == ["job-1"]


def test_a_ledger_that_another_program_has_for_itself_is_named(impatient, sqlite_url, tmp_path, at_desk, file):
    with open_ledger(sqlite_url) as ledger:
        at_desk(ledger).accept("a-1")
    with closing(sqlite3.connect(tmp_path / "parked.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")

        for use in (lambda: open_ledger(sqlite_url), lambda: backup(sqlite_url, file)):
            with pytest.raises(LedgerUnavailable, match="was held locked by another process"):
                use()

    assert not file.exists()
    assert backup(sqlite_url, file).jobs == 1


def test_an_error_that_somebody_keeps_does_not_keep_the_lock(sqlite_url, child):
    """The traceback of an error may hold a cursor, and a cursor keeps SQLite's connection with its lock open."""
    said = child(
        """
from parked.errors import LedgerUnavailable
from parked.ledger import codec, open_ledger, operations as op
import sqlite3
ledger = open_ledger(sys.argv[1], write_patience_s=60)
accept = lambda name: ledger.record(op.Accept("p", "", name, "m", codec.encode("x" * 900_000), b"h"))
for n in range(10):
    accept(f"first-{n}")
kept = []
for n in range(1, 40):
    other = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"), timeout=5, isolation_level=None)
    other.execute("INSERT INTO marks VALUES (?, '1', 1.0)", [str(n)])  # so that the writer has to read anew
    other.close()
    fail_from("posix/io/rw/pread*", errno.EIO, n)
    try:
        accept(f"again-{n}")
    except LedgerUnavailable as exc:
        kept.append(exc)
    mend("posix/io/rw/pread*")
print(json.dumps(len(kept)))
""",
        sqlite_url,
        faulty=True,
    )

    assert said > 10


# --- damage ---


def test_a_ledger_that_is_damaged_anywhere_is_named_and_left_as_it_is(sqlite_url, tmp_path, at_desk):
    with open_ledger(sqlite_url) as ledger:
        desk = at_desk(ledger)
        owner = desk.owner()
        for n in range(30):
            row = desk.accept(f"job-{n}", payload="x" * 3000, start_for=owner).row
            (desk.answer if n % 2 else desk.park)(row, owner)
        ledger.record(op.Leave(owner))
    file = tmp_path / "parked.db"
    whole = file.read_bytes()
    said: list[str] = []
    for page in range(0, len(whole), 8192):
        damaged = whole[:page] + b"\xff" * 8192 + whole[page + 8192 :]
        file.write_bytes(damaged)
        try:
            with open_ledger(sqlite_url, create=False, write_patience_s=0) as ledger, ledger.ask() as reader:
                reader.imbalances(thorough=True)
                for row in reader.jobs(Filters(), states=list(State)):
                    reader.attempts(row.id), reader.answer(row.id)
        except LedgerUnavailable as exc:
            said.append(str(exc))
        assert file.read_bytes() == damaged

    assert len(said) > 20
    assert {sentence.removeprefix(f"the ledger {file} ").partition(";")[0] for sentence in said} <= {
        "is damaged",
        "is not a SQLite database",
    }
    assert all("restore a backup" in sentence for sentence in said)


def test_a_ledger_that_was_cut_off_is_not_begun_anew(sqlite_url, tmp_path, at_desk):
    file = tmp_path / "parked.db"
    with open_ledger(sqlite_url) as ledger:
        for n in range(50):
            at_desk(ledger).accept(f"job-{n}")
    whole = file.read_bytes()

    def begin_anew() -> None:
        with open_ledger(sqlite_url, write_patience_s=0) as ledger:
            names(ledger)
            at_desk(ledger).accept("one more")

    for length in (99, 100, 5000, 8192, 8192 * 3, len(whole) - 8192):
        file.write_bytes(whole[:length])

        with pytest.raises(LedgerUnavailable):
            begin_anew()

        assert file.read_bytes()[:length] == whole[:length]


def test_the_commit_before_a_checkpoint_that_fails_is_no_failure(child, sqlite_url):
    done = child(
        """
from parked.ledger import codec, open_ledger, operations as op
ledger = open_ledger(sys.argv[1])
other = open_ledger(sys.argv[1])
accepted = 0
for n in range(12):
    ledger.record(op.Accept("p", "", f"a-{n}", "m", codec.encode("x" * 500_000), b"h"))
    accepted += 1
    if n == 6:
        # From here on only the database file itself can't be written: that is the checkpoint's business.
        import os, resource
        limit = os.path.getsize(sys.argv[1].removeprefix("sqlite:///") + "-wal") + 3_000_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print(json.dumps(accepted))
""",
        sqlite_url,
    )

    assert done == 12
