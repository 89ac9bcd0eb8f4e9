"""`parked backup` and `parked copy` as commands: what they say, and with which status they end."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from servers import sqlite_only


@pytest.fixture
def file(tmp_path):
    return tmp_path / "kept.db"


@pytest.fixture
def target(tmp_path):
    return f"sqlite:///{tmp_path}/target.db"


def test_a_backup_says_what_it_wrote_and_can_be_looked_at(parked, story, url, file):
    story.parked("a-1")
    story.pending("a-2")

    said = parked("backup", str(file))

    assert said == (0, f"ledger {story.ledger.where}\nwrote {file}: 2 jobs, {file.stat().st_size:,} bytes\n", "")
    assert "a-1" in parked("list", "--ledger", f"sqlite:///{file}").out
    assert parked("audit", "--ledger", f"sqlite:///{file}").status == 0


def test_a_backup_can_be_told_as_json(parked, story, url, file):
    story.pending("a-1")

    said = json.loads(parked("backup", "kept.db", "--json").out)

    assert said == {"ledger": story.ledger.where, "file": str(file), "bytes": file.stat().st_size, "jobs": 1}


@sqlite_only
@pytest.mark.parametrize(
    ("word", "status", "said"),
    [
        ("-", 2, "a backup needs the name of a file, got '-'"),
        ("parked.db", 2, "is there already"),
        ("parked.db-wal", 2, "SQLite would take"),
        ("missing/kept.db", 2, "does not exist; create it first"),
        ("/dev/full", 2, "is there already"),
    ],
)
def test_a_backup_that_can_not_be_is_one_sentence(parked, story, tmp_path, word, status, said):
    story.pending("a-1")
    story.ledger.close()
    before = sorted(tmp_path.iterdir())

    answer = parked("backup", word)

    assert answer.status == status
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_backup_of_a_missing_ledger_is_not_made(parked, url, file):
    assert parked("backup", str(file)).status == 3
    assert not file.exists()


def test_a_copy_says_what_it_copied(parked, story, url, target):
    story.parked("a-1")
    story.ledger.close()

    said = parked("copy", url, target)

    assert said.status == 0
    assert said.out.splitlines() == [
        f"ledger {target}",
        f"copied 1 job from {story.ledger.where}",
        "every row was compared, and the audit holds on both sides",
    ]
    assert "a-1" in parked("list", "--ledger", target).out


def test_a_copy_can_be_told_as_json(parked, story, url, target):
    story.parked("a-1")
    story.ledger.close()

    said = json.loads(parked("copy", url, target, "--json").out)

    assert (said["source"], said["ledger"], said["jobs"]) == (story.ledger.where, target, 1)
    assert (said["rows"]["attempts"], said["rows"]["payloads"]) == (1, 1)


def test_a_copy_into_a_ledger_that_is_used_is_refused(parked, story, url, target):
    story.pending("a-1")
    story.ledger.close()
    assert parked("copy", url, target).status == 0

    again = parked("copy", url, target)

    assert again.status == 2
    assert "was used before, and a copy goes into an empty ledger only; name " in again.err


def test_a_copy_from_a_ledger_that_is_used_is_refused(parked, story, url, target, monkeypatch):
    story.running("a-1")
    monkeypatch.setattr("parked.ledger.copying.LOOK_AGAIN_S", 0.05)

    said = parked("copy", url, target)

    assert said.status == 3
    assert f"is still used by {os.uname().nodename} pid {os.getpid()} (runner); end them first" in said.err
    assert said.err.count("\n") == 1


def test_a_copy_names_both_ledgers_itself(parked, story, url, target):
    assert parked("copy", url, target, "--ledger", url).status == 2
    assert parked("copy", url).status == 2
    assert parked("copy", url, url).status == 2


def test_a_password_is_in_no_message_of_a_copy(parked, story, url):
    story.pending("a-1")
    story.ledger.close()
    secret = "postgresql://u:hunter2@127.0.0.1:1/db"

    for words in (("copy", url, secret), ("copy", secret, url), ("copy", url, url, secret), ("list", secret)):
        said = parked(*words)
        assert said.status in (2, 3)
        assert "hunter2" not in said.err


@sqlite_only
def test_an_upgrade_that_others_can_not_follow_names_the_copy_that_it_kept(parked, url, tmp_path, monkeypatch):
    from parked.ledger import migrations, sqlite

    assert parked("migrate").status == 0
    step = migrations.Migration(9001, "other", False, ("ALTER TABLE marks ADD COLUMN other TEXT",))
    steps = (*migrations.migrations("sqlite"), step)
    monkeypatch.setattr(sqlite, "migrations", lambda dialect: steps)

    with closing(sqlite3.connect(tmp_path / "parked.db")) as connection:
        (tmp_path / "other.db").touch(0o600)
        connection.backup(other := sqlite3.connect(tmp_path / "other.db"))
        other.close()
    looked = parked("list", "--ledger", f"sqlite:///{tmp_path}/other.db")
    said = parked("migrate")

    assert f"ledger_upgraded kept_as_it_was={tmp_path}/other.db.before-9001" in looked.err
    assert said.out.splitlines()[1:] == [
        f"  kept as it was: {tmp_path}/parked.db.before-9001",
        "  9001 other",
        "upgraded",
    ]
    with closing(sqlite3.connect(tmp_path / "parked.db.before-9001")) as kept:
        assert kept.execute("SELECT count(*) FROM marks").fetchone() == (0,)
