"""`parked import`: a table as the article has it, taken over whole, and as often as one likes."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parked import deadtable, pasted
from parked.job import State
from parked.ledger import full_name, open_ledger
from parked.ledger.store import Filters
from servers import sqlite_only

ARTICLE = """CREATE TABLE dead_letter (
    job_id TEXT NOT NULL, payload TEXT NOT NULL, model TEXT NOT NULL, error_class TEXT NOT NULL, error_message TEXT,
    attempts INTEGER NOT NULL, parked_at TEXT NOT NULL
)"""
ROW = ("a", '{"prompt": "x"}', "m", "exhausted:503", "The model is overloaded.", 4, "2026-03-02 02:07:31")


@pytest.fixture
def source(tmp_path):
    """Returns a function that makes a table with these rows, and its file's name."""

    def make(*rows, ddl=ARTICLE, wal=False):
        file = tmp_path / "dead_letter.db"
        connection = sqlite3.connect(file)
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        with connection:
            connection.execute(ddl)
            for row in rows:
                connection.execute(f"INSERT INTO dead_letter VALUES ({', '.join('?' * len(row))})", row)
        connection.close()
        return str(file)

    return make


@pytest.fixture
def rows(url):
    """Returns a function that reads what the ledger holds, and checks that the law holds."""

    def read(state=State.PARKED):
        with open_ledger(url, create=False) as ledger, ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            return list(reader.jobs(Filters(), states=(state,)))

    return read


def test_rows_become_parked_jobs_with_all_that_the_table_knows(parked, source, rows, url):
    said = parked("import", source(ROW), "--pipeline", "nightly", "--call", "json:dumps")

    assert (said.status, said.out) == (0, "")
    assert said.err.splitlines() == [
        f"made the ledger {full_name(url)}",
        "1 taken over, 0 known before, 0 refused",
        "to see what is parked and why: parked list --pipeline nightly",
    ]
    (row,) = rows()
    assert (row.pipeline, row.job_id, row.model, row.error_class) == ("nightly", "a", "m", "exhausted:503")
    assert (row.reason, row.calls, row.parked_at) == ("overloaded", 4, 1772417251.0)
    assert row.fingerprint is not None
    shown = json.loads(parked("show", "a", "--payload", "--json").out)
    assert shown["payload"] == {"prompt": "x"}
    assert shown["attempts"][0]["message"] == "The model is overloaded."


def test_it_goes_to_the_pipeline_default_as_the_articles_own_functions_do(parked, source, rows):
    parked("import", source(ROW))

    assert [row.pipeline for row in rows()] == ["default"]


def test_run_again_it_doubles_nothing(parked, source, rows):
    file = source(ROW, ("b", *ROW[1:]))
    parked("import", file)
    before = rows()

    said = parked("import", file, "--json")

    assert said.status == 0
    told = json.loads(said.out)
    assert (told["taken"], told["known_before"], told["refused"]) == (0, 2, [])
    assert rows() == before


def test_what_was_dealt_with_since_is_not_parked_anew(parked, source, rows):
    file = source(ROW)
    parked("import", file)
    parked("discard", "--all", "--reason", "r", "--apply")

    parked("import", file)

    assert rows() == []
    assert [row.job_id for row in rows(State.DISCARDED)] == ["a"]


def test_a_row_that_can_not_be_taken_is_named_and_set_aside_and_the_others_are_taken(parked, source, rows):
    file = source(
        ("good", *ROW[1:]),
        ("not json", "{'prompt': 1}", *ROW[2:]),
        ("", *ROW[1:]),
        ("a\tb", *ROW[1:]),
        ("nan", '{"temperature": NaN}', *ROW[2:]),
        ("good", '{"prompt": "another"}', *ROW[2:]),
        ("deep", "[" * 100_000, *ROW[2:]),
        ("bytes", b"\xff\xfe", *ROW[2:]),
    )

    said = parked("import", file, "--json")

    assert said.status == 1
    told = json.loads(said.out)
    assert (told["taken"], told["refused"]) == (1, [2, 3, 4, 5, 6, 7, 8])
    assert "row 2: its payload is no JSON" in said.err
    assert "row 6: job 'good' of pipeline 'default' was accepted before with another payload" in said.err
    assert "1 taken over, 0 known before, 7 refused" in said.err
    lines = Path(told["refused_to"]).read_text("ascii").splitlines()
    aside = {line["rowid"]: line["row"]["payload"] for line in map(json.loads, lines)}
    assert sorted(aside) == told["refused"]
    assert (aside[2], aside[8]) == ("{'prompt': 1}", {"hex": "fffe"})
    assert Path(told["refused_to"]).stat().st_mode & 0o777 == 0o600
    assert [row.job_id for row in rows()] == ["good"]


@pytest.mark.parametrize(
    ("ddl", "row", "expected"),
    [
        pytest.param(
            "CREATE TABLE dead_letter (id INTEGER PRIMARY KEY, job_id TEXT, model TEXT, payload TEXT)",
            (7, "a", "m", "{}"),
            ("a", "m", "exhausted:unclassified", 1),
            id="only what is needed",
        ),
        pytest.param(
            "CREATE TABLE Dead_Letter (ID INTEGER PRIMARY KEY, Payload_JSON TEXT, Model_Name TEXT, Tries TEXT)",
            (7, "{}", "m", "3"),
            ("7", "m", "exhausted:unclassified", 3),
            id="other names, and numbers as ids",
        ),
        pytest.param(
            "CREATE TABLE dead_letter (job_id TEXT, payload TEXT, model TEXT, status_code INTEGER, last_error TEXT)",
            ("a", "{}", "m", 503, "overloaded"),
            ("a", "m", "exhausted:503", 1),
            id="a status and no class",
        ),
        pytest.param(
            "CREATE TABLE dead_letter (job_id TEXT, payload BLOB, model TEXT, error_class TEXT, attempts INTEGER)",
            ("a", b"{}", "m", "RateLimit", None),
            ("a", "m", "RateLimit", 1),
            id="a class of one's own",
        ),
        pytest.param(
            "CREATE TABLE dead_letter (job_id TEXT, payload TEXT, error_message TEXT)",
            ("a", "{}", "nothing"),
            ("a", "by-flag", "exhausted:unclassified", 1),
            id="no model",
        ),
    ],
)
def test_columns_may_be_missing_or_go_by_other_names(parked, source, rows, ddl, row, expected):
    said = parked("import", source(row, ddl=ddl), "--model", "by-flag")

    assert said.status == 0
    (taken,) = rows()
    assert (taken.job_id, taken.model, taken.error_class, taken.calls) == expected


@pytest.mark.parametrize(
    ("value", "at"),
    [
        ("2026-03-02T02:07:31Z", 1772417251.0),
        ("2026-03-02T03:07:31+01:00", 1772417251.0),
        ("2026-03-02 02:07:31.500", 1772417251.5),
        (1772417251.25, 1772417251.25),
        (1772417251250, 1772417251.25),
        ("1772417251", 1772417251.0),
    ],
)
def test_times_are_read_as_they_are_usually_kept(parked, source, rows, value, at):
    parked("import", source((*ROW[:-1], value)))

    assert [row.parked_at for row in rows()] == [at]


@pytest.mark.parametrize("value", ["yesterday", -5, float("inf"), "9999-12-31T23:59:59+00:00", "", b"x"])
def test_a_time_that_can_not_be_is_now(parked, source, rows, value):
    parked("import", source((*ROW[:-1], value)))

    (row,) = rows()
    assert 0 <= time.time() - row.parked_at < 60


@pytest.mark.parametrize(
    ("column", "over"),
    [
        ("recovered_at REAL", 1.0),
        ("replayed_at TEXT", "2026-03-02"),
        ("resolved INTEGER", 1),
        ("status TEXT", "Recovered"),
        ("state TEXT", "replayed"),
        ("recovered TEXT", "Yes"),
        ("recovered_at TEXT", "2026-03-02T02:07:31Z"),
    ],
)
def test_rows_that_were_dealt_with_are_left_and_said(parked, source, rows, column, over):
    ddl = f"CREATE TABLE dead_letter (job_id TEXT, payload TEXT, model TEXT, {column})"

    said = parked("import", source(("done", "{}", "m", over), ("open", "{}", "m", None), ddl=ddl))

    assert "1 taken over, 0 known before, 0 refused, 1 left, since the table says they were dealt with" in said.err
    assert [row.job_id for row in rows()] == ["open"]


@pytest.mark.parametrize("open_still", ["no", "False", "N", "f", "off", "0", "0.0", 0.0, " ", "never", "NULL", b"1"])
def test_a_mark_that_does_not_say_yes_leaves_a_row_open(parked, source, rows, open_still):
    ddl = "CREATE TABLE dead_letter (job_id TEXT, payload TEXT, model TEXT, recovered)"

    said = parked("import", source(("done", "{}", "m", 1), ("open", "{}", "m", open_still), ddl=ddl), "--json")

    assert json.loads(said.out)["over_rows"] == [1]
    assert "(rows 1)" in said.err
    assert [row.job_id for row in rows()] == ["open"]


@pytest.mark.parametrize("column", ["rowid", "RowID", "oid"])
def test_a_column_that_is_called_like_the_number_of_a_row_hides_no_row(parked, source, rows, column):
    ddl = f"CREATE TABLE dead_letter (job_id TEXT, payload TEXT, model TEXT, {column} TEXT)"

    parked("import", source(*((id, "{}", "m", "same") for id in "abc"), ddl=ddl))

    assert [row.job_id for row in rows()] == ["a", "b", "c"]


def test_a_table_that_hides_the_numbers_of_its_rows_is_refused(parked, source):
    ddl = "CREATE TABLE dead_letter (job_id TEXT, payload TEXT, rowid TEXT, _rowid_ TEXT, oid TEXT)"

    said = parked("import", source(ddl=ddl))

    assert said.status == 2
    assert "columns called rowid, _rowid_, oid, which hide the numbers of its rows" in said.err


def test_rows_that_come_while_it_reads_are_missed_and_said(parked, source, monkeypatch):
    file = source(ROW)
    pages = deadtable.DeadTable.pages

    def pages_while_one_comes(table):
        yield from pages(table)
        writing = sqlite3.connect(file)
        with writing:
            writing.execute("INSERT INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?)", ("late", *ROW[1:]))
        writing.close()

    monkeypatch.setattr(deadtable.DeadTable, "pages", pages_while_one_comes)

    said = parked("import", file, "--json")

    assert json.loads(said.out)["rows"] == 2
    assert "the table has 2 rows, and 1 were read" in said.err


def test_of_a_damaged_table_what_stands_before_the_damage_is_taken_and_told(parked, source, rows):
    file = source(*((f"j{n}", *ROW[1:]) for n in range(2_000)))
    damaged = bytearray(Path(file).read_bytes())
    half = len(damaged) // 2
    damaged[half:] = b"\xff" * (len(damaged) - half)
    Path(file).write_bytes(damaged)

    said = parked("import", file, "--json")

    told = json.loads(said.out)
    assert said.status == 3
    assert 0 < told["taken"] < 2_000
    assert (told["last_row"], told["rows"]) == (told["taken"], None)
    assert f"broke off after row {told['taken']}: the table dead_letter of {file} can't be read: " in said.err
    assert len(rows()) == told["taken"]


def test_a_table_that_somebody_keeps_locked_is_no_wrong_input(parked, source, no_ledger, monkeypatch):
    monkeypatch.setattr(deadtable, "LOCK_TIMEOUT_S", 0)
    file = source(ROW)
    writing = sqlite3.connect(file, isolation_level=None)
    writing.execute("BEGIN EXCLUSIVE")

    said = parked("import", file)
    writing.close()

    assert said.status == 3
    assert "can't be read: database is locked" in said.err
    assert no_ledger()


SDK_TEXT = (
    "429 RESOURCE_EXHAUSTED. {'error': {'code': 429, 'message': 'Quota exceeded', 'status': 'RESOURCE_EXHAUSTED'}}"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nhttpx.ConnectError: refused\n'


@pytest.mark.parametrize(
    ("message", "error_class"),
    [
        ("503 overloaded", "exhausted:503"),
        ("503 Service Unavailable", "exhausted:503"),
        ("httpx.ReadTimeout: timed out", "exhausted:timeout"),
        (SDK_TEXT, "exhausted:429"),
        (TRACEBACK, "exhausted:network"),
        ('{"candidates": [{"content": {"parts": [{"text": "4"}]}, "finishReason": "STOP"}]}', "exhausted:unclassified"),
    ],
)
def test_a_row_without_a_class_gets_the_one_that_classify_would_give(parked, source, rows, message, error_class):
    ddl = "CREATE TABLE dead_letter (job_id TEXT, payload TEXT, model TEXT, error TEXT)"

    parked("import", source(("a", "{}", "m", message), ddl=ddl))

    (row,) = rows()
    told = pasted.read(message).verdict
    assert row.error_class == error_class
    assert row.reason == (told.reason or "unclassified")


@pytest.mark.parametrize("wal", [False, True], ids=["with a journal", "with a WAL"])
def test_the_source_is_only_read(parked, source, rows, tmp_path, wal):
    file = source(ROW, wal=wal)
    before = Path(file).read_bytes()
    Path(file).chmod(0o400)

    parked("import", file)

    assert Path(file).read_bytes() == before
    assert sorted(path.name for path in tmp_path.glob("dead_letter*")) == ["dead_letter.db"]
    assert len(rows()) == 1


def test_what_a_program_has_written_just_now_is_taken_too(parked, source, rows):
    file = source(ROW, wal=True)
    writing = sqlite3.connect(file)
    with writing:
        writing.execute("INSERT INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?)", ("b", *ROW[1:]))

    parked("import", file)
    with writing:
        writing.execute("INSERT INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?)", ("c", *ROW[1:]))
    writing.close()

    assert [row.job_id for row in rows()] == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file: None, "can't be read: No such file"),
        (lambda file: file.write_text("not a database at all"), "is not a SQLite database"),
        (lambda file: ddl(file, "CREATE TABLE jobs (a)"), "has no table dead_letter; it has jobs"),
        (lambda file: ddl(file, "CREATE TABLE dead_letter (job_id, model)"), "has no column for the payload"),
        (lambda file: ddl(file, "CREATE TABLE dead_letter (payload, model)"), "has no column for the job_id"),
        (lambda file: open_ledger(f"sqlite:///{file}").close(), "is a ledger of parked already"),
        (
            lambda file: ddl(file, "CREATE TABLE dead_letter (job_id PRIMARY KEY, payload) WITHOUT ROWID"),
            "can't be read: no such column: rowid",
        ),
    ],
    ids=["missing", "text", "no table", "no payload", "no id", "a ledger", "without rowids"],
)
def test_a_file_that_holds_no_such_table_is_refused_before_a_ledger_is_made(parked, tmp_path, no_ledger, make, says):
    make(tmp_path / "source.db")

    said = parked("import", str(tmp_path / "source.db"))

    assert said.status == 2
    assert says in said.err
    assert said.err.count("\n") == 1
    assert no_ledger()


def ddl(file, sql):
    connection = sqlite3.connect(file)
    connection.execute(sql)
    connection.close()


def test_a_row_without_a_model_says_what_to_do(parked, source):
    said = parked("import", source(("a", "{}"), ddl="CREATE TABLE dead_letter (job_id TEXT, payload TEXT)"))

    assert said.status == 1
    assert "row 1: it names no model; say --model M for such rows" in said.err


def test_who_calls_in_a_replay_can_be_named(parked, source, rows, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "asking.py").write_text("def ask(payload, model):\n    return f'{model} says {payload}'\n")

    said = parked("import", source(ROW), "--call", "asking:ask")
    parked("replay", "--all", "--apply")

    assert said.status == 0
    assert [row.caller for row in rows(State.RECOVERED)] == ["asking:ask"]


def test_a_caller_that_is_not_there_is_refused_before_anything_is_taken(parked, source, no_ledger):
    said = parked("import", source(ROW), "--call", "nowhere:nothing")

    assert said.status == 2
    assert "can't import nowhere:nothing" in said.err
    assert no_ledger()


@pytest.mark.slow
@sqlite_only
def test_interrupted_and_run_again_it_takes_every_row_once(parked, source, rows, tmp_path, url):
    file = source(*((f"j{n}", *ROW[1:]) for n in range(2_000)))
    process = subprocess.Popen([sys.executable, "-m", "parked.cli", "import", file, "--ledger", url])
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline and not taken(tmp_path):
        pass
    process.kill()
    process.wait()
    half = len(rows())

    said = parked("import", file)

    assert half
    assert f"{2_000 - half} taken over, {half} known before, 0 refused" in said.err
    assert len(rows()) == 2_000
    assert {row.calls for row in rows()} == {4}


def taken(tmp_path):
    if not (tmp_path / "parked.db").exists():
        return 0
    watching = sqlite3.connect(tmp_path / "parked.db")
    try:
        return watching.execute("SELECT count(*) FROM jobs").fetchone()[0]
    except sqlite3.OperationalError:  # it is being made
        return 0
    finally:
        watching.close()


# --- payloads that nobody has looked at before -------------------------------------------------------------------


def test_rows_that_the_caller_cannot_send_are_taken_over_and_named(parked, source):
    fine = ("fine", '{"contents": "x"}', *ROW[2:])

    said = parked("import", source(ROW, fine), "--pipeline", "nightly")
    told = json.loads(parked("import", source(ddl="SELECT 1"), "--pipeline", "others", "--json").out)

    assert said.status == 0
    assert "2 taken over" in said.err
    assert "1 of them can't be sent as it is, e.g. row 1: the payload has no `contents`; " in said.err
    assert "; replay such with --payload FILE, or by a function of yours: " in said.err
    assert told["unsendable"] == [1]


def test_rows_that_a_function_is_to_be_called_for_are_not_judged_by_what_gemini_takes(parked, source):
    said = parked("import", source(ROW), "--pipeline", "nightly", "--call", "json:dumps")

    assert "can't be sent" not in said.err


def test_a_replay_of_a_row_that_cannot_be_sent_calls_nothing_and_says_why(parked, api, source, rows):
    parked("import", source(ROW), "--pipeline", "nightly")

    said = parked("replay", "--all", "--apply")

    assert (said.status, api.requests) == (1, [])
    (row,) = rows()
    assert (row.error_class, row.reason, row.calls) == ("permanent:invalid_request", "invalid_request", 5)
    assert "the payload has no `contents`; " in parked("show", "a").out


def test_the_page_lists_the_columns_that_are_looked_for():
    page = (Path(__file__).parents[3] / "docs/operating.md").read_text()

    for field, names in deadtable.NAMES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{names[0]}`"))
        assert re.findall("`([a-z_]+)`", row.split("|")[1]) == list(names), field
