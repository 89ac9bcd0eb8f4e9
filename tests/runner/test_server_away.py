"""A run whose server goes away in the middle of it: nothing is lost, nothing doubled, and the log says it once."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

import parked
from parked.errors import LedgerUnavailable
from parked.job import State
from parked.ledger import Ledger, codec, open_ledger, postgres, postgres_server
from parked.ledger import operations as op
from parked.ledger.counters import Metric
from parked.ledger.postgres_schema import begin
from parked.ledger.postgres_server import Server
from servers import Postgres, missing, running, wait_until

pytestmark = pytest.mark.slow

JOBS = 200  # in one commit: accepting fails at once, and isn't what is tested here
WAIT_S = 60.0
# How long the network is cut, and after how long the parameters in the URL take it for gone. Not what parked's defaults
# are made for, a minute and half a minute, but in the same proportion.
CUT_S = float(os.environ.get("CUT_S", 5.0))
PATIENCE = "?tcp_user_timeout=2500&keepalives_idle=1&keepalives_interval=1&keepalives_count=1&connect_timeout=2"


class Pipeline:
    """Calls that take no time; at some of them something happens to the server."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.at: dict[int, Callable[[], object]] = {}
        self.answer = "answer"
        self.broken: list[Exception] = []  # what kept a fault from happening
        self._mutex = threading.Lock()

    def __call__(self, payload: str, model: str) -> str:
        with self._mutex:
            self.calls[payload] += 1
            fault = self.at.pop(self.calls.total(), None)
        if fault is not None:
            try:
                fault()
            except Exception as exc:  # noqa: BLE001 - no outcome of the call, as the runner would take it
                self.broken.append(exc)
        return f"{self.answer} to {payload}"

    def run(self, ledger: Ledger) -> list[parked.Outcome]:
        jobs = [parked.Job(f"job-{n}", model="m", payload=f"prompt {n}") for n in range(JOBS)]
        return list(parked.Runner(ledger, self).run_many(jobs, concurrency=8))

    def check(self, ledger: Ledger, outcomes: list[parked.Outcome]) -> None:
        """Each job was called once, answered once, and counted once."""
        assert self.broken == []
        assert Counter(outcome.state for outcome in outcomes) == {State.SUCCEEDED: JOBS}
        assert self.calls == {f"prompt {n}": 1 for n in range(JOBS)}
        with ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            assert reader.states() == {("default", State.SUCCEEDED): JOBS}
            for metric in (Metric.JOBS_ACCEPTED, Metric.JOBS_SUCCEEDED, Metric.ATTEMPTS):
                assert sum(row.value for row in reader.counters(metric)) == JOBS
        assert self.at == {}


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns a function that tells by which names of events the library has logged."""
    caplog.set_level(logging.INFO, logger="parked")
    return lambda: [record.getMessage().partition(" ")[0] for record in caplog.records]


@pytest.fixture
def durable() -> Iterator[Postgres]:
    """A server of one test's own, which writes to the disk as it would for anybody."""
    with running(is_durable=True) as server:
        server.run("CREATE DATABASE ledger")
        yield server


ONCE = ["ledger_away", "ledger_back"]


def accept(job_id: str, owner: int | None = None) -> op.Accept:
    return op.Accept("p", "", job_id, "m", codec.encode(1), codec.identity(1), start_for=owner)


def end_writers(server: Postgres) -> None:
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'parked'")


# --- connections that end ----------------------------------------------------------------------------------------


def test_connections_that_are_ended_in_mid_write_cost_nothing(postgres, postgres_url, pipeline, said):
    pipeline.at = {calls: lambda: end_writers(postgres) for calls in range(10, JOBS, 10)}

    with open_ledger(postgres_url) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))

    assert said() == []


def test_an_accept_over_a_connection_that_was_ended_while_it_was_idle_is_taken_on(postgres, postgres_url):
    with open_ledger(postgres_url) as ledger:
        assert ledger.owner_id
        end_writers(postgres)

        outcome = parked.Runner(ledger, lambda payload, model: "42").run(parked.Job("a", model="m", payload=1))

    assert outcome.state is State.SUCCEEDED


def test_commits_whose_answers_are_cut_off_happen_once(wire, postgres_url, pipeline, said):
    def swallow() -> None:
        wire.swallow_next_commit = True

    pipeline.at = dict.fromkeys(range(10, JOBS, 10), swallow)

    with open_ledger(wire.url("ledger")) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))

    assert wire.commits_swallowed > 5
    assert said() == []


def test_connections_that_are_cut_at_any_moment_cost_nothing(wire, postgres_url, pipeline, said):
    pipeline.at = dict.fromkeys(range(7, JOBS, 7), wire.cut)

    with open_ledger(wire.url("ledger")) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))

    assert said() == []


# --- servers that end --------------------------------------------------------------------------------------------


def test_a_server_that_is_restarted_is_waited_for(durable, pipeline, said):
    def restart() -> None:
        durable.stop()
        durable.start()

    pipeline.at = {50: restart, 120: restart}

    with open_ledger(durable.url("ledger")) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))

    assert said() in ([], ["ledger_away", "ledger_back"], ["ledger_away", "ledger_back"] * 2)


def test_a_server_that_is_killed_comes_back_with_all_that_was_committed(durable, pipeline):
    def crash() -> None:
        durable.kill()
        durable.start()

    pipeline.at = {50: crash, 120: crash}

    with open_ledger(durable.url("ledger")) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))


def test_a_killed_session_takes_all_others_down_and_nothing_is_lost(durable, pipeline):
    """PostgreSQL restarts itself when one of its processes dies."""

    def kill_writer() -> None:
        with psycopg.connect(durable.url("ledger"), autocommit=True) as connection:
            rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'parked'").fetchall()
            for (pid,) in rows:
                os.kill(pid, signal.SIGKILL)

    pipeline.at = {60: kill_writer}

    with open_ledger(durable.url("ledger")) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))


def test_a_process_whose_registration_was_cut_off_is_one_owner(wire, postgres_url):
    with open_ledger(wire.url("ledger")) as ledger:
        ledger.record(accept("a"))
        wire.swallow_next_commit = True

        owner = ledger.owner_id

        assert wire.commits_swallowed == 1
        with ledger.ask() as reader:
            assert [row.id for row in reader.owners()] == [owner]


def test_jobs_that_a_lost_commit_has_claimed_come_with_their_payloads(wire, postgres_url):
    with open_ledger(wire.url("ledger")) as ledger:
        owner = ledger.owner_id
        ledger.record(accept("a"))
        wire.swallow_next_commit = True

        claimed = ledger.record(op.Claim(None, owner, 3))

        assert wire.commits_swallowed == 1
        assert [(one.row.job_id, one.attempt, codec.decode(one.payload)) for one in claimed.started] == [("a", 1, 1)]


def test_jobs_that_a_lost_commit_may_have_started_are_handed_back(wire, postgres_url, monkeypatch):
    """The server committed, its answer was lost, and it stayed away: whoever asked was told that nothing happened."""
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.5)
    with open_ledger(wire.url("ledger")) as ledger:
        owner = ledger.owner_id
        for n in range(3):
            ledger.record(accept(f"claimed-{n}"))
        wire.swallow_next_commit = wire.is_down_after_that = True

        with pytest.raises(LedgerUnavailable, match="didn't come back to say how it ended"):
            ledger.record(op.Claim(None, owner, 3))
        assert ledger.stalled
        wire.is_down = False
        wait_until(lambda: not ledger.stalled)

        with ledger.ask() as reader:
            assert reader.states() == {("p", State.PENDING): 3}
            assert reader.imbalances(thorough=True) == []


def test_jobs_that_a_lost_commit_did_not_start_stay_as_they_are(wire, postgres_url, monkeypatch):
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.5)
    with open_ledger(wire.url("ledger")) as ledger, open_ledger(postgres_url) as other:
        owner = ledger.owner_id
        row = ledger.record(accept("a")).row
        wire.lose_next_commit = wire.is_down_after_that = True
        with pytest.raises(LedgerUnavailable):
            ledger.record(op.Start(row.id, owner))
        started = other.record(op.Start(row.id, other.owner_id))
        wire.is_down = False
        wait_until(lambda: not ledger.stalled)

        with other.ask() as reader:
            (now,) = reader.jobs_by_key("a", pipeline="p", batch="")
            assert (now.state, now.owner_id) == (State.RUNNING, other.owner_id)
            assert [attempt.ended_at for attempt in reader.attempts(row.id)] == [None]
        answer = op.Answer(row.id, other.owner_id, started.attempt, codec.encode("42"), op.Closing())
        assert other.record(answer).state is State.SUCCEEDED


# --- a server that takes nothing ---------------------------------------------------------------------------------


def test_a_server_without_a_connection_left_is_waited_for_and_said_once(postgres, postgres_url, pipeline, said):
    open_ledger(postgres_url).close()
    postgres.run(
        "DROP ROLE IF EXISTS crowded",
        "CREATE ROLE crowded LOGIN",
        "GRANT USAGE ON SCHEMA parked TO crowded",
        "GRANT ALL ON ALL TABLES IN SCHEMA parked TO crowded",
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA parked TO crowded",
        database="ledger",
    )
    url = postgres.url("ledger", user="crowded")

    def fill() -> None:
        postgres.run("ALTER ROLE crowded CONNECTION LIMIT 0")
        end_writers(postgres)
        with pytest.raises(LedgerUnavailable, match="has no connection left; raise max_connections"):
            open_ledger(url)
        wait_until(lambda: said() == ["ledger_away"])
        postgres.run("ALTER ROLE crowded CONNECTION LIMIT -1")

    pipeline.at = {50: fill}
    try:
        with open_ledger(url) as ledger:
            pipeline.check(ledger, pipeline.run(ledger))
            wait_until(lambda: said() == ONCE)
    finally:
        postgres.run("DROP OWNED BY crowded", "DROP ROLE crowded", database="ledger")


def test_a_statement_timeout_costs_nothing_and_is_said_once(postgres, postgres_url, pipeline, said):
    """Another program holds a lock for longer than the role's statements may take."""
    url = f"{postgres_url}?options=-c%20statement_timeout%3D200"

    def hold_up() -> None:
        lock = psycopg.connect(postgres_url)
        lock.execute("LOCK TABLE parked.counters")
        wait_until(lambda: said() == ["ledger_away"])
        threading.Timer(1.0, lock.close).start()

    pipeline.at = {50: hold_up}
    with open_ledger(url) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))
        wait_until(lambda: said() == ONCE)


@contextmanager
def small_disk() -> Iterator[Path]:
    """A folder on a disk of 24 MB, for whoever PostgreSQL runs as."""
    if os.geteuid() != 0:
        missing("the right to mount a small disk")
    folder = Path(tempfile.mkdtemp(prefix="parked-disk-"))
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], check=False)
        if mounted.returncode != 0:
            missing("the right to mount a small disk")
        try:
            shutil.chown(folder, "postgres")
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    finally:
        folder.rmdir()


def test_a_server_whose_disk_is_full_gets_its_answers_when_there_is_room_again(pipeline, said):
    with small_disk() as disk, running() as server:
        server.run(f"CREATE TABLESPACE small LOCATION '{disk}'", "CREATE DATABASE ledger TABLESPACE small")
        filler = disk / "filler"

        def fill() -> None:
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:  # until there is no room: the server writes, too
                    file.write(bytes(65_536))

        def make_room() -> None:
            try:
                wait_until(lambda: said() == ["ledger_away"])
                large = codec.encode(os.urandom(500_000).hex())
                with pytest.raises(LedgerUnavailable, match="the server's disk is full"):
                    ledger.record(op.Accept("p", "", "new", "m", large, codec.identity(1)))
            finally:
                filler.unlink()

        pipeline.at = {40: fill}
        pipeline.answer = os.urandom(20_000).hex()
        with open_ledger(server.url("ledger")) as ledger, ThreadPoolExecutor(1) as beside:
            made_room = beside.submit(make_room)
            pipeline.check(ledger, pipeline.run(ledger))
            made_room.result(WAIT_S)
            wait_until(lambda: said() == ONCE)


# --- another server ----------------------------------------------------------------------------------------------


def test_a_standby_that_is_promoted_takes_over(pipeline):
    """With synchronous replication what was committed is there, too; of a commit under way nobody knows."""
    with running(is_durable=True) as primary, running(standby_of=primary, is_durable=True) as standby:
        primary.run(
            "CREATE DATABASE ledger", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"
        )
        wait_until(lambda: "sync" in _replication(primary))

        def fail_over() -> None:
            primary.kill()
            standby.promote()

        pipeline.at = {80: fail_over}
        with open_ledger(f"postgresql://test@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/ledger") as ledger:
            pipeline.check(ledger, pipeline.run(ledger))
        primary.start()


def test_of_several_servers_the_one_that_can_be_written_is_found(postgres):
    with running() as primary, running(standby_of=primary) as standby:
        primary.run("CREATE DATABASE ledger")
        open_ledger(primary.url("ledger")).close()
        wait_until(lambda: _has_ledger(standby))
        alone = open_ledger(standby.url("ledger"))
        with open_ledger(f"postgresql://test@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/ledger") as ledger:
            ledger.record(accept("a"))
        both = f"postgresql://test@127.0.0.1:{standby.port},127.0.0.1:{standby.port}/ledger"

        with pytest.raises(LedgerUnavailable, match="can't be written: the server is a standby"):
            alone.record(accept("b"))
        with pytest.raises(LedgerUnavailable, match="none of the servers in its URL is the primary"):
            open_ledger(both)
        with open_ledger(f"{both}?target_session_attrs=any") as looking, looking.ask() as reader:
            assert reader.name
        alone.close()


def _replication(primary: Postgres) -> str:
    with psycopg.connect(primary.url("postgres")) as connection:
        return str(connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall())


def _has_ledger(server: Postgres) -> bool:
    try:
        with psycopg.connect(server.url("ledger")) as connection:
            return bool(connection.execute("SELECT 1 FROM parked.schema_version").fetchall())
    except psycopg.Error:
        return False


# --- a network that is cut, a server that hangs ------------------------------------------------------------------

TCP_OPTIONS = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class Loopback:
    """A network of the calling thread's own, and of all that it starts: there is only loopback, up or down."""

    def __init__(self) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            missing("the right to a network of one's own")
        self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # belongs to this network
        self.set(up=True)

    def set(self, *, up: bool) -> None:
        asked = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(self._control, SIOCGIFFLAGS, asked))
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(self._control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))

    def close(self) -> None:
        self._control.close()


def test_a_network_that_is_cut_for_a_while_costs_nothing_and_is_said_once(pipeline, said):
    def apart() -> None:
        network = Loopback()
        with running(is_durable=True) as server:
            server.run("CREATE DATABASE ledger")

            def cut() -> None:
                network.set(up=False)
                threading.Timer(CUT_S, lambda: network.set(up=True)).start()

            pipeline.at = {80: cut}
            with open_ledger(server.url("ledger") + PATIENCE) as ledger:
                pipeline.check(ledger, pipeline.run(ledger))
                wait_until(lambda: said() == ONCE)
        network.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(apart).result(WAIT_S + CUT_S)


def test_without_a_word_in_the_url_the_kernel_gives_up_a_network_that_is_gone_within_half_a_minute(postgres_url):
    """So a cut of a minute is no different from the one above: what is asked of the kernel is read back from it."""
    server = Server.of(postgres_url)
    for connect in (server.connect, server.connect_to_write):
        with connect() as connection, socket.socket(fileno=os.dup(connection.fileno())) as wire:
            told = {name: wire.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in TCP_OPTIONS}
            # While something waits to be acknowledged, and while an answer is waited for.
            assert 0 < told["TCP_USER_TIMEOUT"] <= 30_000
            assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert told["TCP_KEEPIDLE"] + told["TCP_KEEPINTVL"] * told["TCP_KEEPCNT"] <= 30


def test_a_server_that_stands_still_is_left_and_asked_again(durable, pipeline, said, monkeypatch):
    """Its machine still acknowledges what is sent, so that no timeout of TCP would end the waiting."""
    monkeypatch.setattr(postgres_server, "SILENCE_S", 1.0)

    def go_on(pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def stand_still() -> None:
        with psycopg.connect(durable.url("ledger"), autocommit=True) as connection:
            rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'parked'").fetchall()
        pids = [pid for (pid,) in rows]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        threading.Timer(4.0, go_on, [pids]).start()

    pipeline.at = {80: stand_still}
    with open_ledger(durable.url("ledger")) as ledger:
        pipeline.check(ledger, pipeline.run(ledger))


def test_a_way_to_the_server_that_falls_silent_is_left_and_tried_again(wire, postgres_url, pipeline, said, monkeypatch):
    monkeypatch.setattr(postgres_server, "SILENCE_S", 1.0)

    def fall_silent() -> None:
        wire.fall_silent()
        threading.Timer(3.0, wire.speak_again).start()

    pipeline.at = {80: fall_silent}
    with open_ledger(wire.url("ledger") + "?connect_timeout=2") as ledger:
        pipeline.check(ledger, pipeline.run(ledger))
        wait_until(lambda: said() == ONCE)


def test_a_session_that_the_network_cut_off_does_not_keep_its_locks(postgres_url):
    """The server would notice it after two hours."""
    with Server.of(postgres_url).connect() as connection:
        begin(connection)
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("15s",)
        connection.execute("ROLLBACK")
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)
