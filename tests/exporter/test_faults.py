"""A ledger that is away, in somebody's hands, or not what it was: each scrape is answered, and it is found again."""

import json
import shutil
import socket
import sqlite3
import threading
import time
from contextlib import closing

import psycopg
import pytest

from parked.errors import LedgerUnavailable
from parked.ledger import migrate, open_ledger
from parked.ledger.migrations import Upgrade, bring_up_to_date, migrations
from parked.ledger.sqlite_file import connect
from parked.ledger.sqlite_schema import SqliteSchema
from parked_exporter.collector import Lookout, look

PATIENCE_S = 20.0

UP, DOWN = {(): 1.0}, {(): 0.0}


def remove(file):
    file.unlink()


def rename(file):
    file.rename(file.with_name("aside.db"))


def damage(file):
    file.write_bytes(b"no database at all" * 1000)


def damage_a_page(file):
    """The beginning is that of a ledger; what comes then is not."""
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


def make_newer(file):
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "INSERT INTO schema_version SELECT 9999, 0, 'later', applied_at, '9.0' FROM schema_version LIMIT 1"
        )


@pytest.mark.parametrize("harm", [remove, rename, damage, damage_a_page, make_newer])
def test_a_ledger_that_cannot_be_read_is_down_and_comes_back_by_itself(start_sidecar, url, tmp_path, harm):
    open_ledger(url).close()
    file, copy = tmp_path / "parked.db", tmp_path / "copy.db"
    shutil.copy(file, copy)
    sidecar = start_sidecar("--read-only")

    assert sidecar.scrape()["parked_ledger_up"] == UP
    harm(file)
    assert sidecar.scrape()["parked_ledger_up"] == DOWN
    copy.replace(file)
    assert sidecar.scrape()["parked_ledger_up"] == UP
    assert sidecar.event("ledger_unreadable")["why"]


def test_the_sidecar_waits_for_a_ledger_that_is_not_there_yet(start_sidecar, url, tmp_path):
    sidecar = start_sidecar()

    assert sidecar.scrape()["parked_ledger_up"] == DOWN
    assert sidecar.get("/-/ready")[0] == 503
    assert not list(tmp_path.iterdir())  # and makes none

    open_ledger(url).close()
    assert sidecar.scrape()["parked_ledger_up"] == UP
    assert sidecar.get("/-/ready")[0] == 200


def test_an_older_ledger_is_left_as_it_is_until_somebody_upgrades_it(start_sidecar, url, tmp_path):
    first, *later = migrations("sqlite")
    file = tmp_path / "parked.db"
    file.touch(0o600)
    with closing(connect(file)) as connection:
        schema = SqliteSchema(connection, file, clock=time.time)
        bring_up_to_date(schema, create=True, upgrade=Upgrade.ALL, steps=[first])
    sidecar = start_sidecar()

    assert sidecar.event("ledger_unwritable")["why"].endswith("upgrade it with `parked migrate`")
    assert sidecar.scrape()["parked_ledger_up"] == DOWN

    assert migrate(url).steps == tuple(later)  # so none was applied meanwhile
    assert sidecar.scrape()["parked_ledger_up"] == UP


# --- on a server -------------------------------------------------------------------------------------------------


def test_a_server_that_is_away_is_down_and_comes_back_by_itself(start_sidecar, postgres_url, wire):
    open_ledger(postgres_url).close()
    sidecar = start_sidecar(ledger=wire.url("ledger"))

    assert sidecar.scrape()["parked_ledger_up"] == UP
    wire.is_down = True
    wire.cut()
    assert sidecar.scrape()["parked_ledger_up"] == DOWN
    assert "parked.db" not in sidecar.event("ledger_unreadable")["why"]
    wire.is_down = False
    assert sidecar.scrape()["parked_ledger_up"] == UP


def test_a_server_that_says_nothing_is_down_at_the_deadline_and_found_once_it_speaks(postgres_url, wire):
    open_ledger(postgres_url).close()
    lookout = Lookout(lambda: look(wire.url("ledger")), deadline_s=0.2)
    wire.fall_silent()

    found = lookout.find()
    wire.speak_again()

    assert found.why == "the ledger gave no answer within 0.2 s"
    deadline = time.monotonic() + PATIENCE_S
    while lookout.find().readings is None:
        assert time.monotonic() < deadline


def test_sigterm_ends_the_sidecar_while_the_server_says_nothing(start_sidecar, postgres_url, wire):
    open_ledger(postgres_url).close()
    sidecar = start_sidecar(ledger=wire.url("ledger"))
    sidecar.until(lambda samples: "parked_task_last_success_timestamp_seconds" in samples)
    wire.fall_silent()
    with socket.create_connection(sidecar.address) as scrape:
        scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert sidecar.stop() == 0  # long before anybody's patience with the server ends
    wire.speak_again()


def test_a_look_that_a_lock_holds_up_ends_by_itself_and_leaves_nobody_waiting_in_the_server(postgres_url):
    open_ledger(postgres_url).close()
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE parked.counters")

        with pytest.raises(LedgerUnavailable, match="took longer than"):
            look(postgres_url, patience_s=0.2)

        waiting = other.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
    assert waiting == (0,)
    assert look(postgres_url).ledger


def test_a_role_that_may_only_read_is_enough_for_a_sidecar_that_only_reads(
    start_sidecar, postgres, postgres_url, roles
):
    open_ledger(postgres.url("ledger", user="parked_migrate")).close()
    sidecar = start_sidecar("--read-only", ledger=postgres.url("ledger", user="parked_look"))

    samples = sidecar.scrape()

    assert samples["parked_ledger_up"] == UP
    assert samples["parked_ledger_bytes"][()] > 0
    assert "parked_ledger_writable" not in samples
    assert sidecar.get("/-/ready")[0] == 200


# --- what the law finds ------------------------------------------------------------------------------------------


FORGERIES = {
    "a hand-edited row": "UPDATE jobs SET state = 'pending', parked_at = NULL WHERE job_id = 'a-2'",
    "a row that is gone": "DELETE FROM jobs WHERE job_id = 'a-2'",
    "a forged counter": "UPDATE counters SET value = value + 1 WHERE metric = 'jobs_accepted'",
    "a gauge of what is parked": "UPDATE counters SET value = value + 1 WHERE metric = 'parked_now'",
    "counters that agree with each other": (
        "UPDATE counters SET value = value + 1 WHERE metric = 'jobs_accepted'"
        " OR metric = 'ledger_jobs' AND a = 'succeeded'"
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_what_was_forged_in_the_ledger_moves_the_metric_of_a_running_sidecar(start_sidecar, pipeline, edit, forgery):
    pipeline.succeed("a-1")
    pipeline.park("a-2")
    edit(forgery)
    sidecar = start_sidecar()

    sidecar.until(lambda samples: samples["parked_unaccounted_jobs"] == {(("pipeline", "captions"),): 1.0})


# --- many who ask ------------------------------------------------------------------------------------------------


def test_many_scrapes_at_once_are_all_answered(start_sidecar, pipeline):
    pipeline.succeed("a-1")
    sidecar, found = start_sidecar(), []
    threads = [threading.Thread(target=lambda: found.append(sidecar.scrape()["parked_ledger_up"])) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert found == [UP] * 12


def test_a_sidecar_that_only_reads_takes_no_lease_and_owns_nothing(start_sidecar, url, pipeline):
    pipeline.succeed("a-1")
    sidecar = start_sidecar("--read-only")

    samples = sidecar.scrape()
    state = json.loads(sidecar.get("/-/ready")[2])
    sidecar.stop()

    assert samples["parked_owners"][(("state", "alive"),)] == 1.0  # the runner
    assert "parked_ledger_writable" not in samples
    assert state["read_only"] is True
    with pipeline.ledger.ask() as reader:
        assert reader.leases() == {}
