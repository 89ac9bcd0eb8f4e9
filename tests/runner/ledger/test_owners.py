"""Who is lost: only who was seen to stand still, or is known to be dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from parked import owners
from parked.errors import LedgerUnavailable, OwnerLost
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.pulse import Pulse
from parked.owners import Watch, dead_here

PATIENCE_S = 20.0
NO_SUCH_PID: dict[str, Any] = {"pid": 2**22 + 1}  # above the kernel's limit


def test_an_owner_is_lost_when_its_beat_stood_still_for_30_seconds_of_watching():
    watch = Watch()

    lost = [watch.look({1: 7, 2: beat}, now=5.0 * beat) for beat in range(7)]

    assert lost == [[], [], [], [], [], [], [1]]


def test_after_a_gap_the_watch_counts_anew():
    watch = Watch()
    watch.look({1: 7}, now=0.0)

    assert watch.look({1: 7}, now=70.0) == []
    assert watch.look({1: 7}, now=84.9) == []
    assert watch.look({1: 7}, now=99.8) == []
    assert watch.look({1: 7}, now=100.0) == [1]


def test_this_process_is_alive_here():
    here = owners.facts("runner")

    assert not dead_here(here, here=here)


def test_an_ended_process_of_this_machine_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    here = owners.facts("runner")
    start = owners._start_and_state(child.pid)[0]
    other = here._replace(pid=child.pid, process_start=start)
    assert not dead_here(other, here=here)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert dead_here(other, here=here), "a zombie runs no more"
    child.communicate()
    assert dead_here(other, here=here)


def test_another_process_with_its_pid_is_not_the_owner():
    here = owners.facts("runner")

    assert dead_here(here._replace(process_start="1"), here=here)


@pytest.mark.parametrize("fact", ["boot_id", "pid_namespace"])
def test_nothing_is_known_of_a_process_elsewhere_even_with_the_same_host_name(fact):
    here = owners.facts("runner")
    elsewhere = here._replace(**NO_SUCH_PID | {fact: "another"})

    assert not dead_here(elsewhere, here=here)


@pytest.mark.parametrize("fact", ["boot_id", "pid_namespace", "process_start"])
def test_where_the_system_tells_nothing_nobody_is_dead_at_once(fact):
    facts: dict[str, Any] = {fact: ""}
    here = owners.facts("runner")._replace(**facts)

    assert not dead_here(here._replace(**NO_SUCH_PID), here=here)


@dataclass
class Now:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watched(url):
    """A ledger whose watch lives on a clock that the test moves."""
    monotonic = Now()
    with open_ledger(url, monotonic=monotonic) as ledger:
        yield ledger, monotonic


def test_the_jobs_of_an_owner_that_stands_still_are_parked_as_orphans(watched, at_desk, caplog):
    ledger, monotonic = watched
    desk = at_desk(ledger)
    owner = desk.owner(boot_id="another machine", host="pod-7")
    calling, between = desk.running(owner), desk.running(owner)
    desk.retried(between, owner)

    for monotonic.now in (0.0, 10.0, 20.0, 29.9):
        ledger.sweep()
    assert desk.now(calling).state is State.RUNNING
    monotonic.now = 30.0
    ledger.sweep()

    assert (desk.now(calling).state, desk.now(calling).error_class) == (State.PARKED, "orphaned:maybe_sent")
    assert (desk.now(between).state, desk.now(between).error_class) == (State.PARKED, "orphaned:not_sent")
    (attempt,) = desk.attempts(calling)
    assert (attempt.interrupted, attempt.owner_id) == (True, owner)
    said = [record for record in caplog.records if record.getMessage().startswith("owner_lost")]
    assert [record.job_ids for record in said] == [[calling.job_id, between.job_id]]
    assert "pod-7" in said[0].getMessage()
    assert desk.imbalances() == []


def test_of_owners_that_are_lost_together_each_is_said_to_have_had_its_own_jobs(watched, at_desk, caplog):
    ledger, monotonic = watched
    desk = at_desk(ledger)
    held = {desk.owner(boot_id="another machine", host=host): host for host in ("pod-1", "pod-2", "pod-3")}
    jobs = {host: [desk.running(owner).job_id for _ in range(n)] for n, (owner, host) in enumerate(held.items())}

    for monotonic.now in (0.0, 10.0, 20.0, 30.0):
        parked = ledger.sweep()

    assert len(parked) == 3
    said = [record for record in caplog.records if record.getMessage().startswith("owner_lost")]
    assert {held[record.owner_id]: record.job_ids for record in said} == jobs
    for record in said:
        assert f"jobs_parked={len(record.job_ids)}" in record.getMessage()


def test_an_owner_that_beats_keeps_its_jobs(watched, at_desk):
    ledger, monotonic = watched
    desk = at_desk(ledger)
    owner = desk.owner(boot_id="another machine")
    row = desk.running(owner)

    for monotonic.now in (0.0, 10.0, 20.0, 30.0, 40.0):
        ledger.record(op.Beat(owner))
        ledger.sweep()

    assert desk.now(row).state is State.RUNNING


def test_an_owner_whose_beat_moved_since_it_was_seen_is_left_alone(desk, ledger):
    owner = desk.owner()
    row = desk.running(owner)
    ledger.record(op.Beat(owner))

    assert ledger.record(op.Lose({owner: 0})) == []
    assert desk.now(row).state is State.RUNNING


def test_an_attempt_that_a_lost_owner_left_open_on_a_job_of_another_is_closed(desk):
    first, second = desk.owner(), desk.owner()
    row = desk.running(first)
    desk.retried(row, first)
    again = desk.start_again(row, first).row
    desk.answer(row, first, attempt=1)
    assert desk.attempts(again)[1].ended_at is None

    parked = desk.lose(first)

    assert parked == []
    assert desk.attempts(again)[1].interrupted
    assert second


def test_who_was_declared_lost_registers_anew(desk, ledger):
    first = ledger.owner_id
    desk.lose(first)

    with pytest.raises(OwnerLost):
        desk.accept(start_for=first)

    assert ledger.owner_id != first


def test_an_owner_that_leaves_in_order_parks_what_it_still_holds(desk, ledger):
    owner = desk.owner()
    row = desk.running(owner)

    (left,) = ledger.record(op.Leave(owner))

    assert (left.id, left.error_class) == (row.id, "orphaned:maybe_sent")
    with ledger.ask() as reader:
        (gone,) = [found for found in reader.owners() if found.id == owner]
    assert gone.ended_at is not None
    assert gone.lost_at is None


def test_closing_a_ledger_leaves_as_an_owner(url):
    with open_ledger(url) as ledger:
        owner = ledger.owner_id

    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert [found.ended_at is not None for found in reader.owners() if found.id == owner] == [True]


def test_who_is_still_registering_when_the_ledger_is_closed_leaves_as_well(url):
    registering, go_on = threading.Event(), threading.Event()

    def clock():
        if threading.current_thread().name == "parked-ledger":
            registering.set()
            go_on.wait(PATIENCE_S)
        return 1_800_000_000.0

    found: list[int] = []
    ledger = open_ledger(url, clock=clock)
    registers = threading.Thread(target=lambda: found.append(ledger.owner_id))
    closes = threading.Thread(target=ledger.close)

    registers.start()
    assert registering.wait(PATIENCE_S)
    closes.start()
    go_on.set()
    for thread in (registers, closes):
        thread.join(PATIENCE_S)

    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert [owner.ended_at for owner in reader.owners() if owner.id == found[0]] == [1_800_000_000.0]


def test_nobody_registers_in_a_ledger_that_is_closed(url):
    with open_ledger(url) as ledger:
        pass

    with pytest.raises(LedgerUnavailable, match="closed"):
        assert ledger.owner_id


def test_the_first_beat_of_an_owner_is_due_at_once_and_then_one_every_five_seconds():
    monotonic = Now()
    pulse = Pulse(monotonic=monotonic)
    assert pulse.wait_s() is None

    pulse.begin(1, owners.facts("runner"))
    assert pulse.wait_s() == 0.0

    pulse.beat(lambda operation: op.Beats(mine=True, owners={}))
    monotonic.now = 3.0
    assert pulse.wait_s() == 2.0


def test_the_writers_beat_does_not_wait_for_a_sweep_that_waits_for_the_writer():
    """A ledger that was locked for longer than a beat: the sweep's beat lies in the queue, and the writer's is due."""
    pulse = Pulse(monotonic=lambda: 0.0)
    pulse.begin(1, owners.facts("sidecar"))
    asked, recorded = threading.Event(), threading.Event()

    def record_by_the_writer(operation):
        asked.set()
        assert recorded.wait(10)
        return op.Beats(mine=True, owners={})

    sweep = threading.Thread(target=pulse.beat, args=[record_by_the_writer])
    sweep.start()
    assert asked.wait(10)
    beaten: list[object] = []

    writer = threading.Thread(target=pulse.beat_if_it_can, args=[beaten.append])
    writer.start()
    writer.join(10)
    hangs = writer.is_alive()
    recorded.set()
    sweep.join(10)

    assert not hangs
    assert beaten == []


def test_a_lease_is_held_by_one_owner_and_free_once_it_is_old_or_its_owner_gone(desk, ledger, wall):
    first, second = desk.owner(), desk.owner()

    def take(owner: int) -> bool:
        taken: bool = ledger.record(op.TakeLease("audit", owner, ttl_s=60.0))
        return taken

    assert take(first)
    assert not take(second)
    wall.now += 30.0
    assert take(first)
    wall.now += 59.0
    assert not take(second)
    wall.now += 1.0
    assert take(second)
    desk.lose(second)
    assert take(first)
    with ledger.ask() as reader:
        assert {task: owner.id for task, owner in reader.leases().items()} == {"audit": first}


def test_owners_are_counted_that_are_alive_or_were_lost_not_long_ago(desk, ledger, wall):
    desk.lose(desk.owner())
    wall.now += 3600.0
    desk.lose(desk.owner())
    desk.owner()
    ledger.record(op.Leave(desk.owner()))

    with ledger.ask() as reader:
        assert reader.owners_counted(since=wall.now - 3600.0) == (1, 2)
        assert reader.owners_counted(since=wall.now - 3599.0) == (1, 1)


def test_a_lease_is_free_when_the_clock_was_set_back_so_far_that_it_would_be_held_for_days(desk, ledger, wall):
    first, second = desk.owner(), desk.owner()

    def take(owner: int) -> bool:
        taken: bool = ledger.record(op.TakeLease("audit", owner, ttl_s=60.0))
        return taken

    assert take(first)
    wall.now -= 60.0
    assert not take(second), "no more than that can come of a clock that is slewed, or of transactions side by side"
    wall.now -= 1.0
    assert take(second)
