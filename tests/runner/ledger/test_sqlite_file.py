"""What only SQLite has: a file, its rights, its schema, its damages."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from parked.errors import LedgerMissing, LedgerTooNew, LedgerUnavailable, SettingsError
from parked.job import State
from parked.ledger import migrations, open_ledger, sqlite, sqlite_file
from parked.ledger import operations as op
from parked.ledger.migrations import Migration, Upgrade, Upgraded
from parked.ledger.sqlite import SQL, SqliteStore
from parked.ledger.sqlite_schema import SqliteSchema
from parked.ledger.statements import split
from parked.ledger.store import Filters


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "parked.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


def edit(file: Path, *statements: str) -> None:
    connection = sqlite3.connect(file)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


# --- where it is ---


def test_a_ledger_that_is_missing_is_created_for_its_owner_alone(url, file):
    with open_ledger(url) as ledger:
        ledger.record(op.SetMark("a", 1))

        assert ledger.created
        assert [mode_of(Path(f"{file}{side}")) for side in ("", "-wal", "-shm")] == [0o600] * 3


def test_the_mode_is_as_asked_for_whatever_the_umask_says(url, file):
    before = os.umask(0o077)
    try:
        with open_ledger(url, mode=0o660) as ledger:
            ledger.record(op.SetMark("a", 1))
            assert [mode_of(Path(f"{file}{side}")) for side in ("", "-wal", "-shm")] == [0o660] * 3
    finally:
        os.umask(before)


def test_a_ledger_keeps_its_word(url):
    with open_ledger(url) as ledger:
        name = ledger.name

    with open_ledger(url) as again:
        assert (again.name, again.created) == (name, False)
    assert re.fullmatch("[a-z]{6}", name)


def test_a_relative_path_stays_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_ledger() as ledger:
        monkeypatch.chdir("/")
        ledger.record(op.SetMark("a", 1))
        assert ledger.where == f"sqlite:///{tmp_path}/parked.db"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://parked.db", "three or four slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///a.db?mode=ro", "no options"),
        ("mysql://u:secret@h/db", "the scheme 'mysql'"),
        ("parked.db", "'parked.db', without a scheme"),
        ("host=h password=secret", "text without a scheme"),
        ("host=h password=se:cret", "text without a scheme"),
        ("u:secret@h/db", "text without a scheme"),
    ],
)
def test_another_url_is_refused_with_the_rule_and_no_secret(url, said):
    with pytest.raises(SettingsError, match=said) as refused:
        open_ledger(url)
    assert "secret" not in str(refused.value)


def test_a_command_that_only_looks_creates_no_ledger(url, file):
    with pytest.raises(LedgerMissing, match=f"there is no ledger at {file}; name another"):
        open_ledger(url, create=False)
    assert not file.exists()


def test_an_empty_file_is_no_ledger_for_a_command_that_only_looks(url, file):
    file.touch(0o600)

    with pytest.raises(LedgerMissing, match="is empty"):
        open_ledger(url, create=False)
    with open_ledger(url) as ledger:
        assert ledger.created


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(LedgerUnavailable, match=f"the folder {tmp_path}/missing for the ledger does not exist"):
        open_ledger(f"sqlite:///{tmp_path}/missing/parked.db")


def test_a_file_of_something_else_is_named(url, file):
    file.write_text("job_id,answer\n" * 100)

    with pytest.raises(LedgerUnavailable, match=f"{file} is not a SQLite database"):
        open_ledger(url)


def test_the_database_of_another_program_is_left_alone(url, file):
    edit(file, "CREATE TABLE dead_letter (job_id TEXT)")

    with pytest.raises(LedgerUnavailable, match=r"another program .*'dead_letter'.*`parked import`"):
        open_ledger(url)


def test_a_damaged_ledger_is_called_damaged(url, file, at_desk):
    with open_ledger(url) as ledger:
        desk = at_desk(ledger)
        for _ in range(50):
            desk.pending()
    content = bytearray(file.read_bytes())
    content[8192:] = b"\xff" * len(content[8192:])
    file.write_bytes(content)

    with pytest.raises(LedgerUnavailable, match="is damaged; restore a backup"), open_ledger(url) as ledger:
        at_desk(ledger).pending()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("rights", "said"),
    [
        (0o644, "may be read but not written by this user (65534; it belongs to 0)"),
        (0o600, "may not be read by this user (65534; it belongs to 0)"),
    ],
)
def test_who_may_not_write_is_refused_with_both_remedies(rights, said):
    script = """
import os, sys, tempfile
folder = tempfile.mkdtemp()
os.chmod(folder, 0o777)
from parked.errors import LedgerUnavailable
from parked.ledger import open_ledger
open_ledger(f"sqlite:///{folder}/parked.db").close()
os.chmod(f"{folder}/parked.db", int(sys.argv[1]))
os.setuid(65534)
try:
    open_ledger(f"sqlite:///{folder}/parked.db")
except LedgerUnavailable as exc:
    print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(rights)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert said in done.stdout, done.stderr
    assert "as one user" in done.stdout
    assert "PARKED_LEDGER_MODE=0660" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("rights", "create", "said"),
    [
        (
            0o755,
            "",
            "there is no ledger at {}, nor could this user (65534) make or use one there, since its folder may",
        ),
        (0o755, "create", "the ledger {} can't be created: Permission denied"),
        (0o700, "", "the ledger {} can't be reached: Permission denied"),
    ],
)
def test_a_folder_that_is_another_user_s_is_told_apart_from_a_ledger_that_is_missing(rights, create, said):
    """A volume that was just made belongs to root, whoever is to use it."""
    script = """
import os, sys, tempfile
folder = tempfile.mkdtemp()
os.chmod(folder, int(sys.argv[1]))
from parked.errors import LedgerMissing, LedgerUnavailable
from parked.ledger import open_ledger
import parked.ledger.sqlite
os.setuid(65534)
try:
    open_ledger(f"sqlite:///{folder}/parked.db", create=bool(sys.argv[2]))
except LedgerUnavailable as exc:
    print(isinstance(exc, LedgerMissing), exc)
    print(f"{folder}/parked.db")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(rights), create],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    told, path = done.stdout.splitlines()
    assert told.startswith(f"False {said.format(path)}"), done.stderr
    assert (
        "let user 65534 write its folder (chown; fsGroup on Kubernetes), run this as the user who may, or name" in told
    )


@pytest.mark.parametrize("side", ["", "-wal", "-shm"])
@pytest.mark.parametrize(
    ("mode", "said", "remedy"),
    [
        (0o604, "may be read or written by every user of this machine (mode 0604)", "chmod 600"),
        (0o602, "every user of this machine", "chmod 600"),
        (0o664, "every user of this machine", "chmod 660"),
        (0o640, "may be read but not written by its group (mode 0640)", "chmod 600"),
        (0o620, "may be written but not read by its group (mode 0620)", "chmod 600"),
    ],
)
def test_a_ledger_that_others_may_read_is_refused_with_the_remedy(url, file, side, mode, said, remedy):
    with open_ledger(url) as ledger:
        ledger.record(op.SetMark("a", 1))
        exposed = Path(f"{file}{side}")
        exposed.chmod(mode)

        with pytest.raises(LedgerUnavailable) as refused:
            open_ledger(url)

    assert said in str(refused.value)
    assert f"its owner mends that: {remedy} {exposed}" in str(refused.value)


def test_the_remedy_names_a_file_as_a_shell_takes_it():
    fault = sqlite_file.fault_of_mode(0o644, Path("/srv/my jobs/parked.db"))

    assert fault is not None
    assert fault.endswith("chmod 600 '/srv/my jobs/parked.db'")


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o700, 0o2660, 0o400])
def test_a_ledger_of_one_user_or_of_one_group_is_fine(mode):
    assert sqlite_file.fault_of_mode(mode, Path("parked.db")) is None


@pytest.mark.parametrize("code", sorted(sqlite_file.MEANINGS))
def test_every_trouble_of_sqlite_becomes_one_sentence(code, file):
    error = sqlite3.OperationalError("whatever SQLite says")
    error.sqlite_errorcode = code | 256  # extended codes carry the primary one in their lowest byte

    explained = sqlite_file.explain(error, file)

    assert isinstance(explained, LedgerUnavailable)
    assert str(explained).startswith(f"the ledger {file} ")


# --- how it is kept ---


def test_commits_are_synced_and_what_is_deleted_is_overwritten(url, file):
    open_ledger(url).close()
    connection = sqlite_file.connect(file)

    pragmas = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "wal_autocheckpoint")
    }
    connection.close()

    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "secure_delete": 1,
        "wal_autocheckpoint": 0,
    }


def test_a_ledger_that_another_tool_wrote_anew_is_in_wal_mode_again(url, file, at_desk):
    with open_ledger(url) as ledger:
        at_desk(ledger).pending()
    with closing(sqlite3.connect(file)) as connection:
        rows = "\n".join(connection.iterdump())
    for side in file.parent.glob("parked.db*"):
        side.unlink()
    file.touch(0o600)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(rows)
        connection.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")  # as docs/operating.md says

    with open_ledger(url, create=False) as ledger:
        assert at_desk(ledger).imbalances() == []
        assert at_desk(ledger).accept("more").row.id == 2
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_long_log_is_taken_into_the_database_while_others_are_connected(url, file, at_desk):
    with open_ledger(url) as other, open_ledger(url) as ledger:
        at_desk(other).accept("another")
        desk = at_desk(ledger)
        for _ in range(40):
            desk.accept(payload="x" * 400_000)

        assert Path(f"{file}-wal").stat().st_size < 10_000_000


def test_a_reader_leaves_nothing_that_locks_writers_out(url, desk, ledger):
    with ledger.ask() as reader:
        list(reader.states())
        desk.pending()


# --- its schema ---


def test_the_check_on_states_is_the_enum(url, file):
    open_ledger(url).close()
    connection = sqlite3.connect(file)
    (text,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'jobs'").fetchone()
    connection.close()

    allowed = re.search(r"state IN \((.*?)\)", text)

    assert allowed is not None
    assert set(re.findall(r"'(\w+)'", allowed[1])) == {state.value for state in State if state is not State.FORGOTTEN}


def schema(file: Path) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(file)
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    connection.close()
    return found


def migrate(file: Path, steps: list[Migration], **more: Any) -> Upgraded:
    file.touch(0o600)
    connection = sqlite_file.connect(file)
    try:
        schema = SqliteSchema(connection, file, clock=lambda: 1.0)
        options: dict[str, Any] = {"create": True, "upgrade": Upgrade.ALL} | more
        return migrations.bring_up_to_date(schema, steps=steps, **options)
    finally:
        connection.close()


STEPS = list(migrations.migrations("sqlite"))
ADDITIVE = Migration(9001, "more", True, ("ALTER TABLE jobs ADD COLUMN more TEXT",))
BREAKING = Migration(9002, "other", False, ("ALTER TABLE jobs RENAME COLUMN more TO other",))


def test_a_migrated_ledger_equals_a_new_one(tmp_path):
    known = [*STEPS, ADDITIVE, BREAKING]
    for count in range(1, len(known) + 1):
        migrate(tmp_path / "grown.db", known[:count])
    migrate(tmp_path / "new.db", known)

    assert schema(tmp_path / "grown.db") == schema(tmp_path / "new.db")


def test_a_step_that_fails_leaves_nothing_of_itself(file):
    migrate(file, STEPS)
    before = schema(file)
    broken = Migration(9001, "broken", True, ("ALTER TABLE jobs ADD COLUMN more TEXT", "CREATE TABLE jobs (id)"))

    with pytest.raises(sqlite3.OperationalError):
        migrate(file, [*STEPS, broken])

    assert schema(file) == before


def test_a_ledger_that_is_newer_by_additive_steps_is_used(url, file, at_desk):
    migrate(file, [*STEPS, ADDITIVE])

    with open_ledger(url) as ledger:
        assert at_desk(ledger).pending().state is State.PENDING


def test_a_ledger_that_is_newer_by_a_breaking_step_is_refused(url, file):
    migrate(file, [*STEPS, ADDITIVE, BREAKING])

    with pytest.raises(LedgerTooNew, match="upgrade parked"):
        open_ledger(url)


def test_who_does_not_migrate_is_told_which_command_does(file):
    migrate(file, STEPS)

    with pytest.raises(LedgerUnavailable, match="`parked migrate`"):
        migrate(file, [*STEPS, ADDITIVE], upgrade=Upgrade.NONE)


def copies(file: Path) -> list[Path]:
    return sorted(file.parent.glob("parked.db.before-*"))


def test_a_breaking_step_keeps_a_copy_of_the_ledger_as_it_was(url, file, at_desk):
    with open_ledger(url) as ledger:
        at_desk(ledger).pending()
    before = schema(file)

    done = migrate(file, [*STEPS, ADDITIVE, BREAKING])

    assert done.copy == Path(f"{file}.before-9001")
    assert copies(file) == [done.copy]
    assert mode_of(done.copy) == 0o600
    assert schema(done.copy) == before
    with open_ledger(f"sqlite:///{done.copy}") as kept, kept.ask() as reader:
        assert reader.count(Filters(), states=[State.PENDING]) == 1


def test_a_copy_of_before_is_never_overwritten_by_the_next(file):
    migrate(file, STEPS)
    earlier = Path(f"{file}.before-9001")
    earlier.write_text("mine")

    done = migrate(file, [*STEPS, ADDITIVE, BREAKING])

    assert copies(file) == [earlier, Path(f"{file}.before-9001.2")] == [earlier, done.copy]
    assert earlier.read_text() == "mine"


def test_an_additive_step_and_a_new_ledger_keep_no_copy(file):
    migrate(file, STEPS)
    migrate(file, [*STEPS, ADDITIVE])

    assert copies(file) == []


def test_a_breaking_step_that_fails_leaves_no_copy(file):
    migrate(file, [*STEPS, ADDITIVE])
    broken = Migration(9003, "broken", False, ("CREATE TABLE jobs (id)",))

    with pytest.raises(sqlite3.OperationalError):
        migrate(file, [*STEPS, ADDITIVE, broken])

    assert copies(file) == []


def test_who_comes_before_a_breaking_step_has_begun_is_waited_for(url, file, monkeypatch):
    migrate(file, STEPS)
    transaction = SqliteSchema.transaction

    def late(self: SqliteSchema) -> Any:
        facts = "'t', 'runner', 'h', '', '', 1, '', '0.1', 0, 1.0, 1.0, NULL, NULL"
        edit(file, f"INSERT INTO owners VALUES (7, {facts}, NULL, NULL, NULL, NULL)")
        return transaction(self)

    monkeypatch.setattr(SqliteSchema, "transaction", late)

    with pytest.raises(LedgerUnavailable, match=r"still used by h pid 1 \(0\.1\)"):
        migrate(file, [*STEPS, ADDITIVE, BREAKING])

    assert copies(file) == []


def test_every_migration_says_whether_it_is_additive():
    assert [step.number for step in STEPS] == sorted({step.number for step in STEPS})
    assert all(step.statements for step in STEPS)


# --- its statements ---


def test_a_job_row_and_an_owner_row_have_the_columns_that_are_asked_for():
    jobs = [name.strip().removeprefix("jobs.") for name in SQL["job"].split(",")]
    owners = [name.strip().removeprefix("owners.") for name in SQL["owner"].split(",")]

    assert jobs == list(op.JobRow._fields)
    facts = list(op.OwnerFacts._fields)
    run = ["pipeline", "caller", "checker", "run_began_at"]
    assert owners == [*facts, "id", "beat", "started_at", "beat_at", "ended_at", "lost_at", *run]


def test_every_statement_that_is_used_exists_and_every_one_that_exists_is_used():
    folder = Path(sqlite.__file__).parent
    code = "\n".join(file.read_text("utf-8") for file in folder.glob("*.py"))
    sql = (folder / "sql" / "sqlite.sql").read_text("utf-8")
    states = {f"oldest_{state}" for state in (State.PARKED, State.PENDING, State.RUNNING)}
    conditions = {name for name in SQL if name.startswith(("where_", "audit_", "rows_of_", "fill_"))}

    used = set(re.findall(r'SQL\["(\w+)"', code)) | set(re.findall(r'else "(\w+)"\]', code)) | states
    named = used | {name for name in SQL if f'"{name}"' in code or f"{{{name}}}" in sql} | conditions

    assert used <= set(SQL)
    assert set(SQL) <= named


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lanes", {"now": 1.0}),
        ("heads", {"now": 1.0, "pipeline": "p", "caller": "", "checker": "", "model": "m", "limit": 1}),
        ("tails", {"now": 1.0, "pipeline": "p", "caller": "", "checker": "", "model": "m", "limit": 1}),
        ("job_by_key", {"job_id": "a", "pipeline": "p", "batch": ""}),
        ("last_place", {}),
        ("states", {}),
        ("oldest_parked", {}),
        ("oldest_pending", {}),
        ("oldest_running", {}),
        ("held_by", {"owner_id": 1}),
        ("open_attempts_of", {"owner_id": 1}),
        ("owners_alive", {}),
        ("owners_counted", {"since": 1.0}),
    ],
)
def test_no_statement_of_the_daily_round_scans_the_jobs(url, file, name, values):
    open_ledger(url).close()
    store = SqliteStore(file)
    plan = [row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", values)]
    store.close()

    assert not [step for step in plan if re.match(r"SCAN (jobs|attempts|owners)\b(?!.*INDEX)", step)]
    assert not [step for step in plan if "TEMP B-TREE FOR ORDER BY" in step]


@pytest.mark.parametrize("order", ["by_parking", "by_place"])
@pytest.mark.parametrize("condition", [None, "where_model", "where_error_class", "where_reason"])
def test_a_list_of_some_parked_jobs_does_not_sort_all_of_them(url, file, condition, order):
    open_ledger(url).close()
    store = SqliteStore(file)
    conditions = "where_parked" if condition is None else f"where_parked {condition}"
    sql = f"{SQL['select_jobs']} WHERE {' AND '.join(SQL[name] for name in conditions.split())} {SQL[order]} LIMIT 10"
    values = {"pipeline": "p", "model": "m", "error_class": "c", "reason": "r"}
    plan = [row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    store.close()

    assert not [step for step in plan if "TEMP B-TREE" in step or re.match(r"SCAN jobs\b(?!.*INDEX)", step)]


@pytest.mark.parametrize(("name", "values"), [("cause_counts", {"since": 1.0}), ("states", {})])
def test_what_is_asked_of_all_jobs_is_read_from_an_index_alone(url, file, name, values):
    open_ledger(url).close()
    store = SqliteStore(file)
    plan = [row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", values)]
    store.close()

    assert len(plan) == 1
    assert "USING COVERING INDEX" in plan[0]


def test_a_script_is_split_into_its_statements():
    assert split("-- additive\nCREATE TABLE a (\n  b TEXT  -- why; really\n);\nDROP TABLE c;\n") == [
        "CREATE TABLE a (\n  b TEXT  \n)",
        "DROP TABLE c",
    ]
