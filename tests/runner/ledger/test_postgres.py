"""What only PostgreSQL has: a server with roles and rights, a network in between, poolers, many writers at a time."""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from parked.errors import JobConflict, LedgerMissing, LedgerTooNew, LedgerUnavailable, SettingsError, TransitionError
from parked.job import State
from parked.ledger import Ledger, codec, migrations, open_ledger, postgres_server, rows
from parked.ledger import operations as op
from parked.ledger.databases import as_shown
from parked.ledger.migrations import Migration, Upgrade, Upgraded
from parked.ledger.moves import Change
from parked.ledger.postgres import SORTING, SQL, PostgresStore, unsorted
from parked.ledger.postgres_schema import PostgresSchema, begin
from parked.ledger.postgres_server import BEGIN_READING, Server, check_server
from parked.ledger.statements import load
from parked.ledger.store import Contended, Filters
from servers import Postgres, Wire, wait_until

WAIT_S = 30.0


def accept(job_id: str, owner: int | None = None, pipeline: str = "p") -> op.Accept:
    return op.Accept(pipeline, "", job_id, "m", codec.encode(1), codec.identity(1), start_for=owner)


# --- its URL -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://u:secret@h:5433/db?sslmode=require", "postgresql://h:5433/db"),
        ("postgres://u@h/db", "postgresql://h/db"),
        ("postgresql://u:secret@h1:1,h2:2/db", "postgresql://h1:1,h2:2/db"),
        ("postgresql://u:secret@[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("postgresql:///db?host=/run/postgresql&user=u&password=secret", "postgresql:///db?host=/run/postgresql"),
        ("postgresql://u:s%2Fecret%40@h/my%20db", "postgresql://h/my%20db"),
        ("postgresql://h/?dbname=a+b&port=5433&password=secret", "postgresql://h/a%2Bb?port=5433"),
        ("postgresql://h/other?%64bname=db&%70assword=secret", "postgresql://h/db"),
        ("postgresql://%2Frun%2Fpostgresql/db", "postgresql://%2Frun%2Fpostgresql/db"),
        ("postgresql://?service=night&sslpassword=secret", "postgresql:///?service=night"),
    ],
)
def test_people_are_shown_what_leads_to_the_database_and_nothing_else(url, where):
    server = Server.of(url)

    assert server.where == where
    assert "secret" not in repr(server)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h:5433/db", "postgresql://h:5433/db"),
        ("postgres://h/db?sslmode=require&sslrootcert=/a", "postgresql://h/db?sslmode=require&sslrootcert=/a"),
        ("postgresql://u@h/db", "postgresql://USER@h/db"),
        ("postgresql://u:secret@h/db?sslmode=require", "postgresql://USER@h/db?sslmode=require"),
        ("postgresql://:secret@h/db", "postgresql://USER@h/db"),
        ("postgresql://h:5433/db?user=u&password=secret", "postgresql://USER@h:5433/db"),
        ("postgresql:///db?host=/run&%70assword=secret", "postgresql://USER@/db?host=/run"),
        ("postgresql://h/db?passfile=/secret&port=5433", "postgresql://h/db?port=5433&PARAMETERS"),
        ("postgresql://u@h/db?sslkey=k&sslpassword=secret", "postgresql://USER@h/db?PARAMETERS"),
        ("postgresql://h/db?options=-c%20a.b%3Dsecret", "postgresql://h/db?PARAMETERS"),
        ("postgresql://h/db?newer_than_parked=secret", "postgresql://h/db?PARAMETERS"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
    ],
)
def test_an_address_in_a_command_has_no_secret_and_leads_to_no_other_ledger(url, shown):
    assert as_shown(url) == shown


def test_an_address_with_a_place_for_a_user_fails_until_one_is_put_there(postgres_url):
    shown = as_shown(f"{postgres_url}?options=-c%20jit%3Doff")

    with pytest.raises(LedgerUnavailable, match="there is no such user"):
        open_ledger(shown.replace("?PARAMETERS", ""))
    with pytest.raises(SettingsError, match="check the parameters"):
        open_ledger(shown)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:sec/ret@h/db", "'/' as %2F"),
        ("postgresql://u:sec?ret@h/db", "'?' as %3F"),
        ("postgresql://u:sec%ret@h/db", "percent-encode special characters"),
        ("postgresql://h/db?pasword=secret", "check the parameters"),
        ("postgresql://u:secret@h/db?sslmode=strict", "sslmode .* must be one of disable, .*verify-full, got 'strict'"),
        ("mysql://u:secret@h/db", "postgresql://host/database, got the scheme 'mysql'"),
    ],
)
def test_a_url_that_can_not_be_right_is_refused_with_the_rule_and_no_secret(url, said):
    with pytest.raises(SettingsError, match=said) as refused:
        open_ledger(url)

    assert not re.search("sec|ret", str(refused.value).replace("percent", "").replace("parameter", ""))


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)

    with pytest.raises(LedgerUnavailable, match=r"pip install '\.\[postgres\]'"):
        open_ledger("postgresql://h/db")


# --- its server --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"host": "nowhere.invalid"}, "there is no such host; check the host"),
        ({"port": "1"}, "nothing listens there; check host and port"),
        ({"user": "nobody"}, "there is no such user; check the user"),
        ({"database": "nowhere"}, "no such database; create it, or check the name"),
        ({"more": "?sslmode=require"}, "has no TLS, which sslmode in its URL asks for"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_what_keeps_it_from_connecting_is_one_sentence_with_the_next_step(postgres, change, said):
    parts = {"user": "test", "host": "127.0.0.1", "port": postgres.port, "database": "ledger", "more": ""} | change
    url = "postgresql://{user}:secret@{host}:{port}/{database}{more}".format(**parts)

    with pytest.raises(LedgerUnavailable, match=said) as refused:
        open_ledger(url)

    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_password_is_refused_without_showing_it(postgres, postgres_url):
    postgres.run("DROP ROLE IF EXISTS careful", "CREATE ROLE careful LOGIN PASSWORD 'right'")
    with (
        postgres.asking_for_passwords("careful"),
        pytest.raises(LedgerUnavailable, match="password is wrong") as refused,
    ):
        open_ledger(postgres.url("ledger", user="careful:wr0ng"))

    assert "wr0ng" not in str(refused.value)


def test_a_password_that_is_asked_for_and_was_not_given_is_said_to_be_missing(postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    postgres.run("DROP ROLE IF EXISTS careful", "CREATE ROLE careful LOGIN PASSWORD 'right'")
    with (
        postgres.asking_for_passwords("careful"),
        pytest.raises(LedgerUnavailable, match=r"asks for a password, and none was given; .*PGPASSWORD or ~/.pgpass"),
    ):
        open_ledger(postgres.url("ledger", user="careful"))


class Greeter(socketserver.BaseRequestHandler):
    """Another service: says something in its own words to whoever connects."""

    words = b""

    def handle(self) -> None:
        self.request.settimeout(WAIT_S)
        if not self.words.startswith(b"HTTP"):
            self.request.sendall(self.words)
        self.request.recv(1000)
        self.request.sendall(self.words)


@pytest.mark.parametrize("mode", ["prefer", "disable"])
@pytest.mark.parametrize(
    "words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"-ERR unknown command\r\n"], ids=ascii
)
def test_what_is_no_server_of_postgresql_is_said_to_be_none(words, mode):
    handler = type("Handler", (Greeter,), {"words": words})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            with pytest.raises(LedgerUnavailable, match="what answers there isn't PostgreSQL; check host and port"):
                open_ledger(f"postgresql://u@127.0.0.1:{server.server_address[1]}/db?sslmode={mode}")
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ('FATAL:  certificate authentication failed for user "u"', "refuses the login: .* sslcert and sslkey"),
        ("FATAL:  connection requires a valid client certificate", "refuses the login: .* sslcert and sslkey"),
        ("SSL connection has been closed unexpectedly", "broke the connection off"),
        ("SSL error: certificate verify failed", "can't be reached over TLS"),
        ("could not send SSL negotiation packet: Broken pipe", "broke the connection off"),
    ],
)
def test_not_all_that_mentions_tls_or_a_certificate_is_about_the_server_s(words, said):
    assert re.search(said, str(Server.of("postgresql://u@h/db").refused(words)))


def test_an_unknown_tls_mode_of_the_environment_is_refused_too(postgres_url, monkeypatch):
    monkeypatch.setenv("PGSSLMODE", "strict")

    with pytest.raises(SettingsError, match="PGSSLMODE must be one of"):
        open_ledger(postgres_url)


def test_a_server_that_is_too_old_or_has_another_encoding_is_refused():
    with pytest.raises(LedgerUnavailable, match="is PostgreSQL 12; parked needs 13 or newer"):
        check_server(120_022, "UTF8", where="postgresql://h/db")
    with pytest.raises(LedgerUnavailable, match="has the encoding LATIN1"):
        check_server(150_018, "LATIN1", where="postgresql://h/db")
    check_server(130_000, "UTF8", where="postgresql://h/db")


def error(code: str | None) -> psycopg.Error:
    """What psycopg raises for a SQLSTATE; None: the connection broke."""
    if code is None:
        return psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly")
    return psycopg.errors.lookup(code)("whatever the server says of secret texts")


@pytest.mark.parametrize(
    "code", [None, "08006", "25006", "28P01", "40P01", "53100", "53200", "55P03", "57P01", "58030"]
)
def test_every_trouble_of_the_surroundings_becomes_one_sentence(code):
    explained = Server.of("postgresql://u:secret@h/db").explain(error(code))

    assert isinstance(explained, LedgerUnavailable)
    assert str(explained).startswith("the ledger postgresql://h/db ")
    assert "secret" not in str(explained)


@pytest.mark.parametrize("code", ["22021", "23505", "42601"])
def test_what_is_no_trouble_of_the_surroundings_stays_what_it_is(code):
    original = error(code)

    assert Server.of("postgresql://h/db").explain(original) is original


# --- its roles ---------------------------------------------------------------------------------------------------


def test_each_role_of_the_docs_can_do_its_work_and_no_more(postgres, postgres_url, roles, at_desk):
    migrate, run, look = (postgres.url("ledger", user=f"parked_{name}") for name in ("migrate", "run", "look"))
    with pytest.raises(
        LedgerUnavailable, match=r"may not create or upgrade .*; have a role that may run `parked migrate`"
    ):
        open_ledger(run)
    open_ledger(migrate).close()

    with open_ledger(run) as ledger:
        desk = at_desk(ledger)
        row = desk.parked()
        desk.answer(desk.running(desk.owner()), ledger.owner_id)
        assert desk.imbalances() == []
        with pytest.raises(LedgerUnavailable, match=r"refuses this role a right .*docs/postgres.md"):
            ledger.scrub()
    with open_ledger(look, create=False, migrate=False) as ledger:
        with ledger.ask() as reader:
            assert reader.count(Filters(), states=[State.PARKED]) == 1
            assert reader.imbalances(thorough=True) == []
        with pytest.raises(LedgerUnavailable, match=r"refuses this role a right \(permission denied"):
            ledger.record(op.Discard(row.id, "r"))


# --- its schema --------------------------------------------------------------------------------------------------

STEPS = list(migrations.migrations("postgres"))
ADDITIVE = Migration(9001, "more", True, ("ALTER TABLE parked.jobs ADD COLUMN more TEXT",))
BREAKING = Migration(9002, "other", False, ("ALTER TABLE parked.jobs RENAME COLUMN more TO other",))


def migrate(url: str, steps: list[Migration], upgrade: Upgrade = Upgrade.ALL) -> Upgraded:
    with psycopg.connect(url, autocommit=True) as connection:
        schema = PostgresSchema(connection, "postgresql://h/db")
        return migrations.bring_up_to_date(schema, create=True, upgrade=upgrade, steps=steps)


def columns(url: str) -> list[tuple]:
    with psycopg.connect(url) as connection:
        return (
            connection.execute(
                "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
                " WHERE table_schema = 'parked' ORDER BY 1, 2"
            ).fetchall()
            + connection.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = 'parked' ORDER BY 1").fetchall()
        )


def test_a_command_that_only_looks_creates_no_ledger(postgres_url):
    with pytest.raises(LedgerMissing, match=r"there is no ledger in postgresql://127.0.0.1:\d+/ledger; name another"):
        open_ledger(postgres_url, create=False)
    with open_ledger(postgres_url) as ledger:
        assert ledger.created
    with open_ledger(postgres_url, create=False) as again:
        assert (again.created, again.name) == (False, ledger.name)


def test_the_schema_of_another_program_is_left_alone(postgres, postgres_url):
    postgres.run("CREATE SCHEMA parked", "CREATE TABLE parked.cars (id int)", database="ledger")

    with pytest.raises(LedgerUnavailable, match=r"another program's .*'cars'"):
        open_ledger(postgres_url)


def test_everything_stands_in_its_own_schema_and_needs_no_search_path(postgres, postgres_url, at_desk):
    postgres.run("ALTER DATABASE ledger SET search_path = nowhere")
    with open_ledger(postgres_url) as ledger:
        at_desk(ledger).parked()
    postgres.run("ALTER DATABASE ledger RESET search_path")

    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT DISTINCT schemaname FROM pg_stat_user_tables").fetchall()
    assert found == [("parked",)]


def test_a_migrated_ledger_equals_a_new_one(postgres, postgres_url):
    known = [*STEPS, ADDITIVE, BREAKING]
    for steps in range(1, len(known) + 1):
        migrate(postgres_url, known[:steps])
    grown = columns(postgres_url)
    postgres.run("DROP SCHEMA parked CASCADE", database="ledger")
    migrate(postgres_url, known)

    assert columns(postgres_url) == grown


def test_a_step_that_fails_leaves_nothing_of_itself(postgres_url):
    migrate(postgres_url, STEPS)
    before = columns(postgres_url)
    broken = Migration(
        9001, "broken", True, ("ALTER TABLE parked.jobs ADD COLUMN more TEXT", "CREATE TABLE parked.jobs ()")
    )

    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(postgres_url, [*STEPS, broken])

    assert columns(postgres_url) == before


def test_both_databases_have_the_same_steps_and_statements():
    lite, full = migrations.migrations("sqlite"), migrations.migrations("postgres")

    assert [(step.number, step.title, step.additive) for step in full] == [
        (step.number, step.title, step.additive) for step in lite
    ]
    assert set(SQL) == set(load("sqlite"))


def test_the_check_on_states_is_the_enum(postgres_url):
    migrate(postgres_url, STEPS)
    with psycopg.connect(postgres_url) as connection:
        checks = connection.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'jobs_state_check'"
        ).fetchall()

    assert set(re.findall(r"'(\w+)'", str(checks[0]))) == {
        state.value for state in State if state is not State.FORGOTTEN
    }


# --- an old and a new program on one ledger ---


def test_an_older_program_goes_on_beside_an_additive_step(postgres_url, at_desk):
    with open_ledger(postgres_url) as old:
        desk = at_desk(old)
        row = desk.running(desk.owner())
        migrate(postgres_url, [*STEPS, ADDITIVE])

        assert desk.answer(row, row.owner_id).state is State.SUCCEEDED
    with open_ledger(postgres_url) as again:
        assert at_desk(again).imbalances() == []


def test_a_breaking_step_waits_until_nobody_is_there_and_then_locks_older_programs_out(postgres_url, at_desk):
    with open_ledger(postgres_url) as old:
        assert old.owner_id
        with pytest.raises(LedgerUnavailable, match=r"still used by .* pid \d+ .*; end them first"):
            migrate(postgres_url, [*STEPS, ADDITIVE, BREAKING])

    migrate(postgres_url, [*STEPS, ADDITIVE, BREAKING])

    with pytest.raises(LedgerTooNew, match="upgrade parked"):
        open_ledger(postgres_url)


def test_a_breaking_step_is_left_to_parked_migrate(postgres_url):
    migrate(postgres_url, STEPS)

    with pytest.raises(LedgerUnavailable, match="`parked migrate`"):
        migrate(postgres_url, [*STEPS, ADDITIVE, BREAKING], Upgrade.ADDITIVE)
    migrate(postgres_url, [*STEPS, ADDITIVE], Upgrade.ADDITIVE)


def test_many_that_come_first_make_one_ledger(postgres_url):
    made: list[bool] = []

    def come() -> None:
        with open_ledger(postgres_url) as ledger:
            made.append(ledger.created)

    threads = [threading.Thread(target=come) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert sorted(made) == [False] * 5 + [True]


# --- many at a time ----------------------------------------------------------------------------------------------


def test_what_is_stored_is_the_servers_time(postgres_url, at_desk):
    with open_ledger(postgres_url) as ledger:
        row = at_desk(ledger).pending()
    with psycopg.connect(postgres_url) as connection:
        ((now,),) = connection.execute("SELECT extract(epoch FROM now())::float8").fetchall()

    assert 0 <= now - row.accepted_at < WAIT_S


def test_two_stores_claim_what_the_other_does_not(postgres_url):
    """The second claims while the first has not committed: it neither waits nor takes the same."""
    with open_ledger(postgres_url) as ledger:
        ledger.submit_many([accept(f"j{n}") for n in range(4)])[-1].wait(WAIT_S)
        owner = ledger.owner_id
        first, second = (PostgresStore(Server.of(postgres_url)) for _ in range(2))
        first.begin()
        second.begin()

        (one,) = first.claim([op.Claim(None, owner, 2)])
        (two,) = second.claim([op.Claim(None, owner, 2)])
        second.commit()
        first.commit()
        first.close()
        second.close()

        assert [started.row.job_id for started in one.started] == ["j0", "j1"]
        assert [started.row.job_id for started in two.started] == ["j2", "j3"]


def test_of_many_pipelines_a_claim_leaves_to_others_what_it_does_not_take(postgres_url):
    with open_ledger(postgres_url) as ledger:
        jobs = [accept(f"{pipeline}{n}", pipeline=pipeline) for n in range(2) for pipeline in "abcd"]
        ledger.submit_many(jobs)[-1].wait(WAIT_S)
        with (
            closing(PostgresStore(Server.of(postgres_url))) as first,
            closing(PostgresStore(Server.of(postgres_url))) as second,
        ):
            first.begin()
            second.begin()

            (one,) = first.claim([op.Claim(None, ledger.owner_id, 4)])
            (two,) = second.claim([op.Claim(None, ledger.owner_id, 4)])
            second.commit()
            first.commit()

        assert [started.row.job_id for started in one.started] == ["a0", "b0", "c0", "d0"]
        assert [started.row.job_id for started in two.started] == ["a1", "b1", "c1", "d1"]


def test_an_owner_that_is_being_given_a_job_is_lost_with_it(postgres_url):
    """Without the lock on its row, the job would be held by an owner whose jobs were parked a moment before."""
    with open_ledger(postgres_url) as ledger, open_ledger(postgres_url) as watcher:
        row = ledger.record(accept("a")).row
        owner = ledger.record(op.Register(op.OwnerFacts("t", "runner", "h", "", "", 1, "", "1")))
        store = PostgresStore(Server.of(postgres_url))
        store.begin()
        store.start([op.Start(row.id, owner)])

        lost = watcher.submit(op.Lose({owner: 0}))
        with pytest.raises(TimeoutError):
            lost.wait(0.2)
        store.commit()
        store.close()

        assert [parked.job_id for parked in lost.wait(WAIT_S)] == ["a"]
        with ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []


def test_a_move_of_a_job_that_is_in_another_state_ends_the_transaction(postgres_url):
    """A lock that didn't hold: nobody waits for the answer of a move, but the commit."""
    with open_ledger(postgres_url) as ledger:
        row = ledger.record(accept("a")).row
        with closing(PostgresStore(Server.of(postgres_url))) as store:
            store.begin()
            store.write_changes([Change(row._replace(state=State.RUNNING), row._replace(state=State.PARKED))])
            with pytest.raises(psycopg.errors.DivisionByZero):
                store.commit()

        with ledger.ask() as reader:
            assert reader.states() == {("p", State.PENDING): 1}


def test_a_claim_tells_when_others_are_just_taking_what_waits(postgres_url):
    """Whoever ended for want of jobs then would leave one that the other hands back."""
    with (
        open_ledger(postgres_url) as ledger,
        open_ledger(postgres_url) as another,
        closing(PostgresStore(Server.of(postgres_url))) as other,
    ):
        ledger.record(accept("a"))
        other.begin()
        other.claim([op.Claim(None, another.owner_id, 1)])

        assert ledger.record(op.Claim(None, ledger.owner_id, 1)) == op.Claimed([], (), taken_by_others=True)
        other.commit()
        assert ledger.record(op.Claim(None, ledger.owner_id, 1)) == op.Claimed([], (), taken_by_others=False)


def test_a_deadlock_is_tried_again(postgres_url):
    """Two transactions that lock the same two jobs, each the other one first."""
    with open_ledger(postgres_url) as ledger:
        one, two = (ledger.record(accept(name)).row for name in "ab")
        other = PostgresStore(Server.of(postgres_url))
        other.begin()
        other.discard([op.Discard(two.id, "r")])
        tickets = ledger.submit_many(
            [op.Discard(one.id, "r"), op.Claim("nobody's", ledger.owner_id, 1), op.Discard(two.id, "r")]
        )
        with psycopg.connect(postgres_url, autocommit=True) as looking:
            wait_until(lambda: bool(looking.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall()))
        with suppress(psycopg.errors.DeadlockDetected, TransitionError):  # whichever of the two is broken off
            other.restore([op.Restore(one.id)])
        other.rollback()
        other.close()

        assert [ticket.wait(WAIT_S) is not None for ticket in tickets] == [True] * 3


def test_each_process_counts_in_a_slot_of_its_own_and_the_sum_is_asked_for(postgres_url, at_desk):
    with open_ledger(postgres_url) as one, open_ledger(postgres_url) as two:
        for ledger in (one, two):
            assert ledger.owner_id
            at_desk(ledger).accept(f"of-{ledger.owner_id}")
        with psycopg.connect(postgres_url) as connection:
            slots = connection.execute(
                "SELECT slot, value FROM parked.counters WHERE metric = 'jobs_accepted' ORDER BY slot"
            ).fetchall()

        assert slots == [(one.owner_id % 16, 1.0), (two.owner_id % 16, 1.0)]
        assert at_desk(one).counted("jobs_accepted") == {("", ""): 2.0}
        assert list(at_desk(one).counted("last_accepted")) == [("", "")]
        assert at_desk(one).imbalances() == []


def test_writers_that_take_on_the_same_jobs_take_each_on_once(postgres_url):
    names = [f"j{n}" for n in range(60)]
    with open_ledger(postgres_url) as one, open_ledger(postgres_url) as two:
        tickets = [
            one.submit_many([accept(name) for name in names]),
            two.submit_many([accept(name) for name in names[::-1]]),
        ]
        created = [ticket.wait(WAIT_S).created for mine in tickets for ticket in mine]
        with one.ask() as reader:
            assert reader.imbalances(thorough=True) == []

    assert sum(created) == len(names)


# --- a network in between ----------------------------------------------------------------------------------------


@pytest.fixture
def far(wire: Wire, postgres_url: str):
    with open_ledger(f"postgresql://test@127.0.0.1:{wire.port}/ledger") as ledger:
        yield ledger


def test_an_outcome_waits_for_a_server_that_is_away_and_is_written_when_it_is_back(far, wire, at_desk):
    desk = at_desk(far)
    owner = desk.owner()
    row = desk.running(owner)
    wire.is_down = True
    wire.cut()

    ticket = far.submit(op.Answer(row.id, owner, 1, codec.encode("42"), op.Closing()))
    with pytest.raises(LedgerUnavailable, match=r"the ledger postgresql://127\.0\.0\.1"):
        far.record(accept("new"))
    assert far.stalled
    wire.is_down = False

    assert ticket.wait(WAIT_S).state is State.SUCCEEDED
    assert desk.imbalances() == []


def test_a_commit_whose_answer_got_lost_is_asked_for(far, wire, at_desk):
    """Else the job that it started would be held by this process, which was told that nothing was taken on."""
    desk = at_desk(far)
    owner = far.owner_id
    desk.accept("before")
    wire.swallow_next_commit = True

    accepted = far.record(accept("a", owner))

    assert not wire.swallow_next_commit
    assert (accepted.created, accepted.row.state) == (True, State.RUNNING)
    desk.answer(accepted.row, owner)
    assert desk.imbalances() == []


def test_rows_that_nobody_wants_any_more_are_dropped_without_a_word_when_the_server_is_gone(postgres, postgres_url):
    with open_ledger(postgres_url) as ledger:
        ledger.submit_many([accept(f"j{n}") for n in range(3)])[-1].wait(WAIT_S)
        with ledger.ask() as reader:
            rows = reader.jobs(Filters(), states=[State.PENDING])
            assert next(rows).job_id == "j0"
            postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'ledger'")
            del rows  # what it would raise here, nobody could catch: a warning, and so a failure


@pytest.mark.parametrize(
    "error",
    [psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly"),
     psycopg.errors.ProtocolViolation("server login has been failing, try again later")],
    ids=["of a server", "of a pooler whose server is down"],
)  # fmt: skip
def test_whoever_loses_the_connection_is_told_where_to_look(error):
    explained = str(Server.of("postgresql://h/db").explain(error))

    assert explained.startswith("the ledger postgresql://h/db lost the connection; see that the server runs, and ")


# --- a pooler in between -----------------------------------------------------------------------------------------


def test_many_that_share_two_connections_of_a_pooler_claim_each_job_once(pooled_url, at_desk):
    with ExitStack() as stack:
        ledgers = [stack.enter_context(open_ledger(pooled_url)) for _ in range(4)]
        ledgers[0].submit_many([accept(f"j{n}") for n in range(200)])[-1].wait(WAIT_S)
        called: list[str] = []

        def work(ledger: Ledger) -> None:
            while started := ledger.record(op.Claim(None, ledger.owner_id, 7)).started:
                called.extend(one.row.job_id for one in started)
                for one in started:
                    ledger.record(op.Answer(one.row.id, ledger.owner_id, 1, codec.encode("42"), op.Closing()))

        threads = [threading.Thread(target=work, args=[ledger]) for ledger in ledgers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)

        assert sorted(called) == sorted(f"j{n}" for n in range(200))
        with ledgers[0].ask() as reader:
            rows = reader.jobs(Filters(), states=[State.SUCCEEDED])
            first = next(rows)
            assert reader.answer(first.id) is not None  # while the others are still coming
            assert len(list(rows)) == 199
        assert at_desk(ledgers[0]).imbalances() == []


def prepared(connection: psycopg.Connection) -> int:
    """How many statements are prepared in its session, once it has had the occasion."""
    connection.execute("SELECT 1")
    row = connection.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False).fetchone()
    assert row is not None
    return int(row[0])


def test_statements_are_prepared_only_where_no_pooler_is_between(postgres_url, pooled_url):
    with closing(Server.of(postgres_url).connect_to_write()) as direct:
        assert prepared(direct) > 0
    with closing(Server.of(pooled_url).connect_to_write()) as pooled:
        assert prepared(pooled) == 0


def test_a_session_that_was_changed_unnoticed_is_put_up_with(postgres_url):
    """As by a pooler that tells the server's own process id."""
    open_ledger(postgres_url).close()
    with closing(PostgresStore(Server.of(postgres_url))) as store:

        def accepted(job_id: str) -> bool:
            store.begin()
            (result,) = store.accept([accept(job_id)])
            store.commit()
            return result.created

        assert accepted("a")
        store._connection.pgconn.exec_(b"DEALLOCATE ALL")

        with pytest.raises(psycopg.Error) as met:
            accepted("b")
        assert isinstance(store.explain(met.value), Contended)  # the writer tries it again
        store.rollback()

        assert accepted("b")


# --- its statements ----------------------------------------------------------------------------------------------


def test_every_statement_that_is_used_exists():
    code = "\n".join(file.read_text("utf-8") for file in Path(rows.__file__).parent.glob("postgres*.py"))

    used = set(re.findall(r'self\._(?:do|value|jobs|hit)\(\s*"(\w+)"', code)) | set(re.findall(r'_sql\["(\w+)"', code))

    assert used
    assert used <= set(SQL)


VALUES = {
    "now": 1.0, "limit": 10, "pipeline": "p1", "batch": "", "job_id": "j1", "id": 7, "owner_id": 1, "state": "running",
    "pipelines": ["p1"], "callers": [""], "checkers": [""], "models": ["m"], "limits": [10], "job_ids": ["j1"],
    "batches": [""], "ids": [1, 2], "numbers": [1, None], "error_class": "exhausted:503", "fingerprint": "f3",
    "since": 5.0, "until": 9.0, "model": "m", "reason": "overloaded", "states": ["parked", "replaying"],
    "before": 1.0, "after": 0, "longest_s": 1.0,
}  # fmt: skip
LISTING = "select_jobs where_parked"
NOTHING_MOVED = {
    "moved": "[]", "opened": "[]", "closed": "[]", "answered": "[]", "bodies": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def populated(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """200,000 jobs, most of them answered, many parked, some pending."""
    postgres.run("DROP DATABASE IF EXISTS populated", "CREATE DATABASE populated")
    url = postgres.url("populated")
    open_ledger(url).close()
    postgres.run(
        """
        INSERT INTO parked.jobs (pipeline, batch, job_id, model, state, place, caller, checker, accepted_at, started_at,
                                 parked_at, error_class, reason, fingerprint, payload_hash, owner_id)
        SELECT 'p' || n % 20, '', 'j' || n, 'm', is_now.state, n, '', '', n, n,
               CASE is_now.state WHEN 'parked' THEN n END,
               CASE is_now.state WHEN 'parked' THEN 'exhausted:' || 500 + n % 5 END, 'overloaded', 'f' || n % 50, '',
               CASE is_now.state WHEN 'running' THEN n % 40 END
          FROM generate_series(1, 200000) AS n CROSS JOIN LATERAL (
                   SELECT CASE WHEN n % 10 < 6 THEN 'succeeded' WHEN n % 10 < 9 THEN 'parked'
                               WHEN n % 100 < 98 THEN 'pending' ELSE 'running' END AS state
               ) AS is_now
        """,
        "INSERT INTO parked.payloads SELECT id, 0, NULL, 'json', NULL, '1', 0 FROM parked.jobs",
        "INSERT INTO parked.owners (token, role, host, boot_id, pid_namespace, pid, process_start, version, started_at,"
        " beat_at, ended_at) SELECT n, 'runner', '', '', '', 1, '', '', n, n, n FROM generate_series(1, 10000) AS n",
        "INSERT INTO parked.attempts (job, number, owner_id, started_at, ended_at)"
        " SELECT id, 1, id % 40, 0, CASE state WHEN 'running' THEN NULL ELSE 1 END FROM parked.jobs",
        "ANALYZE",
        database="populated",
    )
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    "question",
    [
        "lanes", "heads", "tails", "job_by_key", "jobs_by_id", "held_by", "owner_alive", "owners_alive",
        "owners_counted", "open_attempts_of",
        "oldest_parked", "oldest_pending", "oldest_running", "payload", "payloads", "jobs_with_payloads", "identities",
        f"{LISTING} by_parking limit",
        f"{LISTING} by_place limit",
        f"{LISTING} where_pipeline by_parking limit",
        f"{LISTING} where_error_class by_parking limit",
        f"{LISTING} where_fingerprint by_parking limit",
        f"{LISTING} where_since_parked by_parking limit",
        f"{LISTING} where_job_ids by_parking limit",
        "select_jobs where_job_id by_place",
        "select_jobs where_state by_acceptance limit",
    ],
)  # fmt: skip
def test_nothing_that_is_asked_often_scans_the_jobs(populated, question):
    name, *parts = question.split()
    conditions = [SQL[part] for part in parts if part.startswith("where_")]
    rest = [SQL[part] for part in parts if not part.startswith("where_")]
    sql = " ".join([SQL[name], *(["WHERE " + " AND ".join(conditions)] if conditions else []), *rest])

    plan = "\n".join(row[0] for row in populated.execute(f"EXPLAIN {sql}".encode(), VALUES))

    assert not re.search(r"Seq Scan on (jobs|payloads|attempts|owners)", plan), plan


def test_the_causes_of_a_summary_are_read_from_an_index_alone(populated):
    populated.execute("VACUUM parked.jobs")  # as the server does by itself: before, it has to look at the rows

    plan = "\n".join(row[0] for row in populated.execute(f"EXPLAIN {SQL['cause_counts']}".encode(), {"since": 1.0}))

    assert "Index Only Scan using jobs_causes" in plan


@pytest.fixture(scope="module")
def unknown(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """5,000 pending jobs that the planner knows nothing about: nobody has gathered statistics yet."""
    postgres.run("DROP DATABASE IF EXISTS unknown", "CREATE DATABASE unknown")
    url = postgres.url("unknown")
    open_ledger(url).close()
    postgres.run(
        *(f"ALTER TABLE parked.{table} SET (autovacuum_enabled = off)" for table in ("jobs", "payloads", "attempts")),
        """
        INSERT INTO parked.jobs
            (pipeline, batch, job_id, model, state, place, caller, checker, accepted_at, payload_hash)
        SELECT 'p1', '', 'j' || n, 'm', 'pending', n, '', '', n, '' FROM generate_series(1, 5000) AS n
        """,
        "INSERT INTO parked.payloads SELECT id, 0, NULL, 'json', NULL, '1', 0 FROM parked.jobs",
        database="unknown",
    )
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lanes", {}), ("heads", {}), ("tails", {}), ("payloads", {}), ("jobs_by_id", {}), ("attempt", {}),
        ("job_by_key", {}),
        ("held_by", {}), ("open_attempts_of", {}), ("move_job", NOTHING_MOVED), ("close_attempt", NOTHING_MOVED),
        ("hand_out", {"jobs": [1, 2]}), ("make_deliverable", {"jobs": [1, 2]}),
        ("note_delivery", {"jobs": [1, 2], "faults": [None, "OSError"], "waits_s": [None, 30.0]}),
        ("mend_job", {"jobs": [1, 2], "revisions": [0, 0]}), ("forget_jobs", {}),
    ],
)  # fmt: skip
def test_what_a_writer_asks_is_looked_up_even_without_statistics(unknown, name, values):
    begin(unknown)

    plan = "\n".join(row[0] for row in unknown.execute(f"EXPLAIN {SQL[name]}".encode(), VALUES | values))
    unknown.execute("ROLLBACK")

    assert not re.search(r"Seq Scan on (jobs|payloads|attempts|answers)|Hash", plan), plan
    assert not re.search(r"using jobs_(parked|causes|of_state|pending)|on answers_by_time", plan), plan


@pytest.fixture(scope="module")
def stale(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """20,000 pending and 20,000 parked jobs, and statistics from before, when all there were had been answered."""
    postgres.run("DROP DATABASE IF EXISTS stale", "CREATE DATABASE stale")
    url = postgres.url("stale")
    open_ledger(url).close()
    fill = """
        INSERT INTO parked.jobs (pipeline, batch, job_id, model, state, place, caller, checker, accepted_at, parked_at,
                                 error_class, payload_hash)
        SELECT 'p' || n %% 5, '', '%s' || n, 'm', '%s', n, '', '', n, n, 'exhausted:' || 500 + n %% 5, ''
          FROM generate_series(1, 20000) AS n
        """
    postgres.run(
        "ALTER TABLE parked.jobs SET (autovacuum_enabled = off)",
        fill % ("a", "succeeded"),
        "ANALYZE",
        fill % ("b", "pending"),
        fill % ("c", "parked"),
        database="stale",
    )
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("name", ["lanes", "heads", "tails", "oldest_parked", "oldest_pending", "oldest_running"])
@pytest.mark.parametrize("statistics", ["unknown", "stale"])
def test_what_a_claim_and_a_scrape_ask_reads_no_more_rows_than_they_want_whatever_the_statistics_say(
    request, statistics, name
):
    connection = request.getfixturevalue(statistics)
    begin(connection)
    with unsorted(connection):
        asked = f"EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) {SQL[name]}".encode()
        plan = "\n".join(row[0] for row in connection.execute(asked, VALUES))
    connection.execute("ROLLBACK")

    read = [int(rows) * int(loops) for rows, loops in re.findall(r"actual rows=(\d+)\S* loops=(\d+)", plan)]
    assert read, plan
    assert max(read) <= 30, plan  # the labels, or the limit
    assert "Removed by Filter" not in plan, plan


def test_jobs_of_a_pipeline_that_the_statistics_do_not_know_are_looked_up_by_their_ids(stale):
    values = {"pipeline": "new", "batch": "", "job_ids": [f"j{n}" for n in range(256)]}

    plan = "\n".join(row[0] for row in stale.execute(f"EXPLAIN {SQL['identities']}".encode(), values))

    assert "using jobs_key" in plan, plan


@pytest.mark.parametrize(
    ("name", "index", "values"),
    [
        ("job_by_key", "jobs_key", {"job_ids": ["b1"], "pipelines": ["p1"], "batches": [""]}),
        ("mend_job", "jobs_pkey", {"jobs": [1], "revisions": [0]}),
        ("give_model", "jobs_pkey",
         {"jobs": [1], "revisions": [0], "models": ["m"], "strikes": [0], "not_befores": [None]}),
    ],
)  # fmt: skip
def test_what_a_writer_looks_up_by_a_key_goes_by_it_where_the_statistics_are_old(stale, name, index, values):
    begin(stale)
    plan = "\n".join(row[0] for row in stale.execute(f"EXPLAIN {SQL[name]}".encode(), values))
    stale.execute("ROLLBACK")

    assert set(re.findall(r"Scan using (jobs_\w+)", plan)) == {index}, plan


@pytest.mark.parametrize("name", ["forgettable", "undelivered"])
@pytest.mark.parametrize("statistics", ["unknown", "stale"])
def test_a_page_of_many_is_read_without_reading_all_of_them(request, statistics, name):
    connection = request.getfixturevalue(statistics)
    connection.execute(BEGIN_READING)
    with unsorted(connection):
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {SQL[name]}".encode(), VALUES))
    connection.execute("ROLLBACK")

    assert not re.search(r"-> +(Sort|Hash|Materialize)", plan), plan


def test_a_claim_a_scrape_and_who_goes_by_pages_ask_so(postgres_url, at_desk, monkeypatch):
    asked: dict[psycopg.Connection, list[str]] = {}  # the writer's and the reader's may ask at the same time
    execute = psycopg.Connection.execute

    def listen(self: Any, query: Any, *args: Any, **named: Any) -> Any:
        asked.setdefault(self, []).append(query.decode() if isinstance(query, bytes) else str(query))
        return execute(self, query, *args, **named)

    with open_ledger(postgres_url) as ledger:
        monkeypatch.setattr(psycopg.Connection, "execute", listen)
        ledger.submit(accept("a")).wait(WAIT_S)
        ledger.record(op.Claim(None, ledger.owner_id, 1))
        with ledger.ask() as reader:
            reader.oldest(State.PARKED)
            reader.forgettable(1.0, after=0, limit=10)
            reader.undelivered(since=1.0, now=1.0, limit=10)

    off, on = (sql.decode() for sql in SORTING.values())
    for name in ("lanes", "heads", "oldest_parked", "forgettable", "undelivered"):
        (found,) = [each for each in asked.values() if SQL[name] in each]
        position = found.index(SQL[name])
        assert (found[position - 1], found[position + 1]) == (off, on)


def test_a_plan_that_was_made_for_a_small_ledger_is_not_kept_for_a_large_one(postgres, postgres_url, monkeypatch):
    monkeypatch.setattr("parked.ledger.postgres.PLANNED_FOR_S", (0.0, 0.0))
    tables = ("jobs", "payloads", "attempts")
    with (
        open_ledger(postgres_url) as ledger,
        closing(PostgresStore(Server.of(postgres_url))) as store,
        psycopg.connect(postgres_url, autocommit=True) as other,
    ):
        row = ledger.record(accept("a", ledger.owner_id)).row
        for table in tables:
            other.execute(f"ALTER TABLE parked.{table} SET (autovacuum_enabled = off)".encode())
        other.execute("ANALYZE")
        for _ in range(10):  # so that statements are prepared
            store.begin()
            store.forgive_attempts([op.Forgive(row.id, ledger.owner_id, 1)])
            store.add_payloads([op.Started(row, 1)])
            store.commit()
        other.execute(
            """
            INSERT INTO parked.jobs
                (pipeline, batch, job_id, model, state, place, caller, checker, accepted_at, payload_hash)
            SELECT 'p', '', 'j' || n, 'm', 'pending', n, '', '', n, '' FROM generate_series(1, 5000) AS n
            """
        )
        other.execute(
            "INSERT INTO parked.payloads SELECT id, 0, NULL, 'json', NULL, '1', 0 FROM parked.jobs WHERE id > 1"
        )
        other.execute(
            "INSERT INTO parked.attempts (job, number, started_at) SELECT id, 1, 0 FROM parked.jobs WHERE id > 1"
        )

        store.begin()
        plans = {
            table: "\n".join(row[0] for row in store._connection.execute(f"EXPLAIN EXECUTE {name} {values}".encode()))
            for table, values in (("payloads", "('{1,2}')"), ("attempts", "('{1,2}', '{1,1}')"))
            for (name,) in store._connection.execute(
                "SELECT name FROM pg_prepared_statements WHERE statement ~ %s",
                [f"^(SELECT jobs.id, codec.* FROM|UPDATE) parked.{table} "],
            ).fetchall()
        }

    assert plans.keys() == {"payloads", "attempts"}
    for plan in plans.values():
        assert "Join Filter" not in plan, plan


def test_texts_that_it_can_not_hold_are_left_out_of_an_outcome(postgres_url, at_desk):
    """NUL can't stand in a text of PostgreSQL, lone surrogates in none that is UTF-8."""
    with open_ledger(postgres_url) as ledger:
        desk = at_desk(ledger)
        owner = desk.owner()
        for number, message in zip(count(), ("a\x00b", "a\ud800b"), strict=False):
            row = desk.running(owner)
            parked = ledger.record(op.Park(row.id, owner, 1, op.Closing(message=message), f"exhausted:50{number}"))
            assert parked.state is State.PARKED
            assert [attempt.message for attempt in desk.attempts(row)] == [""]


def test_a_known_id_with_another_payload_is_a_conflict_for_whoever_waited(postgres_url):
    """The second takes the id on while the first has not committed."""
    with open_ledger(postgres_url) as ledger:
        first = PostgresStore(Server.of(postgres_url))
        first.begin()
        first.accept([accept("a")])
        other = op.Accept("p", "", "a", "m", codec.encode(2), codec.identity(2))
        ticket = ledger.submit(other)
        with pytest.raises(TimeoutError):
            ticket.wait(0.2)
        first.commit()
        first.close()

        with pytest.raises(JobConflict):
            ticket.wait(WAIT_S)


def test_the_tls_modes_are_those_of_libpq():
    for mode in postgres_server.TLS_MODES:
        assert Server.of(f"postgresql://h/db?sslmode={mode}").where == "postgresql://h/db"
