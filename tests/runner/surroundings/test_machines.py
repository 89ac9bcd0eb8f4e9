"""A SQLite ledger where other machines reach it: warned of, and refused while one uses it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parked import owners
from parked.errors import LedgerUnavailable
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.surroundings.machines import WATCH_S, check_at_open
from servers import missing

# A process under another boot id, as a container manager gives one: it opens a ledger, and goes on until it is told.
ELSEWHERE = """
set -e
mount --bind "$1" /proc/sys/kernel/random/boot_id
exec "$2" -c '
import sys
from parked.ledger import open_ledger
with open_ledger(sys.argv[1]) as ledger:
    print(ledger.owner_id, flush=True)
    sys.stdin.read()
' "$3"
"""


@pytest.fixture
def other_machine(tmp_path: Path) -> Iterator:
    """Returns a function that opens a ledger elsewhere, and stays there as an owner."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("00000000-1111-2222-3333-444444444444\n")
    started: list[subprocess.Popen[str]] = []

    def begin(url: str) -> subprocess.Popen[str]:
        words = ["unshare", "--mount", "bash", "-c", ELSEWHERE, "bash", str(boot_id), sys.executable, url]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        if not process.stdout.readline():
            missing("the right to mount a file system")
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def facts(*, boot_id: str, host: str = "h") -> op.OwnerFacts:
    return owners.facts("runner")._replace(boot_id=boot_id, host=host)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_ledger_on_a_local_disk_is_opened_without_a_word(tmp_path, caplog):
    for _ in range(2):  # the second time there is a process from before the machine was started again
        with open_ledger(f"sqlite:///{tmp_path}/parked.db") as ledger:
            ledger.record(op.Register(facts(boot_id="another")))

    assert warnings(caplog) == []


def test_a_ledger_that_other_machines_may_reach_is_warned_of_once(fuse_disk, caplog):
    for _ in range(2):
        with open_ledger(f"sqlite:///{fuse_disk}/parked.db") as ledger:
            assert ledger.owner_id

    (warning,) = warnings(caplog)
    assert warning.startswith("ledger_reached_by_other_machines: the ledger")
    assert warning.endswith("put the ledger on a local disk of one machine, or use PostgreSQL for several")


def test_a_ledger_that_goes_with_its_container_is_warned_of_once_by_who_takes_jobs_on(
    container_layer, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    url = f"sqlite:///{container_layer}/parked.db"
    open_ledger(url, create=True).close()
    open_ledger(url, create=True).close()

    assert warnings(caplog) == [
        f"ledger_goes_with_its_container: the ledger {container_layer}/parked.db is in a container's own layer"
        f" (overlay at {container_layer}), and goes with the container; put it on a volume"
    ]


def test_who_takes_none_on_and_who_works_among_temporary_files_is_not_warned(
    container_layer, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("tempfile.tempdir", str(container_layer))
    url = f"sqlite:///{container_layer}/parked.db"
    open_ledger(url, create=True).close()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    open_ledger(url, create=False).close()

    assert warnings(caplog) == []


@pytest.mark.slow
def test_a_ledger_that_another_machine_uses_is_refused(fuse_disk, other_machine, caplog):
    url = f"sqlite:///{fuse_disk}/parked.db"
    process = other_machine(url)

    with pytest.raises(LedgerUnavailable) as refused:
        open_ledger(url)

    assert "is used by another machine" in str(refused.value)
    assert f"pid {process.pid}" in str(refused.value)
    assert str(refused.value).endswith("put the ledger on a local disk of one machine, or use PostgreSQL for several")
    assert any("watching_other_machines" in warning for warning in warnings(caplog))


@pytest.mark.slow
def test_containers_with_boot_ids_of_their_own_share_a_ledger_on_a_local_disk(tmp_path, other_machine, caplog):
    url = f"sqlite:///{tmp_path}/parked.db"
    other_machine(url)

    with open_ledger(url) as ledger:
        assert ledger.owner_id == 2

    assert warnings(caplog) == []


def test_one_that_was_killed_on_another_machine_is_not_waited_for_longer_than_two_beats(fuse_disk):
    now = [0.0]
    with open_ledger(f"sqlite:///{fuse_disk}/parked.db") as ledger:
        ledger.record(op.Register(facts(boot_id="another")))
        with ledger.ask() as reader:
            alive = reader.owners_alive()

        check_at_open(
            fuse_disk / "parked.db", lambda: alive, monotonic=lambda: now[0], wait=lambda s: now.append(now.pop() + s)
        )

    assert WATCH_S <= now[0] < WATCH_S + 1


def test_one_that_comes_while_it_is_looked_is_found_too(fuse_disk):
    path = fuse_disk / "parked.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        ledger.record(op.Register(facts(boot_id="one")))

        def alive() -> list[op.OwnerRow]:
            with ledger.ask() as reader:
                return reader.owners_alive()

        def another_comes(_: float) -> None:
            ledger.record(op.Register(facts(boot_id="two", host="late")))

        with pytest.raises(LedgerUnavailable, match="late"):
            check_at_open(path, alive, wait=another_comes)


def test_who_does_not_tell_its_boot_id_is_not_taken_for_another_machine(fuse_disk):
    path = fuse_disk / "parked.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        ledger.record(op.Register(facts(boot_id="")))
        with ledger.ask() as reader:
            alive = reader.owners_alive()

    def no_wait(_: float) -> None:
        raise AssertionError("there is nobody to watch")

    check_at_open(path, lambda: alive, wait=no_wait)
