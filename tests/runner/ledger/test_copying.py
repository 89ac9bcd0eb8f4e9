"""A ledger taken elsewhere: a backup of one in use, and a copy into another database, in all four directions."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from parked.errors import LedgerMissing, LedgerTooNew, LedgerUnavailable, OutputFailed, SettingsError
from parked.job import State
from parked.ledger import Ledger, codec, copying, open_ledger
from parked.ledger import operations as op
from parked.ledger.copying import backup, copy
from parked.ledger.databases import locate
from parked.ledger.newfile import SIDES
from parked.ledger.statements import SQL_FOLDER, load
from parked.ledger.store import Filters
from parked.ledger.tables import TABLES, take_over
from servers import Postgres

SECRET = "the patient's name is Kowalski"


@pytest.fixture
def other_url(tmp_path: Path, postgres: Postgres) -> Iterator[Callable[[str], str]]:
    """Returns a function that names a second database of a kind, without a ledger."""
    postgres.run("DROP DATABASE IF EXISTS elsewhere WITH (FORCE)", "CREATE DATABASE elsewhere")
    yield lambda kind: f"sqlite:///{tmp_path}/elsewhere.db" if kind == "sqlite" else postgres.url("elsewhere")
    postgres.run("DROP DATABASE IF EXISTS elsewhere WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def target_url(request: pytest.FixtureRequest, other_url: Callable[[str], str]) -> str:
    return other_url(request.param)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def tell_a_story(ledger: Ledger, desk: Any) -> None:
    """Something in every table and every state; nobody is left who holds a job."""
    owner = desk.owner()
    for state in (State.PENDING, State.SUCCEEDED, State.PARKED, State.RECOVERED, State.DISCARDED):
        desk.in_state(state, owner)
    mended = desk.parked()
    body = codec.encode({"contents": "mended", "n": 1.5})
    ledger.record(op.Mend(mended.id, body, "other-model", "its prompt was too long"))
    ledger.record(op.Erase(desk.parked().id, "the customer asked for it"))
    orphaned = desk.owner(host="elsewhere")
    desk.running(orphaned)
    desk.lose(orphaned)
    for n in range(70):  # more than a page of rows
        desk.retried(desk.running(owner), owner)
        desk.accept(f"däh-{n}", payload="x" * 5000, pipeline="p\U0001f600", batch=f"b{n % 3}")
    said = op.Closing(message="a server said \0 this", response_id="r\0", status=500)
    row = desk.running(owner)
    ledger.record(op.Retried(row.id, owner, row.calls, said if "sqlite" in ledger.url else op.Closing(), strike=True))
    ledger.record(op.HandOut((2,)))
    ledger.record(op.SetMark("last_summary", {"at": 1.25}))
    ledger.record(op.TakeLease("audit", owner, 60.0))
    ledger.record(op.Leave(owner))
    for id in range(1, desk.owners + 1):
        ledger.record(op.Leave(id))


@pytest.fixture
def newcomer(at_desk: Callable[[Ledger], Any]) -> Callable[[Ledger], Any]:
    """Returns a function that sits somebody down at a copy, with names that weren't used in the original."""

    def sit(ledger: Ledger) -> Any:
        desk = at_desk(ledger)
        desk.owners = desk.jobs = 1000
        return desk

    return sit


def contents(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows, as both databases would hold them."""
    with closing(locate(url).reader()) as reader:
        found = {table: list(reader.rows(table)) for table in TABLES}
    return {
        table: [tuple(v.replace("\0", "\ufffd") if isinstance(v, str) else v for v in row) for row in rows]
        for table, rows in found.items()
    }


def test_a_copy_holds_every_row_and_is_the_same_ledger(url, ledger, desk, target_url):
    tell_a_story(ledger, desk)
    name = ledger.name

    moved = copy(url, target_url)

    assert contents(target_url) == contents(url)
    assert {table: len(rows) for table, rows in contents(url).items()} == moved.rows
    assert all(moved.rows[table] for table in TABLES if table not in ("gates", "pauses"))
    with open_ledger(target_url) as copied, copied.ask() as reader:
        assert copied.name == name
        assert reader.imbalances(thorough=True) == []


def test_what_is_accepted_after_a_copy_gets_ids_and_places_of_its_own(url, ledger, desk, target_url, newcomer):
    tell_a_story(ledger, desk)
    last = desk.pending()
    with ledger.ask() as reader:
        owners = [owner.id for owner in reader.owners()]
    copy(url, target_url)

    with open_ledger(target_url) as copied:
        there = newcomer(copied)
        first = there.accept("new-1").row
        line = there.line()

        assert first.id > last.id
        assert first.place > last.place
        assert line[-2:] == [last.job_id, "new-1"]
        assert there.owner() > max(owners) + 1  # the copy itself was one
        assert there.replay() > 1
        assert there.imbalances() == []


def test_an_id_that_was_given_out_before_is_not_given_again_though_its_row_is_gone(
    url, ledger, desk, target_url, at_desk
):
    gone = desk.pending()
    ledger.close()
    delete = f"DELETE FROM {'parked.' if url.startswith('postgres') else ''}{{}} WHERE {{}} = {gone.id}"
    statements = [delete.format("payloads", "job"), delete.format("jobs", "id"), "DELETE FROM counters"]
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            for statement in statements:
                connection.execute(statement)
    else:
        with psycopg.connect(url) as server:
            for statement in statements:
                server.execute(statement.replace("counters", "parked.counters").encode())

    copy(url, target_url)

    with open_ledger(target_url) as copied:
        assert at_desk(copied).pending().id > gone.id
    with open_ledger(url) as again:  # for the end of the fixture
        desk.ledger = again
        desk.imbalances()


def accepted(ledger: Ledger) -> dict[str, float]:
    with ledger.ask() as reader:
        return {row.pipeline: row.value for row in reader.counters("jobs_accepted")}


def test_counters_go_on_from_where_they_were(url, ledger, desk, target_url, newcomer):
    tell_a_story(ledger, desk)
    before = accepted(ledger)

    copy(url, target_url)

    with open_ledger(target_url) as copied:
        assert accepted(copied) == before
        newcomer(copied).pending()
        assert accepted(copied) == before | {"captions": before["captions"] + 1}


def test_an_empty_ledger_that_was_made_before_takes_a_copy(url, ledger, desk, target_url):
    desk.pending()
    open_ledger(target_url).close()

    copy(url, target_url)

    assert contents(target_url) == contents(url)


def test_a_copy_of_nothing_is_a_ledger_that_works(url, ledger, target_url, at_desk):
    copy(url, target_url)

    with open_ledger(target_url) as copied:
        assert copied.name == ledger.name
        assert at_desk(copied).pending().state is State.PENDING


def test_a_target_that_was_used_is_refused_and_left_as_it_is(url, ledger, desk, target_url, at_desk):
    desk.pending()
    with open_ledger(target_url) as theirs:
        at_desk(theirs).accept("theirs")
    before = contents(target_url)

    with pytest.raises(SettingsError, match=r"was used before, .*; name (a file|an empty database)"):
        copy(url, target_url)

    assert contents(target_url) == before


def test_a_ledger_is_not_copied_into_itself(url, ledger):
    with pytest.raises(SettingsError, match="into itself"):
        copy(url, url)


def test_nothing_is_left_in_the_target_of_a_copy_that_failed(url, ledger, desk, target_url, monkeypatch):
    desk.pending()
    monkeypatch.setattr(copying, "take_over", break_off_after(take_over))

    with pytest.raises(KeyboardInterrupt):
        copy(url, target_url)

    with pytest.raises(LedgerMissing):
        open_ledger(target_url, create=False)
    monkeypatch.undo()
    copy(url, target_url)
    assert contents(target_url) == contents(url)


def break_off_after(take_over: Callable[..., Any]) -> Callable[..., Any]:
    def broken_off(*args: Any, **more: Any) -> Any:
        take_over(*args, **more)
        raise KeyboardInterrupt

    return broken_off


def test_a_source_that_somebody_uses_is_not_copied_and_the_user_is_named(url, ledger, target_url):
    with open_ledger(url) as other:
        assert other.owner_id

        with pytest.raises(LedgerUnavailable, match=rf"still used by .* pid {os.getpid()} \(runner\); end them first"):
            copy(url, target_url, sleep=lambda _: beat(other))

    with pytest.raises(LedgerMissing):
        open_ledger(target_url, create=False)


def beat(ledger: Ledger) -> None:
    ledger.sweep()


def test_the_jobs_of_a_program_that_died_are_parked_before_a_copy(url, ledger, desk, target_url):
    held = desk.running(desk.owner(boot_id="another machine", host="gone"))
    now = [0.0]

    def later(wait_s: float) -> None:
        now[0] += 40.0

    with pytest.raises(LedgerUnavailable, match=r"still used by gone pid 1 \(runner\)"):
        copy(url, target_url, sleep=later, monotonic=lambda: now[0])
    desk.lose(held.owner_id)
    copy(url, target_url)

    with open_ledger(target_url) as copied, copied.ask() as reader:
        assert reader.count(Filters(), states=[State.PARKED]) == 1


def test_a_ledger_whose_law_does_not_hold_is_not_copied(url, ledger, desk, target_url):
    desk.pending()
    statement = "UPDATE counters SET value = value + 1 WHERE metric = 'jobs_accepted'"
    back = statement.replace("+", "-")
    for done, refused in ((statement, True), (back, False)):
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
                connection.execute(done)
        else:
            with psycopg.connect(url) as server:
                server.execute(done.replace("counters", "parked.counters").encode())
        if refused:
            with pytest.raises(LedgerUnavailable, match="`parked audit` names them"):
                copy(url, target_url)
    copy(url, target_url)


def test_a_source_that_a_newer_parked_has_changed_is_not_copied_by_halves(url, ledger, target_url):
    note = "INSERT INTO {}schema_version VALUES (9001, {}, 'more', 1.0, '9')"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(note.format("", 1))
    else:
        with psycopg.connect(url) as server:
            server.execute(note.format("parked.", "true").encode())

    with pytest.raises(LedgerTooNew, match="upgrade parked to copy it"):
        copy(url, target_url)


def test_a_missing_source_makes_neither_ledger(tmp_path, other_url):
    with pytest.raises(LedgerMissing):
        copy(f"sqlite:///{tmp_path}/parked.db", other_url("sqlite"))

    assert names(tmp_path) == []


# --- what is copied is what there is ---


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_table_and_every_column_is_taken_over(dialect, tmp_path, postgres_url):
    url = f"sqlite:///{tmp_path}/parked.db" if dialect == "sqlite" else postgres_url
    open_ledger(url).close()
    there: dict[str, list[str]] = {}
    if dialect == "sqlite":
        with closing(sqlite3.connect(tmp_path / "parked.db")) as connection:
            names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                there[name] = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        del there["sqlite_sequence"]
    else:
        with psycopg.connect(url) as server:
            for name, column in server.execute(
                "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'parked'"
                " ORDER BY table_name, ordinal_position"
            ):
                there.setdefault(name, []).append(column)
    del there["schema_version"]
    there["counters"].remove("slot")  # they are summed

    taken = {table: load(dialect)[f"columns_of_{table}"].split(", ") for table in TABLES}

    assert {table: sorted(columns) for table, columns in there.items()} == {t: sorted(c) for t, c in taken.items()}


def test_both_databases_name_the_columns_in_the_same_order():
    lite, full = load("sqlite"), load("postgres")

    assert all(lite[f"columns_of_{table}"] == full[f"columns_of_{table}"] for table in TABLES)


def test_every_sequence_goes_on_behind_what_was_copied():
    made = set()
    for script in (SQL_FOLDER / "migrations" / "postgres").glob("*.sql"):
        made |= set(re.findall(r"CREATE SEQUENCE (parked\.\w+)", script.read_text("utf-8")))

    assert made == set(re.findall(r"setval\('(parked\.\w+)'", load("postgres")["go_on_from"]))


# --- backups ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder / "kept.db"


def test_a_backup_holds_all_that_there_is_for_its_owner_alone(url, ledger, desk, file):
    tell_a_story(ledger, desk)

    kept = backup(url, file)

    assert contents(f"sqlite:///{file}") == contents(url)
    assert (kept.jobs, kept.bytes) == (len(contents(url)["jobs"]), file.stat().st_size)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert names(file.parent) == ["kept.db"]


def test_a_backup_is_a_ledger_that_can_be_used(url, ledger, desk, file, newcomer):
    tell_a_story(ledger, desk)
    backup(url, file)

    with open_ledger(f"sqlite:///{file}") as kept:
        there = newcomer(kept)
        assert there.answer(there.running(owner := there.owner()), owner).state is State.SUCCEEDED
        assert there.imbalances() == []
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_backup_is_one_moment_of_a_ledger_that_goes_on(url, ledger, desk, file, at_desk):
    ends = threading.Event()
    accepted: list[str] = []

    def go_on() -> None:
        with open_ledger(url) as mine:
            there = at_desk(mine)
            owner = there.owner()
            while not ends.is_set():
                row = there.accept(f"more-{len(accepted)}", start_for=owner).row
                there.answer(row, owner)
                accepted.append(row.job_id)
            mine.record(op.Leave(owner))

    busy = threading.Thread(target=go_on)
    busy.start()
    try:
        while len(accepted) < 20:
            assert busy.is_alive()
        for n in range(5):
            at_least = len(accepted)
            kept = backup(url, file.with_name(f"{n}.db"))
            with open_ledger(f"sqlite:///{kept.file}") as opened, opened.ask() as reader:
                assert reader.imbalances(thorough=True) == []
                assert at_least <= reader.count(Filters(), states=[State.SUCCEEDED]) <= len(accepted) + 1
    finally:
        ends.set()
        busy.join()


def test_a_backup_holds_nothing_of_what_was_erased(tmp_path, sqlite_url, file, at_desk):
    with open_ledger(sqlite_url) as ledger:
        desk = at_desk(ledger)
        rows = [desk.parked() for _ in range(3)]
        for n in range(600):
            row = desk.accept(f"long-{n:04}-{'x' * (n % 400)}", payload=SECRET * (1 + n % 60)).row
            desk.discard(row)
            rows.append(row)
        for row in rows[::2]:
            ledger.record(op.Erase(row.id, "why"))
        for row in rows[1::2]:
            ledger.record(op.Erase(row.id, "why"))
        assert SECRET.encode() in b"".join(f.read_bytes() for f in tmp_path.glob("parked.db*"))  # not scrubbed yet

        backup(sqlite_url, file)

    assert SECRET.encode() not in file.read_bytes()


def test_a_backup_of_a_damaged_ledger_is_refused_not_made(sqlite_url, tmp_path, file, at_desk):
    with open_ledger(sqlite_url) as ledger:
        desk = at_desk(ledger)
        for _ in range(50):
            desk.pending()
    damaged = tmp_path / "parked.db"
    content = bytearray(damaged.read_bytes())
    content[8192:] = b"\xff" * len(content[8192:])
    damaged.write_bytes(content)

    with pytest.raises(LedgerUnavailable, match="is damaged"):
        backup(sqlite_url, file)

    assert names(file.parent) == []
    assert damaged.read_bytes() == content


def test_nothing_is_overwritten_by_a_backup(url, ledger, file):
    file.write_text("mine")

    with pytest.raises(SettingsError, match="is there already, and nothing is overwritten"):
        backup(url, file)

    assert file.read_text() == "mine"
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(SettingsError, match="is there already"):
        backup(url, file)


def test_nothing_that_somebody_writes_during_a_backup_is_overwritten(sqlite_url, file, monkeypatch):
    open_ledger(sqlite_url).close()
    database = type(locate(sqlite_url))
    write_copy = database.write_copy

    def slow(self: Any, partial: Path) -> None:
        write_copy(self, partial)
        file.write_text("mine")

    monkeypatch.setattr(database, "write_copy", slow)

    with pytest.raises(OutputFailed, match="File exists"):
        backup(sqlite_url, file)

    assert file.read_text() == "mine"
    assert names(file.parent) == ["kept.db"]


@pytest.mark.parametrize("side", SIDES)
def test_what_sqlite_would_take_for_part_of_a_backup_is_not_ignored(sqlite_url, file, side):
    open_ledger(sqlite_url).close()
    Path(f"{file}{side}").write_bytes(b"left over")

    with pytest.raises(SettingsError, match=f"kept.db{side} is left of another database"):
        backup(sqlite_url, file)


@pytest.mark.parametrize("side", SIDES)
def test_a_backup_is_not_named_like_a_part_of_the_ledger(sqlite_url, tmp_path, side):
    open_ledger(sqlite_url).close()

    with pytest.raises(SettingsError, match="for part of the database"):
        backup(sqlite_url, tmp_path / f"parked.db{side}")


def test_a_folder_that_is_missing_is_named(sqlite_url, tmp_path):
    open_ledger(sqlite_url).close()

    with pytest.raises(SettingsError, match=f"the folder {tmp_path}/missing for kept.db does not exist"):
        backup(sqlite_url, tmp_path / "missing" / "kept.db")


@pytest.mark.parametrize("make", [lambda path: None, Path.touch])
def test_a_backup_of_no_ledger_is_none(sqlite_url, tmp_path, file, make):
    make(tmp_path / "parked.db")

    with pytest.raises(LedgerMissing):
        backup(sqlite_url, file)

    assert names(file.parent) == []
